"""The role `stage`: one process on each node, beside its agent, that has the data there before ranks start.

It stays as long as they run, because its locks say that what it brought is in use. Its agent tells it `prepare`,
`stage`, `served` (no other node will ask) and `release`; it says `ready` with its port, `progress`, notes of what
happens, and `staged` or `failed`.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, List, Optional, Tuple

from serried.agent.helper_process import Agent, Message
from serried.agent.node_disk import base_dirs, cleanup, shared_cache
from serried.agent.stage_in import watchdog
from serried.agent.stage_in.availability import FailedError, Holdings
from serried.agent.stage_in.cache import Cache
from serried.agent.stage_in.data_client import BrokenError, Predecessor
from serried.agent.stage_in.data_server import Server
from serried.agent.stage_in.item import Item, Place, StageError
from serried.agent.stage_in.stager import Items
from serried.fs import scan
from serried.protocol import names

PROGRESS_SECONDS = 2.0
RATE_SECONDS = 10.0


def main(arguments: List[str]) -> int:  # noqa: ARG001 - what is to be staged comes from the agent
    os.umask(0o077)
    agent = Agent()
    stage: Optional[Stage] = None
    while True:
        seconds = PROGRESS_SECONDS if stage and stage.is_busy else None
        watched: List[Any] = [agent, stage] if stage else [agent]
        readable, _, _ = select.select(watched, [], [], seconds)
        heard = agent.heard(0.0) if agent in readable else []
        if heard is None:
            return 0  # the agent is gone, and with us our locks
        for message in heard:
            if message["do"] == "prepare":
                stage = Stage(agent, message)
            elif stage and message["do"] == "stage":
                stage.begin(message["before"])
            elif stage and message["do"] == "served":
                stage.end_serving()
            elif stage and message["do"] == "release":
                stage.release()
                return 0
        if stage:
            stage.tell()


class Stage:
    def __init__(self, agent: Agent, told: Message) -> None:
        self._agent = agent
        self._told = told
        self._notes: Deque[Dict[str, Any]] = deque()
        self._woken, self._waker = os.pipe()
        """Written to when there is a note. (Who looks for it by the clock takes Python's lock from those who copy.)"""
        os.set_blocking(self._woken, False)
        self._key = bytes.fromhex(told["key"])
        os.environ[names.MARK] = told["mark"]  # so that what we start is known as the attempt's where we are killed,
        os.environ[names.SETUP] = names.IN_SETUP  # and as nothing that ranks have left running
        self._holdings = Holdings(len(told["items"]))
        self._shared = Path(told["shared"]) if told["shared"] else None
        self._worker: Optional[threading.Thread] = None
        self._is_settled = False
        self._rate = Rate()
        self._told_at = 0.0
        wanted = [Item(*item) for item in told["items"]]
        place = Place(Path(told["view"]), self._cache(), bool(told["has_disk"]))
        self.items = Items(wanted, place, self._holdings, self._note, hashed=bool(told["hashed"]))
        self._server = self._serving(told["serves"]) if place.cache else None
        agent.tell(say="ready", port=self._server.port if self._server else 0)

    def _cache(self) -> Optional[Cache]:
        if self._shared is None:
            return None
        try:
            base_dirs.sub(self._shared.parent, self._shared.name)
        except OSError as error:
            self._note("staging-problem", item="", problem=f"{self._shared}: {scan.reason(error)}")
            return None
        told = self._told
        return Cache(self._shared, hashed=bool(told["hashed"]), run=str(told["run"]), sweep=cleanup.free)

    @property
    def is_busy(self) -> bool:
        return self._worker is not None and self._worker.is_alive()

    def fileno(self) -> int:
        """Readable when there is something to tell."""
        return self._woken

    def begin(self, before: Optional[List[Any]]) -> None:
        """`before` is the address and port of the node before this one; None where this one reads the source."""
        self._worker = threading.Thread(target=self._work, args=(before,), daemon=True)
        self._worker.start()

    def _work(self, before: Optional[List[Any]]) -> None:
        began = time.monotonic()
        try:
            self.items.bring(self._predecessor(before))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
            because = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
            self._settle(say="failed", because=because)
            return
        size, files = self.items.far.here
        self._settle(say="staged", bytes=size, files=files, seconds=round(time.monotonic() - began, 2))

    def _settle(self, **message: Any) -> None:
        """Once: whoever reads a file system that is away may come back from there much later."""
        if self._is_settled:
            return
        self._is_settled = True
        if message["say"] == "failed":
            for number in range(len(self._told["items"])):
                self._holdings[number].fail(FailedError(message["because"]))
        self._say(**message)

    def _predecessor(self, before: Optional[List[Any]]) -> Optional[Predecessor]:
        if before is None:
            return None
        try:
            return Predecessor((str(before[0]), int(before[1])), self._key, int(self._told["node"]))
        except BrokenError as error:
            self._note("staging-alone", because=str(error))
            return None

    def _serving(self, address: Optional[str]) -> Optional[Server]:
        """None where this node is to serve no other, or cannot: those go to another or to the source."""
        if address is None:
            return None
        try:
            return Server(address, self._key, self._holdings, self._refused)
        except OSError as error:
            self._note("staging-problem", item="", problem=f"cannot serve other nodes: {scan.reason(error)}")
            return None

    def _refused(self, address: str, because: str) -> None:
        self._note("staging-refused", address=address, because=because)

    def end_serving(self) -> None:
        """All nodes have all."""
        if self._server:
            self._server.close()
            self._server = None
        self._holdings = Holdings(len(self._told["items"]))
        self.items.forget()

    def _note(self, event: str, **facts: Any) -> None:
        self._say(say="note", event=event, **facts)

    def _say(self, **message: Any) -> None:
        self._notes.append(message)
        os.write(self._waker, b".")

    def tell(self) -> None:
        """What has happened since, and now and then how far it is."""
        is_over = self._worker is not None and not self._worker.is_alive()
        now = time.monotonic()
        if self._worker is not None and not is_over and now - self._told_at >= PROGRESS_SECONDS:
            self.items.live()
            self._tell_progress(now)
        silent = self.items.pulse.silent
        if silent:
            self._settle(say="failed", because=f"`{silent}` has not answered for {watchdog.SILENT_SECONDS:.0f} s")
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        while self._notes:
            self._agent.tell(**self._notes.popleft())

    def _tell_progress(self, now: float) -> None:
        far = self.items.far.facts
        if far["of"] or far["waits_for"] is not None:
            self._told_at = now
            rate, left = self._rate.at(now, far["bytes"], far["of"])
            self._agent.tell(say="progress", **far, rate=rate, left=left)

    def release(self) -> None:
        self.items.release()
        if self._shared is not None:
            shared_cache.tidy_data(self._shared, int(self._told["limit"]))
            base_dirs.remove_empty(self._shared)


class Rate:
    """Bytes in a second, of the last seconds."""

    def __init__(self) -> None:
        self._seen: Deque[Tuple[float, int]] = deque()
        self._of = 0

    def at(self, now: float, size: int, of: int) -> Tuple[int, Optional[int]]:
        """The rate, and the seconds that are left; None where nothing moves."""
        if of != self._of:  # something else is counted now
            self._of = of
            self._seen.clear()
        self._seen.append((now, size))
        while now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        then, before = self._seen[0]
        rate = (size - before) / (now - then) if now > then else 0.0
        return int(rate), round((of - size) / rate) if rate > 0 else None
