"""Asked to stop: how a rank hears of it, and how all ranks agree on one step at which to save and leave.

The agent writes a reason into a file of this node. A rank looks at it at most once a second, and nothing happens
inside a signal handler. Every few steps, so that they take about two seconds, one small all-reduce makes what any rank
has heard known to all, at the same call on each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any, Callable, List, Optional, Sequence

from serried.protocol.reasons import STOPS, Reason

AT_ONCE = (Reason.FAILURE, Reason.LOST, Reason.SILENCE, Reason.USER)
"""With these, TERM means what it means to any program: another rank has failed, or nobody wants a checkpoint."""

LOOK_SECONDS = 1.0
WAIT_LOOK_SECONDS = 0.05
AGREE_SECONDS = 2.0
LONGEST_WAIT = 1000
"""Steps, at most, between two agreements."""

AgreeMax = Callable[[Sequence[int]], List[int]]
"""All-reduces a few integers by their maximum."""


class Ear:
    """What this process itself has heard: the stop file's word, or TERM."""

    def __init__(self, path: Optional[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._next_look = 0.0
        self._word: Optional[str] = None
        self._was_terminated = False
        self._is_ignoring = False
        self._restore: Callable[[], None] = lambda: None

    def heard(self) -> Optional[str]:
        now = self._clock()
        if self._path and now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._word = self.read() or self._word
        if self._word in STOPS:
            return self._word
        return Reason.PREEMPT if self._was_terminated else None

    def await_word(self, seconds: float) -> None:
        """Look again and again until there is something to hear, or `seconds` are over."""
        deadline = self._clock() + seconds
        while self.heard() is None and self._clock() < deadline:
            time.sleep(WAIT_LOOK_SECONDS)
            self._next_look = 0.0

    def read(self) -> Optional[str]:
        try:
            with open(self._path or "", encoding="utf-8") as file:  # noqa: PTH123 - quicker, and once a second
                return file.read().strip() or None
        except OSError:
            return None

    def listen(self) -> None:
        """Hear TERM too, where an agent that asks by file is there: then it need not mean death before the save.

        The signal's number comes through a pipe to a thread, so that it is heard while the main thread waits for
        a rank that will never answer.
        """
        if not self._path or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _nothing_here):
            return  # the script has plans of its own
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before != -1:  # somebody else's loop listens there
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(writer)
            return
        signal.signal(signal.SIGTERM, _nothing_here)
        os.register_at_fork(after_in_child=_forget_signals)
        threading.Thread(target=self._hear, args=(reader,), name="serried-term", daemon=True).start()

        def restore() -> None:
            signal.set_wakeup_fd(-1)
            if not self._is_ignoring:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(writer)

        self._restore = restore

    def ignore(self) -> None:
        """This rank has failed: from now on TERM would only keep it from saying why, and from its own status."""
        self._is_ignoring = True

    def close(self) -> None:
        restore, self._restore = self._restore, lambda: None
        with contextlib.suppress(ValueError):  # not the main thread: the process is ending anyway
            restore()

    def _hear(self, reader: int) -> None:
        while True:
            received = os.read(reader, 64)
            if not received:
                os.close(reader)
                return
            if signal.SIGTERM in received and not self._is_ignoring:
                before = self._word
                self._word = self.read() or before
                if self._word in AT_ONCE and before not in STOPS:  # or it saves already
                    os._exit(128 + signal.SIGTERM)
                self._was_terminated = True


def _nothing_here(number: int, frame: Any) -> None:
    """The thread acts; a handler must merely exist for Python to write to the pipe."""


def _forget_signals() -> None:
    """A child, such as a worker of a loader, must not write into its parent's pipe."""
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is _nothing_here:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Stopping:
    """Answers `reason()` alike on every rank, if every rank asks equally often."""

    def __init__(self, ear: Ear, agree: Optional[AgreeMax], clock: Callable[[], float] = time.monotonic) -> None:
        self._ear = ear
        self._agree = agree
        """None where there is nobody to agree with."""
        self._clock = clock
        self._reason: Optional[str] = None
        self._since = 0
        """Calls since the last agreement."""
        self._wait = 1
        """How many of them until the next."""
        self._last = clock()

    @property
    def agreed(self) -> Optional[str]:
        """The reason, if it has been agreed on; asks nobody."""
        return self._reason

    def ask_next(self) -> None:
        """Let the next `reason()` ask all ranks, however short ago they were asked. On every rank alike."""
        self._wait = 0

    def reason(self) -> Optional[str]:
        if self._reason is not None:
            return self._reason
        if self._agree is None:
            self._reason = self._ear.heard()
            return self._reason
        self._since += 1
        if self._since < self._wait:
            return None
        return self._ask(self._agree)

    def _ask(self, agree: AgreeMax) -> Optional[str]:
        now = self._clock()
        seconds = max(now - self._last, 1e-6) / self._since
        # Growing slowly: the first steps may be slow for reasons of their own, and the next ones slower than these.
        wish = max(1, min(int(AGREE_SECONDS / seconds), 2 * self._wait, LONGEST_WAIT))
        heard = self._ear.heard()
        weight = STOPS.index(heard) + 1 if heard else 0
        weight, shortest = agree((weight, -wish))
        self._wait, self._since, self._last = -shortest, 0, self._clock()
        self._reason = STOPS[weight - 1] if weight else None
        return self._reason
