"""`serried clusters`: where runs can go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from serried import config
from serried.config import definitions
from serried.contract import SCHEMA
from serried.ui import console


@click.group(invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    r"""List the clusters known here, or show one.

    \b
    serried clusters
    serried clusters show cedar
    """
    if context.invoked_subcommand is None:
        context.invoke(list_clusters, as_json=False)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON value.")
def list_clusters(*, as_json: bool) -> None:
    """List the clusters known here; `*` marks the one that `serried submit` uses."""
    found = config.catalogue(Path.cwd(), os.environ)
    if as_json:
        rows = [
            {"name": c.name, "scheduler": c.scheduler, "origin": c.origin, "here": c.name == found.here}
            for c in found.clusters
        ]
        console.out_json({"schema": SCHEMA, "clusters": rows})
        return
    heads = ["", "CLUSTER", "SCHEDULER", "DESCRIBED IN"]
    lines = [["*" if c.name == found.here else "", c.name, c.scheduler, c.origin] for c in found.clusters]
    for line in console.table(heads, lines):
        console.out(line)


@command.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON value: seconds and MiB.")
def show(name: str | None, *, as_json: bool) -> None:
    """Show what is known of a cluster: the one that `serried submit` uses, or NAME."""
    resolved = config.resolve(None, (), {}, name, Path.cwd(), os.environ)
    cluster = resolved.cluster
    if as_json:
        console.out_json({"schema": SCHEMA, "cluster": _value(cluster)})
        return
    rows = [[key, text, _origin(resolved, f"cluster.{key}")] for key, text in _texts(cluster).items()]
    rows += [
        [f"resources.{key}", text, _origin(resolved, f"resources.{key}")]
        for key, text in _texts(resolved.experiment.resources).items()
    ]
    form = "limit.continue"
    rows.append([form, resolved.experiment.limit.continue_, _origin(resolved, form)])
    for line in console.table(["KEY", "VALUE", "ORIGIN"], [["name", cluster.name, ""], *rows]):
        console.out(line)
    if cluster.partitions:
        console.out()
        for line in console.table(["PARTITION", "TIME", "NODES", "GPUS"], _partitions(cluster)):
            console.out(line)
    for warning in resolved.warnings:
        console.warning(warning)


def _texts(table: object) -> dict[str, str]:
    """What is set of a table, as one would write it."""
    held = definitions.values_of(table)
    values = {name: (key, held[name]) for name, key in definitions.keys(type(table)).items()}
    return {name: key.kind.show(value) for name, (key, value) in values.items() if value not in (None, (), "")}


def _origin(resolved: config.Resolved, key: str) -> str:
    return str(resolved.origins[key]) if key in resolved.origins else "default"


def _partitions(cluster: config.Cluster) -> list[list[str]]:
    rows = []
    for name, partition in cluster.partitions.items():
        known = _texts(partition)
        rows.append([name, *(known.get(key, "-") for key in ("time", "nodes", "gpus"))])
    return rows


def _value(cluster: config.Cluster) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(cluster)
