"""A sink on a thread of its own. Training never waits for a sink, and never gets an exception of one."""

from __future__ import annotations

import queue
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

MOST_WAITING = 600
"""Batches of a second, or of 512 calls of `run.log`. A sink that is further behind hangs, or is too slow."""
LONGEST_REASON = 300


class Point(NamedTuple):
    """The values of one call of `run.log`."""

    time: float
    """Seconds since the epoch."""
    step: int
    values: Dict[str, Any]
    """Numbers, also NaN and infinities, and texts; with `tracker.log` also objects of a sink's own library."""


class SessionEnd(NamedTuple):
    """How the session ends."""

    has_failed: bool = False
    will_continue: bool = False
    """Another attempt resumes the run."""


class Sink:
    """A destination of values. All calls come from one thread. Whatever a method raises cuts the sink off."""

    name = ""

    def start(self) -> None:
        """Connect to the destination. Takes any time."""

    def write(self, points: List[Point]) -> None:
        """Add the points, in the order of their steps."""

    def finish(self, ending: SessionEnd) -> None:
        """Write what is left, and close."""

    def abandon(self) -> None:
        """Prevent that a sink which has failed or hangs holds this process up at its exit. From any thread."""


class Feed:
    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.is_cut_off = False
        self._batches: queue.SimpleQueue[Optional[List[Point]]] = queue.SimpleQueue()
        self._ending = SessionEnd()
        self._has_started = threading.Event()
        self._has_ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=f"serried-{sink.name}", daemon=True)
        self._thread.start()

    def put(self, points: List[Point]) -> None:
        if self.is_cut_off:
            return
        if self._batches.qsize() >= MOST_WAITING:
            self.cut_off(f"it is {MOST_WAITING} batches of values behind")
            return
        self._batches.put(points)

    def wait_until_started(self, seconds: float) -> bool:
        """Whether the sink works. It is cut off if it does not start within `seconds`."""
        if not self._has_started.wait(seconds):
            self.cut_off("it did not start in time")
        return not self.is_cut_off

    def guard(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The result of a function of the sink's library. An exception cuts the sink off; the result is then None."""
        try:
            return function(*args, **options)
        except Exception as error:  # noqa: BLE001 - a tracker never stops a training
            self.cut_off(_describe(error))
            return None

    def announce_end(self, ending: SessionEnd) -> None:
        """After the points so far, finish."""
        self._ending = ending
        self._batches.put(None)

    def wait_for_end(self, deadline: float) -> None:
        """Wait until the sink has finished or is cut off, at most until `deadline` on the monotonic clock."""
        if not self._has_ended.wait(max(0.0, deadline - time.monotonic())):
            self.cut_off("it did not finish in time")

    def cut_off(self, reason: str) -> None:
        with self._lock:
            if self.is_cut_off:
                return
            self.is_cut_off = True
        text = " ".join(reason.split())[:LONGEST_REASON]
        line = f"serried: the tracker `{self.sink.name}` is cut off: {text}; the training continues\n"
        sys.stderr.write(line)
        sys.stderr.flush()
        self.sink.abandon()
        self._has_started.set()  # nobody waits for it any longer
        self._has_ended.set()

    def _work(self) -> None:
        try:
            self.sink.start()
            self._has_started.set()
            if self.is_cut_off:
                self.sink.abandon()  # of what has started since
            while not self.is_cut_off:
                points = self._batches.get()
                if points is None:
                    self.sink.finish(self._ending)
                    return
                self.sink.write(points)
        except BaseException as error:  # noqa: BLE001 - see `guard`; libraries also exit
            self.cut_off(_describe(error))
        finally:
            self._has_started.set()
            self._has_ended.set()


def _describe(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the module `{error.name}` is not installed"
    return f"{type(error).__name__}: {error}"
