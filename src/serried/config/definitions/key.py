"""One setting: a dataclass field that knows its kind, default and help. A field that is None was not set."""

from __future__ import annotations

import dataclasses
import functools
import operator
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serried.config import values
from serried.config.values import Kind, container, data, notify  # noqa: F401 - settings name what is in them
from serried.plan.model import Setting


@dataclass(frozen=True)
class Key:
    kind: Kind
    help: str
    default: str | None = None
    """What holds when nobody sets it, in words for the reader."""
    alias: str | None = None
    """Another name for the key."""
    old: str | None = None
    """Its former name: still read, with a note."""
    is_optional: bool = False
    """Nothing at all is a value of it too: an empty text takes away what a weaker source set."""


def key(
    kind: Kind,
    text: str,
    *,
    default: str | None = None,
    value: Any = None,
    alias: str | None = None,
    old: str | None = None,
) -> Any:
    """A dataclass field that can be set in a file: `text` is its help, `value` its value where nothing sets it."""
    definition = Key(kind, text, default, alias, old, is_optional=_is_empty(value))
    if isinstance(value, dict):
        return field(default_factory=dict, metadata={"key": definition})
    return field(default=value, metadata={"key": definition})


def keys(table: type) -> dict[str, Key]:
    """The keys of a table, in the order in which they are documented."""
    if dataclasses.is_dataclass(table):
        return {key_of(table, f.name): f.metadata["key"] for f in dataclasses.fields(table) if "key" in f.metadata}
    defaults = table._field_defaults  # type: ignore[attr-defined]
    return {
        setting.key or name: Key(
            _kind(setting.kind), setting.help, setting.default, old=setting.old, is_optional=_is_empty(defaults[name])
        )
        for name, setting in _settings(table).items()
    }


def key_of(table: type, field: str) -> str:
    """The key that a field of a table holds."""
    setting = None if dataclasses.is_dataclass(table) else _settings(table).get(field)
    return (setting and setting.key) or field


def values_of(table: Any) -> dict[str, Any]:
    """What a table that was built holds, by key."""
    return {key_of(type(table), name): getattr(table, name) for name in _fields(type(table))}


def fields_of(table: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, by key, as arguments of `table`."""
    held = {name: key_of(table, name) for name in _fields(table)}
    return {name: values[key] for name, key in held.items() if key in values}


def _fields(table: type) -> list[str]:
    return [f.name for f in dataclasses.fields(table)] if dataclasses.is_dataclass(table) else [*table._fields]  # type: ignore[attr-defined]


@functools.cache
def _settings(table: type) -> dict[str, Setting]:
    """Of a part of the plan that is a table of the configuration as it is."""
    hints = typing.get_type_hints(table, include_extras=True).items()
    given = {name: getattr(hint, "__metadata__", ()) for name, hint in hints}
    return {name: metadata[0] for name, metadata in given.items() if metadata}


def _kind(name: str) -> Kind:
    """`DURATION`, or that of a module: `data.WATCHED`."""
    return typing.cast("Kind", operator.attrgetter(name)(values))


def _is_empty(value: Any) -> bool:
    return value in (None, "", ())
