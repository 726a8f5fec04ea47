"""What ranks log: `node-N/metrics-R.jsonl`, a line of JSON for each step, joined over the attempts of a run.

    {"t": 1763900000.0, "resumed": 6}
    {"t": 1763900000.25, "step": 7, "loss": 0.31, "serried/step_seconds": 0.12}
    {"t": 1763900001.0, "total_steps": 5000}

`t` is in seconds since the epoch. The training library is the only writer. A last line may be torn.

One rule joins attempts. An attempt that resumes repeats the steps after its checkpoint, so what was logged of these
steps before no longer counts as soon as the attempt has logged a step. `resumed` is the last step that counts. Without
it, the steps from the attempt's first one on are repeated. Several lines for one step are one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from serried.base.files import json_object, numbers, open_regular
from serried.schema.layout import TaskDirectory

OWN = "serried/"
"""Begins the names of values that the library adds."""
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "infinity": math.inf, "-infinity": -math.inf}
"""The numbers that JSON lacks, and how they are written."""
_T, _STEP, _RESUMED, _TOTAL = "t", "step", "resumed", "total_steps"
_LARGEST, _LARGEST_STEP = 1e300, 1 << 53
"""Sums of larger numbers would be infinite, and a browser has no larger integers."""
_NUMBERS = frozenset((int, float))
_CHUNK = 1 << 20
_MANY = 10_000


class Entry(NamedTuple):
    t: Optional[float]
    step: Optional[int]
    """None if the line is not about a step."""
    values: Mapping[str, Any]
    """Numbers, NaN and infinities included, and text, by name."""
    resumed: Optional[int] = None
    total_steps: Optional[int] = None
    says_total: bool = False
    """The line says what the last step is, or that it is unknown."""


class LoggedStep(NamedTuple):
    attempt: int
    t: Optional[float]
    step: int
    values: Mapping[str, Any]

    def to_json(self) -> Dict[str, Any]:
        time = {} if self.t is None else {_T: self.t}
        return {**self.values, "attempt": self.attempt, **time, _STEP: self.step}


def number(value: Any) -> Optional[float]:
    """A finite number, which a file may have under any name; None for anything else. True is no number."""
    return float(value) if type(value) in _NUMBERS and -_LARGEST < value < _LARGEST else None


def logged_number(value: Any) -> Optional[float]:
    """A logged value that is a number, NaN and infinities included, also as text; None for other text."""
    if isinstance(value, str):
        return NOT_FINITE.get(value.lower())
    return value if type(value) is float else number(value)


def step_line(t: float, step: int, values: Mapping[str, Any]) -> str:
    finite = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
        if name not in (_T, _STEP)  # the line's own
    }
    return json.dumps({_T: round(t, 4), _STEP: step, **finite})


def resumed_line(t: float, step: int) -> str:
    """The attempt continues after `step`, even if an earlier one logged later steps."""
    return json.dumps({_T: round(t, 3), _RESUMED: step})


def total_line(t: float, total: Optional[int]) -> str:
    return json.dumps({_T: round(t, 3), _TOTAL: total})


def parse(line: bytes) -> Optional[Entry]:
    """None for a line that is no object."""
    fields = json_object(line)
    if fields is None:
        return None
    t, step = number(fields.pop(_T, None)), fields.pop(_STEP, None)
    if type(step) is int and abs(step) <= _LARGEST_STEP:
        values = {name: NOT_FINITE.get(it, it) if isinstance(it, str) else it for name, it in fields.items()}
        return Entry(t, step, values)
    resumed, total = fields.get(_RESUMED), fields.get(_TOTAL)
    return Entry(
        t,
        None,
        {},
        resumed if type(resumed) is int else None,
        total if type(total) is int and abs(total) <= _LARGEST_STEP else None,
        _TOTAL in fields,
    )


def read(path: Path) -> List[Entry]:
    """The complete entries of one file; none if it cannot be read."""
    try:
        with open_regular(path) as file:
            return [entry for entry in map(parse, file) if entry]
    except OSError:
        return []


def is_rare(line: bytes) -> bool:
    """Whether a line may hold more than the values of one step, so that a reader in a hurry must not skip it."""
    return b'"' + OWN.encode() in line or b'"total_steps"' in line


def ranks(task: TaskDirectory) -> List[int]:
    """The ranks that have a file, in any attempt."""
    names = {path.stem.removeprefix("metrics-") for path in task.attempts.glob("*/node-*/metrics-*.jsonl")}
    return sorted(int(name) for name in names if name.isdecimal())


def files_of(task: TaskDirectory, rank: int) -> Iterator[Tuple[Path, int]]:
    """Each file of `rank` and its attempt, the oldest attempt first."""
    for attempt in numbers(task.attempts):
        for path in task.attempt(attempt).path.glob(f"node-*/metrics-{rank}.jsonl"):
            yield path, attempt


class Follower:
    """The entries that the files of a rank have got since the last look, each with its file and attempt."""

    def __init__(self, task: TaskDirectory, rank: int) -> None:
        self.rank = rank
        self._task = task
        self._read: Dict[Path, Tuple[int, int, bytes]] = {}
        """By file: its attempt, how far it was read, and the beginning of its next line."""

    def look(self) -> Iterator[Tuple[Path, int, Entry]]:
        for path, attempt in files_of(self._task, self.rank):
            self._read.setdefault(path, (attempt, 0, b""))
        for path, (attempt, position, rest) in self._read.items():
            try:
                file = open_regular(path)  # each time, because that makes a network file system look again
            except OSError:
                continue
            with file:
                for lines in _whole_lines(file, position, rest):
                    self._read[path] = attempt, file.tell(), lines.pop()
                    yield from ((path, attempt, entry) for entry in map(parse, lines) if entry)


def _whole_lines(file: BinaryIO, position: int, rest: bytes) -> Iterator[List[bytes]]:
    """The lines from `position` on in several lists, each with the beginning of the next line at its end."""
    if os.fstat(file.fileno()).st_size < position:
        position, rest = 0, b""
    file.seek(position)
    with contextlib.suppress(OSError):
        while added := file.read(_CHUNK):
            lines = (rest + added).split(b"\n")
            rest = lines[-1]
            yield lines


class Resumes:
    """The rule: what an entry takes back of those before it, which were given in the order of attempts."""

    def __init__(self) -> None:
        self._begun: Set[Path] = set()
        """Files that have logged a step."""
        self._resumed: Dict[Path, int] = {}

    def last_kept(self, file: Path, entry: Entry) -> Optional[int]:
        """The last step before `entry` that still counts; None if all do."""
        if entry.resumed is not None:
            self._resumed[file] = entry.resumed
        if entry.step is None or (file in self._begun and file not in self._resumed):
            return None
        self._begun.add(file)
        return self._resumed.pop(file, entry.step - 1)


def points(task: TaskDirectory, rank: int = 0) -> List[LoggedStep]:
    """The logged steps of `rank` in all attempts as one curve, in the order of steps."""
    found: List[LoggedStep] = []
    resumes = Resumes()
    for file, attempt, entry in Follower(task, rank).look():
        last = resumes.last_kept(file, entry)
        if last is not None:
            found = [point for point in found if point.step <= last]
        if entry.step is None:
            continue
        point = LoggedStep(attempt, entry.t, entry.step, entry.values)
        if found and found[-1].step == point.step:
            t = found[-1].t if point.t is None else point.t
            found[-1] = point._replace(t=t, values={**found[-1].values, **point.values})
        else:
            found.append(point)
    return found


class DoneStep(NamedTuple):
    """A logged step as it was done, also if its result was lost."""

    attempt: int
    t: float
    step: int
    steps: int = 1
    """How many were done since the logged step before it."""
    is_kept: bool = True
    """No later attempt or round did it again."""


def done(files: Iterable[Tuple[Path, int]]) -> List[DoneStep]:
    """The steps in files of one rank, each with its attempt, in order: also those that were repeated later.

    Of many steps, the last within a second stands for all of them.
    """
    usual = re.compile(rb'\{"t": ([0-9.]+), "step": ([0-9]{1,15})[,}]')  # much faster than JSON
    found: List[DoneStep] = []
    resumes, second = Resumes(), 0.0
    for path, attempt in files:
        with contextlib.suppress(OSError), open_regular(path) as file:
            has_begun = False  # then a step takes none back
            for line in file:
                match = usual.match(line)
                entry = None if match and has_begun else parse(line)
                last = resumes.last_kept(path, entry) if entry else None
                has_begun = bool(match) or (has_begun and not (entry and entry.resumed is not None))
                if last is not None:
                    found = [it if it.step <= last else it._replace(is_kept=False) for it in found]
                t, step = (
                    (float(match[1]), int(match[2])) if match else (entry.t, entry.step) if entry else (None, None)
                )
                if t is None or step is None:
                    continue
                if last is None and found and (step == found[-1].step or (t < second + 1.0 and len(found) > _MANY)):
                    found[-1] = DoneStep(attempt, t, step, found[-1].steps + step - found[-1].step)
                else:
                    second, before = t, found[-1].step if found and last is None else last
                    found.append(DoneStep(attempt, t, step, 1 if before is None else max(step - before, 1)))
    return found


def values(found: Iterable[LoggedStep], name: str) -> List[float]:
    numbers_ = (logged_number(point.values.get(name)) for point in found)
    return [value for value in numbers_ if value is not None]


def last_value(task: TaskDirectory, name: str, rank: int = 0) -> Optional[float]:
    """The number that was logged last under a name. The end of the newest file usually has it."""
    files = list(files_of(task, rank))
    newest = [entry for entry in map(parse, _last_lines(files[-1][0])) if entry] if files else []
    found = [LoggedStep(0, entry.t, entry.step, entry.values) for entry in newest if entry.step is not None]
    known = values(found, name) or values(points(task, rank), name)
    return known[-1] if known else None


def _last_lines(path: Path) -> List[bytes]:
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - (1 << 16), 0))
            *lines, _ = file.read().split(b"\n")
            return lines[1:] if size > 1 << 16 else lines
    except OSError:
        return []
