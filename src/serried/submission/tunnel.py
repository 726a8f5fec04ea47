"""A tunnel to a node of a run: a step of the run's job, whose stdin and stdout carry frames.

All connections share that step. `cli.tunnel` accepts them. If the run is on another cluster, `serve` runs on the login
node, and ssh carries the frames. So no port is open on the login node, and neither ssh nor the site's network has to
forward ports.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from serried import schedulers
from serried.base import NamedTuple, files, frames, shell
from serried.base.errors import SerriedError, UsageError
from serried.base.files import read_journal
from serried.records.index import Selection
from serried.records.status import Pace, RunStatus, attempt_numbers, never_starts, statuses_of, why_never
from serried.schema import names
from serried.schema.events import JournalEvent
from serried.schema.layout import AttemptDirectory
from serried.schema.plan import Plan
from serried.submission import script
from serried.submission.foreground import joinable, joining

_TAIL = 5
END_SECONDS = 60.0
"""Limit for the scheduler to report the end of an attempt whose processes have ended."""
REFUSED_SECONDS = 15.0
"""The same if the scheduler refuses a step of the job: the job may have just ended."""
NOTEBOOK = ("python", "-m", "serried.train.notebook")
"""The command of a notebook: its run writes the port for the tunnel to a file."""


class TunnelTarget(NamedTuple):
    selection: Selection
    port: int | None
    """None for the port of the run's notebook."""
    node: int = 0


def node_of(plan: Plan, node: int | None, rank: int | None, attempt: AttemptDirectory | None) -> int:
    """The number of the requested node, or of the rank's node. Raises UsageError if the run does not have it.

    In `attempt` a spare node may have taken the place of another.
    """
    kind, number, count = ("node", node or 0, plan.allocation.job_nodes)
    if rank is not None:
        kind, number, count = ("rank", rank, plan.world_size)
    if number >= count:
        raise UsageError(f"run `{plan.run}` has no {kind} {number}", hint=f"0 to {count - 1}" if count > 1 else None)
    if rank is None:
        return number
    place = rank // plan.allocation.ranks
    starts = [] if attempt is None else read_journal(attempt.events)
    nodes = [
        entry["nodes"] for entry in starts if entry.get("event") == JournalEvent.STARTING_RANKS and "nodes" in entry
    ]
    return int(nodes[-1][place]) if nodes else place


def hold(
    target: TunnelTarget, carry: Callable[[int, int, Mapping[str, Any]], object], say: Callable[[str], None]
) -> RunStatus:
    """Carry connections to the run's node, in each of its attempts, until the run has ended.

    `carry` gets the descriptors from and to the node, and the facts `run`, `host`, `port`, `seconds_left` (or None),
    and, for a notebook, `token`.
    """
    while True:
        status = _await_attempt(target, say)
        if status.has_ended:
            return status
        facts = _facts(status, target)
        with _on_node(status, target, facts["port"]) as process:
            carry(process.stdout.fileno(), process.stdin.fileno(), facts)  # type: ignore[union-attr]


def serve(target: TunnelTarget, say: Callable[[str], None]) -> None:
    """The same for one attempt, and for another machine, whose end of the tunnel is our stdin and stdout."""
    status = _await_attempt(target, say)
    if not status.has_ended:
        facts = _facts(status, target)
        _send(frames.OUTPUT, facts)
        with _on_node(status, target, facts["port"], piped=False) as process:
            process.wait()
        status = statuses_of([target.selection])[0]
    _send(frames.EXIT, end_of(status) if status.has_ended else {})


def end_of(status: RunStatus) -> dict[str, Any]:
    """How a run ended: its `state`, and the last lines of the rank that failed."""
    failure = status.record.end.first_failure if status.record.end else None
    return {"state": status.state, "tail": [*failure.tail[-_TAIL:]] if failure else []}


def _send(kind: int, value: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(frames.encode_json(0, kind, dict(value)))
    sys.stdout.buffer.flush()


def _await_attempt(target: TunnelTarget, say: Callable[[str], None]) -> RunStatus:
    """Wait until an attempt runs, and its notebook if that is the target, or until the run has ended.

    Raises UsageError if the run is in a job around us, and SerriedError if it never starts.
    """
    selection, pace, has_looked = target.selection, Pace(), False
    while True:
        status = statuses_of([selection])[0]
        if status.has_ended:
            return status
        if never_starts(status) and has_looked:  # a job may end between two queries
            raise SerriedError(f"{status.id} never starts: {why_never(status)}", hint=f"serried why {status.id}")
        if status.state == names.RUNNING and status.node_names and not _is_over(status, target):
            host = joinable(status, target.node)
            if target.port is not None or files.read_json(selection.place.attempt(status.attempt or 0).notebook):
                return status
            say(f"{status.id} runs on {host}, and its notebook starts")
            seconds = 1.0
        else:
            has_looked = True
            reason = f": {status.scheduler_explanation}" if status.state == names.PENDING and status.reason else ""
            say(f"waiting for {status.id}, which is {status.state}{reason}")
            seconds = pace.after([status])
        until, before = time.monotonic() + seconds, attempt_numbers(selection.place)
        while time.monotonic() < until and attempt_numbers(selection.place) == before:
            time.sleep(min(1.0, seconds))


def _facts(status: RunStatus, target: TunnelTarget) -> dict[str, Any]:
    notebook = {}
    if target.port is None:
        notebook = files.read_json(target.selection.place.attempt(status.attempt or 0).notebook) or {}
    left, limit = status.progress and status.progress.limit_seconds_left, status.record.plan.allocation.time_seconds
    if left is None and limit and status.started:  # the head agent has not written its file yet
        left = limit - (time.time() - status.started)
    return {
        "run": status.id,
        "host": joinable(status, target.node),
        "port": target.port,
        "seconds_left": left,
        **notebook,
    }


@contextlib.contextmanager
def _on_node(status: RunStatus, target: TunnelTarget, port: int, *, piped: bool = True) -> Iterator[shell.Child]:
    """Start the tunnel's program beside the ranks. Raises SerriedError if it ends before the attempt does."""
    words = [str(status.attempt), str(port), *([] if status.task is None else [str(status.task)])]
    text = script.render_errand(status.record.plan, ("tunnel", *words), python=sys.executable)
    host = joinable(status, target.node)
    argv = joining(status, host, text, (), has_terminal=False)
    with tempfile.TemporaryFile() as errors:
        environment = schedulers.scrub(os.environ)
        process = shell.converse(argv, stderr=errors, own_session=piped, env=environment, piped=piped)
        try:
            yield process
        finally:
            if process.stdin:  # the program ends at the end of its input
                process.stdin.close()
            for stop in (process.terminate, process.kill):
                if not shell.has_ended(process, 5.0):
                    stop()
        if not _ends(status, target, REFUSED_SECONDS if process.returncode else END_SECONDS):
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace").splitlines()
            raise SerriedError(
                f"no program can be started on {host}, or it was ended there",
                hint=f"serried shell {status.id} -- hostname shows whether the scheduler allows it",
                details="\n".join(said[-_TAIL:]) or None,
            )


def _ends(before: RunStatus, target: TunnelTarget, seconds: float) -> bool:
    """Whether the attempt ends within `seconds`. Its processes have ended."""
    deadline = time.monotonic() + seconds
    while True:
        status = statuses_of([target.selection])[0]
        is_same = (status.state, status.attempt, status.job) == (names.RUNNING, before.attempt, before.job)
        if not is_same or _is_over(status, target):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(1.0)


def _is_over(status: RunStatus, target: TunnelTarget) -> bool:
    """Whether the attempt has not begun, or its files, which are ahead of the scheduler, show its end."""
    return not status.attempt or target.selection.place.attempt(status.attempt).exit.exists()
