"""One head agent and very many nodes: whether it takes them all under a low limit of open files, and how fast it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import Figure, cpu_seconds, peak_mib, record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from serried.agent.stage_in.node_side import REPORTS_PER_SECOND
from serried.base.files import Journal, read_journal, read_json
from serried.schema.events import JournalEvent, ToNode
from serried.schema.layout import RunDirectory
from serried.schema.plan import Allocation, Data, Limit, Plan, Source, Staged
from serried.submission import script
from stub_scheduler import StubScript, register, site_of

COUNTS = (256, 1024, 4096)
RANKS = 8
SOFT, HARD = 1024, 8192
HOLD_SECONDS = 60
"""The longest interval of samples: each node sends one meanwhile."""
FAIL_SECONDS, STAGE_SECONDS = 5.0, 30.0
PATIENCE = 300.0
NODES = Path(__file__).with_name("many_nodes.py")


def main() -> None:
    seen = {count: (attempt(count, "CANCELLED"), attempt(count, "FAILED", fail_after=FAIL_SECONDS)) for count in COUNTS}
    figures = [figure for count, (stopped, failed) in seen.items() for figure in of(count, stopped, failed)]
    stopped, _ = seen[COUNTS[-1]]
    figures += of_staging(COUNTS[-1])
    figures += [
        Figure(
            f"longest pause between two heartbeats of the head to one of {COUNTS[-1]:,} nodes",
            f"{stopped['longest_gap']:.1f} s",
            "one each 20 s; a head that is silent for 60 s is lost",
            "≤ 30 s",
            stopped["longest_gap"] <= 30,
        ),
        Figure(
            f"the head while {COUNTS[-1]:,} nodes train",
            f"{stopped['cpu']:.1%} of a core",
            "each node sends a heartbeat every 20 s and a sample every 60 s",
            "≤ 5 % of a core",
            stopped["cpu"] <= 0.05,
        ),
        Figure(
            "most memory of that head",
            f"{stopped['memory']:.0f} MiB",
            "each node has sent one sample; a test holds hours of samples to 16 kB for each node",
            "≤ 95 MiB",
            stopped["memory"] <= 95,
        ),
    ]
    record("Many nodes", figures)


def of(count: int, stopped: dict[str, Any], failed: dict[str, Any]) -> list[Figure]:
    """The figures of two attempts with `count` nodes: one that is stopped, and one whose ranks all fail at once."""
    started = [one["last"][ToNode.START_RANKS] - one["began"] for one in (stopped, failed)]
    ended = stopped["last"][ToNode.BYE] - stopped["asked"]
    gone = failed["last"][ToNode.BYE] - failed["failed"]
    what = f"{count:,} nodes x {RANKS} ranks: "
    return [
        Figure(
            f"{what}from first contact, all at once, until the last node may start its ranks",
            f"{max(started):.1f} s",
            f"the head has `ulimit -n` {SOFT}",
            "≤ 10 s",
            max(started) <= 10,
        ),
        Figure(
            f"{what}`serried stop`, until the last agent may exit",
            f"{ended:.1f} s",
            "the head reads requests every 2 s",
            "≤ 5 s",
            ended <= 5,
        ),
        Figure(f"{what}all ranks fail at once, until the last agent may exit", f"{gone:.1f} s", "", "≤ 5 s", gone <= 5),
        Figure(
            f"{what}and from there until the end is recorded",
            f"{failed['recorded'] - failed['last'][ToNode.BYE]:.1f} s",
            "the journal of the attempt has an entry for each failure",
            "≤ 5 s",
            failed["recorded"] - failed["last"][ToNode.BYE] <= 5,
        ),
    ]


def of_staging(count: int) -> list[Figure]:
    seen = attempt(count, "CANCELLED", stage_seconds=STAGE_SECONDS)
    begun = seen["last"][ToNode.STAGE] - seen["last_joined"]
    over = seen["last"][ToNode.START_RANKS] - seen["staged"]
    what = f"{count:,} nodes stage data: "
    return [
        Figure(f"{what}until the last node may begin", f"{begun:.1f} s", "from the last contact", "≤ 5 s", begun <= 5),
        Figure(
            f"{what}from there until the last node may start its ranks",
            f"{over:.1f} s",
            "all nodes have their data at once",
            "≤ 5 s",
            over <= 5,
        ),
        Figure(
            f"{what}the head meanwhile",
            f"{seen['stage_cpu']:.1%} of a core",
            f"nodes send {REPORTS_PER_SECOND} reports a second together",
            "≤ 10 % of a core",
            seen["stage_cpu"] <= 0.1,
        ),
    ]


def attempt(count: int, state: str, *, fail_after: float = 0.0, stage_seconds: float = 0.0) -> dict[str, Any]:
    """A whole attempt, ended by a request or by its ranks; what its nodes have seen, and what it has cost the head."""
    with tempfile.TemporaryDirectory(prefix="serried-nodes-") as place:
        folder = Path(place)
        report = folder / "report.json"
        words = (sys.executable, str(NODES), str(count), str(RANKS), str(report), str(fail_after), str(stage_seconds))
        register("many", StubScript("--hosts ''", lambda _: words))
        run = prepare(folder, count, stages=bool(stage_seconds))
        command = ["prlimit", f"--nofile={SOFT}:{HARD}", "/bin/bash", run.job_script, f"{run.path.name}-1"]
        own = {**os.environ, "TMPDIR": place, "SERRIED_JOB": "1"}
        with (folder / "scheduler.log").open("wb") as log:
            job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own)
            try:
                watched = {} if fail_after else watch(run, job, count, stages=bool(stage_seconds))
                job.wait(PATIENCE)
            finally:
                if job.poll() is None:
                    job.terminate()
        seen = json.loads(report.read_text())
        end = read_json(run.exit) or {}
        accepted = sum(event["event"] == "connected" for event in events(run))
        if seen["lost"] or end.get("state") != state or accepted != count:
            raise SystemExit(f"error: {accepted} accepted, {seen['lost']} lost, {end.get('state')}: {seen}")
        return {**seen, **watched, "recorded": run.exit.stat().st_mtime}


def prepare(folder: Path, count: int, *, stages: bool) -> RunDirectory:
    plan = Plan(
        run="nodes2",
        name="nodes",
        project="nodes",
        experiment="nodes",
        created="2026-11-22T00:00:00Z",
        command=("true",),
        site=site_of("here", "many", str(folder / "root")),
        allocation=Allocation(nodes=count, ranks=RANKS, gpus=0, cpus=1, memory_mb=None, time_seconds=None),
        source=Source(directory=str(folder), snapshot=False),
        limit=Limit(grace_seconds=2),
        data=Data(stage=(Staged("/data/imagenet", "imagenet"),)) if stages else None,
    )
    run = RunDirectory(Path(plan.directory))
    run.path.mkdir(parents=True)
    run.plan.write_text(json.dumps(plan.to_json()))
    run.job_script.write_text(script.render(plan, python=sys.executable))
    run.agent.write_bytes(script.agent().read())
    return run


def events(run: RunDirectory) -> list[dict[str, Any]]:
    return read_journal(run.attempt(1).events)


def watch(run: RunDirectory, job: subprocess.Popen[bytes], count: int, *, stages: bool) -> dict[str, float]:
    """Wait until all ranks run, look at the head for a while, and have the attempt stopped."""
    stage_cpu = 0.0
    if stages:
        await_events(run, job, JournalEvent.STAGING, 1)
        stage_cpu = share_of_core(head_of(run), STAGE_SECONDS / 2)
    await_events(run, job, JournalEvent.STARTED, count)
    pid = head_of(run)
    share = share_of_core(pid, 1 if stages else HOLD_SECONDS)
    memory = peak_mib(pid)
    asked = time.time()
    Journal(run.attempt(1).control).append({"request": "stop", "reason": "user", "by": "benchmark"})
    return {"cpu": share, "stage_cpu": stage_cpu, "memory": memory, "asked": asked}


def await_events(run: RunDirectory, job: subprocess.Popen[bytes], name: str, count: int) -> None:
    until = time.monotonic() + PATIENCE
    while sum(event["event"] == name for event in events(run)) < count:
        if job.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"error: {name} not {count} times: {events(run)[-1:]}")
        time.sleep(0.5)


def share_of_core(pid: int, seconds: float) -> float:
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds


def head_of(run: RunDirectory) -> int:
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except (OSError, NotADirectoryError):
            continue
        if str(run.agent).encode() in words and b"head" in words:
            return int(process.name)
    raise SystemExit("error: the head is not there")


if __name__ == "__main__":
    main()
