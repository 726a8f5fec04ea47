"""An array on the screen: the number of its tasks in each state, its first failures, a table of its tasks."""

from __future__ import annotations

from collections.abc import Sequence

from serried.base.text import compress, duration
from serried.cli import run_view
from serried.records.explain import Explanation
from serried.records.run_status import RunStatus
from serried.records.status import task_of
from serried.records.verdict import tasks_by_state
from serried.schema import names
from serried.schema.reasons import Reason
from serried.views import console
from serried.views.console import Cell
from serried.views.text import overwritten

_WIDEST = 62
"""Columns of a line about one state."""
_TAIL = 3
_HEADS = ("TASK", "STATE", "TIME", "NODES", "NOTE")


def counts(status: RunStatus) -> list[str]:
    """`957 COMPLETED  0-2,4-6,…`: the number of tasks in each state, and the first of their indices."""
    by_state = tasks_by_state(status.tasks or {})
    digits = max((len(f"{len(tasks):,}") for tasks in by_state.values()), default=0)
    widest = max(map(len, by_state), default=0)
    lines = []
    for state, tasks in by_state.items():
        label = f"{len(tasks):>{digits},} {state.ljust(widest)}  "
        lines.append(label + _cut(compress(tasks), _WIDEST - len(label)))
    return lines


def _cut(indices: str, columns: int) -> str:
    """`0-2,4-6,…`: as many ranges as fit."""
    return indices if len(indices) <= columns else indices[: indices.rindex(",", 0, columns - 1)] + ",…"


def failure_lines(status: RunStatus, failures: Sequence[Explanation], *, with_tail: bool = False) -> list[str]:
    """The first failures of an array, each with its reason and the next command, or `with_tail` with its last lines."""
    lines = []
    widest = max((len(it.status.id) for it in failures), default=0)
    blank = " " * (widest + 4)
    for it in failures:
        message = f": {it.status.verdict.message}" if it.status.verdict.message else ""
        lines += console.behind(f"  {it.status.id.ljust(widest)}  ", f"{it.status.state}{message}")
        if with_tail:
            lines += [f"  | {run_view.output_line(line)}" for line in it.tail[-_TAIL:]]
            lines.append(f"  {it.logs_command}")
        else:
            # Of a failure that nothing explains, the last line says more than the meaning.
            text = f"| {overwritten(it.tail[-1])}" if it.reason is Reason.EXIT and it.tail else it.meaning
            lines += console.behind(blank, text) if text else []
            lines.append(f"{blank}serried why {it.status.id}")
    number = sum(it.has_ended and it.state != names.COMPLETED for it in (status.tasks or {}).values())
    if number > len(failures):
        lines.append(f"  {number - len(failures):,} more: serried show {status.id} --tasks")
    return lines


def _progress(status: RunStatus, index: int) -> str:
    """What a task does now, if it is one of the few whose files are read."""
    progress = status.progress_of_tasks.get(index)
    if progress is None:
        return ""
    from serried.views import progress_lines  # only for runs that run

    return progress_lines.line(progress)


def out_tasks(status: RunStatus) -> None:
    """Print a line for each task."""
    rows: list[list[str | Cell]] = []
    for index in status.tasks or {}:
        task = task_of(status, index)
        note = task.reason if task.state == names.PENDING else task.verdict.message or _progress(status, index)
        rows.append(
            [
                str(index),
                Cell(task.state, console.state_style(task.state)),
                duration(task.seconds),
                ", ".join(task.node_names),
                note if task.state != names.COMPLETED else "",
            ]
        )
    console.out_table(_HEADS, rows, shrink=_HEADS.index("NODES"))
