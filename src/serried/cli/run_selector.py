"""The word RUN on the command line: an id, a unique prefix, a name, `last`, and RUN/17 for an element."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from serried.records import index
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.submission.reconcile import find_out
from serried.ui import console
from serried.ui.text import printable

HELP = "RUN is an id, a unique prefix of one, a name, or `last`; RUN/17 is task 17 of an array."


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Ids, with names as help; `last` first."""
    items = [CompletionItem(index.LAST, help="the newest run")] if index.LAST.startswith(incomplete) else []
    for record in index.records():
        if record.id.startswith(incomplete):
            try:
                items.append(CompletionItem(record.id, help=printable(record.summary.name)))
            except RecordUnreadable:
                continue
    return items


def one_run() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.argument("run", metavar="RUN", shell_complete=complete_runs)


def last_run() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """One run; the newest where none is given."""
    return click.argument("run", metavar="[RUN]", default=index.LAST, shell_complete=complete_runs)


def many_runs() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs)


def select(word: str) -> Selection:
    """The run that `word` means; what should be known about the choice goes to stderr."""
    selection = index.find(word)
    find_out(selection.record)
    if selection.note:
        console.note(selection.note)
    return selection


def select_all(words: Iterable[str]) -> list[Selection]:
    """Each run once, in the order given."""
    found: dict[str, Selection] = {}
    for word in words:
        selection = select(word)
        found.setdefault(str(selection), selection)
    return list(found.values())
