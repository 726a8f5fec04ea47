"""`serried env` and `image`: show, build and check environments, and build container images."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from serried import config
from serried.base.errors import EnvironmentFailed, UsageError
from serried.cli import GroupWithHelp, options, run_view
from serried.schema.plan import Plan
from serried.submission import builds, prepare
from serried.submission.containers import image_to_build
from serried.submission.deliver import silent
from serried.submission.plan import environment_of
from serried.views import console


@click.group(cls=GroupWithHelp)
def command() -> None:
    r"""Show, build or check an experiment's environment.

    \b
    serried env show train      its values and their settings
    serried env build train     build it now, unless it exists
    serried env check train     activate it here and run its `check`
    serried env clean           delete environments that are not used any more

    `serried submit` builds and checks environments too. `serried docs environments` describes all kinds.
    """


_takes_experiment = options.together(
    click.argument("experiment", required=False),
    options.cluster,
    click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting: `environment.venv=true`."),
    run_view.as_json,
)


@command.command(short_help="Show an environment and its settings.")
@_takes_experiment
def show(experiment: str | None, cluster: str | None, settings: tuple[str, ...], *, as_json: bool) -> None:
    """Show the environment of EXPERIMENT and the origin of each value."""
    plan, resolved = _plan(experiment, cluster, settings)
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
        build = f"serried env build {experiment or ''}".strip()
        console.next_steps([(build, "build it now; `serried submit` does so too")])


@command.command(short_help="Build an environment unless it exists.")
@_takes_experiment
def build(experiment: str | None, cluster: str | None, settings: tuple[str, ...], *, as_json: bool) -> None:
    """Build the environment of EXPERIMENT unless it exists; print its folder."""
    plan, resolved = _plan(experiment, cluster, settings)
    if plan.environment.build is None:
        hint = "`venv = true` in `[experiments.NAME.environment]` builds one from your requirements"
        raise UsageError("this experiment uses an existing environment; nothing to build", hint=hint)
    with options.progress() as observe:
        plan = prepare.settle_environment(plan, resolved, os.environ, observe).plan
    found = prepare.inspect_environment(plan, os.environ)
    if as_json:
        console.out_json(environment=found.to_json())
    else:
        console.out(found.to_json()["prefix"])


@command.command(short_help="Activate an environment and run its `check`.")
@_takes_experiment
def check(experiment: str | None, cluster: str | None, settings: tuple[str, ...], *, as_json: bool) -> None:
    """Activate the environment of EXPERIMENT as a job would, and run its `check`. Exit with 1 if that fails."""
    plan, _ = _plan(experiment, cluster, settings)
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
    plans = [_plan(name, None, ())[0] for name in known.experiments]
    project = Path(plans[0].source.directory) if plans else Path.cwd()
    elsewhere = []
    for cluster in known.clusters:
        for name in known.experiments:
            with contextlib.suppress(UsageError):  # an experiment that cannot run there has no environment there
                elsewhere.append(_plan(name, cluster.name, ())[0])
    removed = prepare.unused_environments(plans, elsewhere, os.environ, project)
    if not dry_run:
        for prefix in removed:
            builds.remove(prefix)
    if as_json:
        console.out_json(removed=[str(prefix) for prefix in removed], dry_run=dry_run)
        return
    for prefix in removed:
        console.out(str(prefix))


def _plan(experiment: str | None, cluster: str | None, settings: tuple[str, ...]) -> tuple[Plan, config.Resolved]:
    resolved = options.resolve(experiment, options.overrides({}, settings), cluster)
    return environment_of(resolved), resolved


@click.group(cls=GroupWithHelp)
def image_command() -> None:
    r"""Build the container images of experiments.

    \b
    serried image build train   from `container.image` of the experiment
    """


@image_command.command("build", cls=options.TakesCommand, short_help="Build the image of an experiment.")
@click.argument("experiment", required=False)
@click.option("--cluster", metavar="NAME", help="For which cluster; `serried clusters` lists them.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting, as for `submit`.")
@click.option("--job/--here", "by_job", default=None, help="By a job, or on this machine.  [default: the cluster's]")
@click.option("--dry-run", is_flag=True, help="Print the image and how to build it; build nothing.")
@run_view.as_json
def build_image(
    *,
    experiment: str | None,
    cluster: str | None,
    settings: tuple[str, ...],
    by_job: bool | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    r"""Build the image of EXPERIMENT from its definition, an address or a list of packages.

    \b
    serried image build train               unless it exists already
    serried image build train --job         in a job, where login nodes may not build
    serried image build train -- --fakeroot more words for `apptainer build`

    Serried keeps images beside the run directories, under a hash of their inputs. If two commands build
    the same image at once, the second waits for the first. Older images stay for runs that use them.
    """
    words = tuple(click.get_current_context().meta.get(options.COMMAND, ()))
    overrides = options.overrides({}, settings)
    resolved = config.resolve(experiment, None, overrides, cluster, Path.cwd(), os.environ)
    plan = environment_of(resolved)
    recipe = image_to_build(plan, os.environ, words)
    existing = recipe.finished()
    folder = existing or recipe.expected
    if dry_run and not as_json:
        state = "exists" if existing else "would be built"
        console.say(f"{folder / recipe.product} {state}, from {recipe.source}")
        console.out(recipe.script(folder))
        return
    if not dry_run:
        where = resolved.cluster.build if by_job is None else "job" if by_job else "here"
        with options.progress() as observe:
            show = observe or silent
            folder = builds.provide(recipe, prepare.builder_of(plan, resolved, os.environ, where, show), show)
    if as_json:
        answer = {"image": str(folder / recipe.product), "source": recipe.source, "was_there": existing is not None}
        console.out_json(**answer, script=recipe.script(folder))
        return
    console.say(f"{'already built' if existing else 'built'}, from {recipe.source}")
    console.out(str(folder / recipe.product))
