"""One suite, three schedulers behind it: this machine, a fake Slurm, and a real one in the lab."""

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
from serried.plan import Limit, Plan
from serried.protocol import names, successor_commands
from serried.schedulers import client
from serried.schedulers.interface import Job, Scheduler


@dataclass
class Bench:
    """A scheduler to try, and jobs made of plain bash."""

    scheduler: Scheduler
    root: Path
    wait_until: Callable
    limit: int
    """Seconds in the shortest time limit that it keeps for long enough."""
    lead: int
    """How many of them are left when it warns."""
    warns: bool = True
    """Whether it tells a job before its limit; where not, the agents' own clock does alone."""
    knows_tasks: bool = True
    """Whether a job can wait for one task of an array."""
    submitted: list[str] = field(default_factory=list)

    def plan(self, script: str, **more) -> Plan:
        """One node, one CPU, `script` as its job.sh. Runs of other tests, in the same lab, have other ids."""
        run = "".join(random.choices("abcdefghjkmnpqrstuvwxyz23456789", k=6))
        sizes = {"nodes": 1, "cpus": 1, "time_seconds": 3600} | more
        plan = a_plan(run, root=self.root, scheduler=self.scheduler.name, **sizes)
        directory = Path(plan.directory)
        directory.mkdir(parents=True)
        (directory / "job.sh").write_text(self._beginning(plan) + script + "\n")
        return replace(
            plan, limit=Limit(lead_seconds=self.lead), site=plan.site._replace(private=str(self.root / "private"))
        )

    def _beginning(self, plan: Plan) -> str:
        """What every job.sh begins with; `task` is its index."""
        fragment = schedulers.script(self.scheduler.name).FRAGMENT
        lines = ["#!/bin/bash", "token=$1", f"cd -- {shlex.quote(plan.directory)}", fragment.cleanup]
        return "\n".join([*lines, *([f"task={fragment.task}"] if plan.array else []), ""])

    def task(self, job: str, index: int) -> str:
        """A task of an array job as the scheduler writes it."""
        return successor_commands.job_of(job, index, schedulers.traits(self.scheduler.name).dialect.task)

    def submit(self, plan: Plan, token: str | None = None) -> str:
        submission = self.scheduler.submission(plan, token or f"{plan.run}-1", os.environ)
        self.submitted.append(self.scheduler.submit(submission))
        return self.submitted[-1]

    def blocked(self, plan: Plan) -> Plan:
        """The plan, made to wait for as long as a test takes."""
        if self.scheduler.name in WAITING:
            return replace(plan, allocation=plan.allocation._replace(extra=WAITING[self.scheduler.name]))
        both_slots = plan.allocation._replace(cpus=2)
        blocker = replace(self.plan("sleep 600"), allocation=both_slots)
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


LIMITS = {"local": (12, 8), "fake": (60, 40), "lab": (60, 1), "pbs": (5, 1)}
"""The limit, and the lead: seconds for a script to begin and hear of it. Slurm warns up to a minute early."""
WAITING = {"slurm": ("--begin=now+1hour",), "pbs": ("-h",)}
"""Options that keep a job from starting."""

BACKENDS = ["local", "fake", pytest.param("lab", marks=pytest.mark.slurm), *(["pbs"] if HAS_PBS else [])]


@pytest.fixture(params=BACKENDS)
def bench(
    request: pytest.FixtureRequest, wait_until: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setattr(client, "SHORTEST_SECONDS", 0.1)
    monkeypatch.setattr(client, "LONGEST_SECONDS", 0.1)
    getattr(_Prepare, request.param)(request)
    name = request.param if request.param in schedulers.NAMES else "slurm"
    made = Bench(schedulers.get(name), tmp_path / "scratch", wait_until, *LIMITS[request.param])
    made.warns = made.knows_tasks = name != "pbs"
    yield made
    made.scheduler.cancel(made.submitted)
    for job in made.submitted:
        made.await_end(job)


class _Prepare:
    @staticmethod
    def local(request: pytest.FixtureRequest) -> None:
        monkeypatch = request.getfixturevalue("monkeypatch")
        monkeypatch.setenv("SERRIED_LOCAL_DIR", str(request.getfixturevalue("tmp_path") / "local"))
        monkeypatch.setenv("SERRIED_LOCAL_SLOTS", "2")

    @staticmethod
    def pbs(request: pytest.FixtureRequest) -> None:
        """Use the PBS that is here."""

    @staticmethod
    def fake(request: pytest.FixtureRequest) -> None:
        request.getfixturevalue("fake_slurm")
        request.getfixturevalue("monkeypatch").setenv("FAKE_SLURM_MINUTE", "12")

    @staticmethod
    def lab(request: pytest.FixtureRequest) -> None:
        request.getfixturevalue("in_lab")
