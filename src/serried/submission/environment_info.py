"""What the environment of an experiment is, for people: where it comes from, whether it is built, what is in it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import inherit
from serried.environments import check, containers, sources, store
from serried.environments.select import choose
from serried.errors import UsageError
from serried.plan import Plan
from serried.records import index
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.records.status import has_ended_by_file
from serried.submission import environment_build


@dataclass(frozen=True)
class Inspected:
    plan: Plan
    """With its environment found, unless that is not built."""
    source: Path | None
    """What it is built from; None where Serried does not build it."""
    ready: bool
    """Whether it is there."""

    def to_json(self) -> dict[str, Any]:
        environment = self.plan.environment
        return {
            "prefix": environment.venv or environment.conda,
            "source": str(self.source) if self.source else None,
            "ready": self.ready,
            "where": environment.build.where if environment.build else None,
            "modules": list(environment.modules),
            "module_purge": environment.module_purge,
            "setup": environment.setup,
            "check": environment.check,
            "container": self.plan.container.image if self.plan.container else None,
        }


def inspect(plan: Plan, environ: Mapping[str, str]) -> Inspected:
    """Builds nothing. Raises UsageError for what is not there."""
    plan = containers.settle(plan, environ)
    wanted = environment_build.wanted(plan, environ)
    prefix = wanted.ready if wanted else None
    if wanted:
        plan = environment_build.with_prefix(plan, str(prefix or wanted.store.expected))
    if not wanted or prefix:
        plan = dataclasses.replace(plan, environment=choose(plan.environment, environ, inside=bool(plan.container)))
    return Inspected(plan, wanted.recipe.source if wanted else None, ready=not wanted or bool(prefix))


def about(plan: Plan, environ: Mapping[str, str]) -> dict[str, str | None]:
    """Which Python is in it, after its check has passed. Raises EnvironmentFailed."""
    variables = inherit.job_environment(plan.environment, environ)
    workdir = Path(plan.source.directory) / plan.source.workdir
    inside = containers.entering(plan)
    check.check(plan.environment, variables, workdir, inside)
    return check.about(plan.environment, variables, workdir, inside)


def unused(plans: list[Plan], elsewhere: list[Plan], environ: Mapping[str, str], project: Path) -> list[Path]:
    """What Serried has built in `project` that is for none of `plans`, nor for a run that has not ended.

    Plans for other clusters keep all that is from a file that only they name: which Python and modules are there
    cannot be seen from here.
    """
    wanted = [environment_build.wanted(plan, environ) for plan in plans]
    kept = {one.ready for one in wanted if one} | set(_in_use())
    spared = _sources(elsewhere, project) - _sources(plans, project)
    return [prefix for prefix, source in store.built(project) if prefix not in kept and source not in spared]


def _sources(plans: list[Plan], project: Path) -> set[str]:
    found = set()
    for build in filter(None, (plan.environment.build for plan in plans)):
        with contextlib.suppress(UsageError):
            found.add(str(sources.find(build, project).path))
    return found


def _in_use() -> Iterator[Path]:
    """Environments of the runs that have not ended, as far as is known."""
    for record in index.records():
        with contextlib.suppress(RecordUnreadable):
            if record.end is None and not has_ended_by_file(Selection(record, None)):
                environment = record.plan.environment
                yield from (Path(prefix) for prefix in (environment.venv, environment.conda) if prefix)


def active(environ: Mapping[str, str]) -> str:
    """What ranks have where nothing is chosen, in words."""
    prefix = inherit.active_prefix(environ)
    return f"{prefix}, active here" if prefix else "the `python` on PATH"
