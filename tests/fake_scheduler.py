"""A scheduler in memory that counts what it is asked: for tests of readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serried.base.errors import SchedulerUnreachable
from serried.schedulers.interface import Job, SubmitCommand
from serried.schedulers.slurm.commands import Slurm
from serried.schema.plan import Plan
from serried.schema.reasons import Reason
from serried.schema.successor_commands import Commands


class FakeScheduler:
    name = "slurm"

    def __init__(self, *jobs: Job) -> None:
        self.jobs = {(job.id, job.task): job for job in jobs}
        self.polls: list[tuple[str, ...]] = []
        self.cancelled: list[str] = []
        self.answers = True
        self.since: float | None = None

    def __call__(self, name: str) -> FakeScheduler:
        """As `scheduler_for`."""
        assert name == self.name
        return self

    def tell(self, job: Job) -> None:
        self.jobs[job.id, job.task] = job

    @property
    def calls(self) -> Mapping[str, int]:
        return {"poll": len(self.polls)}

    def submission(
        self,
        plan: Plan,
        token: str,
        environment: Mapping[str, str],
        *,
        after: str = "",
        task: str = "",
        held: bool = False,  # noqa: ARG002 - readers hold nothing
    ) -> SubmitCommand:
        return SubmitCommand((plan.run, token, after, task), environment)

    def commands(self, plan: Plan, environment: Mapping[str, str]) -> Commands:
        raise SchedulerUnreachable(f"readers submit nothing: {plan.run}, {len(environment)}")

    def submit(self, submission: SubmitCommand) -> str:
        raise SchedulerUnreachable(f"readers submit nothing: {submission.argv}")

    def find(self, token: str, since: float | None = None) -> str | None:
        raise SchedulerUnreachable(f"readers reconcile nothing: {token}, {since}")

    def poll(self, ids: Sequence[str], since: float | None = None) -> Mapping[tuple[str, int | None], Job]:
        self.polls.append(tuple(ids))
        self.since = since
        if not self.answers:
            raise SchedulerUnreachable("slurm does not answer")
        return {key: job for key, job in self.jobs.items() if job.id in ids or f"{job.id}_{job.task}" in ids}

    def poll_others(self, users: Sequence[str]) -> Mapping[tuple[str, int | None], Job]:
        self.polls.append(tuple(users))
        if not self.answers:
            raise SchedulerUnreachable("slurm does not answer")
        return self.jobs

    def split(self, job: str) -> tuple[str, int | None]:
        return Slurm().split(job)

    def cancel(self, ids: Sequence[str]) -> None:
        if not self.answers:
            raise SchedulerUnreachable("slurm does not answer")
        self.cancelled += ids

    def explain(self, reason: str) -> str:
        return f"it waits because of {reason}"

    def classify(self, reason: str) -> Reason | None:
        return Slurm().classify(reason)
