"""Kinds of values that say which data goes to the nodes, and what comes back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from serried.config.values import ALL_MEMORY, BadValue, Kind, boolean, choice, memory, show_memory, texts
from serried.errors import did_you_mean
from serried.fs import patterns
from serried.protocol import checkpoints


@dataclass(frozen=True)
class Item:
    """Something to stage, as it was asked for."""

    source: str
    """Absolute, or below `data.root`; may name variables."""
    to: str | None = None
    """Where it appears in the data folder; None follows from `source`."""
    unpack: bool | None = None
    """Whether an archive is unpacked; None does what is known to be one."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is not below `data.root`."""
        return is_elsewhere(self.source)


def is_elsewhere(path: str) -> bool:
    return path[:1] in {"/", "~", "$"}


def items(value: Any) -> tuple[Item, ...]:
    """Paths, or tables `{from = "/abs/x", to = "x", unpack = false}`."""
    return tuple(_item(one) for one in (value if isinstance(value, list | tuple) else [value]))


def _item(value: Any) -> Item:
    if not isinstance(value, Mapping):
        return Item(_path(value))
    known = ("from", "to", "unpack")
    for name in value:
        if name not in known:
            raise BadValue(f"knows `from`, `to` and `unpack`, not `{name}`", did_you_mean(str(name), known))
    if "from" not in value:
        raise BadValue("has a table without `from`", 'write `{from = "/abs/x", to = "x"}`')
    to = _inner(value["to"]) if "to" in value else None
    return Item(_path(value["from"]), to, boolean(value["unpack"]) if "unpack" in value else None)


def _path(value: Any) -> str:
    """A path, relative ones below what they are relative to; a path may hold any character but NUL."""
    if isinstance(value, bool) or not isinstance(value, str):
        raise BadValue(f"must be paths in quotes, not `{value}`")
    if not value.strip() or "\0" in value:
        raise BadValue("must not hold an empty path" if not value.strip() else "must not contain a NUL character")
    return value if is_elsewhere(value) else _inner(value)


def _inner(value: Any) -> str:
    """A relative path that stays where it is relative to."""
    if not isinstance(value, str) or "\0" in value:
        raise BadValue(f"must be paths in quotes, not `{value}`")
    normal = os.path.normpath(value)
    if normal == "." or PurePosixPath(normal).is_absolute() or normal.split("/")[0] == "..":
        raise BadValue(f"must be a path that stays inside, not `{value}`", "name what is elsewhere by `from`")
    return normal


def results(value: Any) -> tuple[str, ...]:
    """Patterns below the results folder; that it is meant may be said."""
    below = "write it as below `{results}`: `samples`, `*.csv`, `logs/**/*.json`"
    return tuple(_pattern(one.removeprefix("{results}/"), (), below) for one in texts(value))


def watched(value: Any) -> tuple[str, ...]:
    """Patterns from where ranks start, or below folders of the node's own."""
    below = "begin it with `{checkpoints}/` or `$SLURM_TMPDIR/`, or name files from where ranks start"
    return tuple(_pattern(one, checkpoints.LOCAL, below) for one in texts(value))


def _pattern(given: str, prefixes: Sequence[str], hint: str) -> str:
    prefix = next((prefix for prefix in prefixes if given.startswith(prefix)), "")
    rest = given[len(prefix) :]
    if rest[:1] in {"", "/", "~", "$", "{"} or ".." in rest.split("/") or not patterns.split(rest):
        raise BadValue(f"must be patterns of relative paths, not `{given}`", hint)
    return given


def size(value: Any) -> int:
    """MiB, written as memory is, of something that has no `all`."""
    with contextlib.suppress(BadValue):
        if (amount := memory(value)) != ALL_MEMORY:
            return amount
    raise BadValue(f"must be an amount such as `200G` or `512M`, not `{value}`")


def size_or_none(value: Any) -> int:
    """0 for `none`."""
    return 0 if str(value).strip() in {"none", "0"} else size(value)


def _show_size(mebibytes: int) -> str:
    return show_memory(mebibytes) if mebibytes else "none"


def _show_items(held: tuple[Item, ...]) -> str:
    return ", ".join(one.source if one.to is None else f"{one.source} as {one.to}" for one in held)


ITEMS = Kind("paths, or tables `{from =, to =, unpack =}`", items, many=True, show=_show_items)
RESULTS = Kind("text or list of patterns", results, many=True, show=", ".join)
WATCHED = Kind("text or list of patterns", watched, many=True, show=", ".join)
SIZE = Kind("size", size, "SIZE", show=show_memory)
BYTES = Kind("size", lambda value: size(value) << 20, "SIZE", show=lambda count: show_memory(count >> 20))
SIZE_OR_NONE = Kind("size, or `none`", size_or_none, "SIZE", show=_show_size)
VERIFY = Kind("`times` or `hashes`", choice("times", "hashes"))
TRANSFER = Kind("`chain` or `each`", choice("chain", "each"))
