"""`serried env`: the environment of an experiment, shown, built and tried."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from serried import builds, config
from serried.cli import options
from serried.errors import EnvironmentFailed, UsageError
from serried.plan import Plan
from serried.planning import environment_of
from serried.submission import environment_build
from serried.ui import console


@click.group()
def command() -> None:
    r"""Show, build or try the environment that an experiment's ranks will have.

    \b
    serried env show train      which one, and why
    serried env build train     build it now, unless it is there
    serried env check train     make it active here, and run its `check`
    serried env clean           remove those that nothing uses any more

    `serried submit` builds and checks by itself. What an environment can be is in docs/environments.md.
    """


_takes_experiment = options.together(
    click.argument("experiment", required=False),
    click.option("--cluster", metavar="NAME", help="The cluster where it runs."),
    click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting: `environment.venv=true`."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


@command.command(short_help="Show which it is, and which setting says so.")
@_takes_experiment
def show(experiment: str | None, cluster: str | None, settings: tuple[str, ...], *, as_json: bool) -> None:
    """Show which environment EXPERIMENT has, and which setting says so."""
    plan, resolved = _asked(experiment, cluster, settings)
    found = environment_build.inspect(plan, os.environ)
    if as_json:
        console.out_json(environment=found.to_json())
        return
    rows = [[name, text, _origin(resolved, keys)] for name, text, keys in _rows(found) if text]
    console.out_table(["", "VALUE", "ORIGIN"], rows, shrink=1, whole=True)
    if not found.ready:
        console.next_steps([(f"serried env build {experiment or ''}".strip(), "build it now; submit does so too")])


@command.command(short_help="Build it unless it is there; print its folder.")
@_takes_experiment
def build(experiment: str | None, cluster: str | None, settings: tuple[str, ...], *, as_json: bool) -> None:
    """Build the environment of EXPERIMENT unless it is there; print its folder."""
    plan, resolved = _asked(experiment, cluster, settings)
    if plan.environment.build is None:
        raise UsageError(
            "Serried does not build this environment",
            hint="`venv = true` in `[experiments.NAME.environment]` builds one from your requirements",
        )
    with options.progress() as observe:
        plan, _ = environment_build.settle(plan, resolved, os.environ, observe)
    found = environment_build.inspect(plan, os.environ)
    if as_json:
        console.out_json(environment=found.to_json())
    else:
        console.out(found.to_json()["prefix"])


@command.command(short_help="Make it active here, and run its `check`.")
@_takes_experiment
def check(experiment: str | None, cluster: str | None, settings: tuple[str, ...], *, as_json: bool) -> None:
    """Make the environment of EXPERIMENT active here, as a job would, and run its `check`; exit 1 if that fails."""
    plan, _ = _asked(experiment, cluster, settings)
    found = environment_build.inspect(plan, os.environ)
    if not found.ready:
        raise EnvironmentFailed(
            f"the environment is not built yet, from `{found.source}`", hint="serried env build, or serried submit"
        )
    about = environment_build.about(found.plan, os.environ)
    if as_json:
        console.out_json(environment=found.to_json(), found=about)
        return
    torch = f", torch {about['torch']}" if about["torch"] else ", no torch"
    console.out(f"Python {about['python']} in {about['prefix']}{torch}")


@command.command(short_help="Remove those that nothing uses any more.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def clean(*, dry_run: bool, as_json: bool) -> None:
    """Remove what Serried has built here that no experiment asks for any more, and no unfinished run has."""
    known = config.catalogue(Path.cwd(), os.environ)
    plans = [_asked(name, None, ())[0] for name in known.experiments]
    project = Path(plans[0].source.directory) if plans else Path.cwd()
    elsewhere = []
    for cluster in known.clusters:
        for name in known.experiments:
            with contextlib.suppress(UsageError):  # what cannot run there has no environment there
                elsewhere.append(_asked(name, cluster.name, ())[0])
    removed = environment_build.unused(plans, elsewhere, os.environ, project)
    if not dry_run:
        for prefix in removed:
            builds.remove(prefix)
    if as_json:
        console.out_json(removed=[str(prefix) for prefix in removed], dry_run=dry_run)
        return
    for prefix in removed:
        console.out(str(prefix))


def _asked(experiment: str | None, cluster: str | None, settings: tuple[str, ...]) -> tuple[Plan, config.Resolved]:
    resolved = options.resolve(experiment, options.overrides({}, settings), cluster)
    return environment_of(resolved), resolved


def _rows(found: environment_build.Inspected) -> list[tuple[str, str, tuple[str, ...]]]:
    said = found.to_json()
    where = {"job": ", by a job", "gpu-job": ", by a job with a GPU"}.get(said["where"] or "", "")
    source = f"{said['source']}{where}" + ("" if found.ready else " (not built yet)") if said["source"] else ""
    active = environment_build.active(os.environ)
    return [
        ("container", said["container"] or "", ("container.image",)),
        ("python", said["prefix"] or ("" if said["container"] else active), ("environment.venv", "environment.conda")),
        ("built from", source, ("environment.venv", "environment.conda")),
        ("modules", " ".join([*["purge"] * said["module_purge"], *said["modules"]]), ("environment.modules",)),
        ("setup", said["setup"].replace("\n", "; "), ("environment.setup",)),
        ("check", "none" if said["check"] == "" else (said["check"] or "").replace("\n", "; "), ("environment.check",)),
    ]


def _origin(resolved: config.Resolved, keys: tuple[str, ...]) -> str:
    return next((str(resolved.origins[key]) for key in keys if key in resolved.origins), "default")
