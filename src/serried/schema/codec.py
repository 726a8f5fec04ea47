"""Typed values as JSON, and back: named tuples and dataclasses are objects with the names of their fields."""

from __future__ import annotations

import contextlib
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Callable, Dict, Optional, Type, TypeVar, Union, cast

T = TypeVar("T")
_UNIONS = (Union, getattr(types, "UnionType", Union))  # Python 3.9 has no UnionType


def to_json(value: Any) -> Any:
    """A named tuple as an object, with all that is in it. Other values are JSON already."""
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if not isinstance(value, tuple):
        return value
    fields = getattr(value, "_fields", None)
    items = map(to_json, value)
    return tuple(items) if fields is None else dict(zip(fields, items))


def from_json(kind: Type[T], value: Any) -> T:
    """Turn `value`, read from JSON, into an instance of `kind`. Unknown keys are dropped.

    Raises ValueError for a value of another type and a missing field: a failing disk may have written anything.
    """
    reader: Callable[[Any], T] = _reader(cast("Any", kind))
    return reader(value)


def known(kind: Type[T], value: Any) -> T:
    """As `from_json`, but a field of another type counts as missing, which is an error only where it has no default."""
    return cast("T", _object(kind, True, value))


def facts_of(entry: Any) -> Dict[str, Any]:
    """A named tuple as an object, without the fields that have their default."""
    defaults = entry._field_defaults
    given = entry._asdict().items()
    return {name: _item(value) for name, value in given if name not in defaults or value != defaults[name]}


def _item(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if not isinstance(value, tuple):
        return value
    return facts_of(value) if hasattr(value, "_fields") else [_item(item) for item in value]


def known_fields(kind: Any, document: Mapping[str, Any]) -> Dict[str, Any]:
    """The fields of `kind` that `document` has, without those of another type, each as `known`."""
    found = {}
    for name, read in _fields(kind, True).items():
        if name in document:
            with contextlib.suppress(ValueError):
                found[name] = read(document[name])
    return found


@functools.lru_cache(maxsize=None)
def _reader(kind: Any, is_lax: bool = False) -> Callable[[Any], Any]:
    if hasattr(kind, "_fields") or hasattr(kind, "__dataclass_fields__"):
        return getattr(kind, "of_json", None) or functools.partial(_object, kind, is_lax)
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is Any:
        return lambda value: value
    if origin in _UNIONS:
        choices = [choice for choice in inner if choice is not type(None)]
        several = next((choice for choice in choices if typing.get_origin(choice) is tuple), choices[0])
        return functools.partial(_choice, _reader(choices[0], is_lax), _reader(several, is_lax), type(None) in inner)
    if origin is tuple:
        return functools.partial(_items, _reader(inner[0], is_lax), None if inner[-1] is Ellipsis else len(inner))
    if origin is Mapping:
        read = _reader(inner[1], is_lax)
        return lambda value: {name: read(item) for name, item in _plain(dict, value).items()}
    is_enumeration = isinstance(origin, type) and issubclass(origin, enum.Enum)
    return origin if is_enumeration else functools.partial(_plain, (int, float) if origin is float else origin)


@functools.lru_cache(maxsize=None)
def _fields(kind: Any, is_lax: bool) -> Dict[str, Callable[[Any], Any]]:
    return {name: _reader(hint, is_lax) for name, hint in typing.get_type_hints(kind).items()}


def _object(kind: Any, is_lax: bool, value: Any) -> Any:
    _plain(dict, value)
    given = _fields(kind, is_lax).items()
    fields = known_fields(kind, value) if is_lax else {name: read(value[name]) for name, read in given if name in value}
    try:
        if hasattr(kind, "_fields"):  # without its constructor, which only the first call makes
            every = {**kind._field_defaults, **fields}
            return tuple.__new__(kind, [every[name] for name in kind._fields])
        return kind(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _choice(single: Callable[[Any], Any], several: Callable[[Any], Any], is_optional: bool, value: Any) -> Any:
    if value is None and is_optional:
        return None
    return (several if isinstance(value, (list, tuple)) else single)(value)


def _items(read: Callable[[Any], Any], length: Optional[int], value: Any) -> Any:
    items = tuple(map(read, _plain((list, tuple), value)))
    if length not in (None, len(items)):
        raise ValueError(f"{value!r:.40} has not {length} items")
    return items


def _plain(expected: Any, value: Any) -> Any:
    if not isinstance(value, expected):
        raise ValueError(f"{value!r:.40} is not of type {expected}")  # noqa: TRY004 - it comes from a file
    return value
