"""`serried config`: each setting and where it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from serried import config
from serried.cli import GroupWithHelp, options
from serried.config import definitions, toml
from serried.config.definitions import Key
from serried.views import console

_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_REDACTED = "(not shown)"
_ABOUT = {"title", "docs", "contact", "login", "notes", "accounts", "modules", "ignores", "sources"}
"""What a profile tells people about a cluster: `serried clusters show` is for that."""

Row = dict[str, Any]


@click.group(cls=GroupWithHelp)
def command() -> None:
    r"""Show each setting and where it comes from.

    \b
    serried config show                          of the only experiment
    serried config show train --cluster cedar    as it would be there
    """


@command.command(cls=options.Sorted)
@click.argument("experiment", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: seconds, MiB of memory, bytes of data.")
@options.common
@options.resources
def show(
    experiment: str | None, *, as_json: bool, cluster: str | None, settings: tuple[str, ...], **values: Any
) -> None:
    r"""Show the settings that EXPERIMENT would run with here.

    Takes the flags of `submit`, so that it answers "what would this do?". Values of variables whose names
    sound secret are not shown.

    \b
    serried config show
    serried config show digits --cluster cedar
    """
    resolved = options.resolve(experiment, options.overrides(values, settings), cluster)
    rows = list(_rows(resolved))
    if as_json:
        console.out_json(settings=rows, warnings=list(resolved.warnings), notes=list(resolved.notes))
        return
    cells = [(row["key"], row["text"], row["origin"]) for row in rows]
    console.out_table(["KEY", "VALUE", "ORIGIN"], cells, shrink=1, whole=True)
    options.say_about(resolved.notes, resolved.warnings)


def _rows(resolved: config.Resolved) -> Iterator[Row]:
    experiment = resolved.experiment
    parts = [(name, getattr(experiment, name)) for name in definitions.PARTS]
    tables = [("project", resolved.project), ("", experiment), *parts, ("cluster", resolved.cluster)]
    for place, table in tables:
        held = definitions.values_of(table)
        for name, key in definitions.keys(type(table)).items():
            if place == "cluster" and name in _ABOUT:
                continue
            yield from _row((place, name) if place else (name,), key, held[name], resolved.origins)


def _row(place: tuple[str, ...], key: Key, value: Any, origins: Mapping[str, config.Origin]) -> Iterator[Row]:
    """A row for a key, one for each name of a table; none for what is not set and has no default."""
    if key.kind.names:
        for name, item in value.items():
            # A variable may be a secret; a setting is in the plan and never one.
            shown = item if key.kind.nested or not _SECRET.search(name) else _REDACTED
            yield _shown((*place, *name.split(".")), shown, key.kind.show(shown), origins)
    elif value not in (None, (), ""):
        yield _shown(place, _plain(value), key.kind.show(value), origins)
    elif key.default:
        yield _shown(place, None, key.default.replace("`", ""), origins)


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if hasattr(value, "_asdict"):
        return value._asdict()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _shown(place: tuple[str, ...], value: Any, text: str, origins: Mapping[str, config.Origin]) -> Row:
    origin = origins.get(toml.dotted(place))
    return {
        "key": toml.dotted(place),
        "value": value,
        "text": text,
        "origin": str(origin) if origin else "default",
        "source": origin.source if origin else "default",
    }
