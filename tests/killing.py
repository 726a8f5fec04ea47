"""A fake Slurm to submit to by the command line, for tests that kill it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

import command_line
from forked import Forked
from serried.base.files import read_journal
from waiting import until

FAKES = Path(__file__).parent / "fakes" / "bin"
HELD = ("--set", 'resources.extra=["--begin=now+1hour"]')


class Cluster:
    """A fake Slurm, and a project to submit from."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = folder / "slurm"
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "serried.toml").write_text(f'[clusters.slurm]\nroot = "{folder}/scratch"\n')
        (self.project / "train.py").write_text("print(1)\n")
        self.set = monkeypatch.setenv
        self.set("PATH", f"{FAKES}:{os.environ['PATH']}")
        self.set("FAKE_SLURM_STATE", str(self.state))
        self.set("SERRIED_SCHEDULER_TIMEOUT", "600")

    def start(self, *flags: str) -> Forked:
        words = ("submit", "-y", "--cluster", "slurm", *HELD, *flags, "--", "true")
        return command_line.start(*words, directory=self.project, environ=os.environ)

    def submit(self, mode: str = "") -> tuple[int, str, str]:
        self.set("FAKE_SLURM_MODE", mode)
        process = self.start()
        out, err = process.communicate(timeout=900)
        return process.returncode, out, err

    def recover(self) -> None:
        self.set("FAKE_SLURM_MODE", "")
        self.set("SERRIED_SCHEDULER_TIMEOUT", "600")

    def calls(self, command: str) -> int:
        return sum(call["command"] == command for call in read_journal(self.state / "calls"))

    @property
    def jobs(self) -> list[str]:
        return sorted(path.stem for path in self.state.glob("*.json"))

    @property
    def live(self) -> list[str]:
        """Jobs of which something has not ended."""
        states = {job: json.loads((self.state / f"{job}.json").read_text())["tasks"].values() for job in self.jobs}
        return [job for job, tasks in states.items() if any(each["state"] == "PENDING" for each in tasks)]

    @property
    def released(self) -> list[list[str]]:
        """The jobs of each call that let some begin."""
        said = [call["argv"] for call in read_journal(self.state / "calls") if call["command"] == "scontrol"]
        return [words[1].split(",") for words in said if words[0] == "release"]

    def end(self) -> None:
        for job in self.jobs:
            (self.state / f"{job}.cancel" / "all").touch()
        until(lambda: not any('"PENDING"' in (self.state / f"{job}.json").read_text() for job in self.jobs))


def kill(process: Forked) -> None:
    """With its sbatch."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=900)
