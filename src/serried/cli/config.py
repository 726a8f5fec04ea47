"""`serried config` and `clusters`: each setting and where it comes from; clusters listed, shown, checked and learnt."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from serried import config
from serried.base.errors import Elsewhere, UsageError, did_you_mean
from serried.base.text import counted
from serried.cli import GroupWithHelp, options, run_view
from serried.config import definitions, profile, toml
from serried.schema import codec
from serried.schema.plan import Key
from serried.views import console
from serried.views.text import printable


@click.group(cls=GroupWithHelp, invoke_without_command=True)
@run_view.as_json
@click.pass_context
def clusters_command(context: click.Context, *, as_json: bool) -> None:
    r"""List the clusters known here; show, check or learn a cluster.

    \b
    serried clusters
    serried clusters show cedar
    serried clusters check
    serried clusters learn oak --save
    """
    if context.invoked_subcommand is None:
        context.invoke(list_clusters, as_json=as_json)


@clusters_command.command("list", short_help="List the clusters known here; `submit` uses `*`.")
@run_view.as_json
def list_clusters(*, as_json: bool) -> None:
    """List the clusters known here. `*` marks the cluster that `serried submit` uses."""
    found = config.catalogue(Path.cwd(), os.environ)
    if as_json:
        rows = [
            {
                "name": one.name,
                "scheduler": one.scheduler,
                "origin": one.origin,
                "here": one.name == found.here,
                "retired": one.is_retired,
            }
            for one in found.clusters
        ]
        console.out_json(clusters=rows)
        return
    lines = [
        ["*" * (one.name == found.here), one.name, one.scheduler, one.origin + "; retired" * one.is_retired]
        for one in found.clusters
    ]
    console.out_table(["", "CLUSTER", "SCHEDULER", "DESCRIBED IN"], lines)


_name = click.argument("name", required=False, type=run_view.CLUSTER)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON: seconds, MiB of memory, bytes of data.")


@clusters_command.command("show", short_help="Show the settings of a cluster.")
@_name
@_as_json
def show_cluster(name: str | None, *, as_json: bool) -> None:
    """Show the settings of NAME, by default of the cluster that `serried submit` uses."""
    resolved = config.resolve(None, (), {}, name, Path.cwd(), os.environ)
    cluster = resolved.cluster
    if as_json:
        fields = codec.to_json(cluster)
        del fields["site"]  # its settings are keys of the cluster
        console.out_json(cluster=fields | definitions.values_of(cluster))
        return
    experiment = resolved.experiment
    # The key that is shown, which also names its source in the profile, its value, and its key among the origins.
    shown = [
        (key, text, f"cluster.{key}")
        for key, text in _texts(cluster).items()
        if key == "scheduler" or (key != "notes" and f"cluster.{key}" in resolved.origins)
    ]
    shown += [(f"resources.{key}", text, f"resources.{key}") for key, text in _texts(experiment.resources).items()]
    shown += [(f"match.{key}", text, f"cluster.match.{key}") for key, text in _texts(cluster.match).items()]
    if runtime := experiment.container.runtime:
        shown.append(("container.runtime", runtime, "container.runtime"))
    rows = [["name", cluster.name, ""], *([key, text, _origin(resolved, at, key)] for key, text, at in shown)]
    form = "limit.continue"
    rows.append([form, experiment.limit.continue_by, _origin(resolved, form, "continues")])
    console.out_table(["KEY", "VALUE", "ORIGIN"], rows, shrink=1, whole=True)
    _say_tables("PARTITION", cluster.partitions, definitions.Partition)
    _say_tables("GPU", cluster.gpus, definitions.Gpu)
    for line in ["", *cluster.notes] if cluster.notes else []:
        console.out(line)
    for warning in resolved.warnings:
        console.warning(warning)


@clusters_command.command("check", short_help="Compare a profile with the scheduler.")
@_name
@run_view.as_json
def check_cluster(name: str | None, *, as_json: bool) -> None:
    """Compare the profile of NAME, by default of this cluster, with the values that Slurm or PBS reports.

    The exit code is 1 if they differ.
    """
    run_view.check_here(name)
    checked = profile.check(name, Path.cwd(), os.environ)
    rows = [[one.key, one.profile, one.cluster, one.origin] for one in checked.differences]
    if as_json:
        console.out_json(**dataclasses.asdict(checked))
    else:
        if rows:
            console.out_table(["KEY", "PROFILE", "CLUSTER", "SOURCE"], rows)
        differ = f"{len(rows)} differ{'s' * (len(rows) == 1)}" if rows else "all agree"
        console.say(f"{checked.name}: compared {counted(checked.compared, 'value')} with the scheduler: {differ}")
        if rows:
            own = f"`[clusters.{checked.name}]` in your settings overrides a value"
            console.say(f"{own}; `serried clusters learn` writes all")
    if rows:
        sys.exit(1)


@clusters_command.command(short_help="Write a profile from the scheduler's answers.")
@_name
@click.option("--save", is_flag=True, help="Save the profile with your others instead of printing it.")
@click.option("--force", is_flag=True, help="Let --save replace an existing profile.")
def learn(name: str | None, *, save: bool, force: bool) -> None:
    r"""Write a profile from the answers of the scheduler, here or of NAME: partitions, limits, GPUs.

    \b
    serried clusters learn                 print it
    serried clusters learn oak --save      save it as `oak`
    """
    try:
        run_view.check_here(name)
        scheduler = profile.here(os.environ)
        learnt = profile.learn(scheduler, os.environ)
        text = profile.text(scheduler, learnt, os.uname().nodename, time.strftime("%Y-%m-%d", time.gmtime()))
        name = learnt.name if name is None else name
    except Elsewhere as elsewhere:
        if not save:
            raise
        from serried.remote import relay  # most machines are the login node themselves

        printed = bytearray()
        if status := relay.relay(elsewhere, ("clusters", "learn", name or ""), "reads", on_output=printed.extend):
            raise SystemExit(status) from None
        text = printed.decode()
    if not save:
        console.out(text.rstrip())
        return
    path = profile.save(name or "", text, os.environ, force=force)
    console.say(f"wrote {path}; review it, then try `serried clusters show {name}`")
    console.out(str(path))


def _texts(table: object) -> dict[str, str]:
    """The values that are set in a table, as a user would write them."""
    held, texts = definitions.values_of(table), {}
    for name, key in definitions.keys(type(table)).items():
        if not key.kind.nested and (value := held[name]) not in (None, (), "", {}):
            named = ", ".join(f"{item}={text}" for item, text in value.items()) if key.kind.names else ""
            texts[name] = named or key.kind.show(value)
    return texts


def _origin(resolved: config.Resolved, key: str, of_profile: str) -> str:
    """The origin of a value, with the source that the profile names for its key there."""
    origin = resolved.origins.get(key)
    if origin is None:
        return "default"
    source = resolved.cluster.source(of_profile) if origin.source == "profile" else None
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


_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_REDACTED = "(not shown)"
_ABOUT = {"title", "retired", "docs", "contact", "login", "notes", "accounts", "modules", "ignores", "sources"}
"""What a profile tells people about a cluster: `serried clusters show` is for that."""

_DEFAULT, _UNSET = "default", "-"
_ALWAYS: dict[tuple[str, ...], str] = {
    **{("resources", name): _UNSET for name in ("nodes", "gpus", "ranks", "cpus")},
    ("resources", "mem"): "the cluster's default",
    ("resources", "time"): "none",
}
"""The size of a run, which is always listed, and the texts of what Serried leaves open."""

Row = dict[str, Any]


@click.group(cls=GroupWithHelp, default="show", invoke_without_command=True)
def command() -> None:
    r"""Show each setting and where it comes from.

    \b
    serried config show                          of the only experiment
    serried config show train --cluster cedar    as it would be there
    serried config show --all --explain          every setting and its meaning
    serried config schema > serried.schema.json  for an editor
    serried config schema ps                     of what `ps --json` prints
    """


@command.command("schema", short_help="Print the JSON Schema of serried.toml, or of a command's --json.")
@click.argument("command", metavar="[COMMAND]...", nargs=-1)
def schema(command: tuple[str, ...]) -> None:
    r"""Print the JSON Schema of serried.toml, or of what COMMAND prints with --json.

    \b
    serried config schema > serried.schema.json
    serried config schema sweep show

    Editors complete keys and mark mistakes where serried.toml begins with `#:schema ./serried.schema.json`.
    """
    document = _schema_of(" ".join(command)) if command else definitions.json_schema()
    console.out(json.dumps(document, indent=1, ensure_ascii=False))


def _schema_of(command: str) -> dict[str, Any]:
    """By `tools/json_schemas.py`. Raises UsageError."""
    known = json.loads(Path(console.__file__).with_name("json_schemas.json").read_text(encoding="utf-8"))
    if command not in known["commands"]:
        hint = did_you_mean(command, known["commands"], command="serried config schema")
        hint = hint or "commands with `--json` have one"
        raise UsageError(f"`serried {command} --json` has no JSON Schema", hint=hint)
    begin = {"$schema": "http://json-schema.org/draft-07/schema#", "title": f"serried {command} --json"}
    return {**begin, **known["commands"][command], "definitions": known["definitions"]}


@command.command(cls=options.Sorted)
@options.experiment
@click.option("--all", "everything", is_flag=True, help="List every setting, also those that nothing sets.")
@click.option("--explain", is_flag=True, help="Print the meaning of each setting.")
@_as_json
@options.common
@options.resources
def show(
    experiment: str | None,
    *,
    everything: bool,
    explain: bool,
    as_json: bool,
    cluster: str | None,
    settings: tuple[str, ...],
    **values: Any,
) -> None:
    r"""Show the settings that EXPERIMENT would run with here, and where each comes from.

    Takes the flags of `submit`, so that it answers "what would this do?". Without --all it lists the size of
    the run, and settings that something sets. Values of variables whose names sound secret are not shown.

    \b
    serried config show
    serried config show digits --cluster cedar
    serried config show --all --explain
    """
    resolved = options.resolve(experiment, options.overrides(values, settings), cluster)
    planned, obstacle = _planned(resolved)
    rows = [
        {key: text for key, text in row.items() if explain or key != "meaning"}
        for row in _rows(planned, everything=everything)
    ]
    warnings = (*resolved.warnings, *([f"this cannot be submitted: {obstacle}"] if obstacle else ()))
    if as_json:
        console.out_json(settings=rows, warnings=list(warnings), notes=list(resolved.notes))
        return
    if explain:
        for row in rows:
            console.out(f"{row['key']} = {printable(row['text'])}  ({row['origin']})")
            for line in console.behind("    ", row["meaning"]):
                console.out(line)
    else:
        cells = [(row["key"], row["text"], row["origin"]) for row in rows]
        console.out_table(["KEY", "VALUE", "ORIGIN"], cells, shrink=1, whole=True)
    options.say_about(resolved.notes, warnings)


def _planned(resolved: config.Resolved) -> tuple[config.Resolved, str]:
    """The settings with the values that `submit` would decide; or as they are, and why it would refuse them."""
    from serried.submission.plan import make_plan  # `clusters` decides nothing

    experiment = resolved.experiment
    try:
        plan = make_plan(resolved, run_id="", created="")
    except UsageError as error:
        return resolved, error.message
    request, size = experiment.resources, plan.allocation
    units = size.gpus or size.ranks
    amounts: dict[str, Any] = {name: getattr(size, name) for name in ("nodes", "gpus", "ranks")}
    amounts |= {"cpus": size.cpus // units, "time": size.time_seconds}
    resources = request._replace(**amounts, exclusive=size.exclusive or request.exclusive)
    if request.mem_per_node is None and request.mem_per_cpu is None and request.mem is None and size.memory_mb:
        resources = resources._replace(mem=size.memory_mb // units)
    track = plan.track or experiment.track
    experiment = experiment._replace(resources=resources, limit=plan.limit, launch=plan.launch, track=track)
    return resolved._replace(experiment=experiment), ""


def _rows(resolved: config.Resolved, *, everything: bool) -> Iterator[Row]:
    experiment = resolved.experiment
    parts = [(name, getattr(experiment, name)) for name in definitions.PARTS]
    tables = [("project", resolved.project), ("", experiment), *parts, ("cluster", resolved.cluster)]
    for place, table in tables:
        held = definitions.values_of(table)
        for name, key in definitions.keys(type(table)).items():
            if place == "cluster" and name in _ABOUT:
                continue
            at = (place, name) if place else (name,)
            for row in _row(at, key, held[name], resolved.origins):
                differs = held[name] != key.value and row["text"] != _default(key)
                if everything or at in _ALWAYS or differs or row["origin"] != _DEFAULT:
                    yield row


def _default(key: Key) -> str:
    return (key.default or "").replace("`", "")


def _row(place: tuple[str, ...], key: Key, value: Any, origins: Mapping[str, config.Origin]) -> Iterator[Row]:
    if key.kind.names:
        for name, item in value.items():
            # A variable may be a secret; a setting is in the plan and never one.
            shown = item if key.kind.nested or not _SECRET.search(name) else _REDACTED
            yield _shown((*place, *name.split(".")), shown, key.kind.show(shown), key, origins)
    elif value not in (None, (), ""):
        yield _shown(place, _plain(value), key.kind.show(value), key, origins)
    else:
        yield _shown(place, None, _ALWAYS.get(place, _UNSET), key, origins)


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return value._asdict()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _shown(place: tuple[str, ...], value: Any, text: str, key: Key, origins: Mapping[str, config.Origin]) -> Row:
    origin = origins.get(toml.dotted(place))
    default = f" Default: {_default(key)}." if key.default else ""
    return {
        "key": toml.dotted(place),
        "value": value,
        "text": text,
        "origin": str(origin) if origin else _DEFAULT,
        "source": origin.source if origin else _DEFAULT,
        "meaning": re.sub(r"\[(.*?)\]\(.*?\)|`", r"\1", key.help) + default,
    }
