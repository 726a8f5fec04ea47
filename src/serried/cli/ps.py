"""`serried ps`: list the runs of this user."""

from __future__ import annotations

import time

import click

from serried.cli import run_view
from serried.protocol import names
from serried.records import index, missing_outputs, verdict
from serried.records.run_status import RunStatus
from serried.records.status import statuses
from serried.records.verdict import SUBMITTING, UNCERTAIN
from serried.ui import console
from serried.ui.console import Cell
from serried.ui.text import ago, duration

_SHOWN = 10
_HEADS = ("ID", "NAME", "STATE", "SIZE", "CLUSTER", "TIME", "NOTE")
_NAME = _HEADS.index("NAME")
_ORDER = {names.RUNNING: 0, names.PENDING: 1, SUBMITTING: 1, names.UNKNOWN: 2, UNCERTAIN: 2}
_LAST = 3


@click.command()
@click.option("--all", "everything", is_flag=True, help="List every run that has a record.")
@click.option("-n", "--last", "number", default=_SHOWN, show_default=True, metavar="N", help="Most ended runs to list.")
@click.option("--since", metavar="TIME", help="List runs submitted or ended since: 2d, 6h, 2026-11-20.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, everything: bool, number: int, since: str | None, as_json: bool) -> None:
    r"""List runs: the running ones first, then the last ones that ended.

    \b
    serried ps
    serried ps --since 2d
    serried ps --all --json | jq '.runs[] | select(.state == "FAILED") | .id'

    TIME is how long a run waits, runs, or ran. The SIZE `2x4 gpu` is two nodes with four GPUs and
    ranks each; `2x1/4 gpu` has one rank for four GPUs.
    """
    now = time.time()
    oldest = run_view.moment("--since", since, now) if since else None
    found = [status for status in statuses(index.records()) if status.record.directory.path.is_dir()]
    known = sorted(_settled(found), key=_order)
    shown = [status for status in known if not status.has_ended or _is_recent(status, oldest)]
    if not everything and oldest is None:
        ended = [status for status in shown if status.has_ended][: max(number, 0)]
        shown = [status for status in shown if not status.has_ended] + ended
    if as_json:
        run_view.out_runs([status.to_json() for status in shown])
    else:
        _draw(shown, len(known), now)
    run_view.warn_if_stale(shown)
    run_view.insist(shown)


def _settled(found: list[RunStatus]) -> list[RunStatus]:
    """The same, after uncertain submissions were reconciled."""
    uncertain = [status.record for status in found if status.state == UNCERTAIN]
    if not uncertain:
        return found
    from serried.submission.reconcile import find_out  # seldom needed

    for record in uncertain:
        find_out(record)
    again = {status.id: status for status in statuses(uncertain)}
    return [again.get(status.id, status) for status in found]


def _order(status: RunStatus) -> tuple[int, float, str]:
    moment = status.verdict.since if status.has_ended else None
    return _ORDER.get(status.state, _LAST), -(moment or status.created), status.id


def _is_recent(status: RunStatus, oldest: float | None) -> bool:
    return oldest is None or max(status.verdict.since or 0.0, status.created) >= oldest


def _draw(shown: list[RunStatus], known: int, now: float) -> None:
    if not shown:
        if known:
            console.say("no runs to show")
            console.next_steps([("serried ps --all", "list all")])
        else:
            console.say("no runs yet")
            console.next_steps([("serried submit -- python train.py", "submit a run")])
        return
    console.out_table(_HEADS, [_row(status, now) for status in shown], shrink=_NAME)
    if known > len(shown):
        console.say(f"{known - len(shown)} more: serried ps --all")


def _row(status: RunStatus, now: float) -> list[str | Cell]:
    summary = status.summary
    return [
        status.record.id,
        summary.name if summary else "?",
        Cell(status.state, run_view.state_style(status.state)),
        run_view.size(status),
        summary.cluster if summary else "?",
        duration(_elapsed(status, now)),
        Cell(_note(status, now), None if status.state not in (names.COMPLETED, names.CANCELLED) else "quiet"),
    ]


def _elapsed(status: RunStatus, now: float) -> float | None:
    if status.has_ended:
        return status.seconds
    if status.state == names.RUNNING:
        started = status.started if status.tasks is None else status.created
        return now - started if started else None
    return now - status.created if status.created else None


def _note(status: RunStatus, now: float) -> str:
    parts = ["smoke test"] if status.summary and status.summary.smoke else []
    parts += ["rehearsal"] if status.summary and status.summary.rehearsal else []
    parts += [_progress(status)] if status.tasks is not None else []
    if status.state in (names.PENDING, names.RUNNING) and status.tasks is None:
        parts += [_waiting(status, now), f"attempt {status.attempt}" if (status.attempt or 1) > 1 else ""]
    elif status.state == UNCERTAIN:
        parts.append(f"serried why {status.record.id}")
    elif status.state != names.COMPLETED and status.tasks is None:
        parts.append(status.verdict.message)
    elif status.has_ended and missing_outputs.can_be_fetched(status.record.end):
        parts.append(f"files missing: serried fetch {status.record.id}")
    if status.has_ended and status.verdict.since is not None:
        parts.append(ago(now - status.verdict.since))
    if status.verdict.stale is not None:
        parts.append(f"as of {ago(now - status.verdict.stale)}")
    return ", ".join(filter(None, parts))


def _waiting(status: RunStatus, now: float) -> str:
    if status.verdict.stale is not None:
        return ""
    if status.verdict.message:
        return status.verdict.message
    soon = f"starts in {duration(status.starts - now)}" if status.starts and status.starts > now else ""
    return ", ".join(filter(None, (status.reason, soon)))


def _progress(status: RunStatus) -> str:
    """`960/1000 done, 38 failed, 2 timeout`: the tasks in each state but PENDING."""
    by_state = verdict.tasks_by_state(status.tasks or {})
    parts = [f"{len(by_state.pop(names.COMPLETED, []))}/{len(status.tasks or {})} done"]
    by_state.pop(names.PENDING, None)
    parts += [f"{len(tasks)} {state.lower().replace('_', ' ')}" for state, tasks in by_state.items()]
    return ", ".join(parts)
