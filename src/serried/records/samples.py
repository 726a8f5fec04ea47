"""The samples of a run, from the files of all its attempts and nodes.

The format is that of `serried.schema.live`. A run of days on many nodes has gigabytes of samples. So beyond a
number of lines in all, a reader looks at some lines of each file, spread over it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from serried.base.files import json_object, numbers, open_regular
from serried.schema.layout import AttemptDirectory, TaskDirectory
from serried.schema.series import number

Quantities = Mapping[str, Any]
"""What a line says of a node, a GPU or a rank. `range_in` and `number_in` read it, whatever it holds."""

MOST_NODES = 128
"""Of more nodes, so many are read, evenly spread: the samples of thousands would take minutes and gigabytes."""
MOST_LINES = 2_000
"""How many lines a reader parses in all."""
_FEWEST_LINES = 16
"""Of each file, however many there are."""
_HEAD = 1 << 16
_ROOM = 1 << 10
_LONGEST_LINE = 1 << 18
_GOLDEN = (5**0.5 - 1) / 2
_LARGEST = 1e300
_FAR = 1.5
"""A period farther from the middle of its file than so many lengths of the file has a wrong time."""
_NUMBERS = frozenset((int, float))
_LATEST = 1e11
"""A time after the year 5000 comes from a broken clock, or is in milliseconds."""


class Range(NamedTuple):
    """The samples of a period."""

    minimum: float
    mean: float
    maximum: float


@dataclass(frozen=True)
class Period:
    t: float
    """Its end, in seconds since 1970 by the node's clock."""
    seconds: float
    node: Quantities
    gpus: Mapping[str, Quantities]
    ranks: Mapping[str, Quantities]


@dataclass(frozen=True)
class NodeSamples:
    """One file: a node in an attempt."""

    attempt: int
    node: int
    host: str
    interval: float | None
    """Seconds between two samples."""
    about: Quantities
    """`cpus`, `memory` and `memory_scope` of the node."""
    gpus: Mapping[str, Quantities]
    """`name`, `uuid`, `memory` and `power_cap` of each GPU, by the index that the job's programs use."""
    gpu_source: str
    periods: tuple[Period, ...]
    """In the order of time."""
    lines: int
    """How many lines were read."""
    damaged: int
    """Lines that could not be used: torn, binary, or without a time."""
    disordered: int
    """Periods that ended before the one in the line above: the clock was set back, or lines changed places."""
    one_in: int
    """Only one line of so many was read; 1 if all were."""

    def plausible_periods(self) -> Sequence[Period]:
        """Without periods whose clock was far off. Never empty."""
        middle = self.periods[len(self.periods) // 2].t
        room = _FAR * self.one_in * sum(period.seconds for period in self.periods)
        return [period for period in self.periods if abs(period.t - middle) <= room]


@dataclass(frozen=True)
class Samples:
    nodes: tuple[NodeSamples, ...] = ()
    """In the order of attempts and nodes."""
    without: tuple[tuple[int, int], ...] = ()
    """Attempt and node of each that took part but has no usable sample."""
    one_in: int = field(default=1)
    """The largest `one_in` of the nodes."""
    unread: int = 0
    """Nodes that were not read, because they are too many."""

    @property
    def damaged(self) -> int:
        return sum(node.damaged for node in self.nodes)

    @property
    def disordered(self) -> int:
        return sum(node.disordered for node in self.nodes)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Looking for cycles among a million small objects would take half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_collection()
def read(place: TaskDirectory, *, attempt: int | None = None, most_lines: int = MOST_LINES) -> Samples:
    """The samples of a run or of one task, in all attempts or in one. Missing files are no error.

    Of very many nodes, and of long files, a part is read.
    """
    chosen = numbers(place.attempts) if attempt is None else [attempt]
    places = [(number, node) for number in chosen for node in nodes_of(place.attempt(number))]
    known = sorted({node for _, node in places})
    read = set(
        known if len(known) <= MOST_NODES else (known[at * len(known) // MOST_NODES] for at in range(MOST_NODES))
    )
    places = [(number, node) for number, node in places if node in read]
    share = max(most_lines // max(len(places), 1), _FEWEST_LINES)
    found = [_read_node(place.attempt(number), number, node, share) for number, node in places]
    nodes = tuple(_with_own_names([node for node in found if node.periods]))
    without = tuple((node.attempt, node.node) for node in found if not node.periods)
    one_in = max((node.one_in for node in nodes), default=1)
    return Samples(nodes, without, one_in, unread=len(known) - len(read))


def _with_own_names(files: Sequence[NodeSamples]) -> list[NodeSamples]:
    """The nodes of a lab share the name of their machine."""
    counts = Counter((file.attempt, file.host) for file in files)
    shared = {host for (_, host), count in counts.items() if count > 1}
    return [replace(file, host=f"{file.host} (node {file.node})") if file.host in shared else file for file in files]


def newest(path: Path, count: int) -> list[Period]:
    """The last periods in a file, in the order of time: for a reader that looks again and again."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            lines = _last_lines(file, size, count)
    except OSError:
        return []
    periods = [period for line in lines for period in [_period(json_object(line))] if period is not None]
    return sorted(periods, key=lambda period: period.t)


def stream(path: Path) -> Iterator[tuple[Quantities, Period]]:
    """All periods of a file, in the order of its lines, each with the description of the node above it.

    Needs little memory, however long the file is.
    """
    about: Quantities = {}
    try:
        with open_regular(path) as file:
            while line := file.readline(_LONGEST_LINE):
                entry = json_object(line)
                period = _period(entry)
                if period is not None:
                    yield about, period
                elif entry is not None and "interval" in entry:
                    about = entry
    except OSError:
        return


def range_in(quantities: Quantities, name: str) -> Range | None:
    """The range of that name; None if it is missing or damaged."""
    value = quantities.get(name)
    if type(value) is not list or len(value) != len(Range._fields):
        return None
    low, mean, high = map(number, value)
    return Range(low, mean, high) if low is not None and mean is not None and high is not None else None


def number_in(quantities: Quantities, name: str) -> float | None:
    """The number of that name; None if it is missing or damaged."""
    return number(quantities.get(name))


def by_number(key: str) -> tuple[int, str]:
    """Sorts `2` before `10`, and what is not a number last."""
    return (int(key), key) if key.isdecimal() and key.isascii() else (1 << 62, key)


def nodes_of(attempt: AttemptDirectory) -> list[int]:
    """The nodes that took part: each has a folder."""
    try:
        names = os.listdir(attempt.path)  # noqa: PTH208 - names are enough
    except OSError:
        return []
    found = [name.removeprefix("node-") for name in names if name.startswith("node-")]
    return sorted(int(number) for number in found if number.isdecimal() and number.isascii())


def _read_node(attempt: AttemptDirectory, number: int, node: int, most: int) -> NodeSamples:
    lines, one_in = _lines_of(attempt.samples(node), most)
    entries = [json_object(line) for line in lines]
    about: dict[str, Any] = {}
    gpus: dict[str, Quantities] = {}
    periods: list[Period] = []
    damaged = 0
    for entry in entries:
        period = _period(entry)
        if period is not None:
            periods.append(period)
        elif entry is not None and "interval" in entry:
            about = entry
            gpus.update(_mappings(entry, "gpus"))
        else:
            damaged += 1
    disordered = sum(later.t < earlier.t for earlier, later in itertools.pairwise(periods))
    return NodeSamples(
        attempt=number,
        node=node,
        host=str(about.get("host") or f"node {node}"),
        interval=number_in(about, "interval"),
        about=_mapping(about, "node"),
        gpus=gpus,
        gpu_source=str(about.get("gpu_source") or ""),
        periods=tuple(sorted(periods, key=lambda period: period.t)),
        lines=len(lines),
        damaged=damaged,
        disordered=disordered,
        one_in=one_in,
    )


def _period(entry: dict[str, Any] | None) -> Period | None:
    if entry is None:
        return None
    t, seconds = number_in(entry, "t"), number_in(entry, "seconds")
    if t is None or seconds is None or not 0 < t < _LATEST or not 0 <= seconds < _LATEST:
        return None
    return Period(t, seconds, _mapping(entry, "node"), _mappings(entry, "gpus"), _mappings(entry, "ranks"))


def _mapping(entry: Mapping[str, Any], name: str) -> Quantities:
    value = entry.get(name)
    return value if isinstance(value, dict) else {}


def _mappings(entry: Mapping[str, Any], name: str) -> dict[str, Quantities]:
    return {key: value for key, value in _mapping(entry, name).items() if isinstance(value, dict)}


def _lines_of(path: Path, most: int) -> tuple[list[bytes], int]:
    """At most about `most` lines of a file, and one in how many these are."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEAD)
            length = max(len(head) // max(head.count(b"\n"), 1), 1)
            if size <= most * length:
                return _whole(head + file.read(max(size - len(head), 0))), 1
            return [head.partition(b"\n")[0], *_spread(file, size, most, length)], -(-size // (most * length))
    except OSError:
        return [], 1


def _whole(text: bytes) -> list[bytes]:
    """Its lines. A last one without an end, which a node may be writing now, counts only if it is complete."""
    *lines, rest = text.split(b"\n")
    return [*(line for line in lines if line), *([rest] if json_object(rest) is not None else [])]


def _spread(file: BinaryIO, size: int, most: int, length: int) -> Iterator[bytes]:
    """The first whole line after each of `most` places, and the last one.

    Equal distances would fall into step with evaluations at regular times, so each place moves by another part of the
    distance: by the golden ratio, the same for all files.
    """
    read_to = 0
    for place in range(most):
        offset = int((place + place * _GOLDEN % 1) * size / most)
        if offset < read_to:
            continue
        line, read_to = _line_after(file, offset, length)
        if line is not None:
            yield line
    if read_to < size - 1:
        yield from _last_lines(file, size, 1)


def _line_after(file: BinaryIO, offset: int, length: int) -> tuple[bytes | None, int]:
    """The line that begins after `offset`, and the place where it ends."""
    window = 2 * length + _ROOM
    while True:
        chunk = os.pread(file.fileno(), window, offset)
        begin = chunk.find(b"\n") + 1
        end = chunk.find(b"\n", begin) if begin else -1
        if end >= 0:
            return chunk[begin:end], offset + end
        if len(chunk) < window or window > _LONGEST_LINE:
            return (None, offset + len(chunk)) if len(chunk) < window else (b"", offset + window)
        window *= 4


def _last_lines(file: BinaryIO, size: int, count: int) -> list[bytes]:
    window = _HEAD
    while True:
        start = max(size - window, 0)
        lines = _whole(os.pread(file.fileno(), window, start))
        if not start:
            return lines[-count:]
        if len(lines) > count or window > count * _LONGEST_LINE:
            return lines[1:][-count:]
        window *= 4
