"""One run on which a fault is injected: its folder, its program, its processes, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from faults import moments
from faults.moments import RANKS
from faults.repairing import repair
from faults.seen import LOOK_SECONDS, Executions, Seen
from place import Place
from serried.base import files
from serried.base.processes import Process
from serried.lab import Lab
from serried.schema import names
from serried.schema.layout import AttemptDirectory

LONGEST_SECONDS = 150
"""For a rank to wait until it may end, should nobody say so."""
PATIENCE_SECONDS = 900.0
"""For a final state, when the fault is over: job.sh and `finish` try for five minutes each to write it down."""
POLL_SECONDS = 0.002
"""Between two looks at the condition of a fault: some of the moments that it has to hit are short."""

PROGRAM = """\
import os, pathlib, sys, time
proofs, attempt = pathlib.Path(sys.argv[1]), os.environ["SERRIED_ATTEMPT"]
rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
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
    has_short_limit: bool = False
    """Its time limit comes while it is stopped."""
    program: str = PROGRAM
    arguments: Sequence[str] = ()
    """Those of the program, after the folder of proofs and the longest that it works."""
    memory: str = "100M"
    script: str | None = None
    """A job script that starts the ranks: `PROGRAM` in it stands for their command."""
    nested: Case | None = None
    """The run that this one submits or runs."""
    is_foreground: bool = False
    """It is run by `serried run`, which exits with its status."""
    detail: list[str] = field(default_factory=list)
    """What was done, in words, with the seconds since it began."""
    run: str | None = None
    killed: Executions = field(default_factory=list)
    """Ranks that were ended by the fault, and so have not exited with 0."""
    is_hit: bool = False
    """Whether there was something to inject the fault into."""
    cancelled_in: int | None = None
    """The attempt in which it was cancelled while no rank could end by itself; 0 before the first."""
    is_cancel_asked: bool = False
    """Whether somebody has tried to cancel it."""
    may_be_cancelled: bool = False
    """Whether the scheduler may have done so by itself."""
    is_harmless: bool = False
    """Whether the fault must not change how it ends."""
    states: Sequence[str] = ()
    """Those in which it may end, if not all; what its ranks exit with allows no other."""
    harmed: list[str] = field(default_factory=list)
    """What went wrong beside its own end, such as commands about it while the record of another run was damaged."""
    needs_repair: bool = False
    """Whether a daemon of the scheduler was lost, so that an administrator has to look after the lab."""
    seen: Seen = field(default_factory=Seen)
    _directory: Path | None = None
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
        (self.folder / "project/work.py").write_text(self.program, encoding="utf-8")
        if self.script is not None:
            text = self.script.replace("PROGRAM", shlex.join(self.command))
            (self.folder / "project/train.sh").write_text(text, encoding="utf-8")

    @property
    def command(self) -> Sequence[str]:
        """That of each rank."""
        return (sys.executable, "work.py", str(self.proofs), str(LONGEST_SECONDS), *self.arguments)

    def words(self, *verb: str) -> list[str]:
        """The command that submits or runs it."""
        flags = ["--nodes", str(self.nodes)] if self.lab else ["--set", f"clusters.local.root={self.scratch}"]
        limit = "1m" if self.has_short_limit else "20m"
        return [
            *(sys.executable, "-m", "serried", *verb, "--cluster", self.place.cluster, *flags),
            *("--ranks", str(RANKS), "--cpus", "1", "--mem", self.memory, "--time", limit),
            *("--set", f"limit.restarts={self.restarts}", "--set", "limit.grace=3s"),
            *(["train.sh"] if self.script is not None else ["--", *self.command]),
        ]

    def submit(self) -> subprocess.Popen[str]:
        """Start the command that submits it."""
        place = self.place
        return subprocess.Popen(
            self.words("submit", "--json"),
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
        assert self.record or cli.returncode, "submit exits with 0 and leaves no record"
        if cli.returncode:
            self.say(f"submit exited with {cli.returncode}: {' '.join(err.strip().splitlines()[:1])}")

    @property
    def record(self) -> Path | None:
        """Its record, which is there before the command has said anything; it tells the run's id."""
        records = self.folder / "home/state/serried/runs"
        if self.run is None and records.is_dir():
            self.run = next((path.name for path in records.iterdir() if path.name[0] != "."), None)
        return records / self.run if self.run else None

    @property
    def submission(self) -> dict[str, Any]:
        return (self.record and files.read_json(self.record / "submissions/1.json")) or {}

    @property
    def directory(self) -> Path | None:
        """The run directory, where it is there."""
        if self._directory is None and self.run:
            self._directory = next(self.scratch.glob(f"**/{self.run}"), None)
        return self._directory if self._directory and self._directory.is_dir() else None

    @property
    def attempt(self) -> AttemptDirectory | None:
        """Its first attempt, where it is there. Faults come during this one."""
        directory = self.directory
        return AttemptDirectory(directory / "attempts/1") if directory and (directory / "attempts/1").is_dir() else None

    def executions(self, what: str = "began") -> Executions:
        found = (re.fullmatch(rf"{what}-(\d+)-(\d+)-(\d+)", path.name) for path in self.proofs.iterdir())
        return sorted((int(it[1]), int(it[2]), int(it[3])) for it in found if it)

    def look(self) -> None:
        """Remember which processes it has, by what they are: later they are no longer told apart."""
        if self.record is not None and self.run:
            self.seen.look(self.run, self.folder / "local", self.executions())

    @property
    def is_over(self) -> bool:
        """Whether its job has ended, so that no fault can meet it any more."""
        return self.seen.has_lost("job.sh")

    def await_(self, happened: Callable[[], bool], seconds: float = 90.0, *, looks: bool = True) -> bool:
        """Whether it happened before the run's time was over; looks at the processes meanwhile, which takes time."""
        deadline = time.monotonic() + seconds
        looked = 0.0
        while not happened():
            if time.monotonic() > deadline:
                return False
            if looks and time.monotonic() - looked > LOOK_SECONDS:
                self.look()
                looked = time.monotonic()
            time.sleep(POLL_SECONDS)
        return True

    def moment(self, target: str = "", *, phase: str = "", lasts: str = "", holds: bool = False) -> None:
        """Wait for the moment of the fault: a condition of the run while its process `target` lives, or some time
        between that condition and the next one.

        `phase` is the only one in question, `lasts` what has to last, if it is not `target`. Ranks that are at work
        are released at that moment or after the fault; with `holds`, after it.
        """
        weights = {name: weight for name, weight in moments.WEIGHTS.items() if name != "ends" or not holds}
        chance = self.random.choices(list(weights), list(weights.values()))[0]
        phase = phase or chance
        choice = moments.of(lasts or target, phase)
        chosen = self.random.choice(choice)
        delay = self.random.random() ** 2 * (0.1 if target == "finish" else 1.0)
        is_released = self.random.random() < 0.5 and not holds
        if phase == "ends":
            self.await_(lambda: self.is_at_work() or self.is_over)
            self.look()
            self.release()

        def has_passed() -> bool:
            return self.is_over or (bool(target) and self.seen.has_lost(target))

        looks = phase not in ("ends", "stops")  # all have been seen, but for `finish`, and what follows is quick
        self.await_(
            lambda: has_passed() or (chosen.has_come(self) and (not target or self.seen.has(target))), looks=looks
        )
        following = choice[choice.index(chosen) + 1 :]
        if phase == "works":
            self.pause(delay)
        elif following:
            self.await_(lambda: has_passed() or following[0].has_come(self), delay, looks=looks)
        if phase in ("starts", "works") and is_released:
            self.release()
        self.say(chosen.name)

    def is_at_work(self) -> bool:
        return len(self.executions()) >= self.nodes * RANKS

    @property
    def is_released(self) -> bool:
        return (self.proofs / "release").exists()

    def release(self) -> None:
        """Let the ranks end."""
        (self.proofs / "release").touch()

    def pause(self, seconds: float) -> None:
        """Let the fault last."""
        self.await_(lambda: False, seconds)

    def final(self) -> dict[str, Any] | None:
        """How it has ended, as `serried wait` says; None where that does not come.

        It returns before that where a run never starts, or where nobody knows whether it was submitted.
        """
        assert self.run is not None
        words = ("wait", "--json", "--timeout", "20s" if self.needs_repair else "60s", self.run)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            done = self.place.serried(*words, timeout=PATIENCE_SECONDS)
            with contextlib.suppress(ValueError, LookupError):
                found: dict[str, Any] = json.loads(done.stdout)["runs"][0]
                if found["state"] in names.ENDED:
                    return found
            if time.monotonic() > deadline:
                self.say(f"wait exited with {done.returncode}: {done.stderr.strip()[-300:]}")
                return None
            repair(self)
            self.pause(1)

    @property
    def blamed(self) -> int | None:
        """The rank that is said to have failed first."""
        ending = (self.record and files.read_json(self.record / "exit.json")) or {}
        return (ending.get("first_failure") or {}).get("rank")

    def leftovers(self) -> list[Process]:
        return self.seen.left_of(self.run) if self.run else []

    def clean(self) -> None:
        """End what it has left, so that the next case starts with nothing."""
        if self.nested is not None:
            self.nested.clean()
        for process in self.leftovers():
            process.send(signal.SIGKILL)
        if self.lab and self.run:
            with contextlib.suppress(Exception):
                self.lab.run(
                    "bash", "-c", f"squeue -h -o '%A %j' | grep -- '-{self.run}-' | cut -d' ' -f1 | xargs -r scancel"
                )
        repair(self)
