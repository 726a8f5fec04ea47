"""One run on which a fault is injected: its folder, its program, its processes, and what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from place import Place, command
from serried import processes
from serried.contract import names
from serried.lab import Lab
from serried.processes import Process

RANKS = 2
LONGEST_SECONDS = 150
"""For a rank to wait until it may end, should nobody say so."""
PATIENCE_SECONDS = 900.0
"""For a final state, when the fault is over: job.sh and `finish` try for five minutes each to write it down."""

PROGRAM = """\
import os, pathlib, sys, time
proofs, rank, attempt = pathlib.Path(sys.argv[1]), os.environ["RANK"], os.environ["SERRIED_ATTEMPT"]
(proofs / f"began-{attempt}-{rank}-{os.getpid()}").touch()
# Far enough for a further attempt, where one is allowed.
pathlib.Path(os.environ["SERRIED_CHECKPOINT_DIR"], f"step-{attempt}.pt").write_text("saved")
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and not (proofs / "release").exists():
    print("at work", flush=True)
    time.sleep(0.1)
(proofs / f"ended-{attempt}-{rank}-{os.getpid()}").touch()
"""
"""Each execution of a rank leaves a file as it begins, and another as the last thing that it does.

It ends when it is released, so that a fault which is to meet it at work does, on a machine however slow.
"""

Executions = list[tuple[int, int, int]]
"""Attempt, rank and pid of each."""


@dataclass
class Case:
    number: int
    kind: str
    random: Random
    """Its own, so that one case can be run again without the others."""
    folder: Path
    lab: Lab | None
    """None: on this machine."""
    nodes: int
    restarts: int
    time_limit: str = "20m"
    detail: list[str] = field(default_factory=list)
    """What was done, in words, with the seconds since it began."""
    run: str | None = None
    killed: Executions = field(default_factory=list)
    """Ranks that were ended by the fault, and so have not exited with 0."""
    is_hit: bool = False
    """Whether there was something to inject the fault into."""
    cancelled_in: int | None = None
    """The attempt in which it was cancelled while no rank could end by itself; 0 before the first."""
    seen: dict[str, Process] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def proofs(self) -> Path:
        return self.folder / "proofs"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def place(self) -> Place:
        home = self.folder / "home"
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "SCRATCH": str(self.scratch),
            "SERRIED_LOCAL_DIR": str(self.folder / "local"),
            "SERRIED_LOCAL_SLOTS": "8",
            **(self.lab.variables if self.lab else {}),
        }
        return Place("slurm" if self.lab else "local", self.folder / "project", variables)

    def say(self, text: str) -> None:
        self.detail.append(f"{time.monotonic() - self.began:.1f} s: {text}")

    def prepare(self) -> None:
        for name in ("home", "project", "proofs"):
            (self.folder / name).mkdir(parents=True)
        self.scratch.mkdir(exist_ok=True)
        (self.folder / "project/work.py").write_text(PROGRAM, encoding="utf-8")

    def submit(self) -> subprocess.Popen[str]:
        """Start the command that submits it."""
        place = self.place
        flags = ["--nodes", str(self.nodes)] if self.lab else ["--set", f"clusters.local.root={self.scratch}"]
        words = [
            *(sys.executable, "-m", "serried", "submit", "--json", "--cluster", place.cluster, *flags),
            *("--ranks", str(RANKS), "--cpus", "1", "--mem", "100M", "--time", self.time_limit),
            *("--set", f"limit.restarts={self.restarts}", "--set", "limit.grace=3s"),
            *("--", sys.executable, "work.py", str(self.proofs), str(LONGEST_SECONDS)),
        ]
        return subprocess.Popen(
            words,
            cwd=place.project,
            env=dict(place.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def submitted(self, cli: subprocess.Popen[str]) -> None:
        """Wait for that command, and learn the run's id: from the record, where the command said nothing."""
        try:
            err = cli.communicate(timeout=PATIENCE_SECONDS)[1]
        except subprocess.TimeoutExpired:
            cli.kill()
            err = cli.communicate()[1]
            self.say("submit did not come back")
        self._learn_run()
        if cli.returncode:
            self.say(f"submit exited with {cli.returncode}: {' '.join(err.strip().splitlines()[:1])}")

    def _learn_run(self) -> None:
        """From the record, which is there before the command has said anything."""
        records = self.folder / "home/state/serried/runs"
        found = [path.name for path in records.iterdir() if path.name[0] != "."] if records.is_dir() else []
        self.run = next(iter(found), None)

    @property
    def directory(self) -> Path | None:
        """The run directory, where it is there."""
        return next(self.scratch.glob(f"**/{self.run}"), None) if self.run else None

    def executions(self, what: str = "began") -> Executions:
        found = (re.fullmatch(rf"{what}-(\d+)-(\d+)-(\d+)", path.name) for path in self.proofs.iterdir())
        return sorted((int(it[1]), int(it[2]), int(it[3])) for it in found if it)

    def look(self) -> None:
        """Remember which processes it has, by what they are: later they are no longer told apart."""
        if self.run is None:
            self._learn_run()
        if self.run is None:
            return
        for role, pid in self._agents():
            self._see(f"{role}-{pid}" if role == "node" else role, pid)
            if role == "head" and (fields := processes.stat(pid)):
                self._see("job.sh", int(fields[1]))
        for job in (self.folder / "local").glob("jobs/*/job.json"):
            with contextlib.suppress(OSError, ValueError):
                self._see("supervisor", json.loads(job.read_text(encoding="utf-8"))["supervisor"]["pid"])
        for attempt, rank, pid in self.executions():
            self._see(f"rank {attempt} {rank}", pid)

    def _agents(self) -> Iterator[tuple[str, int]]:
        """Role and pid of each, found in one look over all processes: `finish` lives for a moment only."""
        mine = f"/{self.run}/agent.pyz".encode()
        for pid in processes.pids():
            words = command(pid)
            if any(word.endswith(mine) for word in words) and b"srun" not in words[0]:
                yield from ((role, pid) for role in ("head", "node", "finish") if role.encode() in words)

    def _see(self, name: str, pid: int) -> None:
        found = processes.identify(pid)
        if found is not None and pid > 1:
            self.seen[name] = found

    def await_(self, happened: Callable[[], bool], seconds: float = 90.0) -> bool:
        """Whether it happened before the run's time was over; looks at the processes meanwhile."""
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > deadline:
                return False
            self.look()
            time.sleep(0.05)
        self.look()
        return True

    def moment(self, target: str = "", *, holds: bool = False) -> None:
        """Wait for the moment of the fault: while the run, or its process `target`, starts, works or ends.

        Ranks that are at work are released then or after the fault; with `holds`, after it.
        """
        when = self.random.choices(("starts", "works", "ends"), (3, 4, 0 if holds else 3))[0]
        delay = self.random.uniform(0, 0.6 if when == "ends" else 1.0)
        is_released = self.random.random() < 0.5 and not holds
        if when == "starts":
            self.await_(lambda: any(name.startswith(target) for name in self.seen.keys() - {"submit"}))
        else:
            self.await_(lambda: len(self.executions()) >= self.nodes * RANKS)
        if when == "ends" or (when == "works" and is_released and delay > 0.5):
            self.release()
        self.pause(delay)
        if is_released:
            self.release()
        self.say(f"while it {when}")

    def release(self) -> None:
        """Let the ranks end."""
        (self.proofs / "release").touch()

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(0.02)

    def final(self) -> dict[str, Any] | None:
        """How it has ended, as `serried wait` says; None where that does not come."""
        assert self.run is not None
        words = ("wait", "--json", "--timeout", "60s", self.run)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            done = self.place.serried(*words, timeout=PATIENCE_SECONDS)
            with contextlib.suppress(ValueError, LookupError):
                found: dict[str, Any] = json.loads(done.stdout)["runs"][0]
                if found["state"] in names.ENDED:
                    return found
            time.sleep(1)
        self.say(f"wait exited with {done.returncode}: {done.stderr.strip()[-300:]}")
        return None

    def leftovers(self) -> list[Process]:
        """What still runs of it: agents, ranks and what they started, job.sh and the supervisor."""
        if self.run is None:
            return []
        mark = f"{self.run}/"
        found = list(processes.with_environment(lambda it: it.get("SERRIED_MARK", "").startswith(mark)))
        found += filter(None, (processes.identify(pid) for _, pid in self._agents()))
        found += [it for name, it in self.seen.items() if it.is_alive and name in ("job.sh", "supervisor")]
        return sorted(set(found), key=lambda process: process.pid)

    def clean(self) -> None:
        """End what it has left, so that the next case starts with nothing."""
        for process in self.leftovers():
            process.send(signal.SIGKILL)
        if self.lab and self.run:
            with contextlib.suppress(Exception):
                self.lab.run(
                    "bash", "-c", f"squeue -h -o '%A %j' | grep -- '-{self.run}-' | cut -d' ' -f1 | xargs -r scancel"
                )


def describe(process: Process) -> str:
    return f"{process.pid} {b' '.join(command(process.pid))[:200].decode(errors='replace')}"
