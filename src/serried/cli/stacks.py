"""`serried stacks`: where each rank of a running run is now, without ending it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from serried.base.errors import SerriedError, UsageError
from serried.base.text import compress, counted
from serried.cli import run_view
from serried.records import stacks
from serried.records.index import Selection
from serried.records.stacks import RankGroup, RankStacks
from serried.records.status import latest_attempt, statuses_of
from serried.records.stopping import who
from serried.schema.names import SCRIPT_RANK
from serried.schema.stacks import Problem
from serried.views import console
from serried.views.text import pad, printable, width

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


@click.command(epilog=run_view.HELP)
@run_view.last_run
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only rank R: all its threads and child processes.")
@run_view.as_json
def command(*, run: str, rank: int | None, as_json: bool) -> None:
    r"""Print where each rank is now: its Python stack. The ranks continue.

    Ranks at the same place are one group. The smallest group comes first: often the rank for which the
    others wait. The innermost call is at the top.

    \b
    serried stacks last
    serried stacks k3f9q2 --rank 3
    serried stacks lr-sweep/17 --json
    """
    selection = run_view.select_one(run)
    attempt = latest_attempt(selection.place)
    if attempt is None or attempt.exit.exists():
        status = statuses_of([selection])[0]
        hint = f"serried logs {selection}" if attempt else f"serried why {selection}"
        raise UsageError(f"run `{selection}` has no running ranks: it is {status.state}", hint=hint)
    try:
        with console.status_line("waiting for the ranks' stacks; the nodes look for requests every 2 s"):
            name = stacks.request(attempt, None if rank is None else [rank], who())
            answer = stacks.wait_for_answer(attempt, name, has_ended=attempt.exit.exists)
    except KeyboardInterrupt:
        sys.exit(130)
    answer = _checked(answer, selection, rank)
    if as_json:
        keys = ("rank", "node", "host", "launch", "processes", "omitted")
        console.out_json(
            run=str(selection),
            attempt=attempt.number,
            ranks=[{key: getattr(one, key) for key in keys} for one in answer.ranks],
            groups=[[one.rank for one in group] for group in stacks.groups(answer.ranks)],
            silent_nodes=list(answer.silent),
        )
    else:
        source = selection.record.plan.source.directory
        trees = (str(selection.place.source), str(selection.record.where.source), str(source))
        shown = overview(answer.ranks, trees, str(selection)) if rank is None else details(answer.ranks, trees)
        for line in shown:
            console.out(line)
    if answer.silent:
        nodes = ", ".join(f"{printable(host)} (node {node})" for node, host in answer.silent.items())
        console.warning(f"no answer from {nodes}", hint=f"serried why {selection} shows whether these nodes are lost")
        if not answer.ranks:
            sys.exit(1)


def _checked(answer: stacks.StacksAnswer | None, selection: Selection, rank: int | None) -> stacks.StacksAnswer:
    """Raises SerriedError if there is nothing to print."""
    if answer is None or (answer.silent and not answer.ranks):
        status = statuses_of([selection])[0]
        if status.has_ended:
            raise SerriedError(f"run `{selection}` has ended: it is {status.state}", hint=f"serried why {selection}")
    if answer is None:
        hint = f"runs of an earlier Serried do not; `serried why {selection}` shows whether the agent is alive"
        raise SerriedError(f"the head agent of run `{selection}` did not answer", hint=hint)
    if answer.ranks or answer.silent:
        return answer
    if rank is not None:
        raise UsageError(f"run `{selection}` has no running rank {rank}", hint=f"serried stacks {selection}")
    raise SerriedError(f"no rank of run `{selection}` runs now", hint=f"serried show {selection}")


def overview(ranks: Sequence[RankStacks], trees: Sequence[str], run: str) -> list[str]:
    """A block for each group of ranks with the same stack of the main thread. Paths in `trees` are shown relative."""
    total = sum(one.rank != SCRIPT_RANK for one in ranks)
    return _blocks(_group(group, total, trees, run) for group in stacks.groups(ranks))


def details(ranks: Sequence[RankStacks], trees: Sequence[str]) -> list[str]:
    return _blocks(_process(rank, process, trees) for rank in ranks for process in rank.processes)


def _blocks(blocks: Iterable[Iterable[str]]) -> list[str]:
    lines: list[str] = []
    for block in blocks:
        lines += ["", *block] if lines else block
    return lines


def _group(group: RankGroup, total: int, trees: Sequence[str], run: str) -> Iterator[str]:
    share = f": {len(group)} of {total} ranks" if total > 1 and group[0].rank != SCRIPT_RANK else ""
    hosts = list(dict.fromkeys(printable(one.host) for one in group))
    named = ", ".join(hosts) if len(hosts) <= _NAMED_HOSTS else f"{hosts[0]} … {hosts[-1]} ({len(hosts)} nodes)"
    yield f"{_ranks(group)} on {named}{share}"
    first = group[0]
    if first.main_frames:
        yield from _frames(first.main_frames, trees, "  ")
    elif not first.processes:
        yield "  could not be read: the system did not answer in time"
    else:
        yield from _without(first.processes[0], "  ")
    threads = sum(len(process["threads"]) for process in first.processes[:1]) - 1
    children = len(first.processes) - 1 + first.omitted
    parts = [counted(threads, "thread")] if threads > 0 else []
    parts += ["1 child process" if children == 1 else f"{children} child processes"] if children > 0 else []
    if parts:
        yield f"  and {' and '.join(parts)}: serried stacks {run} --rank {first.rank}"


def _ranks(ranks: Sequence[RankStacks]) -> str:
    if ranks[0].rank == SCRIPT_RANK:
        return "the script"
    return f"rank{'s' * (len(ranks) > 1)} {compress(one.rank for one in ranks)}"


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
