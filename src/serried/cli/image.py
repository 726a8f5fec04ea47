"""`serried image`: the images that ranks run in."""

from __future__ import annotations

import os
from pathlib import Path

import click

from serried import config
from serried.builds import provide, silent
from serried.cli import options
from serried.environments.containers import image_to_build
from serried.planning import environment_of
from serried.submission.environment_build import builder
from serried.ui import console


@click.group()
def command() -> None:
    r"""Build the container images of experiments.

    \b
    serried image build train   from `container.image` of the experiment
    """


@command.command(cls=options.TakesCommand, short_help="Build the image of an experiment.")
@click.argument("experiment", required=False)
@click.option("--cluster", metavar="NAME", help="For which cluster; `serried clusters` lists them.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting, as for `submit`.")
@click.option("--job/--here", "by_job", default=None, help="By a job, or on this machine.  [default: the cluster's]")
@click.option("--dry-run", is_flag=True, help="Print the image and how to build it; build nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def build(
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
            folder = provide(recipe, builder(plan, resolved, os.environ, where, show), show)
    if as_json:
        answer = {"image": str(folder / recipe.product), "source": recipe.source, "was_there": existing is not None}
        console.out_json(**answer, script=recipe.script(folder))
        return
    console.say(f"{'already built' if existing else 'built'}, from {recipe.source}")
    console.out(str(folder / recipe.product))
