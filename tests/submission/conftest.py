"""A project, what is asked for in it, and a scheduler in memory that does as it is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from serried import schedulers
from serried.schedulers.interface import Job, SubmitCommand
from serried.schema import names
from serried.schema.plan import Plan
from serried.schema.successor_commands import JOB, TOKEN, Commands
from serried.submission.prepare import Prepared, prepare
from serried.submission.request import Request, decide


class ToldScheduler:
    """Accepts, refuses, or accepts and does not say so."""

    name = "slurm"

    def __init__(self) -> None:
        self.accepts = True
        self.raises: BaseException | None = None
        self.while_asked: Callable[[], None] = lambda: None
        self.jobs: dict[str, str] = {}
        self.raises_for: dict[str, BaseException] = {}
        """By token."""
        self.find_raises: BaseException | None = None
        self.asked: list[tuple[str, ...]] = []
        self.released: list[str] = []
        self.release_raises: BaseException | None = None
        self.cancelled: list[str] = []

    def submission(
        self,
        plan: Plan,
        token: str,
        environment: Mapping[str, str],
        *,
        after: str = "",
        task: str = "",
        held: bool = False,
    ) -> SubmitCommand:
        words = [f"--after={after}"] if after else [f"--array={task}"] if task else []
        words += ["--hold"] if held else []
        return SubmitCommand(("true", f"--job-name={plan.name}-{token}", *words, token), environment)

    def commands(self, plan: Plan, environment: Mapping[str, str]) -> Commands:
        return Commands(self.submission(plan, TOKEN, environment, after=JOB).argv, ("false",), ("false",), {})

    def submit(self, handover: SubmitCommand) -> str:
        self.while_asked()
        self.asked.append(handover.argv)
        if (error := self.raises_for.get(handover.argv[-1])) is not None:
            raise error
        if self.accepts:
            self.jobs[handover.argv[-1]] = str(len(self.jobs) + 1)
        if self.raises is not None:
            raise self.raises
        return self.jobs[handover.argv[-1]]

    def release(self, ids: Sequence[str]) -> None:
        if self.release_raises is not None:
            raise self.release_raises
        self.released += ids

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled += ids

    def split(self, job: str) -> tuple[str, int | None]:
        number, _, task = job.partition("_")
        return number, int(task) if task else None

    def poll(self, ids: Sequence[str], since: float | None = None) -> Mapping[tuple[str, int | None], Job]:  # noqa: ARG002
        return {(job, None): Job(job, None, names.PENDING) for job in ids}

    def find(self, token: str, since: float | None = None) -> str | None:  # noqa: ARG002
        if self.find_raises is not None:
            raise self.find_raises
        return self.jobs.get(token)


@pytest.fixture
def scheduler(monkeypatch):
    told = ToldScheduler()
    monkeypatch.setattr(schedulers, "get", lambda name: told)  # noqa: ARG005
    return told


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    return folder


@pytest.fixture
def root(tmp_path):
    return tmp_path / "scratch"


@pytest.fixture
def ask(project, root, scheduler) -> Callable[..., Prepared]:
    """Prepare a run of `python train.py`, or of what is asked for, for the scheduler that does as it is told."""
    assert scheduler.accepts

    def make(**asked: Any) -> Prepared:
        asked.setdefault("command", ("python", "train.py"))
        overrides = {"clusters.local.root": str(root), **asked.pop("overrides", {})}
        request = Request(cluster="local", overrides=overrides, **asked)
        decided = decide(request, Path(project), os.environ)
        return prepare(decided.plan, decided.resolved, os.environ, decided.each)

    return make


@pytest.fixture
def tree() -> Callable[[Path], dict[str, str]]:
    """Every file below a folder, with its mode."""

    def listed(folder: Path) -> dict[str, str]:
        paths = sorted(path for path in folder.rglob("*"))
        return {str(path.relative_to(folder)): oct(path.lstat().st_mode & 0o7777) for path in paths}

    return listed
