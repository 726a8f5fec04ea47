"""Kinds of values: how each is read from TOML, from the environment and from the command line.

A kind takes a TOML value (text, number, boolean, list) or plain text, and returns the value in Serried's units:
seconds, MiB of memory and bytes of data. It raises `BadValue`, whose message completes "`resources.time` …".
"""

from __future__ import annotations

import datetime as dt
import math
import os
import re
import signal
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath, PurePosixPath
from typing import Any

from serried.base import NamedTuple, tree
from serried.base.errors import did_you_mean
from serried.base.text import BadDuration, read_duration, show_duration
from serried.schema import checkpoints, names, printed_metric, tracking
from serried.schema.command_lines import spelled
from serried.schema.plan import SideCommand, Staged

ALL_MEMORY = 0
"""Slurm reads 0 as all memory of a node."""


class BadValue(ValueError):  # noqa: N818 - reads as what happened
    """`str()` completes a sentence that begins with the key; `hint` suggests another value."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Kind(NamedTuple):
    name: str
    """Its name on the configuration's page."""
    parse: Callable[[Any], Any]
    metavar: str = "TEXT"
    many: bool = False
    """A list, whose flag may be repeated."""
    names: bool = False
    """A table whose keys the user chooses; `parse` reads one of its values."""
    nested: bool = False
    """The table may hold tables, and its keys are dotted names. Otherwise keys are names of environment variables."""
    show: Callable[[Any], str] = str
    """A value as a user would write it."""
    types: str = "string"
    """Types in JSON of what a file has, with spaces between; a list may be given as well to a kind of `many`."""


def guess(text: str) -> Any:
    """`text` as a TOML value, or unchanged if it is not one."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


class Typed(str):
    """A value as typed on the command line or in a variable: `true` is text for a setting that takes text."""

    __slots__ = ()

    def read(self, kind: Kind) -> Any:
        value = guess(str(self))
        is_known = isinstance(value, str) or (kind.many and isinstance(value, list))
        return value if is_known or kind not in (TEXT, NAME, TEXTS, COMMA_TEXTS, VARIABLES, PATTERNS) else str(self)


_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_MEMORY = rf"(?ia){_NUMBER} ?([KMGT])(?:i?B)?"
_MEBIBYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def duration(value: Any) -> int:
    """Seconds."""
    try:
        return read_duration("" if isinstance(value, bool) else str(value).strip(), _shown(value))
    except BadDuration as error:
        raise BadValue(str(error), error.hint) from None


MOST_TASKS = 1_000_000
"""In one array. Slurm's own maximum is 4,000,000, its default 1,000."""
_INDICES = r"(?a)\s*(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\s*"


class ArrayRange(NamedTuple):
    indices: tuple[int, ...]
    """Sorted, each once."""
    parallel: int | None
    """Most tasks that run at once; None for any number."""


def array_range(value: Any) -> ArrayRange:
    """Of `0-999`, `0-10:2` or `1,3,5`, each optionally with `%8`: at most 8 tasks at once."""
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    ranges, percent, most = text.partition("%")
    parallel = int(most) if re.fullmatch(r"\d{1,9}", most.strip(), re.ASCII) else 0
    if percent and not parallel:
        raise BadValue(f"must end in `%` and a number from 1, not `{_shown(value)}`", "`0-99%8` runs 8 tasks at a time")
    indices: set[int] = set()
    for part in ranges.split(","):
        match = re.fullmatch(_INDICES, part)
        if match is None:
            raise BadValue(
                f"must be a range of task indices, not `{_shown(value)}`", "write `0-999`, `0-10:2` or `1,3,5`"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step == 0:
            raise BadValue(f"has the empty range `{part.strip()}`", "put the smaller index first: `0-9`")
        if (last - first) // step + len(indices) >= MOST_TASKS:
            raise BadValue(f"has over {MOST_TASKS:,} tasks", "submit several runs")
        indices |= set(range(first, last + 1, step))
    return ArrayRange(tuple(sorted(indices)), parallel or None)


def array_text(value: Any) -> str | None:
    """The checked text of an array's range; None for `off`."""
    if _is_off(value):
        return None
    array_range(value)
    return str(value).strip()


def memory(value: Any) -> int:
    """MiB of `10G`, `512M`, `1.5T`, `64GB` (all powers of 1,024, as in Slurm), rounded up; 0 for `all`."""
    text = "" if isinstance(value, bool) else str(value).strip()
    if text in {"all", "0"}:
        return ALL_MEMORY
    match = re.fullmatch(_MEMORY, text)
    if not match:
        message = f"must be an amount of memory such as `10G` or `512M`, or `all`, not `{_shown(value)}`"
        raise BadValue(message, _unit_hint(text))
    return max(1, math.ceil(float(match[1]) * _MEBIBYTES[match[2].upper()]))


def _unit_hint(text: str) -> str | None:
    """For a number without a unit. Slurm reads it as MB; few mean that by a small one."""
    if not re.fullmatch(_NUMBER, text, re.ASCII):
        return None
    amount = float(text)
    if amount >= 1000 and amount % 1024 == 0:
        return f"did you mean `{int(amount) // 1024}G`, which is `{text}M`?"
    return f"did you mean `{text}{'G' if amount < 1000 else 'M'}`?"


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
            typed = re.fullmatch(r"(?:gpu:)?(?:(\w+):(\d+)|(\d+):(\w+))", text, re.ASCII)
            amount, kind = (typed[2] or typed[3], typed[1] or typed[4]) if typed else ("", "")
            hint = f"the type of GPU has an own setting: --gpus {amount} --gpu-type {kind}" if typed else None
            raise BadValue(f"must be a whole number from {least}, not `{_shown(value)}`", hint)
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
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise BadValue(f"must be text in quotes, not `{_shown(value)}`")
    if not str(value).strip():
        raise BadValue("must not be empty")
    if not str(value).isprintable():
        raise BadValue(f"must be one line without control characters, not {str(value)!r}")
    return str(value)


def free_text(value: Any) -> str:
    """Any text without NUL, which no argument of a process can contain."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise BadValue(f"must be text in quotes, not `{_shown(value)}`")
    if "\0" in str(value):
        raise BadValue("must not contain a NUL character")
    return str(value)


def setting(value: Any) -> Any:
    """Text, a number, a boolean, or a list of such: what JSON can carry, with its type."""
    if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, (list, tuple)):
        return [setting(item) for item in value]
    if isinstance(value, str):
        return free_text(value)
    hint = f'write it as text: "{value}"' if isinstance(value, (float, dt.date, dt.time)) else None
    raise BadValue(f"must be text, a number, true, false or a list of them, not `{_shown(value)}`", hint)


def name(value: Any) -> str:
    """Any text; paths and jobs use its `slug`."""
    if not free_text(value).strip():
        raise BadValue("must not be empty")
    return free_text(value)


def texts(value: Any) -> tuple[str, ...]:
    return tuple(map(text, _listed(value)))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def comma_texts(value: Any) -> tuple[str, ...]:
    """As `texts`; an item may be several texts with commas, as in the scheduler's own option."""
    return tuple(part.strip() for item in texts(value) for part in item.split(",") if part.strip())


def command(value: Any) -> str | tuple[str, ...]:
    """A list stays as it is. Text is split later, unless a shell reads it."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise BadValue("must not be empty")
        return tuple(free_text(word) for word in value)
    if not free_text(value).strip():
        raise BadValue("must not be empty")
    return free_text(value)


class choice:  # noqa: N801 - reads as the functions beside it
    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, value: Any) -> str:
        if value not in self.words:
            shown = ", ".join(f"`{word}`" for word in self.words[:-1]) + f" or `{self.words[-1]}`"
            raise BadValue(f"must be {shown}, not `{_shown(value)}`", did_you_mean(str(value), self.words))
        return str(value)


def inherit(value: Any) -> str | tuple[str, ...]:
    """Names may be patterns: `NCCL_*`."""
    if value in ("all", "none"):
        return str(value)
    if isinstance(value, str):
        raise BadValue(f"must be `all`, `none` or a list of names, not `{_shown(value)}`", f'for one name: ["{value}"]')
    variable_names([re.sub(r"[*?]", "_", item) if isinstance(item, str) else item for item in _listed(value)])
    return texts(value)


def variable_names(value: Any) -> tuple[str, ...]:
    variables = texts(value)
    for name in variables:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            hint = "give the name alone; the value is taken from your environment at submit" if "=" in name else None
            raise BadValue("must be names of environment variables" + ("" if hint else f", not `{name}`"), hint)
    return variables


def signal_name(value: Any) -> str | None:
    if _is_off(value):
        return None
    name = str(value).upper().removeprefix("SIG")
    known = [member.removeprefix("SIG") for member in signal.Signals.__members__]
    if name not in known or name in ("KILL", "STOP"):  # a program cannot catch these two
        raise BadValue(f"must be a signal such as `USR1`, not `{_shown(value)}`", did_you_mean(name, known))
    return name


def resubmit(value: Any) -> str | None:
    return None if _is_off(value) else choice("without-node", "off")(value)


def place(value: Any) -> str | bool:
    """A path, `true` for an environment that Serried builds from the project's files, or `false` for none."""
    if isinstance(value, bool) or value in ("true", "false"):
        return value in (True, "true")
    return text(value)


def is_source(place: str) -> bool:
    """The place of an environment is a file to build the environment from, not its folder or name."""
    return place.endswith((".txt", ".toml", ".lock", ".yml", ".yaml", "/Pipfile")) or place == "Pipfile"


def is_path(place: str) -> bool:
    """The place of a conda environment is a path, not a name."""
    return "/" in place or place.startswith(("~", "$", ".")) or is_source(place)


def lines(value: Any) -> str:
    """One or more lines of a program; empty for `false`."""
    if value is False or value == "false":
        return ""
    program = "\n".join(free_text(item) for item in value) if isinstance(value, (list, tuple)) else free_text(value)
    return program.strip("\n")


def torch_build(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"cpu|xpu|(cu|rocm)[0-9.]+", value):
        raise BadValue(f"must be `cpu` or a build of PyTorch such as `cu126` or `rocm6.3`, not `{value}`")
    return value


APPTAINER, CHARLIECLOUD, PYXIS = "apptainer", "charliecloud", "pyxis"
RUNTIMES = {"apptainer": APPTAINER, "singularity": APPTAINER, "ch-run": CHARLIECLOUD, "pyxis": PYXIS}
"""The runtime that a program is, or whose options it takes, by the program's name."""


def image(value: Any) -> str:
    return "" if value is False or value == "off" else text(value)


def runtime(value: Any) -> str:
    """A runtime's name, or the absolute path of its program: the project does not hold a node's programs."""
    program = text(value)
    name = PurePath(program).name
    if name not in RUNTIMES or (program != name and (name == PYXIS or program[0] not in "/~$")):
        known = ", ".join(f"`{name}`" for name in RUNTIMES)
        raise BadValue(f"must be one of {known} or an absolute path that ends so, not `{program}`",
                       did_you_mean(name, list(RUNTIMES)))  # fmt: skip
    return program


def is_reference(image: str, runtime: str | None = None) -> bool:
    """The image is in a registry, `docker://…`, and not a path. Pyxis takes most names as references."""
    if re.match(r"[a-z][a-z0-9+.-]*://", image):
        return True
    return runtime == PYXIS and image[0] not in "/~$." and not image.endswith((".sqsh", ".sqfs"))


class Item(NamedTuple):
    """An item to stage, as the user wrote it."""

    source: str
    """Absolute, or below `data.root`. May contain variables."""
    to: str | None = None
    """Its place in the data folder; None follows from `source`."""
    unpack: bool | None = None
    """None: unpack if the name is an archive's."""


def is_elsewhere(path: str) -> bool:
    return path[:1] in {"/", "~", "$"}


def items(value: Any) -> tuple[Item, ...]:
    """Paths, or tables `{from = "/abs/x", to = "x", unpack = false}`."""
    return tuple(map(_item, _listed(value)))


def _item(value: Any) -> Item:
    if not isinstance(value, Mapping):
        return Item(_path(value))
    _check_keys(value, ("from", "to", "unpack"), 'write `{from = "/abs/x", to = "x"}`')
    to = _inner(value["to"]) if "to" in value else None
    return Item(_path(value["from"]), to, boolean(value["unpack"]) if "unpack" in value else None)


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], example: str) -> None:
    """Refuse other keys, and a table without the first of them."""
    for name in table:
        if name not in known:
            listed = " and ".join(", ".join(f"`{key}`" for key in known).rsplit(", ", 1))
            raise BadValue(f"knows {listed}, not `{name}`", did_you_mean(str(name), known))
    if known[0] not in table:
        raise BadValue(f"has a table without `{known[0]}`", example)


def _path(value: Any) -> str:
    """Any path without NUL; a relative path must stay inside its folder."""
    if isinstance(value, bool) or not isinstance(value, str):
        raise BadValue(f"must be paths in quotes, not `{value}`")
    if not value.strip() or "\0" in value:
        raise BadValue("must not hold an empty path" if not value.strip() else "must not contain a NUL character")
    return value if is_elsewhere(value) else _inner(value)


def _inner(value: Any) -> str:
    """A relative path that stays inside its folder."""
    if not isinstance(value, str) or "\0" in value:
        raise BadValue(f"must be paths in quotes, not `{value}`")
    normal = os.path.normpath(value)
    if normal == "." or PurePosixPath(normal).is_absolute() or normal.split("/")[0] == "..":
        raise BadValue(f"must be a path that stays inside, not `{value}`", "name a path elsewhere with `from`")
    return normal


def sent(value: Any) -> tuple[str, ...]:
    """Paths of `data.send`, relative to the project's folder."""
    hint = "a link in the project may lead to it: `ln -s ~/sets/digits data`"
    try:
        paths = tuple(dict.fromkeys(_inner(_path(item)) for item in _listed(value)))
    except BadValue as error:
        raise BadValue(str(error), hint) from None
    for path in filter(is_elsewhere, paths):
        raise BadValue(f"must be paths in the project, not `{path}`", hint)
    return paths


def side_commands(value: Any) -> tuple[SideCommand, ...]:
    """Lines of bash, or tables `{command = "…", on = "first"}`."""
    return tuple(map(_side_command, _listed(value)))


def _side_command(value: Any) -> SideCommand:
    if not isinstance(value, Mapping):
        value = {"command": value}
    _check_keys(value, ("command", "on"), 'write `{command = "nvidia-smi dmon", on = "first"}`')
    words = command(value["command"])
    on = choice(names.EVERY_NODE, names.FIRST_NODE)(value.get("on", names.EVERY_NODE))
    is_line = isinstance(words, str)
    return SideCommand((words,) if isinstance(words, str) else words, shell=is_line, on=on)


def results(value: Any) -> tuple[str, ...]:
    """Patterns below the results folder, which may stand before them as `{results}/`."""
    below = "write paths below `{results}`: `samples`, `*.csv`, `logs/**/*.json`"
    return tuple(_pattern(pattern.removeprefix("{results}/"), (), below) for pattern in texts(value))


def watched(value: Any) -> tuple[str, ...]:
    """Patterns below the ranks' working directory, or below the node's own folders."""
    below = "begin with `{checkpoints}/` or `$SLURM_TMPDIR/`, or write paths below the ranks' working directory"
    return tuple(_pattern(pattern, checkpoints.LOCAL, below) for pattern in texts(value))


def _pattern(given: str, prefixes: Sequence[str], hint: str) -> str:
    prefix = next((prefix for prefix in prefixes if given.startswith(prefix)), "")
    rest = given[len(prefix) :]
    if rest[:1] in {"", "/", "~", "$", "{"} or ".." in rest.split("/") or not tree.split(rest):
        raise BadValue(f"must be patterns of relative paths, not `{given}`", hint)
    return given


def size(value: Any) -> int:
    """Bytes, in the notation of `memory`, without `all`."""
    hint = None
    try:
        if (amount := memory(value)) != ALL_MEMORY:
            return amount << 20
    except BadValue as error:
        hint = error.hint
    raise BadValue(f"must be an amount such as `200G` or `512M`, not `{value}`", hint)


def metric_source(value: Any) -> str:
    """As `schema.printed_metric` reads it."""
    try:
        printed_metric.check(str(value))
    except ValueError as error:
        hint = f"`from = '{printed_metric.EXAMPLE}'`, or `from = \"file:metrics.json:loss\"`"
        raise BadValue(str(error), hint) from None
    return str(value)


def webhook_variable(value: Any) -> str:
    """The name of a variable; an address in its place would be in files that others may read."""
    if "://" in str(value):
        raise BadValue("is the name of a variable that holds the address, not the address", 'webhook = "SLACK_URL"')
    (name,) = variable_names([value])
    return name


def some_of(*known: str) -> Callable[[Any], tuple[str, ...]]:
    """A list of these words, each once."""

    def parse(value: Any) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(comma_texts(value)))
        for word in words:
            if word not in known:
                listed = ", ".join(f"`{name}`" for name in known)
                raise BadValue(f"must be of {listed}, not `{word}`", did_you_mean(word, known))
        return words

    return parse


def show_memory(mebibytes: int) -> str:
    """MiB as `10G`, or `all`."""
    if mebibytes == ALL_MEMORY:
        return "all"
    return f"{mebibytes}M" if mebibytes % 1024 else f"{mebibytes // 1024}G"


def show_size(count: int) -> str:
    """Bytes as `10G`."""
    return show_memory(count >> 20)


def _show_texts(items: tuple[str, ...] | str) -> str:
    return items if isinstance(items, str) else ", ".join(items)


def _show_command(words: tuple[str, ...]) -> str:
    import shlex

    return shlex.join(words) if len(words) > 1 else "".join(words)


def _show_place(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value


def _show_staged(items: tuple[Staged, ...]) -> str:
    return ", ".join(it.source if it.source.endswith(f"/{it.to}") else f"{it.source} as {it.to}" for it in items)


def _show_side_commands(commands: tuple[SideCommand, ...]) -> str:
    where = {names.EVERY_NODE: "", names.FIRST_NODE: " (first node)"}
    return "; ".join(f"{_show_command(side.command)}{where[side.on]}" for side in commands)


def _is_off(value: Any) -> bool:
    return value is False or str(value).lower() in {"off", "none"}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    shown = str(value)
    return shown if len(shown) <= 60 else shown[:57] + "…"


METRIC_SOURCE = Kind("`stdout:REGEX` or `file:PATH:KEY`", metric_source, "SOURCE")
COUNT = Kind("whole number from 1", whole(1), "N", types="integer")
COUNT_OR_NONE = Kind("whole number from 0", whole(0), "N", types="integer")
DURATION = Kind("duration", duration, "TIME", show=show_duration)
DURATION_OR_OFF = DURATION._replace(
    name="duration, or `off`",
    parse=lambda value: None if _is_off(value) or value in (0, "0") else duration(value),
    types="string boolean",
)
MEMORY = Kind("memory, or `all`", memory, "SIZE", show=show_memory, types="string integer")
MEMORY_PART = Kind("memory", memory_part, "SIZE", show=show_memory)
BOOLEAN = Kind("true or false", boolean, show=_show_place, types="boolean")
TEXT = Kind("text", text)
ARRAY = Kind("indices, or `off`", array_text, "INDICES", types="string integer boolean")
NAME = Kind("text", name)
TEXTS = Kind("text or list of texts", texts, many=True, show=_show_texts)
COMMA_TEXTS = Kind("text or list of texts", comma_texts, many=True, show=_show_texts)
COMMAND = Kind("text, or list of words", command, show=_show_command, types="string array")
INHERIT = Kind("`all`, `none` or list of names", inherit, many=True, show=_show_texts)
NAMES = Kind("list of names", variable_names, "NAME", many=True, show=_show_texts)
VARIABLES = Kind("table of texts", free_text, names=True)
PATTERNS = Kind("table of texts", text, names=True)
SETTINGS = Kind("table of anything", setting, names=True, nested=True, show=spelled)
LAUNCHER = Kind("the name of a launcher", choice("agent", "single", "torchrun", "srun", "mpirun", "horovodrun"))
FORM = Kind("`requeue`, `successor` or `prequeued`", choice("requeue", "successor", "prequeued"))
SIGNAL = Kind("signal, or `off`", signal_name, "SIGNAL", types="string boolean")
RESUBMIT = Kind("`without-node`, or `off`", resubmit, types="string boolean")
PLACE = Kind("path, `true` or `false`", place, show=_show_place, types="string boolean")
NAMED_PLACE = Kind("name, path, `true` or `false`", place, show=_show_place, types="string boolean")
LINES = Kind("text or list of lines", lines, show=lambda text: text.replace("\n", "; "), types="string array boolean")
TORCH = Kind("`cpu`, `cu126` …", torch_build)
IMAGE = Kind("path, `docker://…`, or `off`", image, types="string boolean")
RUNTIME = Kind("`apptainer`, `singularity`, `ch-run`, the path of one, or `pyxis`", runtime)
BINDS = Kind("text or list of `/source:/destination:ro`", texts, many=True, show=", ".join)
ITEMS = Kind("paths, or tables `{from =, to =, unpack =}`", items, many=True, show=_show_staged, types="string object")
SIDE_COMMANDS = ITEMS._replace(
    name="lines of bash, or tables `{command =, on =}`", parse=side_commands, show=_show_side_commands
)
RESULTS = Kind("text or list of patterns", results, many=True, show=", ".join)
WATCHED = Kind("text or list of patterns", watched, many=True, show=", ".join)
SENT = Kind("path or list of paths", sent, many=True, show=", ".join)
BYTES = Kind("size", size, "SIZE", show=show_size)
BYTES_OR_NONE = BYTES._replace(
    name="size, or `none`",
    parse=lambda value: 0 if str(value).strip() in {"none", "0"} else size(value),
    show=lambda count: show_size(count) if count else "none",
)
GPU_OPTION = Kind("`gres` or `gpus-per-node`", choice("gres", "gpus-per-node"))
VERIFY = Kind("`times` or `hashes`", choice("times", "hashes"))
TRANSFER = Kind("`chain` or `each`", choice("chain", "each"))
WEBHOOK = Kind("name", webhook_variable, "NAME")
EVENTS = Kind("list of events", some_of(*names.EVENTS), many=True, show=", ".join)
SINKS = Kind("list of `tensorboard`, `wandb` and `mlflow`", some_of(*tracking.SINKS), many=True, show=", ".join)
TRACK_MODE = Kind("`auto`, `online`, `offline` or `off`", choice(*tracking.MODES))
