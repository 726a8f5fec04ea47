"""Measures what runs pay on a cluster: start, checkpoints, staging, the scheduler's answers, all-reduces.

Each bench but that of the scheduler is an ordinary run, submitted and waited for. The programs of the ranks are in
`serried.train.probes`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import config, schedulers, shell
from serried.builds import Observe, silent
from serried.errors import SchedulerUnreachable, SerriedError, SubmissionUncertain, UsageError
from serried.fs.files import read_journal, read_json
from serried.protocol import names
from serried.protocol.events import JournalEvent
from serried.schedulers.interface import Scheduler
from serried.submission.deliver import Prepared, establish, plain_errors, remove
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide
from serried.submission.to_end import FinishedRun, run_to_end

MODULE = "serried.train.probes"
_BLOCK = 1 << 20
QUIET_SECONDS = 60.0
"""How long a cancelled job may stay in the queue."""


def prepare_probe(
    request: Request,
    probe: str,
    options: Mapping[str, Any],
    python: str = "python",
    *,
    keeps_data: bool = False,
    observe: Observe | None = silent,
) -> Prepared:
    """A run of the probe with the resources and the environment of `request`. Raises UsageError."""
    words = (python, "-m", MODULE, probe, json.dumps(dict(options)))
    return _prepare(dataclasses.replace(request, command=words), f"bench-{probe}", keeps_data, observe)


def _prepare(request: Request, name: str, keeps_data: bool, observe: Observe | None) -> Prepared:
    known = config.catalogue(Path.cwd(), os.environ).experiments
    experiment = request.experiment or (known[0] if len(known) == 1 else None)
    asked = dataclasses.replace(request, experiment=experiment, array="off", name=request.name or name)
    asked = asked.with_setting("project.snapshot", value=False).with_setting("limit.restarts", value=0)
    asked = asked.with_setting("track.mode", value="off")
    if not keeps_data:
        asked = asked.with_setting("data.stage", value=asked.overrides.get("data.stage", []))
    decided = decide(asked, Path.cwd(), os.environ)
    plan = dataclasses.replace(decided.plan, notify=None)
    return prepare(plan, decided.resolved, os.environ, observe=observe)


def run_probe(prepared: Prepared, probe: str) -> dict[str, Any]:
    """What rank 0 of the probe has written. Raises RunFailed."""
    done = run_to_end(prepared, here=False)
    done.check()
    value = read_json(done.place.results / f"{probe}.json")
    if value is None:
        raise SerriedError(f"run {done.record.id} has left no results", hint=f"serried logs {done.record.id}")
    return {"run": done.record.id, **value}


# From the command to the first step.


@dataclass(frozen=True)
class LaunchStage:
    name: str
    seconds: float


def run_launch(prepared: Prepared, began: float) -> tuple[str, list[LaunchStage]]:
    """The run, and the time of each stage between `began`, the start of the command, and the slowest first step."""
    accepted: list[float] = []
    done = run_to_end(prepared, here=False, submitted=lambda _: accepted.append(time.time()))
    done.check()
    return done.record.id, stages(began, accepted[0], done)


def stages(began: float, accepted: float, done: FinishedRun) -> list[LaunchStage]:
    """Clocks of nodes may differ: a stage that seems to end before the one before it has 0 s."""
    attempt = done.place.attempt(1)
    events: dict[str, float] = {}
    for entry in read_journal(attempt.events):
        events[str(entry.get("event"))] = float(entry.get("t", 0.0))  # the last node counts
    ranks = [read_json(path) or {} for path in done.place.results.glob("launch-*.json")]
    reached = {
        "submit": accepted,
        "queue and job script": float((read_json(attempt.claim) or {}).get("started", accepted)),
        "agents connected": events.get(JournalEvent.CONNECTED),
        "data staged": events.get(JournalEvent.STARTING_RANKS),
        "ranks started": events.get(JournalEvent.STARTED),
    }
    for name, key in (
        ("first line of Python", "first_line"),
        ("imports", "imports"),
        ("ranks connected", "connection"),
        ("first step", "first_step"),
    ):
        reached[name] = max((float(rank[key]) for rank in ranks if key in rank), default=None)
    found, before = [], began
    for name, at in reached.items():
        if at is not None:
            found.append(LaunchStage(name, max(0.0, at - before)))
            before = max(before, at)
    return found


# Staging.


@dataclass(frozen=True)
class NodeStaging:
    host: str
    files: int
    bytes: int
    seconds: float


@contextmanager
def sample_files(root: Path, count: int, size: int) -> Iterator[Path]:
    """A new folder below `root`, on the shared file system, with `count` files. It is deleted in the end."""
    folder = root / ".serried-bench" / f"stage-{os.getpid()}-{time.time_ns()}"
    block = os.urandom(min(size, _BLOCK))  # a file system that compresses must not win
    try:
        with plain_errors(root):
            for at in range(count):
                place = folder / f"{at // 1000:04d}"
                place.mkdir(parents=True, exist_ok=True)
                with (place / f"{at:07d}").open("wb") as file:
                    for begin in range(0, size, len(block)):
                        file.write(block[: size - begin])
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()


def prepare_stage(request: Request, folder: str, *, observe: Observe | None = silent) -> Prepared:
    """A run of `true` that stages `folder`."""
    asked = dataclasses.replace(request, command=("true",)).with_setting("data.stage", value=[{"from": folder}])
    return _prepare(asked, "bench-stage", False, observe)


def run_stage(prepared: Prepared) -> tuple[str, list[NodeStaging]]:
    done = run_to_end(prepared, here=False)
    done.check()
    attempt = done.place.attempt(1)
    hosts = {
        int(entry["node"]): str(entry["host"])
        for entry in read_journal(attempt.events)
        if entry.get("event") == JournalEvent.CONNECTED
    }
    found = []
    for node, host in sorted(hosts.items()):
        entries = read_journal(attempt.node_events(node))
        staged = (entry for entry in entries if entry.get("event") == JournalEvent.STAGED)
        found += [NodeStaging(host, entry["files"], entry["bytes"], entry["seconds"]) for entry in staged]
    return done.record.id, found


# The scheduler.


@dataclass(frozen=True)
class Latency:
    """Seconds of each command, in each round."""

    submit: list[float]
    query: list[float]
    cancel: list[float]


def prepare_submit(request: Request, *, observe: Observe | None = silent) -> Prepared:
    prepared = _prepare(dataclasses.replace(request, command=("true",)), "bench-submit", False, observe)
    if prepared.plan.site.scheduler == schedulers.LOCAL:
        raise UsageError("this machine has no scheduler", hint="--cluster NAME; `serried clusters` lists them")
    return prepared


@shell.exit_on_signals()
def measure_scheduler(prepared: Prepared, rounds: int) -> Latency:
    """Submit a held job, query its state, and cancel it. No job and no record stay, however this ends."""
    record, plan = establish(prepared)
    scheduler = schedulers.get(plan.site.scheduler)
    command = scheduler.submission(plan, prepared.token, prepared.environment, held=True)
    taken = Latency([], [], [])
    job: str | None = None
    is_open = False
    try:
        for _ in range(rounds):
            is_open = True
            began = time.perf_counter()
            job = scheduler.submit(command)
            taken.submit.append(time.perf_counter() - began)
            began = time.perf_counter()
            scheduler.poll([job])
            taken.query.append(time.perf_counter() - began)
            began = time.perf_counter()
            scheduler.cancel([job])
            taken.cancel.append(time.perf_counter() - began)
            _await_end(scheduler, job)
            job, is_open = None, False
    except SubmissionUncertain as error:
        error.hint = f"if a held job `…-{prepared.token}` is in the queue, cancel it"
        raise
    finally:
        try:
            if is_open:
                _cancel(scheduler, job, prepared.token)
        finally:
            remove(record, plan)
    return taken


def _cancel(scheduler: Scheduler, job: str | None, token: str) -> None:
    """After Ctrl-C, or an answer without an id, the job is only known by its token."""
    with suppress(SerriedError):
        job = job or scheduler.find(token)
    try:
        scheduler.cancel([job] if job else [])
    except SchedulerUnreachable as error:
        error.hint = f"job {job} is held in the queue: cancel it"
        raise


def _await_end(scheduler: Scheduler, job: str) -> None:
    """The next round must not find the job of this one under the same name."""
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        now = scheduler.poll([job]).get(scheduler.split(job))
        if now is None or now.state in names.ENDED:
            return
        time.sleep(0.2)
    raise SerriedError(f"job {job} is still in the queue {QUIET_SECONDS:.0f} s after it was cancelled")


def bus_factor(ranks: int) -> float:
    """Of an all-reduce: bandwidth of the links from that of the algorithm.

    From PERFORMANCE.md of NVIDIA's nccl-tests: each rank sends and receives 2 (n - 1) / n of the data.
    """
    return 2 * (ranks - 1) / ranks
