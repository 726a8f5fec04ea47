"""The keys that each table may have. A document's tables go in; checked values with their places come out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from serried.base.errors import did_you_mean
from serried.config import definitions
from serried.config.definitions import Key
from serried.config.toml import Keys, dotted
from serried.config.values import BadValue, Typed, guess

UNSET = object()
"""The value of a setting that removes those of weaker sources."""

EVERY = "*"
"""Stands for any name that the user chooses."""


@dataclass(frozen=True)
class Table:
    keys: Mapping[str, Key] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)

    def key_named(self, name: str) -> str | None:
        """The key with this name or alias."""
        if name in self.keys:
            return name
        return next((key for key, known in self.keys.items() if name == known.alias), None)

    def table(self, name: str) -> Table | None:
        return self.tables.get(name) or self.tables.get(EVERY)

    def names(self) -> list[str]:
        return [*self.keys, *(name for name in self.tables if name != EVERY)]


_PARTS = {name: Table(definitions.keys(table)) for name, table in definitions.PARTS.items()}
_EXPERIMENT = definitions.keys(definitions.Experiment)
_OVERLAY = {name: key for name, key in _EXPERIMENT.items() if name != "cluster"}
"""The keys of `on.CLUSTER`: the cluster is chosen by then."""

ROOT = Table(
    tables={
        "project": Table(definitions.keys(definitions.Project)),
        "defaults": Table(_EXPERIMENT, _PARTS),
        "experiments": Table(
            tables={EVERY: Table(_EXPERIMENT, {**_PARTS, "on": Table(tables={EVERY: Table(_OVERLAY, _PARTS)})})}
        ),
        "sweeps": Table(tables={EVERY: Table(definitions.keys(definitions.SweepTable))}),
        "clusters": Table(
            tables={
                EVERY: Table(
                    definitions.keys(definitions.Cluster),
                    {
                        **_PARTS,
                        "match": Table(definitions.keys(definitions.Match)),
                        "gpus": Table(tables={EVERY: Table(definitions.keys(definitions.Gpu))}),
                        "partitions": Table(tables={EVERY: Table(definitions.keys(definitions.Partition))}),
                    },
                )
            }
        ),
    }
)
"""The tables of a file."""

COMMAND_LINE = Table(
    _EXPERIMENT, {**_PARTS, **{name: table for name, table in ROOT.tables.items() if name != "sweeps"}}
)
"""The keys of `--set` and the options: an experiment's keys need no table's name before them."""


class WrongKey(Exception):  # noqa: N818 - becomes a ConfigError where the place is known
    def __init__(self, keys: Keys, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.keys = keys
        self.message = message
        self.hint = hint


def check(table: Mapping[str, Any], schema: Table = ROOT, where: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Every value in `table`, parsed, with its place. Raises WrongKey at the first wrong value."""
    for name, value in table.items():
        place = (*where, name)
        if (key := schema.key_named(name)) is not None:
            if key != name and key in table:
                raise WrongKey(place, f"`{dotted(place)}` and `{key}` are the same setting", "keep one of them")
            yield from _value(schema.keys[key], value, (*where, key))
        elif (inner := schema.table(name)) is not None:
            below = _table(value)
            if not isinstance(below, Mapping):
                raise WrongKey(place, f"`{dotted(place)}` is a table, not a value", f"write `[{dotted(place)}]`")
            yield from check(below, inner, place)
        else:
            raise WrongKey(place, f"unknown key `{dotted(place)}`", _unknown_hint(name, schema, where))


def _table(value: Any) -> Any:
    """A table that was typed: `{A = "1"}`."""
    return guess(value) if isinstance(value, Typed) else value


def _value(key: Key, value: Any, place: Keys) -> Iterator[tuple[Keys, Any]]:
    if not key.kind.names:
        yield place, _parse(key, value, place)
        return
    value = _table(value)
    if isinstance(value, Mapping) and key.kind.nested:
        yield from _nested(key, value, place)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise WrongKey((*place, name), f"`{name}` cannot be the name of an environment variable")
            yield (*place, name), _parse(key, item, (*place, name))
    else:
        raise WrongKey(place, f"`{dotted(place)}` is a table of names and values", f"write `[{dotted(place)}]`")


def _nested(key: Key, table: Mapping[str, Any], where: Keys) -> Iterator[tuple[Keys, Any]]:
    for name, value in table.items():
        place = (*where, name)
        if not name or re.search(r"[.{}=\s]", name):
            hint = f"without quotes: `{'.'.join(place)}`" if re.fullmatch(r"[\w-]+(\.[\w-]+)+", name) else None
            raise WrongKey(place, f"`{dotted(place)}` cannot be the name of a setting", hint)
        if isinstance(value, Mapping):
            yield from _nested(key, value, place)
        else:
            yield place, _parse(key, value, place)


def _parse(key: Key, value: Any, place: Keys) -> Any:
    value = value.read(key.kind) if isinstance(value, Typed) else value
    try:
        return key.kind.parse(value)
    except BadValue as error:
        if key.is_optional and value == "":
            return UNSET
        raise WrongKey(place, f"`{dotted(place)}` {error}", error.hint) from None


def _unknown_hint(name: str, schema: Table, where: Keys) -> str:
    near = did_you_mean(name, schema.names())
    if near:
        return near
    home = next((table for table, part in _PARTS.items() if name in part.keys), None)
    if home and home in schema.tables:
        return f"it belongs in the table `{dotted((*where, home))}`"
    return f"known here: {', '.join(f'`{known}`' for known in schema.names())}"
