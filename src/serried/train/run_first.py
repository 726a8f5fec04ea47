"""`run.first`: one rank prepares something, and the others wait for it, for hours if need be.

They do not wait in a collective, which would give up after the process group's time-out: they ask the store that all
ranks share. Whoever prepares lets it know every few seconds that it lives, from a thread of its own.
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

BEAT_SECONDS = 10.0
SILENT_SECONDS = 300.0
"""Longer than anything that keeps a rank's other threads from running: a library that compiles, a large pickle."""
LONGEST_PAUSE = 1.0
STOPPED_SECONDS = 10.0
"""Between two looks, where a pause is the longest: this rank was stopped itself, and perhaps all were."""
FIRST_WORD_SECONDS = 60.0
FAREWELL_SECONDS = 60.0
INTERRUPTED_SECONDS = 5.0
LONGEST_TEXT = 4000

SCOPES = ("job", "node")


class Preparing:
    """The uses of `run.first`, numbered alike on every rank; one within another counts for itself."""

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
        self._done, self._beats, self._failures, self._reason, self._heard = (
            f"{key}/{name}" for name in ("done", "beats", "failures", "reason", "heard")
        )
        self._preparing = preparing
        """How many ranks prepare: one, or one on each node."""
        self._who = who

    # Who prepares.

    @contextlib.contextmanager
    def heart(self) -> Iterator[None]:
        is_over = threading.Event()

        def beat() -> None:
            with contextlib.suppress(RuntimeError):  # the store is gone, and with it whoever would listen
                while not is_over.wait(BEAT_SECONDS):
                    self._store.add(self._beats, 1)

        self._store.add(self._beats, 1)
        thread = threading.Thread(target=beat, name="serried-first", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def finish(self) -> None:
        self._store.add(self._done, 1)

    def fail(self, error: BaseException, waiting: int) -> None:
        """Tell why, and stay until those who wait have heard: the store may be ours, and go when we go."""
        text = f"{type(error).__name__}: {error}"[:LONGEST_TEXT]
        told = f"rank {self._who.rank} on {socket.gethostname()} failed while others waited for it: {text}"
        end = time.monotonic() + (FAREWELL_SECONDS if isinstance(error, Exception) else INTERRUPTED_SECONDS)
        with contextlib.suppress(RuntimeError):
            self._store.set(self._reason, told.encode(errors="replace"))
            self._store.add(self._failures, 1)
            while self._store.add(self._heard, 0) < waiting and time.monotonic() < end:
                time.sleep(0.02)

    # Who waits.

    def wait(self) -> None:
        """Until all who prepare have done so. Raises TrainError where one of them has failed, or fallen silent."""
        try:
            self._wait()
        except RuntimeError as error:
            if isinstance(error, TrainError):
                raise
            raise TrainError(f"rank {self._who.rank} waited for others, and rank 0 is gone: {error}") from None

    def _wait(self) -> None:
        began = heard = looked = time.monotonic()
        beats, pause, next_word = 0, 0.02, FIRST_WORD_SECONDS
        while self._store.add(self._done, 0) < self._preparing:
            if self._store.add(self._failures, 0):  # torch 2.1 has no `check`
                told = bytes(self._store.get(self._reason)).decode(errors="replace")
                with contextlib.suppress(RuntimeError):  # gone as soon as all have heard
                    self._store.add(self._heard, 1)
                raise TrainError(told, "its own log has the whole of it")
            now = time.monotonic()
            latest = self._store.add(self._beats, 0)
            if latest != beats or now - looked > STOPPED_SECONDS:
                beats, heard = latest, now
            elif beats and now - heard > SILENT_SECONDS:
                raise TrainError(f"no rank that prepares has been heard of for {now - heard:.0f} s; one may have died")
            looked = now
            if now - began > next_word:
                self._say(now - began)
                next_word *= 2
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _say(self, seconds: float) -> None:
        done = self._store.add(self._done, 0)
        print(
            f"serried: rank {self._who.rank} has waited {seconds / 60:.0f} min in `run.first`: "
            f"{done} of {self._preparing} done",
            file=sys.stderr,
            flush=True,
        )
