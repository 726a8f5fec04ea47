"""One suite for all schedulers. A new scheduler is a new `Backend` in `BACKENDS`."""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from building import a_plan
from place import HAS_PBS
from serried import schedulers
from serried.schedulers import client
from serried.schedulers.interface import Job, Scheduler
from serried.schema import names, successor_commands
from serried.schema.plan import Limit, Plan


@dataclass(frozen=True)
class Backend:
    """What the suite has to know of one way to run jobs."""

    scheduler: str
    prepare: Callable[[pytest.FixtureRequest], object]
    """Makes the scheduler's commands available to the test."""
    limit: int
    """Seconds in the shortest time limit that leaves a script time to begin and to receive the warning."""
    lead: int = 1
    """Seconds before the limit at which it warns. Slurm warns up to a minute early."""
    waiting: tuple[str, ...] = ()
    """Options that keep a job from starting."""
    listing: str = ""
    """The command by which everybody sees everybody's jobs; none for a fake."""
    warns: bool = True
    """Whether it warns a job before its limit; otherwise only the agents' own clock does."""
    awaits_tasks: bool = True
    """Whether a job can wait for one task of an array."""
    has_arrays: bool = True
    """Whether one job can have several tasks."""


@dataclass
class Bench:
    """A scheduler to try, and jobs made of plain bash."""

    scheduler: Scheduler
    root: Path
    wait_until: Callable
    backend: Backend
    submitted: list[str] = field(default_factory=list)

    def plan(self, script: str, **more) -> Plan:
        """One node, one CPU, `script` as its job.sh. Runs of other tests, in the same lab, have other ids."""
        run = "".join(random.choices("abcdefghjkmnpqrstuvwxyz23456789", k=6))
        sizes = {"nodes": 1, "cpus": 1, "time_seconds": 3600} | more
        plan = a_plan(run, root=self.root, scheduler=self.scheduler.name, **sizes)
        directory = Path(plan.directory)
        directory.mkdir(parents=True)
        fragment = schedulers.script(self.scheduler.name).FRAGMENT
        task = [f"task={fragment.task}"] if plan.array else []
        lines = ["#!/bin/bash", f"cd -- {shlex.quote(plan.directory)}", fragment.cleanup, *task, script, ""]
        (directory / "job.sh").write_text("\n".join(lines))
        site = plan.site._replace(private=str(self.root / "private"))
        return plan._replace(limit=Limit(warn_before_seconds=self.backend.lead), site=site)

    def task(self, job: str, index: int) -> str:
        """A task of an array job as the scheduler writes it."""
        return successor_commands.job_of(job, index, schedulers.traits(self.scheduler.name).dialect.task)

    def submit(self, plan: Plan, token: str | None = None) -> str:
        submission = self.scheduler.submission(plan, token or f"{plan.run}-1", os.environ)
        self.submitted.append(self.scheduler.submit(submission))
        return self.submitted[-1]

    def blocked(self, plan: Plan) -> Plan:
        """The plan, made to wait for as long as a test takes."""
        if self.backend.waiting:
            return plan._replace(allocation=plan.allocation._replace(extra=self.backend.waiting))
        both_slots = plan.allocation._replace(cpus=2)
        blocker = self.plan("sleep 600")._replace(allocation=both_slots)
        self.await_state(self.submit(blocker), names.RUNNING)
        return plan

    def jobs(self, job: str) -> dict[int | None, Job]:
        return {task: each for (_, task), each in self.scheduler.poll([job]).items()}

    def await_state(self, job: str, *states: str, seconds: float = 240) -> dict[int | None, Job]:
        """The job's standing, once all of it is in one of these states."""

        def arrived() -> dict[int | None, Job]:
            now = self.jobs(job)
            return now if now and all(each.state in states for each in now.values()) else {}

        return self.wait_until(arrived, seconds, f"{job} in {states}; it is {self.jobs(job)}")

    def await_end(self, job: str, seconds: float = 240) -> dict[int | None, Job]:
        return self.await_state(job, *names.ENDED, seconds=seconds)


def local(request: pytest.FixtureRequest) -> None:
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(request.getfixturevalue("tmp_path") / "local"))
    monkeypatch.setenv("SERRIED_LOCAL_SLOTS", "2")


def fake_slurm(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("fake_slurm")
    request.getfixturevalue("monkeypatch").setenv("FAKE_SLURM_MINUTE", "12")


SLURM = Backend(
    "slurm", lambda request: request.getfixturevalue("in_lab"), limit=60, waiting=("--begin=now+1hour",),
    listing="scontrol show job --details",
)  # fmt: skip
BACKENDS = {
    "local": Backend("local", local, limit=12, lead=8, listing="ps -eo args"),
    "fake": replace(SLURM, prepare=fake_slurm, lead=40, listing=""),
    "lab": SLURM,
    "pbs": Backend(
        "pbs", lambda _: None, limit=5, waiting=("-h",), listing="qstat -x -f", warns=False, awaits_tasks=False
    ),
}
if not HAS_PBS:
    del BACKENDS["pbs"]


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slurm if name == "lab" else ()) for name in BACKENDS])
def bench(
    request: pytest.FixtureRequest, wait_until: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setattr(client, "SHORTEST_SECONDS", 0.1)
    monkeypatch.setattr(client, "LONGEST_SECONDS", 0.1)
    backend = BACKENDS[request.param]
    backend.prepare(request)
    made = Bench(schedulers.get(backend.scheduler), tmp_path / "scratch", wait_until, backend)
    yield made
    made.scheduler.cancel(made.submitted)
    for job in made.submitted:
        made.await_end(job)


@pytest.fixture
def arrays(bench: Bench) -> None:
    if not bench.backend.has_arrays:
        pytest.skip(f"{bench.scheduler.name} has no array jobs")
