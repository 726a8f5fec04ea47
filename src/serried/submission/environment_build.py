"""The environment that a plan asks Serried to build: looked up, or built, here or by a job, before it is prepared."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

from serried import config, inherit
from serried.environments import building
from serried.environments.building import Builder, Observe, Tick, silent
from serried.environments.recipe import Recipe, recipe
from serried.environments.store import Store
from serried.plan import Plan
from serried.planning import plan as make_plan
from serried.protocol.names import COMPLETED
from serried.protocol.times import iso
from serried.records.record import Record, new_id
from serried.submission.deliver import see_through
from serried.submission.prepared import assemble

COMMAND = ("/bin/bash", "-c", 'exec /bin/bash "$SCRIPT" >>"$LOG" 2>&1')
CPUS = 4
MEMORY_MB = 8 * 1024
SECONDS = 3600
"""What a job that builds an environment asks for, beside a GPU where the profile says so."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    recipe: Recipe
    store: Store
    variables: Mapping[str, str]
    """What the build inherits: as the run does."""

    @property
    def ready(self) -> Path | None:
        """Where it is, if it is whole."""
        return self.store.finished()


def wanted(plan: Plan, environ: Mapping[str, str]) -> Wanted | None:
    """What there is to build for a plan; None where nothing is. Raises UsageError."""
    if plan.environment.build is None:
        return None
    variables = inherit.job_environment(plan.environment._replace(venv=None, conda=None), environ)
    project = Path(plan.source.directory)
    made = recipe(plan.environment, project, variables)
    return Wanted(made, Store(project, made.name), variables) if made else None


def settle(
    plan: Plan, resolved: config.Resolved, environ: Mapping[str, str], observe: Observe | None
) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the environment that it asks for, built now if need be, and what to say about it.

    Where `observe` is None nothing is built: the plan then says about where it would be. Raises EnvironmentFailed.
    """
    asked = wanted(plan, environ)
    if asked is None:
        return plan, ()
    note = ""
    prefix = asked.ready
    if prefix is None and observe is None:
        prefix = asked.store.expected
        note = (
            f"the environment is built first, from {asked.recipe.source}: this dry run does not know yet what is in it"
        )
    elif prefix is None:
        prefix = provide(plan, resolved, asked, environ, observe or silent)
    return with_prefix(plan, str(prefix)), (note,) if note else ()


def with_prefix(plan: Plan, prefix: str) -> Plan:
    """The plan whose environment is built in `prefix`."""
    environment = plan.environment
    if environment.build and environment.build.kind == "conda":
        environment = environment._replace(conda=prefix)
    else:
        environment = environment._replace(venv=prefix)
    return dataclasses.replace(plan, environment=environment)


def provide(plan: Plan, resolved: config.Resolved, asked: Wanted, environ: Mapping[str, str], observe: Observe) -> Path:
    """The folder of the environment, built now if need be. Raises EnvironmentFailed."""
    where = asked.recipe.build.where
    builder = building.here(asked.variables) if where == "here" else by_job(plan, resolved, environ, where, observe)
    return building.provide(asked.recipe, Path(plan.source.directory), builder, observe)


def by_job(plan: Plan, resolved: config.Resolved, environ: Mapping[str, str], where: str, observe: Observe) -> Builder:
    """Builds in a run of its own, with this one's account and partition. Ctrl-C stops it."""

    def build(script: Path, log: Path, tick: Tick) -> None:
        asked = _resolved(plan, resolved, where, {"SCRIPT": str(script), "LOG": str(log)})
        job = make_plan(asked, run_id=new_id(), created=iso(time.time()))
        made = assemble(job, inherit.job_environment(job.environment, environ))

        def tell(record: Record) -> None:
            observe(f"run {record.id} builds it, and `serried why {record.id}` says how that stands")

        status = see_through(made, tick, tell)
        if status.state != COMPLETED:
            said = status.verdict.message or status.state
            raise building.failed(f"run {status.id} that built it: {said} (`serried logs {status.id}`)", log)

    return build


def _resolved(plan: Plan, resolved: config.Resolved, where: str, files: Mapping[str, str]) -> config.Resolved:
    """What `where` asks for, paid for and queued as the run itself.

    It finds its `files` by variables, because braces in their names would be placeholders in a command.
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
    )
    inherited = plan.environment
    environment = config.Environment(
        env={**inherited.env, **files},
        secrets=inherited.secrets,
        env_file=inherited.env_file_path,
        env_file_names=inherited.env_file,
        inherit=inherited.inherit,
        check="",
    )
    return dataclasses.replace(
        resolved,
        project=dataclasses.replace(resolved.project, snapshot=False),
        experiment=config.Experiment("environment", COMMAND, resources=resources, environment=environment),
        warnings=(),
    )
