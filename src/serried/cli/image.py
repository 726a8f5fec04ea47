"""`serried image`: the images that ranks run in."""

from __future__ import annotations

import os
from pathlib import Path

import click

from serried import config
from serried.cli import options, submit_options
from serried.environments.building import silent
from serried.planning import environment_of
from serried.protocol import SCHEMA
from serried.submission import image_build
from serried.ui import console


@click.group()
def command() -> None:
    r"""Build the container images of experiments.

    \b
    serried image build train   from what `container.image` of the experiment says
    """


@command.command(cls=submit_options.TakesCommand, short_help="Build the image of an experiment.")
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
    r"""Make the image of EXPERIMENT from its definition, an address or a list of packages.

    \b
    serried image build train               unless it is there already
    serried image build train --job         in a job, where login nodes may not build
    serried image build train -- --fakeroot more words for `apptainer build`

    Images are kept by a hash of what they are made from, beside the run directories. Two at once make it
    once: the second waits. A run that uses an older one keeps it.
    """
    words = tuple(click.get_current_context().meta.get(submit_options.COMMAND, ()))
    overrides = options.overrides({}, settings)
    resolved = config.resolve(experiment, None, overrides, cluster, Path.cwd(), os.environ)
    plan = environment_of(resolved)
    image = image_build.wanted(plan, os.environ, words)
    was_ready = image.ready
    path = was_ready or image.expected
    if dry_run and not as_json:
        console.say(f"{path} {'is there' if was_ready else 'would be made'}, from {image.recipe.source}")
        console.out(image.recipe.script(path.parent))
        return
    if not dry_run:
        where = resolved.cluster.build if by_job is None else "job" if by_job else "here"
        with submit_options.progress() as observe:
            path = image_build.provide(image, plan, resolved, os.environ, where=where, observe=observe or silent)
    if as_json:
        answer = {"image": str(path), "source": image.recipe.source, "was_there": was_ready is not None}
        console.out_json({"schema": SCHEMA, **answer, "script": image.recipe.script(path.parent)})
        return
    console.say(f"{'it was there already' if was_ready else 'made'}, from {image.recipe.source}")
    console.out(str(path))
