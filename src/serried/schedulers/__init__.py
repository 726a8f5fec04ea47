"""Schedulers: what builds their argv and reads their output. Differences between them live here alone.

A plan enters, and a command that submits it leaves; output of commands enters, and jobs, profiles, directives and
occupancy leave. Each scheduler is a folder: `commands` (argv, its part of job.sh, the commands that change or list
jobs), `parse` (their output), `cluster` (partitions, limits, the job around us, occupancy) and `directives` (job
scripts). The modules are imported by name, when a plan needs them; no scheduler imports another.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from serried.base import shell
from serried.base.errors import MissingProgramError, UsageError
from serried.schema import names
from serried.schema.names import OF_LAUNCHERS

if TYPE_CHECKING:
    from serried.schedulers.directives import DirectiveReader
    from serried.schedulers.interface import Scheduler, Script, Traits
    from serried.schedulers.survey import ClusterSurvey, Inside

NAMES = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/commands.py")))
"""Each folder here with a module `commands` is one."""
WITH_DIRECTIVES = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/directives.py")))
"""Those whose job scripts have directives."""
DEFAULT = "slurm"
LOCAL = "local"
"""This machine, for lack of another."""


def get(name: str) -> Scheduler:
    """The scheduler of that name; its modules are imported now, not before."""
    return cast("Scheduler", _module(name, ".commands").SCHEDULER())


def traits(name: str) -> Traits:
    return cast("Traits", _module(name).TRAITS)


def cluster(name: str) -> ClusterSurvey:
    """Its survey of its cluster: facts, the job around us, and how full it is."""
    return cast("ClusterSurvey", _module(name, ".cluster"))


def script(name: str) -> Script:
    return cast("Script", _module(name, ".commands"))


def reader(name: str) -> DirectiveReader:
    """Its reader of job scripts. Raises UsageError for a scheduler without directives."""
    if name not in WITH_DIRECTIVES:
        raise UsageError(f"`{name}` has no directives", hint=f"use one of: {', '.join(WITH_DIRECTIVES)}")
    return cast("DirectiveReader", _module(name, ".directives"))


def of_script(text: str, first: str = DEFAULT) -> str | None:
    """The scheduler whose directives a script has; `first` if it has directives of several, None without any."""
    if "#" not in text:  # all directives are comments, and the readers are large
        return None
    found = [name for name in WITH_DIRECTIVES if reader(name).is_for(text)]
    return next((name for name in (first, DEFAULT, *found) if name in found), None)


def _module(name: str, within: str = "") -> Any:
    if name not in NAMES:
        raise UsageError(f"unknown scheduler: `{name}`", hint=f"use one of: {', '.join(NAMES)}")
    return import_module(f"{__name__}.{name}{within}")


def every() -> Iterator[tuple[str, Traits]]:
    return ((name, traits(name)) for name in NAMES)


def owner(part: str) -> Traits | None:
    """The scheduler that a launcher or a container runtime is a part of; None where it needs none."""
    return next((its for _, its in every() if part in its.parts), None)


def here(environ: Mapping[str, str]) -> str | None:
    """The scheduler to which jobs can be submitted from this machine: wrappers of its commands are no reason."""
    own = sorted(every(), key=lambda entry: entry[1].has_wrappers)
    return next((name for name, its in own if its.is_here(environ)), None)


def unused(environ: Mapping[str, str]) -> str:
    """The schedulers whose commands are here without a cluster, as a clause; empty if there are none."""
    path = environ.get("PATH", os.defpath)
    present = [its.title for _, its in every() if its.command and shutil.which(its.command, path=path)]
    return f"{' and '.join(present)}'s commands are here, but no cluster is configured" if present else ""


def absent(environ: Mapping[str, str]) -> str:
    """Why no job can be submitted from this machine, as a clause."""
    titles = [its.title for _, its in every() if not its.is_this_machine]
    return unused(environ) or f"this machine has neither {' nor '.join(titles)}"


def job_around(environ: Mapping[str, str]) -> Inside | None:
    """The job whose environment `environ` is; None outside of any job. Raises SchedulerUnreachable."""
    variable, _, job = environ.get(names.SCRIPT_JOB, "").partition("=")
    if names.STAND_INS in environ and environ.get(variable) == job:  # the variables of a job script without its job
        return None
    name = next((name for name, its in every() if its.is_around(environ)), None)
    return cluster(name).inside(environ) if name else None


def selectors() -> tuple[str, ...]:
    return tuple(name for _, its in every() for name in its.dialect.selectors)


def prefixes() -> tuple[str, ...]:
    """How variables of any scheduler's jobs and commands begin."""
    return (*OF_LAUNCHERS, *(prefix for _, its in every() for prefix in its.dialect.prefixes))


def scrub(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without the variables of the job, of any scheduler, that this process may run in."""
    return names.scrub(environment, prefixes(), selectors())


def missing_command(name: str, program: str) -> MissingProgramError:
    missing = shell.missing_program(program)
    hint = f"{traits(name).title} provides it: try a login node of the cluster, or a login shell, `bash -l`"
    return missing if program in shell.PACKAGES else MissingProgramError(missing.message, hint=hint)
