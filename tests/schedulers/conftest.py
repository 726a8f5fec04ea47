"""The queue of this machine, in a folder of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from building import a_plan
from serried.base.processes import Process
from serried.schedulers.local.commands import Local
from serried.schedulers.local.jobs import JobFolder
from serried.schema import names


class Machine:
    """This machine's queue, in a folder of its own, and jobs made of bash."""

    def __init__(self, tmp_path, wait_until):
        self.local = Local()
        self.folder = tmp_path / "local"
        self.scratch = tmp_path / "scratch"
        self.wait_until = wait_until
        self.jobs = []

    def plan(self, script, run="k3f9q2", **allocation):
        plan = a_plan(run, root=self.scratch, scheduler="local", **{"nodes": 1, "cpus": 1} | allocation)
        directory = Path(plan.directory)
        directory.mkdir(parents=True)
        (directory / "job.sh").write_text(script)
        return plan._replace(site=plan.site._replace(kill_wait_seconds=60))

    def submit(self, plan):
        job = self.local.submit(self.local.submission(plan, f"{plan.run}-1", os.environ))
        self.jobs.append(job)
        return job

    def one(self, job):
        (found,) = self.local.poll([job]).values()
        return found

    def await_state(self, job, state):
        self.wait_until(lambda: self.one(job).state == state, what=f"{job} to be {state}: {self.one(job)}")
        return self.one(job)

    def await_end(self, job):
        self.wait_until(lambda: all(each.state in names.ENDED for each in self.local.poll([job]).values()))
        return self.local.poll([job])

    def supervisor(self, job):
        return Process(**JobFolder(self.folder, job).about["supervisor"])


@pytest.fixture
def machine(tmp_path, monkeypatch, wait_until):
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setenv("SERRIED_LOCAL_SLOTS", "2")
    monkeypatch.setenv("SERRIED_LOCAL_GPUS", "0,1,2,3")
    made = Machine(tmp_path, wait_until)
    yield made
    made.local.cancel(made.jobs)
    for job in made.jobs:
        wait_until(lambda job=job: not made.supervisor(job).is_alive)
