"""What several verbs say alike: how a run stands, JSON, staleness, exit code 3."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serried.errors import SchedulerUnreachable, UsageError
from serried.protocol import SCHEMA, names
from serried.protocol.reasons import Reason
from serried.protocol.times import BadDuration, read_duration
from serried.records.run_status import RunStatus
from serried.records.verdict import SUBMITTING, UNCERTAIN
from serried.ui import console
from serried.ui.text import ago, duration, printable

if TYPE_CHECKING:  # `ps` counts no files
    from serried.protocol.outputs import Outputs

STYLES = {
    names.COMPLETED: "good",
    names.RUNNING: "busy",
    names.PENDING: "waiting",
    SUBMITTING: "waiting",
    names.CANCELLED: "quiet",
    names.PREEMPTED: "warning",
    names.UNKNOWN: "warning",
    UNCERTAIN: "warning",
}
"""Every other state is a failure."""


def state_style(state: str) -> str:
    return STYLES.get(state, "bad")


def how(status: RunStatus) -> str:
    """One line on how a run stands: `k3f9q2 train COMPLETED after 10m00s`."""
    name = f" {printable(status.summary.name)}" if status.summary else ""
    state = console.style(status.state, state_style(status.state), sys.stderr)
    after = f" after {duration(status.seconds)}" if status.seconds is not None else ""
    after += f" of attempt {status.attempt}" if after and (status.attempt or 1) > 1 else ""
    code = status.verdict.exit_code
    detail = f" with exit code {code}" if status.has_ended and code else ""
    said = (
        f": {printable(status.verdict.message)}" if status.state != names.COMPLETED and status.verdict.message else ""
    )
    return f"{status.id}{name} {state}{after}{detail}{said}"


def say_how(status: RunStatus) -> None:
    """How a run stands, and below that what is doubtful."""
    console.say(how(status))
    for warning in status.warnings:
        console.say_behind("  warning: ", warning["message"], "warning")


def say_outputs(found: Outputs) -> None:
    """What it has written by relative paths, where that is anything."""
    if found.text:
        console.say_behind("  outputs: ", found.text, "quiet")


def size(status: RunStatus) -> str:
    """`2x4 gpu`, `2x1/4 gpu` where ranks and GPUs differ, `2x2 cpu`."""
    summary = status.summary
    if summary is None:
        return "?"
    if not summary.gpus:
        return f"{summary.nodes}x{summary.ranks} cpu"
    per_node = f"{summary.gpus}" if summary.ranks == summary.gpus else f"{summary.ranks}/{summary.gpus}"
    return f"{summary.nodes}x{per_node} gpu"


def runs_json(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"schema": SCHEMA, "runs": list(runs)}


def warn_if_stale(statuses: Sequence[RunStatus]) -> None:
    """Say once that a scheduler did not answer, and how old what is shown is."""
    stale = [status.verdict.stale for status in statuses if status.verdict.stale is not None]
    if stale:
        console.warning(
            f"the scheduler does not answer; what is shown of live runs is from {ago(time.time() - min(stale))}"
        )


def insist(statuses: Sequence[RunStatus]) -> None:
    """Raise SchedulerUnreachable where nothing at all is known of a run because its scheduler is silent."""
    unknown = [status for status in statuses if status.verdict.cause == Reason.UNREACHABLE]
    if unknown:
        raise SchedulerUnreachable(
            f"the scheduler does not answer, and nothing is known yet of {', '.join(one.id for one in unknown[:5])}",
            hint="try again in a minute; the run itself does not need this command",
        )


STOP, REMOVE, FORGET = ("stop", "stopped"), ("remove", "removed"), ("forget", "forgotten")


def agreed(doing: tuple[str, str], what: str) -> bool:
    """Whether the user wants that done. Raises UsageError where nobody can be asked."""
    do, done = doing
    if not console.can_ask():
        raise UsageError(f"refusing to {do} {what} without confirmation", hint="pass `--yes`")
    is_agreed = console.confirm(f"{do} {what}?")
    if not is_agreed:
        console.say(f"nothing was {done}")
    return is_agreed


def moment(flag: str, text: str, now: float) -> float:
    """What a flag calls a time: `2d` is two days ago. Raises UsageError."""
    with contextlib.suppress(BadDuration):
        return now - read_duration(text)
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"cannot read `{text}` of `{flag}` as a time", hint="write 90m, 6h, 2d, 1w or 2026-11-20"
        ) from None
