"""`serried clusters`: where runs can go."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from serried import config
from serried.config import definitions, profile
from serried.protocol.sizes import counted
from serried.ui import console


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="List them as one JSON value.")
@click.pass_context
def command(context: click.Context, *, as_json: bool) -> None:
    r"""List the clusters known here, show one, check it, or learn a new one.

    \b
    serried clusters
    serried clusters show cedar
    serried clusters check
    serried clusters learn oak --save
    """
    if context.invoked_subcommand is None:
        context.invoke(list_clusters, as_json=as_json)


@command.command("list", short_help="List those known here; `*` is where `submit` goes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_clusters(*, as_json: bool) -> None:
    """List the clusters known here; `*` marks the one that `serried submit` uses."""
    found = config.catalogue(Path.cwd(), os.environ)
    if as_json:
        rows = [
            {"name": c.name, "scheduler": c.scheduler, "origin": c.origin, "here": c.name == found.here}
            for c in found.clusters
        ]
        console.out_json(clusters=rows)
        return
    heads = ["", "CLUSTER", "SCHEDULER", "DESCRIBED IN"]
    lines = [["*" if c.name == found.here else "", c.name, c.scheduler, c.origin] for c in found.clusters]
    console.out_table(heads, lines)


@command.command(short_help="Show what is known of one: of this one, or NAME.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: seconds and MiB.")
def show(name: str | None, *, as_json: bool) -> None:
    """Show what is known of a cluster: the one that `serried submit` uses, or NAME."""
    resolved = config.resolve(None, (), {}, name, Path.cwd(), os.environ)
    cluster = resolved.cluster
    if as_json:
        console.out_json(cluster=_value(cluster))
        return
    about = _texts(cluster)
    about.pop("notes", None)
    known = {key: text for key, text in about.items() if f"cluster.{key}" in resolved.origins or key == "scheduler"}
    rows = [[key, text, _origin(resolved, f"cluster.{key}", key)] for key, text in known.items()]
    for table, place, prefix in (
        (resolved.experiment.resources, "resources", ""),
        (cluster.match, "match", "cluster."),
    ):
        rows += [
            [f"{place}.{key}", text, _origin(resolved, f"{prefix}{place}.{key}", f"{place}.{key}")]
            for key, text in _texts(table).items()
        ]
    if resolved.experiment.container.runtime:
        name = "container.runtime"
        rows.append([name, resolved.experiment.container.runtime, _origin(resolved, name)])
    form = "limit.continue"
    rows.append([form, resolved.experiment.limit.form, _origin(resolved, form, "continues")])
    console.out_table(["KEY", "VALUE", "ORIGIN"], [["name", cluster.name, ""], *rows], shrink=1, whole=True)
    _say_tables("PARTITION", cluster.partitions, definitions.Partition)
    _say_tables("GPU", cluster.gpus, definitions.Gpu)
    for line in ["", *cluster.notes] if cluster.notes else []:
        console.out(line)
    for warning in resolved.warnings:
        console.warning(warning)


@command.command(short_help="Ask the scheduler whether that is still so.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(name: str | None, *, as_json: bool) -> None:
    """Ask the scheduler whether what is known of a cluster is still so.

    Exits with 1 where NAME's profile, or that of the cluster this is, says something else than Slurm or PBS.
    """
    checked = profile.check(name, Path.cwd(), os.environ)
    if as_json:
        console.out_json(**dataclasses.asdict(checked))
    else:
        heads = ["KEY", "PROFILE", "CLUSTER", "SAID BY"]
        rows = [[found.key, found.profile, found.cluster, found.origin] for found in checked.differences]
        if rows:
            console.out_table(heads, rows)
        found = len(checked.differences)
        differ = "they agree" if not found else counted(found, "difference")
        of = f"{counted(checked.compared, 'value')} of the profile"
        console.say(f"{checked.name}: {of} that its scheduler speaks of: {differ}")
        if found:
            console.say(
                f"`[clusters.{checked.name}]` in a file of yours overrides each; `clusters learn` writes them all"
            )
    if checked.differences:
        sys.exit(1)


@command.command(short_help="Write a profile from what the scheduler says.")
@click.argument("name", required=False)
@click.option("--save", is_flag=True, help="Write it where your profiles are, instead of printing it.")
@click.option("--force", is_flag=True, help="Let --save replace a profile that is there.")
def learn(name: str | None, *, save: bool, force: bool) -> None:
    r"""Write a profile from what the scheduler here says: partitions, limits, GPUs.

    \b
    serried clusters learn                 look at it
    serried clusters learn oak --save      use it, as `oak`
    """
    scheduler = profile.here(os.environ)
    learnt = profile.learn(scheduler, os.environ)
    when = time.strftime("%Y-%m-%d", time.gmtime())
    text = profile.text(scheduler, learnt, os.uname().nodename, when)
    if not save:
        console.out(text.rstrip())
        return
    path = profile.save(learnt.name if name is None else name, text, os.environ, force=force)
    console.say(f"written to {path}: look it over, then `serried clusters show {name or learnt.name}`")
    console.out(str(path))


def _texts(table: object) -> dict[str, str]:
    """What is set of a table, as one would write it."""
    held = definitions.values_of(table)
    values = {name: (key, held[name]) for name, key in definitions.keys(type(table)).items() if not key.kind.nested}
    return {name: _text(key, value) for name, (key, value) in values.items() if value not in (None, (), "", {})}


def _text(key: definitions.Key, value: Any) -> str:
    return ", ".join(f"{name}={text}" for name, text in value.items()) if key.kind.names else key.kind.show(value)


def _origin(resolved: config.Resolved, key: str, place: str | None = None) -> str:
    """Where a value comes from; `place` is its key within the profile, whose source is named too."""
    origin = resolved.origins.get(key)
    if origin is None:
        return "default"
    source = resolved.cluster.source(place or key) if origin.source == "profile" else None
    return f"{origin}: {source}" if source else str(origin)


def _say_tables(head: str, tables: Mapping[str, object], kind: type) -> None:
    """The tables that a cluster has one of for each partition or type of GPU, without the columns that nobody fills."""
    known = {name: _texts(table) for name, table in tables.items()}
    columns = [key for key in definitions.keys(kind) if any(key in texts for texts in known.values())]
    if not columns:
        return
    console.out()
    rows = [[name, *(texts.get(key, "-") for key in columns)] for name, texts in known.items()]
    console.out_table([head, *(key.upper() for key in columns)], rows)


def _value(cluster: config.Cluster) -> dict[str, Any]:
    return dataclasses.asdict(cluster)
