"""Compares how two runs of a script started their programs. Pure.

The programs of a run form a tree: a launcher starts ranks. Programs in the foreground are compared in their order,
programs in the background in any order. Values that also differ between two runs of the original, such as a port
computed from the job's id, are compared by their shape.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from job_scripts import known
from job_scripts.forms import FormRun, task_of
from serried.base.text import expand_hosts
from serried.schema.names import SHIMS

RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "RANK")


@dataclass(frozen=True)
class Start:
    """One program that a run started."""

    argv: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]
    stdin: str
    is_background: bool
    rank: tuple[int, ...]
    started: tuple[Start, ...] = field(default=(), compare=False)
    """The ranks of a launcher, by rank."""

    @property
    def all(self) -> Iterator[Start]:
        yield self
        for start in self.started:
            yield from start.all


@dataclass(frozen=True)
class FormDifference:
    task: int | None
    program: str
    """The program's argv in the original, or in the submitted form if only that starts the program; empty for a run."""
    what: str
    """`program`, `argv`, `directory`, `stdin`, `status`, `file NAME`, or the name of a variable."""
    original: str | None
    """None if the original has no such thing."""
    submitted: str | None
    note: str = ""
    """Why the difference is intended; empty for a fault."""

    @property
    def place(self) -> tuple[int | None, str, str]:
        return self.task, self.program, self.what


def compare(original: FormRun, submitted: FormRun, again: FormRun | None = None) -> list[FormDifference]:
    """The differences between two forms. `again` is a second run of the original."""
    differences = list(_compare(original, submitted))
    if again is None:
        return differences
    volatile = {each.place: each for each in _compare(original, again)}
    return [each for each in differences if not _is_volatile(each, volatile.get(each.place))]


def _is_volatile(difference: FormDifference, between_originals: FormDifference | None) -> bool:
    if between_originals is None or difference.submitted is None or difference.original is None:
        return False
    values = (difference.original, difference.submitted, between_originals.submitted or "")
    return len({known.shape(value) for value in values}) == 1


def _compare(original: FormRun, submitted: FormRun) -> Iterator[FormDifference]:
    both = [_starts(original), _starts(submitted)]
    for task in sorted({*both[0], *both[1]}, key=lambda task: -1 if task is None else task):
        yield from _compare_tasks(task, both[0].get(task, []), both[1].get(task, []))
    for task in sorted({*original.statuses, *submitted.statuses}, key=lambda task: -1 if task is None else task):
        status, other = (_status(run, task) for run in (original, submitted))
        if status != other:
            is_ignored = status == "0" and submitted.statuses.get(task) in submitted.ignored
            yield FormDifference(task, "", "status", status, other, known.IGNORED_FAILURE if is_ignored else "")
    names = {name for run in (original, submitted) for name in run.files if not known.LOGS.fullmatch(name)}
    for name in sorted(names):
        text, other = _text(original, name), _text(submitted, name)
        if text != other:
            is_reordered = sorted((text or "").splitlines()) == sorted((other or "").splitlines())
            yield FormDifference(None, "", f"file {name}", text, other, known.LINES_OF_RANKS if is_reordered else "")


def _status(run: FormRun, task: int | None) -> str | None:
    return str(run.statuses[task]) if task in run.statuses else None


def _text(run: FormRun, name: str) -> str | None:
    return _normal(run.files[name], _names(run)) if name in run.files else None


def _compare_tasks(task: int | None, original: Sequence[Start], submitted: Sequence[Start]) -> Iterator[FormDifference]:
    background = [start for top in original if top.is_background for start in top.all]
    foreground = [start for top in original if not top.is_background for start in top.all]
    others = [start for top in submitted for start in top.all]
    pairs: list[Pair] = []
    for start in background:
        alike = [other for other in others if other.argv == start.argv] or [
            other for other in others if known.shape(str(other.argv)) == known.shape(str(start.argv))
        ]
        alike = [other for other in alike if other.rank == start.rank] or alike
        # The ranks of a launcher in the background are not in the background themselves.
        alike = [other for other in alike if other.is_background == start.is_background] or alike
        same = min(reversed(alike), key=lambda other: _distance(start, other), default=None)
        pairs.append((start, same))
        if same is not None:
            others = [other for other in others if other is not same]
    pairs += _pairs(foreground, others)
    for first, second in pairs:
        if first and second:
            yield from _compare_starts(task, first, second)
        elif first:
            yield _missing(task, first)
        elif second:
            yield _with_note(FormDifference(task, _words(second.argv), "program", None, _words(second.argv)))


def _distance(start: Start, other: Start) -> int:
    """The number of faults between them. Programs in the background, with the same argv, start in any order.

    Intended differences do not count: the ids of steps follow that order, and the nodes do not.
    """
    return sum(not difference.note for difference in _compare_starts(None, start, other))


Pair = tuple[Start | None, Start | None]
"""A program in both forms; None where a form does not start it."""


def _pairs(foreground: Sequence[Start], others: Sequence[Start]) -> Iterator[Pair]:
    """The programs in their order: those with the same argv, and between them those with an argv of the same shape."""
    argvs = [start.argv for start in foreground], [start.argv for start in others]
    for kind, a, b, c, d in difflib.SequenceMatcher(None, *argvs, autojunk=False).get_opcodes():
        if kind == "equal" or (kind == "replace" and b - a == d - c):
            yield from zip(foreground[a:b], others[c:d], strict=True)
            continue
        shapes = [known.shape(str(argv)) for argv in argvs[0][a:b]], [known.shape(str(argv)) for argv in argvs[1][c:d]]
        for same, e, f, g, h in difflib.SequenceMatcher(None, *shapes, autojunk=False).get_opcodes():
            if same == "equal":
                yield from zip(foreground[a + e : a + f], others[c + g : c + h], strict=True)
            else:
                yield from ((start, None) for start in foreground[a + e : a + f])
                yield from ((None, start) for start in others[c + g : c + h])


def _missing(task: int | None, start: Start) -> FormDifference:
    return _with_note(FormDifference(task, _words(start.argv), "program", _words(start.argv), None))


def _compare_starts(task: int | None, start: Start, other: Start) -> Iterator[FormDifference]:
    program = _words(start.argv)
    values: dict[str, tuple[str | None, str | None]] = {
        "argv": (program, _words(other.argv)),
        "directory": (start.directory, other.directory),
        "stdin": (start.stdin, other.stdin),
    }
    for name in sorted({*start.environment, *other.environment}):
        values[name] = (start.environment.get(name), other.environment.get(name))
    for what, (here, there) in values.items():
        if here != there:
            yield _with_note(FormDifference(task, program, what, here, there))


def _with_note(difference: FormDifference) -> FormDifference:
    note = known.note(difference.what, difference.original, difference.submitted)
    return replace(difference, note=note)


def _words(argv: Iterable[str]) -> str:
    return " ".join(word if re.fullmatch(r"[^\s'\"\\$]+", word) else repr(word) for word in argv)


def _starts(run: FormRun) -> dict[int | None, list[Start]]:
    """The trees of programs by task."""
    names = _names(run)
    children: dict[str | None, list[Mapping[str, Any]]] = {}
    ids = {record["id"] for record in run.records}
    for record in run.records:
        parent = record["launch"] if record["launch"] in ids else None
        children.setdefault(parent, []).append(record)

    def start(record: Mapping[str, Any]) -> Start:
        environment = record["environment"]
        shims = environment.get(SHIMS, "")
        started = sorted(map(start, children.get(record["id"], ())), key=lambda each: (each.rank, each.argv))
        return Start(
            argv=tuple(_normal(word, names) for word in known.without_rank_program(record["argv"], shims)),
            directory=_normal(record["directory"], names),
            environment={
                name: _normal(value, names) for name, value in environment.items() if name not in known.OF_PROCESS
            },
            stdin=_normal(record["stdin"], names),
            is_background=record["background"],
            rank=tuple(int(environment.get(name, "")) if environment.get(name, "").isdigit() else 0 for name in RANKS),
            started=tuple(started),
        )

    trees: dict[int | None, list[Start]] = {}
    for record in children.get(None, ()):
        trees.setdefault(task_of(record["environment"]), []).append(start(record))
    return trees


def _names(run: FormRun) -> dict[str, str]:
    """What a run has names of its own for -> the name in both runs: its folder, and its nodes."""
    names = {run.directory: known.RUN} if run.directory else {}
    names[sys.prefix] = known.SERRIED  # in both: the user's shell may have it on PATH
    names |= {str(run.sandbox.project): "/project", str(run.sandbox.folder): known.SANDBOX}
    lists = Counter(record["environment"].get("SLURM_JOB_NODELIST", "") for record in run.records)
    for text in filter(None, lists):
        names[text] = "{nodes}"
        names |= {node: f"{{node {number}}}" for number, node in enumerate(expand_hosts(text))}
    return names


def _normal(text: str, names: Mapping[str, str]) -> str:
    for name, common in names.items():
        if name in text:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w])", common, text)
    return text
