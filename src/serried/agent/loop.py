"""One thread, one loop: sockets, signals and timers call back from here. Nothing happens inside signal handlers."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from typing import Any, Callable, Dict, List, Tuple

LATE_SECONDS = 5.0
"""A loop that wakes up this much too late was suspended in between."""
Action = Callable[[], None]


class Timer:
    def __init__(self, due: float, action: Action) -> None:
        self.due = due
        """On the monotonic clock."""
        self.action = action
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: List[Tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._signal_actions: Dict[int, Action] = {}
        self._is_running = False
        self._expected, self._stopped_seconds = time.monotonic(), 0.0
        self._woken = -1
        """Gets the numbers of signals, once a signal has an action."""

    def on_signal(self, number: int, action: Action) -> None:
        """Call `action` from the loop after signal `number`; several at once are one. For the main thread's loop."""
        if self._woken < 0:
            self._woken, waker = os.pipe()
            os.set_blocking(self._woken, False)
            os.set_blocking(waker, False)
            signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
            self.watch(self._woken, self._dispatch_signals)
        self._signal_actions[number] = action
        signal.signal(number, lambda *_: None)

    def watch(self, source: Any, action: Action, *, writable: bool = False) -> None:
        """Call `action` whenever `source` can be read, or also when it can be written."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
        try:
            self._selector.modify(source, events, action)
        except KeyError:
            self._selector.register(source, events, action)

    def forget(self, source: Any) -> None:
        self._selector.unregister(source)

    def after(self, seconds: float, action: Action) -> Timer:
        timer = Timer(time.monotonic() + seconds, action)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def every(self, seconds: float, action: Action) -> None:
        def again() -> None:
            action()
            self.after(seconds, again)

        self.after(seconds, again)

    def stop(self) -> None:
        self._is_running = False

    def run(self) -> None:
        self._is_running = True
        while self._is_running:
            timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else 3600.0
            self._detect_suspension()
            self._expected += timeout
            ready = self._selector.select(timeout)
            self._detect_suspension()
            for key, _ in ready:
                key.data()
            while self._is_running and self._timers and self._timers[0][0] <= time.monotonic():
                timer = heapq.heappop(self._timers)[2]
                if not timer.is_cancelled:
                    timer.action()

    def awake(self) -> float:
        """The monotonic clock without the time for which this process was stopped, as a suspended job's are."""
        self._detect_suspension()
        return time.monotonic() - self._stopped_seconds

    def _detect_suspension(self) -> None:
        now = time.monotonic()
        late = now - self._expected
        self._expected = now
        if late > LATE_SECONDS:
            self._stopped_seconds += late

    def _dispatch_signals(self) -> None:
        for number in sorted(set(os.read(self._woken, 4096))):
            if number in self._signal_actions:
                self._signal_actions[number]()
