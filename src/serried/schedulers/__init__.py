"""Schedulers: what builds their argv and reads their output. Differences between them live here alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from serried.errors import UsageError

if TYPE_CHECKING:
    from serried.schedulers.interface import Scheduler, Script, Traits
    from serried.schedulers.survey import Inside, SiteSurvey

NAMES = ("slurm", "pbs", "local")
"""In the order in which they are looked for: where Slurm is, `qsub` may be its own wrapper."""
DEFAULT = "slurm"
LOCAL = "local"
"""This machine, which is there where no other is."""


def get(name: str) -> Scheduler:
    """The scheduler of that name; its modules are imported now, not before."""
    return cast("Scheduler", _module(name, ".scheduler").SCHEDULER())


def traits(name: str) -> Traits:
    return cast("Traits", _module(name).TRAITS)


def site(name: str) -> SiteSurvey:
    """Its survey of its cluster."""
    return cast("SiteSurvey", _module(name, ".site"))


def script(name: str) -> Script:
    """Its part of job.sh."""
    return cast("Script", _module(name, ".options"))


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
    """The scheduler to which jobs can be submitted from this machine."""
    return next((name for name, its in every() if its.is_here(environ)), None)


def job_around(environ: Mapping[str, str]) -> Inside | None:
    """The job whose environment `environ` is; None outside of any job. Raises SchedulerUnreachable."""
    name = next((name for name, its in every() if its.is_around(environ)), None)
    return site(name).inside(environ) if name else None
