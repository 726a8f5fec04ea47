"""`serried stacks`: where each rank of a running run is now, without ending it."""

from __future__ import annotations

import sys
from typing import Any

import click

from serried.cli import run_view
from serried.errors import SerriedError, UsageError
from serried.protocol.layout import AttemptDirectory
from serried.records import stacks
from serried.records.evidence import latest_attempt
from serried.records.index import Selection
from serried.records.status import statuses_of
from serried.records.stopping import who
from serried.ui import console, stack_lines
from serried.ui.text import printable


@click.command(epilog=run_view.HELP)
@run_view.last_run
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only rank R: all its threads and child processes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    attempt = _running_attempt(selection)
    try:
        with console.status_line("waiting for the ranks' stacks; the nodes look for requests every 2 s"):
            name = stacks.request(attempt, None if rank is None else [rank], who())
            answer = stacks.wait_for_answer(attempt, name, has_ended=attempt.exit.exists)
    except KeyboardInterrupt:
        sys.exit(130)
    answer = _checked(answer, selection, rank)
    if as_json:
        console.out_json(**_json(selection, attempt, answer))
    else:
        _print(selection, answer, rank)
    _warn_of_silent(selection, answer)


def _running_attempt(selection: Selection) -> AttemptDirectory:
    attempt = latest_attempt(selection.place)
    if attempt is None or attempt.exit.exists():
        status = statuses_of([selection])[0]
        hint = f"serried logs {selection}" if attempt else f"serried why {selection}"
        raise UsageError(f"run `{selection}` has no running ranks: it is {status.state}", hint=hint)
    return attempt


def _checked(answer: stacks.StacksAnswer | None, selection: Selection, rank: int | None) -> stacks.StacksAnswer:
    """Raises SerriedError if there is nothing to print."""
    if answer is None or (answer.silent and not answer.ranks):
        status = statuses_of([selection])[0]
        if status.has_ended:
            raise SerriedError(f"run `{selection}` has ended: it is {status.state}", hint=f"serried why {selection}")
    if answer is None:
        raise SerriedError(
            f"the head agent of run `{selection}` did not answer",
            hint=f"runs of an earlier Serried do not; `serried why {selection}` shows whether the agent is alive",
        )
    if answer.ranks or answer.silent:
        return answer
    if rank is not None:
        raise UsageError(f"run `{selection}` has no running rank {rank}", hint=f"serried stacks {selection}")
    raise SerriedError(f"no rank of run `{selection}` runs now", hint=f"serried show {selection}")


def _json(selection: Selection, attempt: AttemptDirectory, answer: stacks.StacksAnswer) -> dict[str, Any]:
    return {
        "run": str(selection),
        "attempt": attempt.number,
        "ranks": [
            {
                "rank": one.rank,
                "node": one.node,
                "host": one.host,
                "launch": one.launch,
                "processes": list(one.processes),
                "omitted": one.omitted,
            }
            for one in answer.ranks
        ],
        "groups": [[one.rank for one in group] for group in stacks.groups(answer.ranks)],
        "silent_nodes": list(answer.silent),
    }


def _print(selection: Selection, answer: stacks.StacksAnswer, rank: int | None) -> None:
    plan = selection.record.plan
    trees = (str(selection.place.source), str(selection.record.where.source), str(plan.source.directory))
    if rank is None:
        lines = stack_lines.overview(answer.ranks, trees, str(selection))
    else:
        lines = stack_lines.details(answer.ranks, trees)
    for line in lines:
        console.out(line)


def _warn_of_silent(selection: Selection, answer: stacks.StacksAnswer) -> None:
    if not answer.silent:
        return
    nodes = ", ".join(f"{printable(host)} (node {node})" for node, host in answer.silent.items())
    console.warning(f"no answer from {nodes}", hint=f"serried why {selection} shows whether these nodes are lost")
    if not answer.ranks:
        sys.exit(1)
