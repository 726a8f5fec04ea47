"""Stop requests: how a rank receives one, and how all ranks agree on one step at which to save and leave.

The agent writes a reason into a file on this node. A rank reads the file at most once a second, and does nothing
inside a signal handler. About every two seconds, one small all-reduce shares a rank's request with all ranks, at the
same call on each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any, Callable, List, Optional, Sequence

from serried.schema.reasons import STOPS, Reason

AT_ONCE = (Reason.FAILURE, Reason.LOST, Reason.SILENCE, Reason.USER, Reason.PROFILED)
"""With these reasons TERM ends the process: another rank has failed, or a checkpoint is not wanted."""

LOOK_SECONDS = 1.0
WAIT_LOOK_SECONDS = 0.05
AGREE_SECONDS = 2.0
LONGEST_WAIT = 1000
"""Steps, at most, between two agreements."""

AgreeMax = Callable[[Sequence[int]], List[int]]
"""All-reduces a few integers by their maximum."""


class StopListener:
    """The stop request that this process has received: the reason in the stop file, or TERM."""

    def __init__(self, path: Optional[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._next_look = 0.0
        self._word: Optional[str] = None
        self._was_terminated = False
        self._is_ignoring = False
        self._restore: Callable[[], None] = lambda: None

    def reason(self) -> Optional[str]:
        now = self._clock()
        if self._path and now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._word = self.read() or self._word
        if self._word in STOPS:
            return self._word
        return Reason.PREEMPT if self._was_terminated else None

    def wait_for_request(self, seconds: float) -> None:
        """Poll until there is a request, for at most `seconds`."""
        deadline = self._clock() + seconds
        while self.reason() is None and self._clock() < deadline:
            time.sleep(WAIT_LOOK_SECONDS)
            self._next_look = 0.0

    def read(self) -> Optional[str]:
        try:
            with open(self._path or "", encoding="utf-8") as file:  # noqa: PTH123 - quicker, and once a second
                return file.read().strip() or None
        except OSError:
            return None

    def listen(self) -> None:
        """Handle TERM too, if an agent may write the stop file, so that TERM does not end the rank before it saves.

        The signal's number comes through a pipe to a thread, which receives it even while the main thread waits for
        a rank that will never answer.
        """
        if not self._path or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _noop):
            return  # the script handles TERM itself
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before != -1:  # another event loop uses the wake-up descriptor
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(writer)
            return
        signal.signal(signal.SIGTERM, _noop)
        os.register_at_fork(after_in_child=_forget_signals)
        threading.Thread(target=self._receive, args=(reader,), name="serried-term", daemon=True).start()

        def restore() -> None:
            signal.set_wakeup_fd(-1)
            if not self._is_ignoring:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(writer)

        self._restore = restore

    def ignore(self) -> None:
        """This rank has failed: from now on TERM would only hide the reason and the exit status."""
        self._is_ignoring = True

    def close(self) -> None:
        restore, self._restore = self._restore, lambda: None
        with contextlib.suppress(ValueError):  # not the main thread: the process is ending anyway
            restore()

    def _receive(self, reader: int) -> None:
        while True:
            received = os.read(reader, 64)
            if not received:
                os.close(reader)
                return
            if signal.SIGTERM in received and not self._is_ignoring:
                before = self._word
                self._word = self.read() or before
                if self._word in AT_ONCE and before not in STOPS:  # else it is saving already
                    os._exit(128 + signal.SIGTERM)
                self._was_terminated = True


def _noop(number: int, frame: Any) -> None:
    """The thread acts; a handler must merely exist for Python to write to the pipe."""


def _forget_signals() -> None:
    """A child, such as a worker of a loader, must not write into its parent's pipe."""
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is _noop:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class StopAgreement:
    """Gives the same `reason()` on every rank, if every rank calls it equally often."""

    def __init__(
        self, listener: StopListener, agree: Optional[AgreeMax], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listener = listener
        self._agree = agree
        """None with one rank."""
        self._clock = clock
        self._reason: Optional[str] = None
        self._since = 0
        """Calls since the last agreement."""
        self._wait = 1
        """Calls from one agreement to the next."""
        self._last = clock()

    @property
    def agreed(self) -> Optional[str]:
        """The reason, if the ranks have agreed on one. Not collective."""
        return self._reason

    def agree_next(self) -> None:
        """Make the next `reason()` collective, however recent the last agreement. Call it on every rank."""
        self._wait = 0

    def reason(self) -> Optional[str]:
        if self._reason is not None:
            return self._reason
        if self._agree is None:
            self._reason = self._listener.reason()
            return self._reason
        self._since += 1
        if self._since < self._wait:
            return None
        now = self._clock()
        seconds = max(now - self._last, 1e-6) / self._since
        # The wait at most doubles: the first steps may be slow, and later ones slower still.
        wanted = max(1, min(int(AGREE_SECONDS / seconds), 2 * self._wait, LONGEST_WAIT))
        requested = self._listener.reason()
        weight = STOPS.index(requested) + 1 if requested else 0
        weight, shortest = self._agree((weight, -wanted))
        self._wait, self._since, self._last = -shortest, 0, self._clock()
        self._reason = STOPS[weight - 1] if weight else None
        return self._reason
