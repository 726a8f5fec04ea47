"""`run.first`: one rank prepares something while the others wait, if necessary for hours.

They do not wait in a collective, which would fail after the process group's time-out. They poll the store that all
ranks share, and a thread of the preparing rank writes a heartbeat there every few seconds.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from typing import Any, Iterator, List

from serried.train.errors import TrainError
from serried.train.identities import Identity

HEARTBEAT_SECONDS = 10.0
SILENT_SECONDS = 300.0
"""Longer than a rank's other threads can be blocked, by a library that compiles or by a large pickle."""
LONGEST_PAUSE = 1.0
STOPPED_SECONDS = 10.0
"""If two polls are this far apart, this rank was stopped itself, and perhaps all ranks were."""
FIRST_REPORT_SECONDS = 60.0
FAREWELL_SECONDS = 60.0
INTERRUPTED_SECONDS = 5.0
LONGEST_TEXT = 4000

SCOPES = ("job", "node")


class RunFirst:
    """The uses of `run.first`, with the same numbers on every rank; nested uses have numbers of their own."""

    def __init__(self, who: Identity, store: Any, nodes: int) -> None:
        self._who = who
        self._store = store
        """Torch's, the same on all ranks; None with one rank."""
        self._nodes = nodes
        self._turns: List[int] = [0]

    @contextlib.contextmanager
    def first(self, scope: str) -> Iterator[bool]:
        if scope not in SCOPES:
            raise ValueError(f"`scope` is {scope!r}: it can be 'job' or 'node'")
        self._turns[-1] += 1
        key = "first/" + ".".join(map(str, self._turns))
        self._turns.append(0)
        try:
            if self._store is None:
                yield True
            else:
                yield from self._take_turns(key, scope)
        finally:
            self._turns.pop()

    def _take_turns(self, key: str, scope: str) -> Iterator[bool]:
        is_first = (self._who.rank if scope == "job" else self._who.local_rank) == 0
        preparing = 1 if scope == "job" else self._nodes
        turn = _Turn(self._store, f"{key}/{scope}", preparing, self._who)
        if not is_first:
            turn.wait()
            yield False
            return
        try:
            with turn.heart():
                yield True
        except BaseException as error:
            turn.fail(error, self._who.world_size - preparing)
            raise
        turn.finish()
        turn.wait()


class _Turn:
    def __init__(self, store: Any, key: str, preparing: int, who: Identity) -> None:
        self._store = store
        self._done, self._beats, self._failures, self._reason, self._received = (
            f"{key}/{name}" for name in ("done", "beats", "failures", "reason", "heard")
        )
        self._preparing = preparing
        """How many ranks prepare: one, or one on each node."""
        self._who = who

    # The preparing rank.

    @contextlib.contextmanager
    def heart(self) -> Iterator[None]:
        has_ended = threading.Event()

        def beat() -> None:
            with contextlib.suppress(RuntimeError):  # the store is gone, and so are the waiting ranks
                while not has_ended.wait(HEARTBEAT_SECONDS):
                    self._store.add(self._beats, 1)

        self._store.add(self._beats, 1)
        thread = threading.Thread(target=beat, name="serried-first", daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()
            thread.join()

    def finish(self) -> None:
        self._store.add(self._done, 1)

    def fail(self, error: BaseException, waiting: int) -> None:
        """Publish the error, and stay until the waiting ranks have read it: the store may end with this rank."""
        text = f"{type(error).__name__}: {error}"[:LONGEST_TEXT]
        message = f"rank {self._who.rank} on {socket.gethostname()} failed while others waited for it: {text}"
        end = time.monotonic() + (FAREWELL_SECONDS if isinstance(error, Exception) else INTERRUPTED_SECONDS)
        with contextlib.suppress(RuntimeError):
            self._store.set(self._reason, message.encode(errors="replace"))
            self._store.add(self._failures, 1)
            while self._store.add(self._received, 0) < waiting and time.monotonic() < end:
                time.sleep(0.02)

    # The waiting ranks.

    def wait(self) -> None:
        """Wait for all preparing ranks. Raises TrainError if one failed, or its heartbeat stopped."""
        try:
            self._wait()
        except RuntimeError as error:
            if isinstance(error, TrainError):
                raise
            raise TrainError(f"rank {self._who.rank} lost rank 0 in `run.first`: {error}") from None

    def _wait(self) -> None:
        began = last_beat = last_poll = time.monotonic()
        beats, pause, next_report = 0, 0.02, FIRST_REPORT_SECONDS
        while self._store.add(self._done, 0) < self._preparing:
            if self._store.add(self._failures, 0):  # torch 2.1 has no `check`
                message = bytes(self._store.get(self._reason)).decode(errors="replace")
                with contextlib.suppress(RuntimeError):  # the store ends as soon as all have read the error
                    self._store.add(self._received, 1)
                raise TrainError(message, "its log has the traceback")
            now = time.monotonic()
            latest = self._store.add(self._beats, 0)
            if latest != beats or now - last_poll > STOPPED_SECONDS:
                beats, last_beat = latest, now
            elif beats and now - last_beat > SILENT_SECONDS:
                raise TrainError(f"no heartbeat from a preparing rank for {now - last_beat:.0f} s; it may have died")
            last_poll = now
            if now - began > next_report:
                self._report(now - began)
                next_report *= 2
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _report(self, seconds: float) -> None:
        done = self._store.add(self._done, 0)
        print(
            f"serried: rank {self._who.rank} has waited {seconds / 60:.0f} min in `run.first`: "
            f"{done} of {self._preparing} done",
            file=sys.stderr,
            flush=True,
        )
