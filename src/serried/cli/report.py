"""`serried report`: what runs used of what they had, which line to change, and what each note means."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from serried.base.errors import SerriedError
from serried.cli import run_view
from serried.records import rules, samples
from serried.records.index import LAST
from serried.records.status import RunStatus, statuses_of, task_of
from serried.records.usage import spreads, usage_of, whole_usage
from serried.schema import names
from serried.views import console, report_page

if TYPE_CHECKING:
    from serried.records.rules import Note
    from serried.records.usage import Usage

_MOST_TASKS = 50
_RULE = run_view.Offered("RULE", lambda: rules.RULES)


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=run_view.complete_runs)
@click.option("--mute", type=_RULE, multiple=True, help="Leave out the notes of a rule. May be repeated.")
@click.option("--all", "all_tasks", is_flag=True, help=f"List all tasks of an array, not only {_MOST_TASKS}.")
@click.option("--explain", type=_RULE, is_flag=False, flag_value="", help="Explain a rule, or list all without RULE.")
@run_view.as_json
def command(*, runs: Sequence[str], mute: Sequence[str], all_tasks: bool, explain: str | None, as_json: bool) -> None:
    r"""Report how well runs used what they requested, and what to change.

    One run is a page: the use of GPUs, CPUs, memory and time, the spread between ranks, and notes with the
    line to write in serried.toml. An array or a sweep is a table with notes about all tasks, and several runs
    are a table.

    \b
    serried report                       the newest run of this project
    serried report lr-sweep/17           task 17 alone
    serried report lr-sweep              each trial in a line
    serried report 4711                  the run of this job
    serried report --explain gpu-low     the meaning of a note
    serried report --explain             all rules
    """
    if explain is not None:
        hint = f"serried report --explain {explain}".strip()
        run_view.exclude("--explain", hint, RUN=runs, mute=mute, all=all_tasks)
        _explain(explain, as_json=as_json)
        return
    for name in mute:
        rules.page_of(name)
    chosen = run_view.with_sweeps(run_view.select(run, of_others=True) for run in runs or (LAST,))
    statuses = statuses_of(chosen)
    for status in statuses:
        if status.summary is None:
            raise SerriedError(status.verdict.message, hint=f"the record is {status.record.directory.path}")
    several = len(chosen) > 1 or any(selection.is_array for selection in chosen)
    usages, omitted = _usages(statuses, several=several, all_tasks=all_tasks)
    is_whole = several and len(runs) <= 1 and not omitted
    notes = rules.judge_all(usages, mute) if is_whole else rules.judge(usages[0], mute) if not several else []
    if as_json:
        _out_json(usages, notes, several=several, omitted=omitted)
    elif several:
        console.out("\n".join([*report_page.table(usages), *report_page.notes(notes)]))
        if not usages:
            console.note("no task has started")
        if omitted:
            console.note(f"{omitted:,} tasks are not listed; `--all` lists them, with notes about all tasks")
    else:
        (usage,) = usages
        unknown = [name for name in usage.mute if name not in rules.RULES]
        if unknown:
            console.note(f"`report.mute` of the run names an unknown rule: {', '.join(unknown)}")
        console.out("\n".join(report_page.page(usage, notes)))
    run_view.warn_if_stale(statuses)
    run_view.insist(statuses)


def _usages(statuses: Sequence[RunStatus], *, several: bool, all_tasks: bool) -> tuple[list[Usage], int]:
    """The usage of each run and of each task that has begun, and how many tasks are left out."""
    now = time.time()
    if not several:
        return [whole_usage(status, now) for status in statuses], 0
    begun: list[tuple[RunStatus, int | None]] = []
    for status in statuses:
        if status.tasks is None:
            begun.append((status, None))
        else:
            begun += [(status, index) for index, task in status.tasks.items() if task.state != names.PENDING]
    shown = begun if all_tasks else begun[:_MOST_TASKS]
    share = samples.MOST_LINES // max(len(shown), 1)
    found = [status if index is None else task_of(status, index) for status, index in shown]
    return [usage_of(status, now, most_lines=share) for status in found], len(begun) - len(shown)


def _out_json(usages: Sequence[Usage], notes: Sequence[Note], *, several: bool, omitted: int) -> None:
    """Measurements and the spread between ranks belong to the report of a single run, as on the screen."""
    judged = [note.to_json() for note in notes]
    runs = [usage.to_json() for usage in usages]
    for usage, entry in zip(usages, runs):
        if several:
            del entry["measured"]
        else:
            entry["spread"] = [each.to_json() for each in spreads(usage)]
            entry["notes"] = judged
    console.out_json(runs=runs, notes=judged, omitted=omitted)


def _explain(rule: str, *, as_json: bool) -> None:
    """Print the page of a rule, or the list of all rules for an empty name."""
    if as_json:
        chosen = [rule] if rule else rules.RULES
        entries = [{"rule": name, "title": rules.title_of(name), "page": rules.page_of(name)} for name in chosen]
        console.out_json(rules=entries)
    elif rule:
        console.out(f"# {rule}\n\n{rules.page_of(rule)}")
    else:
        console.out_table(("RULE", "MEANING"), [(name, rules.title_of(name)) for name in rules.RULES])
