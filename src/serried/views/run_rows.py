"""A run as a row of a list, in `serried ps` and `serried watch`: its place, time and note."""

from __future__ import annotations

from serried.base.text import ago, duration
from serried.records import verdict
from serried.records.record import read_exit
from serried.records.run_status import RunStatus
from serried.records.verdict import SUBMITTING, UNCERTAIN
from serried.schema import names
from serried.views.console import Cell

_ORDER = {names.RUNNING: 0, names.PENDING: 1, SUBMITTING: 1, names.UNKNOWN: 2, UNCERTAIN: 2}
_LAST = 3


def place(state: str) -> int:
    """The running ones come first, then those that wait, and last those that have ended."""
    return _ORDER.get(state, _LAST)


def order(status: RunStatus) -> tuple[int, float, str]:
    """A key for sorting: in each place the latest comes first."""
    moment = status.verdict.since if status.has_ended else None
    return place(status.state), -(moment or status.created), status.id


def total(status: RunStatus, now: float) -> float | None:
    """How long it ran or runs in all of its attempts, or how long it waits."""
    last = elapsed(status, now)
    if last is None or (status.attempt or 1) == 1 or status.state not in (names.RUNNING, *names.ENDED):
        return last
    place = status.record.where.task(status.task)
    before = [(read_exit(place.attempt(number).exit) or {}).get("seconds") for number in range(1, status.attempt or 1)]
    return last + sum(seconds for seconds in before if isinstance(seconds, int | float))


def elapsed(status: RunStatus, now: float) -> float | None:
    """How long its last attempt ran or runs, or how long it waits."""
    if status.has_ended:
        return status.seconds
    start = status.started if status.state == names.RUNNING and status.tasks is None else status.created
    return max(now - start, 0.0) if start else None


def note(status: RunStatus, now: float) -> Cell:
    """What matters most now. Times stand at the end, where they are not cut off."""
    parts = ["smoke test"] if status.summary and status.summary.smoke else []
    parts += ["rehearsal"] if status.summary and status.summary.rehearsal else []
    ends: list[str] = []
    shorter: list[str] = []
    if status.tasks is not None:
        parts.append(tasks_text(status))
    if status.state in (names.PENDING, names.RUNNING) and status.tasks is None:
        shorter, end = _progress(status)
        attempt = f"attempt {status.attempt}" if (status.attempt or 1) > 1 else ""
        parts += [*shorter[:1], _waiting(status), attempt]
        ends += [_start(status, now), end]
    elif status.state == UNCERTAIN:
        parts.append(f"serried why {status.record.id}")
    elif status.state != names.COMPLETED and status.tasks is None:
        parts.append(status.verdict.message)
    elif status.has_ended:
        shorter = _missing(status)
        parts += [f"files missing: {text}" for text in shorter]
    if status.has_ended and status.verdict.since is not None:
        ends.append(ago(now - status.verdict.since))
    if status.verdict.stale is not None:
        ends.append(f"as of {ago(now - status.verdict.stale)}")
    style = "quiet" if status.state in (names.COMPLETED, names.CANCELLED) else None
    return Cell(", ".join(filter(None, parts)), style, ", ".join(filter(None, ends)), tuple(shorter))


def _missing(status: RunStatus) -> list[str]:
    from serried.records import missing_outputs  # only for runs that have ended

    return [f"serried fetch {status.record.id}"] if missing_outputs.can_be_fetched(status.record.end) else []


def _progress(status: RunStatus) -> tuple[list[str], str]:
    if status.progress is None:
        return [], ""
    from serried.views import progress_lines  # only for runs that run

    return progress_lines.note(status.progress)


def _waiting(status: RunStatus) -> str:
    return "" if status.verdict.stale is not None else status.verdict.message or status.reason


def _start(status: RunStatus, now: float) -> str:
    is_known = status.verdict.stale is None and not status.verdict.message
    return f"starts in {duration(status.starts - now)}" if is_known and status.starts and status.starts > now else ""


def tasks_text(status: RunStatus) -> str:
    """`960/1000 done, 38 failed, 2 timeout`: the tasks in each state but PENDING. Those that may hang come first."""
    by_state = verdict.tasks_by_state(status.tasks or {})
    parts = [f"{len(by_state.pop(names.COMPLETED, []))}/{len(status.tasks or {})} done"]
    by_state.pop(names.PENDING, None)
    stalled = sum(progress.is_stalled for progress in status.progress_of_tasks.values())
    parts += [f"{stalled} without a step for minutes"] if stalled else []
    parts += [f"{len(tasks)} {state.lower().replace('_', ' ')}" for state, tasks in by_state.items()]
    return ", ".join(parts)
