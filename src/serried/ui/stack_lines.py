"""The text of `serried stacks`: where ranks are, those that differ first. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from serried.protocol.names import SCRIPT_RANK
from serried.protocol.stacks import Problem
from serried.records.stacks import RankGroup, RankStacks, groups
from serried.schedulers.indices import compress
from serried.ui.text import pad, printable, width

REASONS: Mapping[str, str] = {
    Problem.NOT_PYTHON: "not a Python program",
    Problem.NO_HANDLER: "Python started without Serried's handler, as `python -I` does",
    Problem.NOT_ANSWERED: "Python did not answer in time, or the program handles SIGURG itself",
    Problem.NO_PY_SPY: "`py-spy` is not installed there",
    Problem.PY_SPY_FAILED: "`py-spy` failed: the system may forbid it to read other processes",
    Problem.NOT_READABLE: "the process has ended, or is another user's",
}
STATES: Mapping[str, str] = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk, a file server or a device",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended",
    "I": "idle",
}
_LIBRARIES = re.compile(r".*/(?:site|dist)-packages/|.*/lib/python3\.\d+/")
_WIDEST = 52
_NAMED_HOSTS = 3


def overview(ranks: Sequence[RankStacks], trees: Sequence[str], run: str) -> list[str]:
    """A block for each group of ranks with the same stack of the main thread. Paths in `trees` are shown relative."""
    total = sum(one.rank != SCRIPT_RANK for one in ranks)
    return _blocks(_group(group, total, trees, run) for group in groups(ranks))


def details(ranks: Sequence[RankStacks], trees: Sequence[str]) -> list[str]:
    """All threads of all processes of these ranks."""
    return _blocks(_process(rank, process, trees) for rank in ranks for process in rank.processes)


def _blocks(blocks: Iterable[Iterable[str]]) -> list[str]:
    lines: list[str] = []
    for block in blocks:
        lines += ["", *block] if lines else block
    return lines


def _group(group: RankGroup, total: int, trees: Sequence[str], run: str) -> Iterator[str]:
    share = f": {len(group)} of {total} ranks" if total > 1 and group[0].rank != SCRIPT_RANK else ""
    yield f"{_ranks(group)} on {_hosts(group)}{share}"
    first = group[0]
    if first.main_frames:
        yield from _frames(first.main_frames, trees, "  ")
    elif not first.processes:
        yield "  could not be read: the system did not answer in time"
    else:
        yield from _without(first.processes[0], "  ")
    more = _more(first)
    if more:
        yield f"  and {more}: serried stacks {run} --rank {first.rank}"


def _ranks(ranks: Sequence[RankStacks]) -> str:
    if ranks[0].rank == SCRIPT_RANK:
        return "the script"
    return f"rank{'s' * (len(ranks) > 1)} {compress(one.rank for one in ranks)}"


def _hosts(ranks: Sequence[RankStacks]) -> str:
    hosts = list(dict.fromkeys(printable(one.host) for one in ranks))
    return ", ".join(hosts) if len(hosts) <= _NAMED_HOSTS else f"{hosts[0]} … {hosts[-1]} ({len(hosts)} nodes)"


def _more(rank: RankStacks) -> str:
    threads = sum(len(process["threads"]) for process in rank.processes[:1]) - 1
    children = len(rank.processes) - 1 + rank.omitted
    parts = [f"{threads} threads"] if threads > 1 else ["1 thread"] if threads == 1 else []
    parts += [f"{children} child processes"] if children > 1 else ["1 child process"] if children == 1 else []
    return " and ".join(parts)


def _process(rank: RankStacks, process: Mapping[str, Any], trees: Sequence[str]) -> Iterator[str]:
    yield f"{_ranks([rank])} on {printable(rank.host)}, process {process['pid']}: {printable(process['command'])}"
    if not process["threads"]:
        yield from _without(process, "  ")
    for position, thread in enumerate(process["threads"]):
        name = printable(thread["name"]) or ("main thread" if position == 0 else f"thread {position}")
        yield f"  {name}"
        yield from _frames([tuple(frame) for frame in thread["frames"]], trees, "    ")


def _without(process: Mapping[str, Any], indent: str) -> Iterator[str]:
    """What is known of a process whose Python stacks could not be read, and why they could not."""
    yield f"{indent}no Python stack:"
    yield from (f"{indent}  {REASONS.get(code, printable(code))}" for code in process["problems"])
    wait = f" in the kernel's {printable(process['wait'])}" if process["wait"] else ""
    yield f"{indent}{STATES.get(process['state'], process['state'])}{wait}: {printable(process['command'])}"


def _frames(frames: Iterable[Any], trees: Sequence[str], indent: str) -> Iterator[str]:
    rows = [(f"{_short(path, trees)}:{line}" if line else _short(path, trees), name) for path, line, name in frames]
    column = min(_WIDEST, max((width(place) for place, _ in rows), default=0))
    for place, name in rows:
        yield f"{indent}{pad(place, column)}  {printable(name)}"


def _short(path: str, trees: Sequence[str]) -> str:
    for tree in trees:
        if path.startswith(f"{tree}/"):
            return printable(path[len(tree) + 1 :])
    return printable(_LIBRARIES.sub("", path))
