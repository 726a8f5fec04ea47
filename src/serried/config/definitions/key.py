"""One setting: a dataclass field that knows its kind, default and help. A field that is None was not set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serried.config.values import Kind


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
    definition = Key(kind, text, default, alias, old, is_optional=value in (None, "", ()))
    if isinstance(value, dict):
        return field(default_factory=dict, metadata={"key": definition})
    return field(default=value, metadata={"key": definition})


def keys(table: type) -> dict[str, Key]:
    """The keys of a table, in the order in which they are documented."""
    return {key_of(f.name): f.metadata["key"] for f in dataclasses.fields(table) if "key" in f.metadata}


def key_of(field: str) -> str:
    """The key that a field holds: a word of Python's own carries an underscore behind it as a field."""
    return field.removesuffix("_")


def values_of(table: Any) -> dict[str, Any]:
    """What a table that was built holds, by key."""
    return {key_of(f.name): getattr(table, f.name) for f in dataclasses.fields(table)}


def fields_of(table: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, by key, as arguments of `table`."""
    return {f.name: values[key_of(f.name)] for f in dataclasses.fields(table) if key_of(f.name) in values}
