"""The environment or the image of a plan: located, built here or by a job, and described."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import config, schedulers
from serried.base.errors import UsageError
from serried.base.text import iso
from serried.records import index
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable, new_id
from serried.records.status import has_ended_by_file
from serried.schema.names import COMPLETED
from serried.schema.plan import Environment, Plan
from serried.submission import builds, containers, environments
from serried.submission import environments as environment_recipe
from serried.submission.builds import Builder, Observe, Recipe, Tick
from serried.submission.deliver import assemble, see_through
from serried.submission.environments import choose
from serried.submission.plan import make_plan

COMMAND = ("/bin/bash", "-c", 'exec /bin/bash "$SCRIPT" >>"$LOG" 2>&1')
CPUS = 4
MEMORY_MB = 8 * 1024
SECONDS = 3600
"""Resources of a job that builds, beside a GPU where the profile wants one."""


def recipe(plan: Plan, environ: Mapping[str, str]) -> Recipe | None:
    """How to build the environment of a plan; None if Serried does not build it. Raises UsageError."""
    return environment_recipe.recipe(plan.environment, Path(plan.source.directory), _variables(plan, environ))


def _variables(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of a build: those of the run, without its environment."""
    return environments.job_environment(plan.environment._replace(venv=None, conda=None), environ)


def settle(
    plan: Plan, resolved: config.Resolved, environ: Mapping[str, str], observe: Observe | None
) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the folder of its environment, built now if needed, and notes about it.

    With None for `observe` nothing is built: the folder is then the expected one. Raises EnvironmentFailed.
    """
    wanted = recipe(plan, environ)
    if wanted is None:
        return plan, ()
    prefix = wanted.finished()
    if prefix is None and observe is None:
        note = f"the environment is built first, from {wanted.source}: its content is unknown in this dry run"
        return _with_prefix(plan, wanted.expected), (note,)
    if prefix is None and observe and plan.environment.build:
        build = builder(plan, resolved, environ, plan.environment.build.where, observe)
        prefix = builds.provide(wanted, build, observe)
    return _with_prefix(plan, prefix or wanted.expected), ()


def _with_prefix(plan: Plan, prefix: Path) -> Plan:
    environment = plan.environment
    if environment.build and environment.build.kind == "conda":
        environment = environment._replace(conda=str(prefix))
    else:
        environment = environment._replace(venv=str(prefix))
    return plan._replace(environment=environment)


def builder(plan: Plan, resolved: config.Resolved, environ: Mapping[str, str], where: str, observe: Observe) -> Builder:
    """Builds the environment or image of `plan` on this machine (`here`), or in a `job` or `gpu-job`."""
    if where == "here":
        return builds.here(_variables(plan, environ))
    return _by_job(plan, resolved, environ, where, observe)


def _by_job(plan: Plan, resolved: config.Resolved, environ: Mapping[str, str], where: str, observe: Observe) -> Builder:
    """Builds in a separate run with the account and partition of `plan`. Ctrl-C stops that run."""

    def build(script: Path, log: Path, tick: Tick) -> str:
        settings = _resolved(plan, resolved, where, {"SCRIPT": str(script), "LOG": str(log)})
        job = make_plan(settings, run_id=new_id(), created=iso(time.time()))
        prepared = assemble(job, environments.job_environment(job.environment, environ))

        def report(record: Record) -> None:
            observe(f"run {record.id} builds it; `serried why {record.id}` shows its state")

        status = see_through(prepared, tick, report)
        if status.state == COMPLETED:
            return ""
        return f"run {status.id}: {status.verdict.message or status.state} (`serried logs {status.id}`)"

    return build


def _resolved(plan: Plan, resolved: config.Resolved, where: str, files: Mapping[str, str]) -> config.Resolved:
    """Settings of the run that builds, with the account and the queue of `plan`.

    It locates its `files` by variables, because braces in their names would be placeholders in a command.
    """
    of_run = plan.allocation
    resources = config.Resources(
        nodes=1,
        ranks=1,
        gpus=1 if where == "gpu-job" else 0,
        gpu_type=of_run.gpu_type if where == "gpu-job" else None,
        cpus=min(CPUS, resolved.cluster.cpus_per_node or CPUS),
        mem_per_node=MEMORY_MB,
        time=SECONDS,
        **{name: getattr(of_run, name) for name in ("account", "partition", "qos", "reservation", "constraint")},
        extra=schedulers.script(resolved.cluster.scheduler).required_options(of_run.extra),
    )
    of_ranks = plan.environment
    environment = Environment(
        env={**of_ranks.env, **files},
        secrets=of_ranks.secrets,
        env_file=of_ranks.env_file,
        inherit=of_ranks.inherit,
        env_file_path=of_ranks.env_file_path,
        check="",
    )
    request = config.EnvironmentRequest(planned=environment)
    return dataclasses.replace(
        resolved,
        project=dataclasses.replace(resolved.project, snapshot=False),
        experiment=config.Experiment("environment", COMMAND, resources=resources, environment=request),
        warnings=(),
    )


@dataclass(frozen=True)
class Inspected:
    plan: Plan
    """With the path of its environment, unless that is not built."""
    source: str | None
    """The file that it is built from; None if Serried does not build it."""
    ready: bool

    def to_json(self) -> dict[str, Any]:
        environment = self.plan.environment
        return {
            "prefix": environment.venv or environment.conda,
            "source": self.source,
            "ready": self.ready,
            "where": environment.build.where if environment.build else None,
            "modules": list(environment.modules),
            "module_purge": environment.module_purge,
            "setup": environment.setup,
            "check": environment.check,
            "container": self.plan.container.image if self.plan.container else None,
        }


def inspect(plan: Plan, environ: Mapping[str, str]) -> Inspected:
    """Builds nothing. Raises UsageError for paths that do not exist."""
    plan = containers.settle(plan, environ)
    wanted = recipe(plan, environ)
    prefix = wanted.finished() if wanted else None
    if wanted:
        plan = _with_prefix(plan, prefix or wanted.expected)
    if not wanted or prefix:
        plan = plan._replace(environment=choose(plan.environment, environ, inside=bool(plan.container)))
    return Inspected(plan, wanted.source if wanted else None, ready=not wanted or bool(prefix))


def about(plan: Plan, environ: Mapping[str, str]) -> dict[str, str | None]:
    """The Python in the environment, after its check has passed. Raises EnvironmentFailed."""
    variables = environments.job_environment(plan.environment, environ)
    workdir = Path(plan.source.directory) / plan.source.workdir
    inside = containers.entering(plan)
    environments.check(plan.environment, variables, workdir, inside)
    return environments.about(plan.environment, variables, workdir, inside)


def unused(plans: list[Plan], elsewhere: list[Plan], environ: Mapping[str, str], project: Path) -> list[Path]:
    """Environments in `project` that neither a plan of `plans` nor an unfinished run uses.

    Plans for other clusters keep every environment from a file that only they name: their Python and modules cannot be
    seen from here.
    """
    wanted = [recipe(plan, environ) for plan in plans]
    kept = {each.finished() for each in wanted if each} | set(_in_use())
    spared = _sources(elsewhere, project) - _sources(plans, project)
    built = builds.built(project / builds.ENVIRONMENTS)
    return [prefix for prefix, source in built if prefix not in kept and source not in spared]


def _sources(plans: list[Plan], project: Path) -> set[str]:
    sources = set()
    for build in filter(None, (plan.environment.build for plan in plans)):
        with contextlib.suppress(UsageError):
            sources.add(str(environment_recipe.source_of(build, project)))
    return sources


def _in_use() -> Iterator[Path]:
    """Environments of unfinished runs, as far as their records can be read."""
    for record in index.records():
        with contextlib.suppress(RecordUnreadable):
            if record.end is None and not has_ended_by_file(Selection(record, None)):
                environment = record.plan.environment
                yield from (Path(prefix) for prefix in (environment.venv, environment.conda) if prefix)


def active(environ: Mapping[str, str]) -> str:
    """The environment of ranks without a setting, in words."""
    prefix = environments.active_prefix(environ)
    return f"{prefix}, active here" if prefix else "the `python` on PATH"
