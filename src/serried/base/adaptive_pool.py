"""A thread pool for file system work: one thread on a fast file system, many where each call takes milliseconds."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections import deque
from typing import Callable, Deque, List, Optional

Task = Callable[[], None]

LOOK_SECONDS = 0.02
WAITS = 2000
"""Waits of the first thread for each second of CPU time; more of them mean that the file system is slow."""
BUSY = 0.7
"""A share of one processor. Above it further threads would only wait for Python's lock."""


class Crew:
    """Runs tasks, which may add tasks. The first exception ends the work, and `run` raises it."""

    def __init__(self, most: int, beat: Task = lambda: None) -> None:
        """`beat` is called after each piece of work: it shows that the file system responds."""
        self._most = most
        self._beat = beat
        self._tasks: Deque[Task] = deque()
        self._change = threading.Condition()
        self._threads: List[threading.Thread] = []
        self._at_work = 0
        self._problem: Optional[BaseException] = None
        self._looked = time.monotonic()
        self._used = time.process_time()
        self._waits = 0

    def add(self, task: Task) -> None:
        with self._change:
            self._tasks.append(task)
            self._change.notify()

    def run(self) -> None:
        """Return when every task is done. The caller is interrupted only between tasks."""
        self._hire(1)
        with self._change:
            while self._at_work or (self._tasks and not self._problem):
                self._change.wait()
            problem = self._problem
            self._tasks.clear()
            self._problem = self._problem or Done()
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        if problem:
            raise problem

    def stop(self, problem: BaseException) -> None:
        """Start no further task; `run` raises `problem`."""
        with self._change:
            self._problem = self._problem or problem
            self._change.notify_all()

    def look(self) -> None:
        """Start more threads if they would help. Long tasks call it repeatedly."""
        self._beat()
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            with self._change:
                self._look()

    def _hire(self, count: int) -> None:
        for _ in range(min(count, self._most - len(self._threads))):
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._tasks and not self._problem:
                    self._change.wait()
                if self._problem:
                    return
                task = self._tasks.popleft()
                self._at_work += 1
            try:
                task()
            except BaseException as problem:  # noqa: BLE001 - `run` raises it
                self.stop(problem)
            self._beat()
            with self._change:
                self._at_work -= 1
                if not self._at_work:
                    self._change.notify_all()
                self._look()

    def _look(self) -> None:
        """Double the threads while tasks are waiting and the file system is the bottleneck."""
        now = time.monotonic()
        seconds = now - self._looked
        if seconds < LOOK_SECONDS:
            return
        used, waits = time.process_time(), _waits()
        is_slow = len(self._threads) > 1 or waits - self._waits > WAITS * (used - self._used)
        if is_slow and used - self._used < BUSY * seconds and self._tasks and not self._problem:
            self._hire(len(self._threads))
        self._looked, self._used, self._waits = now, used, waits


def _waits() -> int:
    """How often this thread has waited voluntarily: for a file system or for another thread."""
    with contextlib.suppress(AttributeError):  # only Linux counts for each thread
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


class Done(Exception):  # noqa: N818 - no error
    """Nothing is left to do."""
