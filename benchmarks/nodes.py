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

from measure import Figure, record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from serried import script
from serried.fs.files import Journal, read_journal, read_json
from serried.plan import Allocation, Limit, Plan, Source
from serried.protocol.layout import RunDirectory
from stub_scheduler import StubScript, register, site_of

COUNT = 1100
SOFT, HARD = 1024, 4096
HOLD_SECONDS = 30
FAIL_SECONDS = 5.0
PATIENCE = 300.0
NODES = Path(__file__).with_name("many_nodes.py")


def main() -> None:
    stopped, failed = attempt(COUNT, "CANCELLED"), attempt(COUNT, "FAILED", fail_after=FAIL_SECONDS)
    joined = max(each["last_joined"] - each["began"] for each in (stopped, failed))
    asked = stopped["last"]["stop"] - stopped["asked"]
    over = failed["last"]["bye"] - failed["failed"]
    figures = [
        Figure(
            f"{COUNT:,} nodes call the head at once, which has `ulimit -n` {SOFT}, until the last is accepted",
            f"{joined:.1f} s",
            "a node that is missing after 120 s fails the launch",
            "≤ 60 s",
            joined <= 60,
        ),
        Figure(
            f"`serried stop`, until the last of {COUNT:,} nodes has received it",
            f"{asked:.1f} s",
            "the head looks every 2 s",
            "≤ 5 s",
            asked <= 5,
        ),
        Figure(
            f"all ranks fail at once, until the last of {COUNT:,} nodes may exit",
            f"{over:.1f} s",
            "",
            "≤ 10 s",
            over <= 10,
        ),
        Figure(
            f"longest pause between two heartbeats of the head to one of {COUNT:,} nodes",
            f"{stopped['longest_gap']:.1f} s",
            "one each 5 s; a head that is silent for 60 s is lost",
            "≤ 10 s",
            stopped["longest_gap"] <= 10,
        ),
        Figure(
            f"the head while {COUNT:,} nodes send a message every 5 s",
            f"{stopped['cpu']:.1%} of a core, {stopped['memory']:.0f} MiB",
            "",
            "≤ 10 % of a core, ≤ 50 MiB",
            stopped["cpu"] <= 0.1 and stopped["memory"] <= 50,
        ),
    ]
    record("Many nodes", figures)


def attempt(count: int, state: str, *, fail_after: float = 0.0) -> dict[str, Any]:
    """A whole attempt, ended by a request or by its ranks; what its nodes have seen, and what it has cost the head."""
    with tempfile.TemporaryDirectory(prefix="serried-nodes-") as place:
        folder = Path(place)
        report = folder / "report.json"
        words = (sys.executable, str(NODES), str(count), str(report), str(fail_after))
        register("many", StubScript("--hosts ''", lambda _: words))
        run = prepare(folder, count)
        command = ["prlimit", f"--nofile={SOFT}:{HARD}", "/bin/bash", run.job_script, f"{run.path.name}-1"]
        own = {**os.environ, "TMPDIR": place, "SERRIED_JOB": "1"}
        with (folder / "scheduler.log").open("wb") as log:
            job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own)
            try:
                watched = {} if fail_after else watch(run, job, count)
                job.wait(PATIENCE)
            finally:
                if job.poll() is None:
                    job.terminate()
        seen = json.loads(report.read_text())
        end = read_json(run.exit) or {}
        accepted = sum(event["event"] == "connected" for event in events(run))
        if seen["lost"] or end.get("state") != state or accepted != count:
            raise SystemExit(f"error: {accepted} accepted, {seen['lost']} lost, {end.get('state')}: {seen}")
        return {**seen, **watched}


def prepare(folder: Path, count: int) -> RunDirectory:
    plan = Plan(
        run="nodes2",
        name="nodes",
        project="nodes",
        experiment="nodes",
        created="2026-11-22T00:00:00Z",
        command=("true",),
        site=site_of("here", "many", str(folder / "root")),
        allocation=Allocation(nodes=count, ranks=1, gpus=0, cpus=1, memory_mb=None, time_seconds=None),
        source=Source(directory=str(folder), snapshot=False),
        limit=Limit(grace_seconds=2),
    )
    run = RunDirectory(Path(plan.directory))
    run.path.mkdir(parents=True)
    run.plan.write_text(json.dumps(plan.to_json()))
    run.job_script.write_text(script.render(plan, python=sys.executable))
    run.agent.write_bytes(script.agent())
    return run


def events(run: RunDirectory) -> list[dict[str, Any]]:
    return read_journal(run.attempt(1).events)


def watch(run: RunDirectory, job: subprocess.Popen[bytes], count: int) -> dict[str, float]:
    """Wait until all ranks run, look at the head for a while, and have the attempt stopped."""
    until = time.monotonic() + PATIENCE
    while sum(event["event"] == "started" for event in events(run)) < count:
        if job.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"error: not all of {count} nodes have started: {events(run)[-1:]}")
        time.sleep(0.5)
    pid = head_of(run)
    before = cpu_seconds(pid)
    time.sleep(HOLD_SECONDS)
    share = (cpu_seconds(pid) - before) / HOLD_SECONDS
    memory = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    asked = time.time()
    Journal(run.attempt(1).control).append({"request": "stop", "reason": "user", "by": "benchmark"})
    return {"cpu": share, "memory": int(memory.split()[1]) / 1024, "asked": asked}


def head_of(run: RunDirectory) -> int:
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except (OSError, NotADirectoryError):
            continue
        if str(run.agent).encode() in words and b"head" in words:
            return int(process.name)
    raise SystemExit("error: the head is not there")


def cpu_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


if __name__ == "__main__":
    main()
