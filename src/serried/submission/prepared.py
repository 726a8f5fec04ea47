"""All that a submission is, before anything is touched. `--dry-run` prints it."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serried import schedulers, script, shell
from serried.contract.links import Commands, token_of
from serried.contract.links import behind as behind_jobs
from serried.errors import UsageError
from serried.plan import Plan
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
    """One command for each element of the array, where they differ."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """What the scheduler is to start it after, whatever becomes of them."""


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
    unknown = [f"JOB-OF-{after.run}" for after in plan.after if after.job == ""]
    handover = scheduler.submission(plan, token, environment, after=behind_jobs([*jobs, *unknown]))
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
    """The same once the runs that it comes after are `submitted`: by run, their jobs, the first one first."""
    known = [after for after in prepared.plan.after if after.job == ""]
    if not known:
        return prepared
    afters = tuple(
        dataclasses.replace(after, job=submitted[after.run][0]) if after in known else after
        for after in prepared.plan.after
    )
    plan = dataclasses.replace(prepared.plan, after=afters)
    jobs = (*prepared.jobs, *(submitted[after.run][-1] for after in known))
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
