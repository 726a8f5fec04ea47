"""The settings of a training, in order of precedence: the command line, a sweep, serried.toml, the script's defaults.

    @dataclass
    class Config:
        lr: float = 1e-3
        model: Model = field(default_factory=Model)

    cfg = st.config(Config)         # python train.py --lr 0.1 --model.width 64

A setting keeps the type of its default, and a setting that the defaults do not name is refused. Argparse cannot read
`model.width=8`, as sweeps write it, nor a value such as `-1e-3` after a space.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import os
import sys
import types
import typing
from pathlib import Path, PurePath
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union, overload

from serried.base import files
from serried.schema import command_lines, names
from serried.train.errors import SettingError
from serried.train.identities import identity

C = TypeVar("C")

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@overload
def config(defaults: Type[C], argv: Optional[Sequence[str]] = None) -> C: ...
@overload
def config(defaults: C, argv: Optional[Sequence[str]] = None) -> C: ...
def config(defaults: Any, argv: Optional[Sequence[str]] = None) -> Any:
    """Apply the settings from outside to `defaults`, a dataclass, an instance of a dataclass, or a dict.

    Within a session all ranks get the settings of rank 0. In a run of Serried they are also written to `config.json`
    among the results. Raises SettingError if a setting is unknown or of the wrong type.
    """
    like: Any = defaults() if isinstance(defaults, type) else defaults
    tree = _Settings(like)
    # The experiment's `config` table and a sweep's values, merged by the agent.
    text = os.environ.get(names.CONFIG) or "{}"
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    if not isinstance(table, dict):
        raise SettingError(f"`{names.CONFIG}` must be a JSON object, not `{text[:60]}`")
    for name, value, _ in _walk(table):
        tree.set(name, value, "the run's `config`")
    for name, text in _options(sys.argv[1:] if argv is None else argv, tree):
        tree.set(name, text, "the command line")
    session = sys.modules.get("serried.train.sessions")
    run = session.current() if session else None
    values = run.broadcast_object(tree.values) if run else tree.values
    result = _build(like, values)
    results = os.environ.get(names.RESULTS_DIR)
    if results and identity().rank == 0:
        text = json.dumps(result, default=lambda value: dict(_fields(value)) if _is_record(value) else str(value))
        plain = json.loads(text, parse_constant=str)  # JSON has no NaN
        files.make_directory(Path(results), files.GROUP_DIRECTORY)
        kept = {"config": plain, "fingerprint": fingerprint(result)}
        files.write_json(Path(results, names.CONFIG_FILE), kept, files.GROUP_FILE)
    return result


def fingerprint(config: Any) -> str:
    """Twelve characters that identify the settings, the same on any machine: paths do not count."""
    return command_lines.fingerprint({name: value for name, value, _ in _walk(config)})


class _Settings:
    """All settings by dotted name, with their types."""

    def __init__(self, defaults: Any) -> None:
        self.values: Dict[str, Any] = {}
        self.kinds: Dict[str, Any] = {}
        for name, value, kind in _walk(defaults):
            self.values[name], self.kinds[name] = value, kind

    def set(self, name: str, value: Any, origin: str) -> None:
        if name not in self.values:
            near = difflib.get_close_matches(name, self.values, n=1)
            known = ", ".join(f"`{setting}`" for setting in self.values)
            hint = f"did you mean `{near[0]}`?" if near else f"the settings are {known}"
            raise SettingError(f"{origin} sets the unknown setting `{name}`", hint)
        kind = self.kinds[name]
        try:
            self.values[name] = _convert(value, kind, self.values[name])
        except (ValueError, TypeError):
            is_text = kind is str or (_is_union(kind) and str in typing.get_args(kind))
            hint = f"write it as text: `--set config.{name}='\"{value}\"'`" if is_text else ""
            raise SettingError(
                f"{origin} sets `{name}` to `{value}`, which is not a `{_spelled(kind)}`", hint
            ) from None


def _walk(tree: Any, prefix: str = "") -> Iterator[Tuple[str, Any, Any]]:
    """Dotted name, value and type of each setting in dataclasses and dicts. The type is the annotation, if any."""
    if _is_record(tree):
        hints, pairs = _hints(type(tree)), _fields(tree)
    else:
        hints, pairs = {}, list(tree.items())
    for name, value in pairs:
        if _is_record(value) or (isinstance(value, dict) and value):
            yield from _walk(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value, hints.get(name, type(value))


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(record: Any) -> List[Tuple[str, Any]]:
    return [(field.name, getattr(record, field.name)) for field in dataclasses.fields(record)]


def _hints(kind: Any) -> Dict[str, Any]:
    """The types of a dataclass's fields, if this Python can evaluate them."""
    try:
        return typing.get_type_hints(kind)
    except NameError:
        return {}
    except TypeError:  # `int | None`, which Python 3.9 accepts as an annotation but cannot evaluate
        written = {field.name: field.type for field in dataclasses.fields(kind)}
    spelled = {name: f"Union[{text.replace('|', ',')}]" for name, text in written.items() if isinstance(text, str)}
    fields = type("Fields", (), {"__annotations__": {**written, **spelled}})
    try:
        return typing.get_type_hints(fields, {**vars(sys.modules[kind.__module__]), "Union": Union})
    except (TypeError, NameError):
        return {}


def _spelled(kind: Any) -> str:
    """A type in the syntax of Python."""
    inner = typing.get_args(kind)
    if _is_union(kind):
        return " | ".join("None" if each is type(None) else _spelled(each) for each in inner)
    if _choices(kind):
        return " | ".join(str(spellings[-1]) for spellings in _choices(kind).values())
    return kind.__name__ if isinstance(kind, type) and not inner else str(kind).replace("typing.", "")


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, getattr(types, "UnionType", Union))  # the latter since Python 3.10


def _convert(value: Any, kind: Any, default: Any) -> Any:
    """`value` converted to `kind`. Raises ValueError or TypeError."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if _is_union(kind):
        return _convert_to_one(value, inner, default)
    choices = _choices(kind)
    if choices:
        return _choose(value, choices)
    kind = origin or kind
    if kind in (list, tuple):
        return kind(_items(value, kind, inner, default))
    if isinstance(value, str):
        return _read(value, kind)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and kind is not type(None) and type(value) is not kind:
        raise TypeError
    return value


def _convert_to_one(value: Any, kinds: Tuple[Any, ...], default: Any) -> Any:
    """`value` as the first of `kinds` that fits: an integer before other numbers, and text last."""
    if type(None) in kinds and (value is None or (isinstance(value, str) and value.lower() in ("none", "null"))):
        return None
    for kind in sorted(kinds, key=lambda each: (each is str, each is float)):
        try:
            if kind is not type(None):
                return _convert(value, kind, default)
        except (ValueError, TypeError):
            continue
    raise ValueError


def _choices(kind: Any) -> Dict[Any, Tuple[Any, ...]]:
    """The values of an enumeration or a `Literal`, with the spellings of each."""
    if typing.get_origin(kind) is typing.Literal:
        return {each: (each,) for each in typing.get_args(kind)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {each: (each, each.name, each.value) for each in kind}
    return {}


def _choose(value: Any, choices: Mapping[Any, Tuple[Any, ...]]) -> Any:
    """The choice that `value` spells, by a value of the same type, or else as text."""
    for is_same in (lambda name: type(name) is type(value) and name == value, lambda name: str(name) == value):
        for choice, spellings in choices.items():
            if any(map(is_same, spellings)):
                return choice
    raise ValueError


def _items(value: Any, kind: Any, inner: Tuple[Any, ...], default: Any) -> List[Any]:
    if isinstance(value, str):
        value = json.loads(value) if value.startswith("[") else [part for part in value.split(",") if part]
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        if len(value) != len(inner):
            raise ValueError
        return [_convert(each, inner[number], None) for number, each in enumerate(value)]
    each_kind = inner[0] if inner else type(default[0]) if default else object
    return [_convert(each, each_kind, None) for each in value]


def _read(text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError
        return text.lower() in _TRUE
    if kind in (int, float, str) or (isinstance(kind, type) and issubclass(kind, PurePath)):
        return kind(text)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _options(argv: Sequence[str], tree: _Settings) -> List[Tuple[str, Any]]:
    """`--lr 0.1`, `--lr=0.1`, `--verbose`, `--no-verbose`, and `lr=0.1` as sweeps write it."""
    options: List[Tuple[str, Any]] = []
    words = list(reversed(argv))
    while words:
        word = words.pop()
        if word in ("-h", "--help"):
            width = max(map(len, tree.values), default=0)
            for name, default in tree.values.items():
                print(f"  --{name:{width}}  {default}")
            raise SystemExit(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name if name in tree.values else name.replace("-", "_")
        if not name or (not word.startswith("--") and not equals):
            raise SettingError(f"`{word}` is not a setting", "write `--name value`; `--help` lists them")
        negated = name[3:] if name.startswith("no_") and name not in tree.values else ""
        if equals:
            options.append((name, value))
        elif tree.kinds.get(name) is bool and not (words and words[-1].lower() in _TRUE + _FALSE):
            options.append((name, True))
        elif tree.kinds.get(negated) is bool:
            options.append((negated, False))
        elif not words and name in tree.values:
            raise SettingError(f"`{word}` needs a value", f"write `{word} VALUE`, or `{word}=` for an empty one")
        else:
            options.append((name, words.pop() if words else ""))
    return options


def _build(like: Any, flat: Mapping[str, Any], prefix: str = "") -> Any:
    """A copy of `like` with the values of `flat`."""
    if _is_record(like):
        values = {name: _build(value, flat, f"{prefix}{name}.") for name, value in _fields(like)}
        return dataclasses.replace(like, **{f.name: values[f.name] for f in dataclasses.fields(like) if f.init})
    if isinstance(like, dict) and (like or not prefix):
        return {name: _build(value, flat, f"{prefix}{name}.") for name, value in like.items()}
    return flat[prefix[:-1]]
