"""Kinds of values: how each is read from TOML, from the environment and from the command line.

A kind takes what TOML gives (text, number, boolean, list) or plain text, and returns the value in
Serried's units: seconds and MiB. It raises `BadValue`, whose words complete "`resources.time` …".
"""

from __future__ import annotations

import datetime as dt
import math
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serried.errors import did_you_mean
from serried.protocol import times
from serried.protocol.settings import spelled

ALL_MEMORY = 0
"""What Slurm takes as all memory of a node."""


class BadValue(ValueError):  # noqa: N818 - reads as what happened
    """`str()` completes a sentence that begins with the key; `hint` says what to write instead."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Kind:
    name: str
    """What the configuration's page calls it."""
    parse: Callable[[Any], Any]
    metavar: str = "TEXT"
    many: bool = False
    """A list, whose flag may be repeated."""
    names: bool = False
    """A table whose keys the user chooses; `parse` reads one of its values."""
    nested: bool = False
    """Such a table may hold tables: its keys are dotted names then, and else names of environment variables."""
    show: Callable[[Any], str] = str
    """A value as one would write it."""


_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_MEMORY = re.compile(rf"{_NUMBER} ?([KMGT])(?:i?B)?", re.IGNORECASE | re.ASCII)
_MEBIBYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def duration(value: Any) -> int:
    """Seconds."""
    try:
        return times.read_duration("" if isinstance(value, bool) else str(value).strip(), _shown(value))
    except times.BadDuration as error:
        raise BadValue(str(error), error.hint) from None


def duration_or_off(value: Any) -> int | None:
    return None if _is_off(value) else duration(value)


def memory(value: Any) -> int:
    """MiB of `10G`, `512M`, `1.5T`, `64GB` (all powers of 1,024, as in Slurm), rounded up; 0 for `all`."""
    text = "" if isinstance(value, bool) else str(value).strip()
    if text in {"all", "0"}:
        return ALL_MEMORY
    match = _MEMORY.fullmatch(text)
    if not match:
        hint = f"did you mean `{text}G`?" if re.fullmatch(r"\d+(\.\d+)?", text) else None
        raise BadValue(f"must be an amount of memory such as `10G` or `512M`, or `all`, not `{_shown(value)}`", hint)
    return max(1, math.ceil(float(match[1]) * _MEBIBYTES[match[2].upper()]))


def memory_part(value: Any) -> int:
    """As `memory`, where `all` makes no sense."""
    amount = memory(value)
    if amount == ALL_MEMORY:
        raise BadValue("must be an amount of memory such as `4G`", '`mem = "all"` takes all memory of each node')
    return amount


def whole(least: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        text = "" if isinstance(value, bool) else str(value).strip()
        if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII) or int(text) < least:
            raise BadValue(f"must be a whole number from {least}, not `{_shown(value)}`")
        return int(text)

    return parse


def boolean(value: Any) -> bool:
    word = str(value).strip().lower()
    if word in {"true", "yes", "on", "1"}:
        return True
    if word in {"false", "no", "off", "0"}:
        return False
    raise BadValue(f"must be true or false, not `{_shown(value)}`")


def text(value: Any) -> str:
    """One line of text that may stand on a command line."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadValue(f"must be text in quotes, not `{_shown(value)}`")
    if not str(value).strip():
        raise BadValue("must not be empty")
    if not str(value).isprintable():
        raise BadValue(f"must be one line without control characters, not {str(value)!r}")
    return str(value)


def free_text(value: Any) -> str:
    """Any text at all but NUL, which no process can be given."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadValue(f"must be text in quotes, not `{_shown(value)}`")
    if "\0" in str(value):
        raise BadValue("must not contain a NUL character")
    return str(value)


def setting(value: Any) -> Any:
    """Text, a number, a boolean, or a list of such: what JSON can carry, with its type."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [setting(item) for item in value]
    if isinstance(value, str):
        return free_text(value)
    hint = f'write it as text: "{value}"' if isinstance(value, float | dt.date | dt.time) else None
    raise BadValue(f"must be text, a number, true, false or a list of them, not `{_shown(value)}`", hint)


def name(value: Any) -> str:
    """What the user calls something: anything at all. Paths and jobs get its `slug`."""
    if not free_text(value).strip():
        raise BadValue("must not be empty")
    return free_text(value)


def texts(value: Any) -> tuple[str, ...]:
    return tuple(text(item) for item in (value if isinstance(value, list | tuple) else [value]))


def comma_texts(value: Any) -> tuple[str, ...]:
    """As `texts`; an item may hold several, with commas between, as the scheduler's own option does."""
    return tuple(part.strip() for item in texts(value) for part in item.split(",") if part.strip())


def command(value: Any) -> str | tuple[str, ...]:
    """A list is taken as it is; text is split later, when it is known whether a shell shall read it."""
    if isinstance(value, list | tuple):
        if not value:
            raise BadValue("must not be empty")
        return tuple(free_text(word) for word in value)
    if not free_text(value).strip():
        raise BadValue("must not be empty")
    return free_text(value)


def choice(*words: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in words:
            shown = ", ".join(f"`{word}`" for word in words[:-1]) + f" or `{words[-1]}`"
            raise BadValue(f"must be {shown}, not `{_shown(value)}`", did_you_mean(str(value), words))
        return str(value)

    return parse


def inherit(value: Any) -> str | tuple[str, ...]:
    """Names may be patterns: `NCCL_*`."""
    if value in ("all", "none"):
        return str(value)
    if isinstance(value, str):
        raise BadValue(f"must be `all`, `none` or a list of names, not `{_shown(value)}`", f'for one name: ["{value}"]')
    variable_names([re.sub(r"[*?]", "_", item) if isinstance(item, str) else item for item in value])
    return texts(value)


def variable_names(value: Any) -> tuple[str, ...]:
    names = texts(value)
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            hint = "give the name alone; the value is taken from your environment at submit" if "=" in name else None
            raise BadValue("must be names of environment variables" + ("" if hint else f", not `{name}`"), hint)
    return names


def signal_name(value: Any) -> str | None:
    if _is_off(value):
        return None
    name = str(value).upper().removeprefix("SIG")
    known = [member.removeprefix("SIG") for member in signal.Signals.__members__]
    if name not in known or name in ("KILL", "STOP"):  # no program can heed these two
        raise BadValue(f"must be a signal such as `USR1`, not `{_shown(value)}`", did_you_mean(name, known))
    return name


def show_memory(mebibytes: int) -> str:
    """MiB as `10G`, or `all`."""
    if mebibytes == ALL_MEMORY:
        return "all"
    return f"{mebibytes}M" if mebibytes % 1024 else f"{mebibytes // 1024}G"


def _show_texts(items: tuple[str, ...] | str) -> str:
    return items if isinstance(items, str) else ", ".join(items)


def _show_command(words: tuple[str, ...]) -> str:
    import shlex

    return shlex.join(words) if len(words) > 1 else "".join(words)


def _show_boolean(value: bool) -> str:
    return "true" if value else "false"


def _is_off(value: Any) -> bool:
    return value is False or str(value).lower() in {"off", "none"}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    shown = str(value)
    return shown if len(shown) <= 60 else shown[:57] + "…"


COUNT = Kind("whole number from 1", whole(1), "N")
COUNT_OR_NONE = Kind("whole number from 0", whole(0), "N")
DURATION = Kind("duration", duration, "TIME", show=times.show_duration)
DURATION_OR_OFF = Kind("duration, or `off`", duration_or_off, "TIME", show=times.show_duration)
MEMORY = Kind("memory, or `all`", memory, "SIZE", show=show_memory)
MEMORY_PART = Kind("memory", memory_part, "SIZE", show=show_memory)
BOOLEAN = Kind("true or false", boolean, show=_show_boolean)
TEXT = Kind("text", text)
NAME = Kind("text", name)
TEXTS = Kind("text or list of texts", texts, many=True, show=_show_texts)
COMMA_TEXTS = Kind("text or list of texts", comma_texts, many=True, show=_show_texts)
COMMAND = Kind("text, or list of words", command, show=_show_command)
INHERIT = Kind("`all`, `none` or list of names", inherit, many=True, show=_show_texts)
NAMES = Kind("list of names", variable_names, "NAME", many=True, show=_show_texts)
VARIABLES = Kind("table of texts", free_text, names=True)
PATTERNS = Kind("table of texts", text, names=True)
SETTINGS = Kind("table of anything", setting, names=True, nested=True, show=spelled)
LAUNCHER = Kind(
    "the name of a launcher",
    choice("agent", "single", "torchrun", "srun", "mpirun", "horovod", "horovodrun", "accelerate", "deepspeed"),
)
FORM = Kind("`requeue`, `successor` or `prequeued`", choice("requeue", "successor", "prequeued"))
SIGNAL = Kind("signal, or `off`", signal_name, "SIGNAL")
