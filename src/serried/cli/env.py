"""`serried env`: show, build and check environments, and build container images."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import click

from serried import config
from serried.base.errors import EnvironmentFailed, UsageError
from serried.cli import GroupWithHelp, options, run_view
from serried.schema.plan import Plan
from serried.submission import builds, prepare
from serried.submission.deliver import silent
from serried.submission.plan import environment_of
from serried.submission.request import check_here
from serried.views import console


@click.group(cls=GroupWithHelp)
def command() -> None:
    r"""Show, build or check an experiment's environment, or build its container image.

    \b
    serried env show train      its values and their settings
    serried env build train     build it or its image now, unless it exists
    serried env check train     activate it here and run its `check`
    serried env clean           delete environments that are not used any more

    `serried submit` builds and checks environments too. `serried docs environments` describes all kinds.
    """


_takes_experiment = options.together(
    options.experiment,
    options.cluster,
    options.any_setting("Any setting: `environment.venv=true`."),
    run_view.as_json,
)


@command.command(short_help="Show an environment and its settings.")
@_takes_experiment
def show(*, as_json: bool, **given: Any) -> None:
    """Show the environment of EXPERIMENT and the origin of each value."""
    plan, resolved = _plan(**given)
    check_here(resolved, os.environ)
    found = prepare.inspect_environment(plan, os.environ)
    if as_json:
        console.out_json(environment=found.to_json())
        return
    said, built_by = found.to_json(), ("environment.venv", "environment.conda")
    where = {"job": ", by a job", "gpu-job": ", by a job with a GPU"}.get(said["where"] or "", "")
    source = f"{said['source']}{where}" + ("" if found.ready else " (not built yet)") if said["source"] else ""
    rows = []
    for name, text, keys in (
        ("container", said["container"], ("container.image",)),
        ("python", said["prefix"] or (None if said["container"] else prepare.describe_active(os.environ)), built_by),
        ("built from", source, built_by),
        ("modules", " ".join([*["purge"] * said["module_purge"], *said["modules"]]), ("environment.modules",)),
        ("setup", said["setup"].replace("\n", "; "), ("environment.setup",)),
        ("check", "none" if said["check"] == "" else (said["check"] or "").replace("\n", "; "), ("environment.check",)),
    ):
        if text:
            origin = next((str(resolved.origins[key]) for key in keys if key in resolved.origins), "default")
            rows.append([name, text, origin])
    console.out_table(["", "VALUE", "ORIGIN"], rows, shrink=1, whole=True)
    if not found.ready:
        build = f"serried env build {given['experiment'] or ''}".strip()
        console.next_steps([(build, "build it now; `serried submit` does so too")])


@command.command(cls=options.TakesCommand, short_help="Build an environment or an image unless it exists.")
@_takes_experiment
@click.option("--job/--here", "by_job", default=None, help="By a job, or on this machine.  [default: as configured]")
@click.option("--dry-run", is_flag=True, help="Print how it would be built, and build nothing.")
def build(*, by_job: bool | None, dry_run: bool, as_json: bool, **given: Any) -> None:
    r"""Build the environment of EXPERIMENT, or its container image, unless it exists; print its path.

    \b
    serried env build train                 from its requirements or image
    serried env build train --job           in a job, if login nodes may not build
    serried env build train -- --fakeroot   more words for `apptainer build`

    An image is built from a definition, an address or a list of packages. Serried keeps images beside the run
    directories, under a hash of their inputs. If two commands build the same one at once, the second waits for
    the first. Older ones stay for runs that use them.
    """
    words = tuple(click.get_current_context().meta.get(options.COMMAND, ()))
    plan, resolved = _plan(**given)
    check_here(resolved, os.environ)
    recipe = prepare.recipe_of(plan, os.environ, words)
    usual = resolved.cluster.build
    where = usual if by_job is None else "here" if not by_job else "job" if usual == "here" else usual
    existing = recipe.finished()
    folder = existing or recipe.expected
    if dry_run and not as_json:
        state = "exists" if existing else "would be built"
        console.say(f"{folder / recipe.product} {state}, from {recipe.source}")
        console.out(recipe.script(folder))
        return
    if not dry_run:
        with options.progress() as observe:
            show = observe or silent
            folder = builds.provide(recipe, prepare.builder_of(plan, resolved, os.environ, where, show), show)
    path = str(folder / recipe.product if plan.container else folder)
    if as_json:
        environment = None if plan.container else prepare.inspect_environment(plan, os.environ).to_json()
        answer = {"environment": environment} if environment else {"image": path, "source": recipe.source}
        console.out_json(**answer, was_there=existing is not None, script=recipe.script(folder))
        return
    console.say(f"{'already built' if existing else 'built'}, from {recipe.source}")
    console.out(path)


@command.command(short_help="Activate an environment and run its `check`.")
@_takes_experiment
def check(*, as_json: bool, **given: Any) -> None:
    """Activate the environment of EXPERIMENT as a job would, and run its `check`. Exit with 1 if that fails."""
    plan, _ = _plan(**given)
    found = prepare.inspect_environment(plan, os.environ)
    if not found.ready:
        hint = "serried env build, or serried submit"
        raise EnvironmentFailed(f"the environment is not built yet, from `{found.source}`", hint=hint)
    about = prepare.about_environment(found.plan, os.environ)
    if as_json:
        console.out_json(environment=found.to_json(), found=about)
        return
    torch = f", torch {about['torch']}" if about["torch"] else ", no torch"
    console.out(f"Python {about['python']} in {about['prefix']}{torch}")


@command.command(short_help="Delete environments that are not used any more.")
@click.option("--dry-run", is_flag=True, help="List the environments and delete nothing.")
@run_view.as_json
def clean(*, dry_run: bool, as_json: bool) -> None:
    """Delete environments that Serried has built and that no experiment or unfinished run uses."""
    known = config.catalogue(Path.cwd(), os.environ)
    plans = [_plan(name)[0] for name in known.experiments]
    project = Path(plans[0].source.directory) if plans else Path.cwd()
    elsewhere = []
    for cluster in known.clusters:
        for name in known.experiments:
            with contextlib.suppress(UsageError):  # an experiment that cannot run there has no environment there
                elsewhere.append(_plan(name, cluster.name)[0])
    removed = prepare.unused_environments(plans, elsewhere, os.environ, project)
    if not dry_run:
        for prefix in removed:
            builds.remove(prefix)
    if as_json:
        console.out_json(removed=[str(prefix) for prefix in removed], dry_run=dry_run)
        return
    for prefix in removed:
        console.out(str(prefix))


def _plan(
    experiment: str | None, cluster: str | None = None, settings: tuple[str, ...] = ()
) -> tuple[Plan, config.Resolved]:
    resolved = options.resolve(experiment, options.overrides({}, settings), cluster)
    return environment_of(resolved), resolved
