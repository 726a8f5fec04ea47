"""All that a submission is, before anything is touched. `--dry-run` prints it."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from serried import schedulers, script, shell
from serried.errors import UsageError
from serried.plan import Plan
from serried.protocol.successor_commands import Commands, token_of
from serried.protocol.successor_commands import behind as behind_jobs
from serried.records.record import Record
from serried.schedulers.interface import Submission
from serried.snapshot import Revision, Survey

NO_REVISION = Revision()


@dataclass(frozen=True)
class Prepared:
    plan: Plan
    """Lacks only the archive's path, which follows from its content."""
    token: str
    environment: Mapping[str, str]
    """What the job inherits. Holds the values of secrets: never print more than its names."""
    handover: Submission
    """What the scheduler is given."""
    commands: Commands | None
    """How a job submits the next one; None where each attempt is the same job's."""
    script: str
    """job.sh"""
    survey: Survey | None = None
    """None: it runs in place, or with the code of an earlier run."""
    revision: Revision = NO_REVISION
    code_of: Record | None = None
    """The run whose code it has."""
    each: tuple[tuple[str, ...], ...] = ()
    """One command for each task of the array, where they differ."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """What the scheduler is to start it after, whatever becomes of them."""

    @property
    def handovers(self) -> Iterator[Submission]:
        """For each job, what the scheduler is given; ids that are not known yet are `JOB-OF-TOKEN`."""
        yield self.handover
        for part in range(1, len(self.plan.tokens)):
            before = f"JOB-OF-{self.plan.tokens[part - 1]}"
            yield handover_of(self.plan, self.environment, self.jobs, part, before)


def handover_of(
    plan: Plan, environment: Mapping[str, str], jobs: Sequence[str], part: int = 0, before: str = ""
) -> Submission:
    """What the scheduler is given for a job: the run's, or one of those of an array in parts.

    Those are held until all have been accepted. Where only so many tasks may run at once, each begins after the one
    `before` it has ended, because the scheduler counts each job by itself.
    """
    unknown = [f"JOB-OF-{after.run}" for after in plan.after if after.job == ""]
    turn = [before] if part and plan.array and plan.array.parallel else []
    return schedulers.get(plan.site.scheduler).submission(
        plan.part(part),
        plan.tokens[part],
        environment,
        after=behind_jobs([*jobs, *unknown, *turn], plan.site.dialect.awaited),
        held=plan.is_in_parts,
    )


def assemble(
    plan: Plan,
    environment: Mapping[str, str],
    each: Sequence[Sequence[str]] = (),
    warnings: tuple[str, ...] = (),
    jobs: tuple[str, ...] = (),
) -> Prepared:
    """The script and the command of `plan`, whose job gets `environment`. Looks for nothing, and checks nothing else.

    Raises UsageError where the scheduler cannot be asked that, or is not here.
    """
    token = token_of(plan.run, None, 1)
    scheduler = schedulers.get(plan.site.scheduler)
    handover = handover_of(plan, environment, jobs)
    program = handover.argv[0]
    if "/" not in program and shell.which(program) is None:
        raise shell.missing_program(program)
    return Prepared(
        plan=plan,
        token=token,
        environment=environment,
        handover=handover,
        commands=scheduler.commands(plan, environment) if plan.has_links or plan.after else None,
        script=_script(plan, handover),
        each=tuple(tuple(command) for command in each),
        warnings=(*warnings, *_unreachable_library(plan)),
        jobs=jobs,
    )


def behind(prepared: Prepared, submitted: Mapping[str, Sequence[str]]) -> Prepared:
    """The same once the runs that it comes after are `submitted`: by run, its jobs, the first one first.

    The jobs of an array in parts are one, with commas.
    """
    known = [after for after in prepared.plan.after if after.job == ""]
    if not known:
        return prepared
    afters = tuple(
        after._replace(job=submitted[after.run][0]) if after in known else after for after in prepared.plan.after
    )
    plan = dataclasses.replace(prepared.plan, after=afters)
    jobs = (*prepared.jobs, *(job for after in known for job in submitted[after.run][-1].split(",")))
    made = assemble(plan, prepared.environment, prepared.each, (), jobs)
    return dataclasses.replace(
        prepared, plan=plan, jobs=jobs, handover=made.handover, commands=made.commands, script=made.script
    )


def _script(plan: Plan, handover: Submission) -> str:
    try:
        return script.render(plan, python=sys.executable, command=handover.argv)
    except ValueError as error:
        raise UsageError(
            f"neither a scheduler nor a script can carry {error}",
            hint="look at `root`, the folder's own path, `resources.comment` and `resources.extra`",
        ) from error


def _unreachable_library(plan: Plan) -> tuple[str, ...]:
    if os.pathsep not in plan.directory:
        return ()
    return (f"ranks cannot import `serried.train` from `{plan.site.root}`: PYTHONPATH cannot name a path with a `:`",)
