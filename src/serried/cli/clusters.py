"""`serried clusters`: list, show, check and learn clusters."""

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
from serried.base.text import counted
from serried.cli import GroupWithHelp
from serried.config import definitions, profile
from serried.views import console


@click.group(cls=GroupWithHelp, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, *, as_json: bool) -> None:
    r"""List the clusters known here; show, check or learn a cluster.

    \b
    serried clusters
    serried clusters show cedar
    serried clusters check
    serried clusters learn oak --save
    """
    if context.invoked_subcommand is None:
        context.invoke(list_clusters, as_json=as_json)


@command.command("list", short_help="List the clusters known here; `submit` uses `*`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_clusters(*, as_json: bool) -> None:
    """List the clusters known here. `*` marks the cluster that `serried submit` uses."""
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


@command.command(short_help="Show the settings of a cluster.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: seconds, MiB of memory, bytes of data.")
def show(name: str | None, *, as_json: bool) -> None:
    """Show the settings of NAME, by default of the cluster that `serried submit` uses."""
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


@command.command(short_help="Compare a profile with the scheduler.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(name: str | None, *, as_json: bool) -> None:
    """Compare the profile of NAME, by default of this cluster, with the values that Slurm or PBS reports.

    The exit code is 1 if they differ.
    """
    checked = profile.check(name, Path.cwd(), os.environ)
    if as_json:
        console.out_json(**dataclasses.asdict(checked))
    else:
        heads = ["KEY", "PROFILE", "CLUSTER", "SOURCE"]
        rows = [[found.key, found.profile, found.cluster, found.origin] for found in checked.differences]
        if rows:
            console.out_table(heads, rows)
        found = len(checked.differences)
        differ = "all agree" if not found else f"{found} differ{'s' * (found == 1)}"
        console.say(f"{checked.name}: compared {counted(checked.compared, 'value')} with the scheduler: {differ}")
        if found:
            console.say(
                f"`[clusters.{checked.name}]` in your settings overrides a value; `serried clusters learn` writes all"
            )
    if checked.differences:
        sys.exit(1)


@command.command(short_help="Write a profile from the scheduler's answers.")
@click.argument("name", required=False)
@click.option("--save", is_flag=True, help="Save the profile with your others instead of printing it.")
@click.option("--force", is_flag=True, help="Let --save replace an existing profile.")
def learn(name: str | None, *, save: bool, force: bool) -> None:
    r"""Write a profile from the answers of the scheduler here: partitions, limits, GPUs.

    \b
    serried clusters learn                 print it
    serried clusters learn oak --save      save it as `oak`
    """
    scheduler = profile.here(os.environ)
    learnt = profile.learn(scheduler, os.environ)
    when = time.strftime("%Y-%m-%d", time.gmtime())
    text = profile.text(scheduler, learnt, os.uname().nodename, when)
    if not save:
        console.out(text.rstrip())
        return
    path = profile.save(learnt.name if name is None else name, text, os.environ, force=force)
    console.say(f"wrote {path}; review it, then try `serried clusters show {name or learnt.name}`")
    console.out(str(path))


def _texts(table: object) -> dict[str, str]:
    """The values that are set in a table, as a user would write them."""
    held = definitions.values_of(table)
    values = {name: (key, held[name]) for name, key in definitions.keys(type(table)).items() if not key.kind.nested}
    return {name: _text(key, value) for name, (key, value) in values.items() if value not in (None, (), "", {})}


def _text(key: definitions.Key, value: Any) -> str:
    return ", ".join(f"{name}={text}" for name, text in value.items()) if key.kind.names else key.kind.show(value)


def _origin(resolved: config.Resolved, key: str, place: str | None = None) -> str:
    """The origin of a value. `place` is its key in the profile, which names a source."""
    origin = resolved.origins.get(key)
    if origin is None:
        return "default"
    source = resolved.cluster.source(place or key) if origin.source == "profile" else None
    return f"{origin}: {source}" if source else str(origin)


def _say_tables(head: str, tables: Mapping[str, object], kind: type) -> None:
    """A cluster's partitions or GPU types as a table, without empty columns."""
    known = {name: _texts(table) for name, table in tables.items()}
    columns = [key for key in definitions.keys(kind) if any(key in texts for texts in known.values())]
    if not columns:
        return
    console.out()
    rows = [[name, *(texts.get(key, "-") for key in columns)] for name, texts in known.items()]
    console.out_table([head, *(key.upper() for key in columns)], rows)


def _value(cluster: config.Cluster) -> dict[str, Any]:
    fields = dataclasses.asdict(cluster)
    del fields["site"]  # its settings are keys of the cluster
    return fields | definitions.values_of(cluster)
