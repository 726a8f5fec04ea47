"""Attempts with spare nodes into whose recovery faults are injected, and an oracle that judges how they end."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from serried.base import files, linux, processes
from serried.base.files import Journal, read_journal
from serried.schema import checkpoints
from serried.schema.plan import Allocation, Data, Limit, Plan, Source
from serried.submission import script
from stub_scheduler import StubScript, register, site_of

STEPS, EACH = 10, 3
PROGRAM = Path(__file__).with_name("faults") / "counts.py"
BOUND_SECONDS, AFTER_SECONDS, HEAR_SECONDS = 100.0, 12.0, 3.0
"""For an attempt, for what may run after it, and from a request until its effect is seen."""
TRY_SECONDS = 3.0
SECONDS = {
    "head.head.CONNECT_SECONDS": 30.0,
    "head.head.CONTROL_SECONDS": 0.3,
    "head.head.CHECK_SECONDS": 0.5,
    "head.head.SILENT_NODE_SECONDS": 24.0,
    "head.head.REPLACED_SECONDS": 12.0,
    "head.head.REPLACED_BEATS": 0,
    "head.head.WRITE_SECONDS": 5.0,
    "head.rounds.PAUSE_SECONDS": (0.0, 0.4, 0.8),
    "node.SILENT_HEAD_SECONDS": 24.0,
    "node.ABANDONED_SECONDS": 6.0,
    "finish.RETRY_SECONDS": 5.0,
    "finish.STRAGGLER_SECONDS": 3.0,
}
"""In place of the agents' own: the faults are the same, and an attempt takes seconds."""
CODE = {
    "attempt": "\nHEARTBEAT_SECONDS = 0.5\n",
    "ranks.ranks": "\nlinux.OutOfMemory.is_counted = True\nlinux.OutOfMemory.has_occurred = lambda _: {}\n",
}
SHAPES = ((2, 1, 1), (2, 2, 1), (3, 1, 1), (2, 1, 2), (2, 1, 0))
"""Nodes, ranks of each, spare nodes."""
RANKS = ("rank killed", "rank crashed", "rank exits 1", "rank exits 137")
AGENTS = ("agent killed", "agent hung", "agent paused")
SPARES = ("spare killed", "spare hung")
ENDS = ("cancelled", "cancelled on a node", "stopped by the user", "warned of the limit")
SUPERVISORS = ("head killed", "job.sh killed", "first agent killed")
STORAGE = ("checkpoint torn", "disk full", "stage-out killed")
KINDS = (*RANKS, *AGENTS, *SPARES, *ENDS, *SUPERVISORS, *STORAGE)
PASSING = ("rank killed", "rank crashed", "rank exits 137", *AGENTS, *SPARES, "checkpoint torn", "stage-out killed")
"""What costs no run, as long as nodes are left and nothing fails twice."""
FINAL = ("cancelled", "cancelled on a node", "stopped by the user", "warned of the limit", *SUPERVISORS)
"""No round follows."""
LONGEST = {"begin": 1.6, "change": 1.2, "round": 0.8}


class Fault(NamedTuple):
    kind: str
    moment: str
    """`step`: as a rank takes step `value`. Else `value` seconds after the attempt `begin`s, after ranks are told to
    end (`change`), or after a `round` has begun."""
    value: float
    number: int
    """Chooses the rank or the node."""
    lasts: float


class Case(NamedTuple):
    number: int
    shape: tuple[int, int, int]
    faults: tuple[Fault, ...]


class Injected(NamedTuple):
    fault: Fault
    t: float
    rank: int = -1
    node: int = -1
    until: float = 0.0
    """When a process that was stopped continues."""
    step: int = -1

    @property
    def host(self) -> str:
        return f"fake{self.node + 1}"


def cases(seed: int) -> Iterator[Case]:
    """The same for the same seed. Each kind is first as often as any other."""
    draw = random.Random(seed)
    for number in range(1 << 30):
        first = Fault(KINDS[number % len(KINDS)], *moment(draw, ("step", "step", "step", "begin")))
        faults = [first]
        if draw.random() < 0.75:
            trigger = Fault(draw.choice(("rank killed", "agent killed")), *moment(draw, ("step",)))
            later = moment(draw, ("change", "change", "round", "round", "step"))
            if draw.random() < 0.6:  # in the middle of what another has caused
                faults = [trigger, Fault(first.kind, *later)]
            else:
                faults.append(Fault(draw.choice(KINDS), *later))
        needs_spare = {"agent killed", "agent hung", *SPARES} & {fault.kind for fault in faults}
        yield Case(number, draw.choice(SHAPES[:-1] if needs_spare else SHAPES), tuple(faults))


def moment(draw: random.Random, moments: tuple[str, ...]) -> tuple[str, float, int, float]:
    name = draw.choice(moments)
    value = draw.randint(1, STEPS - 3) if name == "step" else draw.uniform(0, LONGEST[name])
    return name, round(value, 2), draw.randrange(12), round(draw.uniform(13, 18), 1)


class Seen(NamedTuple):
    injected: list[Injected]
    events: list[dict[str, Any]]
    marks: list[dict[str, Any]]
    end: dict[str, Any] | None
    ended: float | None
    """When job.sh ended; None if it did not in time."""
    left: list[int]
    run: Path
    results: list[str]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.events if entry["event"] == event]


class Injector:
    def __init__(self, case: Case, run: Any, marks: Path) -> None:
        self.case, self.run, self._marks, self.began = case, run, marks, time.time()
        self._waiting, self.injected, self._stopped = list(case.faults), list[Injected](), dict[int, float]()
        self._filled: dict[Path, float] = {}
        self._due: dict[Fault, float] = {}
        """Since when, of those that had nothing to be injected into."""

    def poll(self) -> None:
        now, events = time.time(), self.run.events()
        for pid, until in list(self._stopped.items()):
            if now >= until:
                send(pid, signal.SIGCONT)
                del self._stopped[pid]
        for path, until in list(self._filled.items()):
            if now >= until:
                path.unlink()
                del self._filled[path]
        for fault in list(self._waiting):
            if self._is_due(fault, events, now):
                done = self._inject(fault)
                if done or now > self._due.setdefault(fault, now) + TRY_SECONDS:
                    self._waiting.remove(fault)
                    self.injected += [done] if done else []
        self._hold()

    def _hold(self) -> None:
        """Ranks wait before a fault, which would else come too late on a busy machine."""
        at = next((fault for fault in self._waiting if fault.moment in {"step", "round"}), None)
        text = "999 0"
        if at:
            text = "2 0" if at.moment == "round" else f"{1 + (at is not self.case.faults[0])} {at.value:.0f}"
        files.write_text(self._marks.with_name("hold"), text)

    @property
    def is_idle(self) -> bool:
        return not self._stopped

    def _is_due(self, fault: Fault, events: list[dict[str, Any]], now: float) -> bool:
        if fault.moment == "begin":
            return now - self.began >= fault.value
        if fault.moment == "step":
            later = fault is not self.case.faults[0]
            taken = [it for it in self.marks if it["what"] in ("step", "held")]
            return any(it["step"] >= fault.value and it["round"] > later for it in taken)
        awaited = {"change": "stopping", "round": "round"}[fault.moment]
        return any(entry["event"] == awaited and now >= entry["t"] + fault.value for entry in events)

    @property
    def marks(self) -> list[dict[str, Any]]:
        return read_journal(self._marks)

    def _inject(self, fault: Fault) -> Injected | None:
        """None where there is nothing left to inject it into."""
        done = Injected(fault, time.time())
        if fault.kind in RANKS:
            return self._into_rank(fault, done)
        if fault.kind in (*AGENTS, *SPARES, "cancelled on a node", "first agent killed", "stage-out killed"):
            return self._into_node(fault, done)
        return self._into_attempt(fault, done)

    def _into_rank(self, fault: Fault, done: Injected) -> Injected | None:
        rank = fault.number % (self.case.shape[0] * self.case.shape[1])
        begun = [mark for mark in self.marks if (mark["what"], mark["rank"]) == ("begin", rank)]
        if not begun or not Path(f"/proc/{begun[-1]['pid']}").exists():
            return None
        done = done._replace(rank=rank, node=begun[-1]["node"])
        if fault.kind.startswith("rank exits"):
            self._marks.with_name(f"order-{begun[-1]['pid']}").write_text(fault.kind.split()[-1])
            return done
        number = signal.SIGKILL if fault.kind == "rank killed" else signal.SIGSEGV
        return done if send(begun[-1]["pid"], number) else None

    def _into_node(self, fault: Fault, done: Injected) -> Injected | None:
        nodes, _, spares = self.case.shape
        places = next((it["nodes"] for it in reversed(self.run.events("go")) if "nodes" in it), [*range(nodes)])
        chosen = places[1:] if fault.kind in AGENTS else places
        if fault.kind in SPARES:
            chosen = [node for node in range(nodes + spares) if node not in places]
        elif fault.kind == "first agent killed":
            chosen = [0]
        if not chosen:
            return None
        node = chosen[fault.number % len(chosen)]
        pid = self.run.pid_of("stage-out" if "stage" in fault.kind else "node", FAKE_NODE=str(node))
        done = done._replace(node=node)
        number = signal.SIGTERM if "cancelled" in fault.kind else signal.SIGKILL
        if pid and fault.kind.endswith(("hung", "paused")):
            done = done._replace(until=done.t + (fault.lasts if "hung" in fault.kind else fault.lasts / 12))
            self._stopped[pid], number = done.until, signal.SIGSTOP
        return done if pid and send(pid, number) else None

    def _into_attempt(self, fault: Fault, done: Injected) -> Injected | None:
        run = self.run
        if fault.kind == "disk full":
            filler = run.directory.path.parent / "filler"
            with contextlib.suppress(OSError), filler.open("wb") as file:
                file.write(bytes(64 << 20))
            self._filled[filler] = done.t + fault.lasts / 6
            return done._replace(until=self._filled[filler])
        if fault.kind == "checkpoint torn":
            newest = checkpoints.newest(run.place.checkpoints)
            if newest is not None:
                os.truncate(newest / "state.json", 3)
                return done._replace(t=time.time(), step=checkpoints.step_of(newest.name) or 0)
        elif fault.kind == "stopped by the user":
            if run.place.attempt(1).path.exists():
                request = {"t": 0, "request": "stop", "reason": "user", "by": "ada"}
                Journal(run.place.attempt(1).control).append(request)
                return done
        elif run.process.poll() is None and run.events():  # a signal that comes before any handler says nothing
            number = {"cancelled": signal.SIGTERM, "warned of the limit": signal.SIGUSR1}.get(
                fault.kind, signal.SIGKILL
            )
            pid = run.pid_of("head") if fault.kind == "head killed" else run.process.pid
            return done if pid and send(pid, number) else None
        return None

    def finish(self) -> None:
        for pid in self._stopped:
            send(pid, signal.SIGCONT)
        for path in self._filled:
            path.unlink(missing_ok=True)


def send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


@functools.cache
def of_agents() -> Any:
    """The helpers of the tests of agents."""
    spec = importlib.util.spec_from_file_location("of_agents", Path(__file__).with_name("agent") / "conftest.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prepare(case: Case, place: Path) -> Plan:
    tests = of_agents()
    nodes, ranks, spares = case.shape
    launcher = (sys.executable, str(tests.FAKE_LAUNCHER), str(nodes + spares), *(["--no-kill"] if spares else []))
    register("fake", StubScript(f"--hosts '{tests.FAKE_HOSTS}' --node-variable FAKE_NODE", lambda _: launcher))
    (place / "marks").mkdir(parents=True)
    plan = Plan(
        run=tests.new_id(),
        name="recovery",
        project="recovery",
        experiment="recovery",
        created="2026-11-28T00:00:00Z",
        command=(sys.executable, "-I", "-S", str(PROGRAM), str(place / "marks"), str(STEPS), str(EACH)),
        site=site_of("here", "fake", str(place / "root"), python=sys.executable),
        allocation=Allocation(
            nodes=nodes, ranks=ranks, gpus=0, cpus=1, memory_mb=None, time_seconds=None, spare_nodes=spares
        ),
        source=Source(directory=str(place), snapshot=False),
        limit=Limit(grace_seconds=2, rounds=3),
        data=Data(results=("*.txt",)),
    )
    directory = Path(plan.directory)
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(json.dumps(plan.to_json()))
    (directory / "job.sh").write_text(script.render(plan, python=sys.executable))
    (directory / "agent.pyz").write_bytes(quick_agent())
    return plan


@functools.cache
def quick_agent() -> bytes:
    """The agents with `SECONDS` and `CODE`, compiled, because each process of an attempt would compile them anew."""
    tests = of_agents()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "agent.pyz")
        path.write_bytes(tests.packed_agent())
        tests.give(path, SECONDS, CODE)
        with zipfile.ZipFile(path, "a") as packed:
            names = set(packed.namelist())
            for name in sorted(it for it in names if it.endswith(".py") and f"{it}c" not in names):
                source = packed.read(name)
                packed.writestr(f"{name}c", script._pyc(compile(source, name, "exec"), source))
        return path.read_bytes()


def attempt(case: Case, place: Path) -> Seen:
    tests = of_agents()
    is_small = any(fault.kind == "disk full" for fault in case.faults)
    (place / "root").mkdir(parents=True)
    if is_small:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", place / "root"], check=True)
    try:
        plan = prepare(case, place)
        with (place / "log").open("wb") as log:
            own = {**os.environ, "TMPDIR": str(place), "SERRIED_JOB": "1"}
            words = ["/bin/bash", f"{plan.directory}/job.sh", f"{plan.run}-1"]
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own)
        run = tests.Started(plan, process, None)
        injector = Injector(case, run, place / "marks" / "all")
        ended, until = None, time.time() + BOUND_SECONDS
        while time.time() < until and ended is None:
            injector.poll()
            if process.poll() is not None and not (
                any(it.fault.kind == "job.sh killed" for it in injector.injected) and run.pid_of("head")
            ):
                ended = time.time()
            time.sleep(0.06)
        until, left = time.time() + AFTER_SECONDS, marked(plan.run)
        while left and ended and (time.time() < until or not injector.is_idle):
            injector.poll()
            time.sleep(0.3)
            left = marked(plan.run)
        injector.finish()
        results = sorted(path.name for path in run.place.results.glob("*.txt"))
        return Seen(
            injector.injected, run.events(), injector.marks, run.exit, ended, left, Path(plan.directory), results
        )
    finally:
        for pid in marked(plan.run):
            send(pid, signal.SIGCONT)
            send(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        if is_small:
            subprocess.run(["umount", "-l", place / "root"], check=True)


def marked(run: str) -> list[int]:
    """The processes of the run that are left."""
    return [
        pid
        for pid in linux.other_pids()
        if any(value.startswith(f"{run}/") for value in processes.environment(pid).values())
    ]


def verdict(case: Case, seen: Seen) -> list[str]:
    """What is wrong with the attempt: its kind before a colon. Empty for nothing."""
    return [*ending(case, seen), *double_runs(seen), *rounds(seen)]


def kinds_of(seen: Seen) -> set[str]:
    return {it.fault.kind for it in seen.injected}


def ending(case: Case, seen: Seen) -> Iterator[str]:
    if seen.ended is None:
        yield "hang: it did not end"
    elif seen.left:
        yield f"left: {len(seen.left)} processes"
    elif seen.end is None:
        if "job.sh killed" not in kinds_of(seen):  # with its head gone before it, those who read the run decide
            yield "no end: exit.json is missing"
    elif seen.end["state"] == "COMPLETED":
        yield from success(case, seen)
    else:
        said = seen.end["message"] or ""
        if not seen.injected:
            yield f"false failure: {said}"
        elif must_complete(case, seen):
            yield f"lost run: {seen.end['state']}: {said}"
        yield from blame(seen, said)


def success(case: Case, seen: Seen) -> Iterator[str]:
    assert seen.end
    begun, everyone = seen.of("round"), set(range(case.shape[0] * case.shape[1]))
    ended = [it for it in seen.marks if it["what"] == "end"]
    done = {it["rank"] for it in ended if it["round"] == len(begun) + 1 or "disk full" in kinds_of(seen)}
    if done != everyone:
        yield f"false success: only ranks {sorted(done)} ended in round {len(begun) + 1}"
    if len(seen.results) != len(everyone):
        yield f"false success: results {seen.results}"
    if begun and not (seen.end["rounds"] == len(begun) and "recovered" in (seen.end["message"] or "")):
        yield f"untold: {len(begun)} rounds, {seen.end['message']}"


def must_complete(case: Case, seen: Seen) -> bool:
    nodes, _, spares = case.shape
    kinds = kinds_of(seen)
    lost = {it.node for it in seen.injected if it.fault.kind in (*AGENTS[:2], *SPARES)}
    failed = [it.rank for it in seen.injected if it.fault.kind in RANKS]
    hosts = [it.node for it in seen.injected if it.fault.kind in (*RANKS, *AGENTS[:2])]
    started = min((entry["t"] for entry in seen.of("go")), default=float("inf"))
    is_early = any(it.t < started + 0.3 for it in seen.injected)
    return (
        kinds <= set(PASSING)
        and len(lost) <= spares
        and not (lost and not nodes)
        and len(set(failed)) == len(failed)
        and len(set(hosts)) == len(hosts)
        and not is_early
    )


def blame(seen: Seen, said: str) -> Iterator[str]:
    """The end, and each round, must name what was injected."""
    ranks = {it.rank for it in seen.injected}
    hosts = {it.host for it in seen.injected}
    clause = said.partition("; recovered")[0]
    if clause.startswith("no agent answered") and any(host in clause for host in hosts):
        return  # it names those that had not connected yet, too
    wrong = [word for word in re.findall(r"rank (\d+)", clause) if int(word) not in ranks]
    wrong += [word for word in re.findall(r"fake\d+", clause) if word not in hosts and "takes the place" not in clause]
    if seen.end and seen.injected and not any(is_named(it, seen.end["state"], clause) for it in seen.injected):
        yield f"unnamed: {seen.end['state']}: {clause}"
    kinds = kinds_of(seen)
    if wrong and not ({"head killed", "job.sh killed", "disk full"} & kinds):
        yield f"false blame: {clause} [{', '.join(wrong)}]"


def is_named(it: Injected, state: str, clause: str) -> bool:
    """Whether the state, or what is said about it, is that of the fault."""
    kind = it.fault.kind
    if kind in RANKS:
        how = {"rank killed": "signal 9", "rank crashed": "signal 11"}.get(kind, f"status {kind.split()[-1]}")
        return f"rank {it.rank} on {it.host}" in clause and how in clause
    if kind in ENDS:
        return state in (("TIMEOUT", "PREEMPTED") if kind == "warned of the limit" else ("CANCELLED",))
    of_attempt = {"head killed": "the head agent", "job.sh killed": "job.sh", "disk full": ""}
    return of_attempt.get(kind, it.host) in clause


def rounds(seen: Seen) -> Iterator[str]:
    named = {(it.rank, it.host) for it in seen.injected} | {(None, it.host) for it in seen.injected}
    final = [it for it in seen.injected if it.fault.kind in FINAL]
    for entry in seen.of("round"):
        if (entry.get("rank"), entry.get("host", "")) not in named:
            yield f"false blame: round {entry['round']}: {entry['message']}"
        for it in final:
            if entry["t"] > it.t + HEAR_SECONDS:
                yield f"came back: round {entry['round']} {entry['t'] - it.t:.1f} s after {it.fault.kind}"
        yield from resumed(seen, entry)


def resumed(seen: Seen, entry: dict[str, Any]) -> Iterator[str]:
    saved = {it["step"] for it in seen.marks if it["what"] == "saved" and it["t"] < entry["t"] - 0.2}
    torn = {it.step: it.t for it in seen.injected if it.step >= 0}
    whole = saved - {step for step, t in torn.items() if t < entry["t"] + 0.5}
    used = checkpoints.step_of(Path(entry["resume"]).name) if entry.get("resume") else 0
    if max(whole, default=0) > (used or 0):
        yield f"older checkpoint: step {used} in round {entry['round']}, though {max(whole)} was complete"
    if torn.get(used or -1, float("inf")) < entry["t"] - 0.5 and not any(
        it["what"] == "saved" and it["step"] == used and it["t"] > torn[used or -1] for it in seen.marks
    ):
        yield f"torn checkpoint: step {used} in round {entry['round']}"


def double_runs(seen: Seen) -> Iterator[str]:
    """A rank that begins while a process of it runs, or that goes on after the end."""
    stopped = [it for it in seen.injected if it.until and it.fault.kind in (*AGENTS, *SPARES)]

    def is_excused(mark: dict[str, Any]) -> bool:
        """Whether the agent that could have ended the other process was itself stopped, or had just continued."""
        return any(it.node == mark["node"] and it.t <= mark["t"] <= it.until + HEAR_SECONDS for it in stopped)

    for at, mark in enumerate(seen.marks):
        later = seen.marks[at + 1 :]
        if mark["what"] != "begin":
            if seen.ended and mark["t"] > seen.ended + 0.5 and not is_excused(mark):
                yield f"ran on: rank {mark['rank']} {mark['t'] - seen.ended:.1f} s after the end"
            continue
        for other in later:
            is_other = other["rank"] == mark["rank"] and other["what"] == "begin"
            if is_other and any(
                it["pid"] == mark["pid"] and it["t"] > other["t"] and not is_excused(it) for it in later
            ):
                yield f"ran twice: rank {mark['rank']} in rounds {mark['round']} and {other['round']}"
