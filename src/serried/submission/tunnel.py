"""A tunnel: connections to a port of this machine, carried to a port of a node on which a run runs.

    listener, TunnelListener    the end that accepts connections, where the browser is
    hold, serve                 the way to the node: a step of the run's job, whose stdin and stdout carry frames

All connections share one step. If the run is elsewhere, `serve` is at work on its login node, and ssh carries the
frames. So no port is open there, and neither ssh nor a site's network needs to forward anything.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Protocol

from serried import schedulers
from serried.base import NamedTuple, files, frames, shell
from serried.base.errors import SerriedError, UsageError
from serried.base.frames import FrameWire, TunnelEnd
from serried.base.hosts import LOOPBACK
from serried.records.index import Selection
from serried.records.status import Pace, RunStatus, latest_attempt, never_starts, statuses_of, why_never
from serried.schema import names
from serried.submission import script
from serried.submission.foreground import check_joinable, joining

_TAIL = 5
NO_FACTS: Mapping[str, Any] = {}
MOST_CONNECTIONS = 250
"""Further ones wait: a process may have 1,024 open files."""
NEAR_END_SECONDS = 600
END_SECONDS = 60.0
"""Limit for the scheduler to report the end of an attempt whose processes have ended."""
REFUSED_SECONDS = 15.0
"""The same, if the scheduler refuses a step of the job: it may just have ended."""
SILENT_SECONDS = 60.0
"""Between two notes that nothing listens on the port: browsers try again and again."""


NOTEBOOK = ("python", "-m", "serried.train.notebook")
"""The command of a run whose port a tunnel knows."""


class TunnelTarget(NamedTuple):
    selection: Selection
    port: int | None
    """None: that of its notebook."""
    node: int = 0
    rank: int | None = None
    """In place of the node."""


class TunnelEvents(Protocol):
    """Is told what happens meanwhile."""

    def ready(self, facts: Mapping[str, Any]) -> None:
        """The facts are `run`, `host` and `port`, and of a notebook its `token`."""

    def refused(self, facts: Mapping[str, Any], reason: str) -> None:
        """A connection could not be opened on the node."""

    def near_end(self, seconds: float) -> None:
        """The time limit is so many seconds away."""


def listen(port: int) -> socket.socket:
    """Listen on the loopback; 0 is any free port. Raises UsageError."""
    try:
        return socket.create_server((LOOPBACK, port), backlog=128)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        hint = "choose another one, as in `9000:PORT`, or `0:PORT` for any free one"
        raise UsageError(f"cannot listen on port {port} of this machine: {reason}", hint=hint) from None


class TunnelListener:
    def __init__(self, listener: socket.socket, events: TunnelEvents) -> None:
        self._listener, self._events = listener, events
        self._ends: float | None = None
        self._complained = -SILENT_SECONDS
        self._number = 0

    def carry(self, reads: int, writes: int, facts: Mapping[str, Any] = NO_FACTS) -> Mapping[str, Any] | None:
        """Carry connections until the other end has gone; return its last word, if it had one."""
        wire = FrameWire(reads, writes)
        end, known, is_ready = TunnelEnd(wire), dict(facts), False
        try:
            while not wire.has_ended:
                may_accept = is_ready and len(end.connections) < MOST_CONNECTIONS
                waiting, arrived = end.step([self._listener.fileno()] if may_accept else [], self._until_near_end())
                for frame in arrived:
                    if frame.channel:
                        self._complain(known, frame.json().get("errno"))
                    elif frame.kind == frames.EXIT:
                        return frame.json()
                    elif new := frame.json():
                        known |= new
                    else:
                        is_ready = True
                        self._begin(known)
                if waiting:
                    self._number += 1
                    end.add(self._number, self._listener.accept()[0])
                    end.send(self._number, frames.REQUEST, b"{}")
        except ValueError as error:
            raise SerriedError("the other end of the tunnel sent something else", details=str(error)) from None
        finally:
            end.close()
        return None

    def _begin(self, facts: Mapping[str, Any]) -> None:
        left = facts.get("seconds_left")
        self._ends = None if left is None else time.monotonic() + left
        self._events.ready(facts)

    def _until_near_end(self) -> float | None:
        if self._ends is None:
            return None
        left = self._ends - time.monotonic()
        if left <= NEAR_END_SECONDS:
            self._ends = None
            self._events.near_end(left)
            return None
        return left - NEAR_END_SECONDS

    def _complain(self, facts: Mapping[str, Any], code: str | None) -> None:
        """Of a connection that could not be opened."""
        is_common = code in (None, "ECONNRESET", "EPIPE")
        if not is_common and time.monotonic() - self._complained > SILENT_SECONDS:
            self._complained = time.monotonic()
            text = os.strerror(getattr(errno, str(code), errno.EIO)).lower()
            self._events.refused(facts, "nothing listens there" if code == "ECONNREFUSED" else text)


def hold(target: TunnelTarget, listener: TunnelListener, say: Callable[[str], None]) -> RunStatus:
    """Carry connections to the run's node, in each of its attempts, until the run has ended."""
    while True:
        status = _await_attempt(target, say)
        if status.has_ended:
            return status
        facts = _facts(status, target)
        with _on_node(status, target, facts["port"]) as process:
            listener.carry(process.stdout.fileno(), process.stdin.fileno(), facts)  # type: ignore[union-attr]
        status = _ended(status)
        if status.has_ended:
            return status


def serve(target: TunnelTarget, say: Callable[[str], None]) -> None:
    """The same for another machine, whose end of the tunnel is at our stdin and stdout, in one attempt."""
    status = _await_attempt(target, say)
    if not status.has_ended:
        facts = _facts(status, target)
        _send(frames.OUTPUT, facts)
        with _on_node(status, target, facts["port"], is_on_stdio=True) as process:
            process.wait()
        status = _ended(status)
    _send(frames.EXIT, end_of(status) if status.has_ended else {})


def end_of(status: RunStatus) -> dict[str, Any]:
    """How a run ended: its `state`, and the last lines of the rank that failed."""
    failure = status.record.end.first_failure if status.record.end else None
    return {"state": status.state, "tail": [*failure.tail[-_TAIL:]] if failure else []}


def _send(kind: int, value: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(frames.encode_json(0, kind, dict(value)))
    sys.stdout.buffer.flush()


def _await_attempt(target: TunnelTarget, say: Callable[[str], None]) -> RunStatus:
    """The status once an attempt runs, with its notebook if that is the target; or once the run has ended.

    Raises UsageError if the run is in a job around us, and SerriedError if it never starts.
    """
    selection, pace, has_looked = target.selection, Pace(), False
    while True:
        status = statuses_of([selection])[0]
        if status.has_ended:
            return status
        if never_starts(status) and has_looked:  # between two queries a job may have ended
            raise SerriedError(f"{status.id} never starts: {why_never(status)}", hint=f"serried why {status.id}")
        if status.state == names.RUNNING and status.node_names and not _is_over(status):
            node = _node(status, target)
            check_joinable(status, node)
            if target.port is not None or files.read_json(selection.place.attempt(status.attempt or 0).notebook):
                return status
            say(f"{status.id} runs on {status.node_names[node]}, and its notebook starts")
            seconds = 1.0
        else:
            has_looked = True
            reason = f": {status.scheduler_explanation}" if status.state == names.PENDING and status.reason else ""
            say(f"waiting for {status.id}, which is {status.state}{reason}")
            seconds = pace.after([status])
        until, before = time.monotonic() + seconds, latest_attempt(selection.place)
        while time.monotonic() < until and _number(latest_attempt(selection.place)) == _number(before):
            time.sleep(min(1.0, seconds))


def _number(attempt: Any) -> int:
    return attempt.number if attempt else 0


def _node(status: RunStatus, target: TunnelTarget) -> int:
    """Raises UsageError for a rank that the run does not have."""
    if target.rank is None:
        return target.node
    plan = status.record.plan
    if target.rank >= plan.world_size:
        raise UsageError(f"run `{status.id}` has no rank {target.rank}", hint=f"0 to {plan.world_size - 1}")
    return target.rank // plan.allocation.ranks


def _facts(status: RunStatus, target: TunnelTarget) -> dict[str, Any]:
    notebook = {}
    if target.port is None:
        notebook = files.read_json(target.selection.place.attempt(status.attempt or 0).notebook) or {}
    progress, limit = status.progress, status.record.plan.allocation.time_seconds
    left = progress.live.limit_seconds_left if progress else None
    if progress and left is not None:
        left -= progress.age
    elif limit and status.started:  # the head agent has written nothing yet
        left = limit - (time.time() - status.started)
    host = status.node_names[_node(status, target)]
    return {"run": status.id, "host": host, "port": target.port, "seconds_left": left, **notebook}


@contextlib.contextmanager
def _on_node(status: RunStatus, target: TunnelTarget, port: int, *, is_on_stdio: bool = False) -> Iterator[shell.Child]:
    """The program beside the ranks. Raises SerriedError if it fails, which is not so if its attempt ends."""
    words = [str(status.attempt), str(port), *([] if status.task is None else [str(status.task)])]
    plan = status.record.plan
    text = script.render_errand(plan, ("tunnel", *words), python=sys.executable)
    argv = joining(status, _node(status, target), text, (), has_terminal=False)
    with tempfile.TemporaryFile() as errors:
        environment = schedulers.scrub(os.environ)
        process = shell.converse(
            argv, stderr=errors, own_session=not is_on_stdio, env=environment, piped=not is_on_stdio
        )
        try:
            yield process
        finally:
            _end(process)
        if process.returncode and not _after(status, REFUSED_SECONDS):
            raise SerriedError(
                f"no program can be started on {status.node_names[_node(status, target)]}, or it was ended there",
                hint=f"serried shell {status.id} -- hostname shows whether the scheduler allows it",
                details=_tail(errors),
            )


def _end(process: shell.Child) -> None:
    """The program ends with its stdin."""
    if process.stdin:
        process.stdin.close()
    if not shell.has_ended(process, 5.0):
        process.terminate()
        if not shell.has_ended(process, 5.0):
            process.kill()


def _tail(errors: IO[bytes]) -> str | None:
    errors.seek(0)
    return "\n".join(errors.read().decode("utf-8", "replace").splitlines()[-_TAIL:]) or None


def _is_over(status: RunStatus) -> bool:
    """Whether its attempt has not begun, or has ended by its own files, which are ahead of the scheduler."""
    place = Selection(status.record, status.task).place
    return not status.attempt or place.attempt(status.attempt).exit.exists()


def _has_left(now: RunStatus, before: RunStatus) -> bool:
    """Between two jobs of a run, the scheduler may still report the first one."""
    return now.has_ended or (now.state, now.attempt, now.job) != (names.RUNNING, before.attempt, before.job)


def _ended(before: RunStatus) -> RunStatus:
    """Raises SerriedError if the attempt continues without the tunnel's program."""
    status = _after(before)
    if status is None:
        raise SerriedError(f"the tunnel's program has ended on its node, and run `{before.id}` has not")
    return status


def _after(before: RunStatus, seconds: float = END_SECONDS) -> RunStatus | None:
    """The status once the attempt is over, as its processes are; None if it is not within so many seconds."""
    selection, deadline = Selection(before.record, before.task), time.monotonic() + seconds
    while True:
        status = statuses_of([selection])[0]
        if _is_over(status) or _has_left(status, before):
            return status
        if time.monotonic() > deadline:
            return None
        time.sleep(1.0)
