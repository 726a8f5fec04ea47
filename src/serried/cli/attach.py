"""`serried attach`: a shell, or one command, in the job of a running run, with the environment of a rank."""

from __future__ import annotations

import os
import sys

import click

from serried.base import shell
from serried.base.errors import UsageError
from serried.base.text import compress
from serried.cli import run_view
from serried.records import rank_processes
from serried.records.evidence import latest_attempt
from serried.records.index import Selection
from serried.records.rank_processes import RankProcess
from serried.records.status import statuses_of
from serried.schema.names import rank_name
from serried.submission import interactive


@click.command(epilog=run_view.HELP)
@run_view.one_run
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--rank", type=click.IntRange(0), metavar="R", help="The rank.  [default: the first]")
def command(*, run: str, words: tuple[str, ...], rank: int | None) -> None:
    r"""Open a shell beside a rank, or run a command there; exits with its status.

    It has the rank's variables, working directory and container, and shares its CPUs, memory and GPUs. It is
    not a rank. The ranks continue after its end.

    \b
    serried attach last                            beside the first rank
    serried attach k3f9q2 --rank 3
    serried attach k3f9q2 --rank 3 -- nvidia-smi
    serried attach lr-sweep/17 -- env
    """
    selection = run_view.select_one(run)
    status = statuses_of([selection])[0]
    interactive.check_joinable(status)
    argv, environment = interactive.attach_command(status, _process(selection, rank), words, os.environ)
    sys.exit(shell.foreground(argv, env=environment))


def _process(selection: Selection, rank: int | None) -> RankProcess:
    attempt = latest_attempt(selection.place)
    found = rank_processes.running(attempt) if attempt else []
    chosen = next((process for process in found if rank in (None, process.rank)), None)
    if chosen is None:
        numbers = [process.rank for process in found if process.rank >= 0]
        which = "no rank runs now" if rank is None else f"{rank_name(rank)} does not run now"
        hint = f"its running ranks: {compress(numbers)}" if numbers else f"serried show {selection}"
        raise UsageError(f"{which} in run `{selection}`", hint=hint)
    return chosen
