"""A cluster to submit to by the command line, as a user does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import command_line
from serried.base import linux
from serried.base.files import Journal

HAS_PBS = all(map(shutil.which, ("qsub", "pbsnodes", "pbsdsh")))
"""Tests run on PBS only where there is one: no package brings it. (Slurm's wrappers have no pbsdsh.)"""


def everywhere(name: str, cases: Mapping[str, Any], on_clusters: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize `place` and `name`: each case on this machine, and those of `on_clusters` on clusters too.

    One of each class is enough there: the contract suite shows that schedulers do the same.
    """
    rows = [pytest.param("local", case, id=f"local-{key}") for key, case in cases.items()]
    for key in on_clusters:
        rows.append(pytest.param("slurm", cases[key], id=f"slurm-{key}", marks=pytest.mark.slurm))
        rows += [pytest.param("pbs", cases[key], id=f"pbs-{key}")] if HAS_PBS else []
    return pytest.mark.parametrize(("place", name), rows, indirect=["place"])


@dataclass(frozen=True)
class Place:
    """A cluster to submit to, and the folder and environment that a user would have there."""

    cluster: str
    project: Path
    environ: Mapping[str, str]
    _directories: dict[str, Path] = field(default_factory=dict)

    def serried(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return command_line.serried(*arguments, directory=self.project, environ=self.environ, timeout=timeout)

    def submit(self, *arguments: str) -> str:
        """Submit and return the run's id."""
        done = self.serried("submit", "--cluster", self.cluster, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        run: str = json.loads(done.stdout)["runs"][0]["id"]
        return run

    def show(self, run: str) -> dict[str, Any]:
        done = self.serried("show", "--json", run)
        assert done.returncode == 0, done.stderr
        shown: dict[str, Any] = json.loads(done.stdout)["runs"][0]
        return shown

    def wait(self, run: str) -> tuple[int, dict[str, Any]]:
        """The exit status of `serried wait`, and what it says of the run."""
        done = self.serried("wait", "--json", "--timeout", "280s", run)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)["runs"][0]

    def why(self, run: str) -> dict[str, Any]:
        done = self.serried("why", "--json", run)
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)["runs"][0]
        return said

    def directory(self, run: str) -> Path:
        if run not in self._directories:
            self._directories[run] = Path(self.show(run)["directory"])
        return self._directories[run]

    def attempt(self, run: str, number: int = 1, task: int | None = None) -> Path:
        """The directory of an attempt."""
        return self.directory(run) / ("" if task is None else f"tasks/{task}") / f"attempts/{number}"

    def log(self, run: str, attempt: int = 1, task: int | None = None) -> str:
        """What rank 0 has printed until now, on the first node."""
        path = self.attempt(run, attempt, task) / "node-0/rank-0.log"
        return path.read_text() if path.exists() else ""

    def ask_to_save(self, run: str, attempt: int = 1, task: int | None = None, reason: str = "limit") -> None:
        """As the scheduler's notice does before the time limit: the ranks save and leave, and the run continues."""
        request = {"t": 0, "request": "stop", "reason": reason, "by": "a test", "save": True}
        Journal(self.attempt(run, attempt, task) / "control.jsonl").append(request)

    def with_environ(self, **more: str) -> Place:
        return Place(self.cluster, self.project, {**self.environ, **more})

    def has_left_queue(self, job: str) -> bool:
        """Whether Slurm has nothing of it any more that runs, could run, or still ends."""
        asked = ["squeue", "-h", "-j", job]
        done = subprocess.run(asked, env=dict(self.environ), capture_output=True, text=True, check=False)
        return not done.stdout.strip() and (done.returncode == 0 or "Invalid job id" in done.stderr)


def environment(tmp_path: Path, extra: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "SCRATCH": str(tmp_path / "scratch"), **extra}


def agents(run: str, role: str) -> list[int]:
    """The pids of this run's agents in that role, `head` or `node`, on all nodes of a lab."""
    found = []
    for pid in linux.other_pids():
        words = command(pid)
        is_agent = any(word.endswith(f"/{run}/agent.pyz".encode()) for word in words) and b"srun" not in words[0]
        if is_agent and role.encode() in words:
            found.append(pid)
    return sorted(found)


def job_script(run: str) -> int:
    """Slurm runs a copy of it, under another name: it is the head's parent."""
    heads = agents(run, "head")  # and what one of them has just forked
    (script,) = {int(linux.stat(pid)[1]) for pid in heads} - set(heads)
    return script


def command(pid: int) -> list[bytes]:
    """The words it was started with; none where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
