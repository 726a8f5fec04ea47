"""The role `stage-in`: a process beside a node's agent that brings data to the node before its ranks start.

The process runs as long as the ranks do, because its locks mark the data as in use. `protocol.events` lists its
messages: ToHelper and FromStageIn.
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

from serried.agent.helper_process import AgentConnection
from serried.agent.node_disk import base_dirs, cleanup, shared_cache
from serried.agent.stage_in import watchdog
from serried.agent.stage_in.availability import Availability, UnavailableError
from serried.agent.stage_in.cache import StagingCache
from serried.agent.stage_in.data_client import PeerLostError, Predecessor
from serried.agent.stage_in.data_server import DataServer
from serried.agent.stage_in.item import NodeStorage, StagedItem, StageError
from serried.agent.stage_in.stager import Stager
from serried.fs import scan
from serried.protocol import names
from serried.protocol.events import FromStageIn, JournalEvent, ToHelper
from serried.protocol.json_lines import Message

PROGRESS_SECONDS = 2.0
RATE_SECONDS = 10.0


def main(arguments: List[str]) -> int:  # noqa: ARG001 - what is to be staged comes from the agent
    os.umask(0o077)
    agent = AgentConnection()
    stage: Optional[StageInWorker] = None
    while True:
        seconds = PROGRESS_SECONDS if stage and stage.is_busy else None
        watched: List[Any] = [agent, stage] if stage else [agent]
        readable, _, _ = select.select(watched, [], [], seconds)
        received = agent.receive(0.0) if agent in readable else []
        if received is None:
            return 0  # the agent is gone, and with us our locks
        for message in received:
            if message["do"] == ToHelper.PREPARE:
                stage = StageInWorker(agent, message)
            elif stage and message["do"] == ToHelper.STAGE:
                stage.begin(message["before"])
            elif stage and message["do"] == ToHelper.SERVED:
                stage.end_serving()
            elif stage and message["do"] == ToHelper.RELEASE:
                stage.release()
                return 0
        if stage:
            stage.flush()


class StageInWorker:
    def __init__(self, agent: AgentConnection, request: Message) -> None:
        self._agent = agent
        self._request = request
        self._outbox: Deque[Dict[str, Any]] = deque()
        self._woken, self._waker = os.pipe()
        """Written to when there is a note. (Who looks for it by the clock takes Python's lock from those who copy.)"""
        os.set_blocking(self._woken, False)
        self._key = bytes.fromhex(request["key"])
        os.environ[names.MARK] = request["mark"]  # so that what we start is known as the attempt's where we are killed,
        os.environ[names.SETUP] = names.IN_SETUP  # and as nothing that ranks have left running
        self._availability = Availability(len(request["items"]))
        self._shared = Path(request["shared"]) if request["shared"] else None
        self._worker: Optional[threading.Thread] = None
        self._is_resolved = False
        self._rate = TransferRate()
        self._progress_sent_at = 0.0
        wanted = [StagedItem(*item) for item in request["items"]]
        storage = NodeStorage(Path(request["view"]), self._cache(), bool(request["has_disk"]))
        self.items = Stager(wanted, storage, self._availability, self._log_event, hashed=bool(request["hashed"]))
        self._server = self._start_server(request["serves"]) if storage.cache else None
        agent.send(say=FromStageIn.READY, port=self._server.port if self._server else 0)

    def _cache(self) -> Optional[StagingCache]:
        if self._shared is None:
            return None
        try:
            base_dirs.sub(self._shared.parent, self._shared.name)
        except OSError as error:
            self._log_event(JournalEvent.STAGING_PROBLEM, item="", problem=f"{self._shared}: {scan.reason(error)}")
            return None
        request = self._request
        return StagingCache(self._shared, hashed=bool(request["hashed"]), run=str(request["run"]), sweep=cleanup.free)

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
        began_at = time.monotonic()
        try:
            self.items.stage_all(self._predecessor(before))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
            because = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
            self._resolve(say=FromStageIn.FAILED, because=because)
            return
        size, files = self.items.progress.totals
        self._resolve(say=FromStageIn.STAGED, bytes=size, files=files, seconds=round(time.monotonic() - began_at, 2))

    def _resolve(self, **message: Any) -> None:
        """Once: whoever reads a file system that is away may come back from there much later."""
        if self._is_resolved:
            return
        self._is_resolved = True
        if message["say"] == FromStageIn.FAILED:
            for number in range(len(self._request["items"])):
                self._availability[number].fail(UnavailableError(message["because"]))
        self._post(**message)

    def _predecessor(self, before: Optional[List[Any]]) -> Optional[Predecessor]:
        if before is None:
            return None
        try:
            return Predecessor((str(before[0]), int(before[1])), self._key, int(self._request["node"]))
        except PeerLostError as error:
            self._log_event(JournalEvent.STAGING_ALONE, because=str(error))
            return None

    def _start_server(self, address: Optional[str]) -> Optional[DataServer]:
        """None where this node is to serve no other, or cannot: those go to another or to the source."""
        if address is None:
            return None
        try:
            return DataServer(address, self._key, self._availability, self._on_refused)
        except OSError as error:
            self._log_event(
                JournalEvent.STAGING_PROBLEM, item="", problem=f"cannot serve other nodes: {scan.reason(error)}"
            )
            return None

    def _on_refused(self, address: str, because: str) -> None:
        self._log_event(JournalEvent.STAGING_REFUSED, address=address, because=because)

    def end_serving(self) -> None:
        """All nodes have all."""
        if self._server:
            self._server.close()
            self._server = None
        self._availability = Availability(len(self._request["items"]))
        self.items.end_serving()

    def _log_event(self, event: str, **facts: Any) -> None:
        self._post(say=FromStageIn.LOG, event=event, **facts)

    def _post(self, **message: Any) -> None:
        self._outbox.append(message)
        os.write(self._waker, b".")

    def flush(self) -> None:
        """What has happened since, and now and then how far it is."""
        has_ended = self._worker is not None and not self._worker.is_alive()
        now = time.monotonic()
        if self._worker is not None and not has_ended and now - self._progress_sent_at >= PROGRESS_SECONDS:
            self.items.heartbeat()
            self._send_progress(now)
        silent_source = self.items.watchdog.silent_source
        if silent_source:
            self._resolve(
                say=FromStageIn.FAILED,
                because=f"`{silent_source}` has not answered for {watchdog.SILENT_SECONDS:.0f} s",
            )
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        while self._outbox:
            self._agent.send(**self._outbox.popleft())

    def _send_progress(self, now: float) -> None:
        facts = self.items.progress.facts
        if facts["of"] or facts["waits_for"] is not None:
            self._progress_sent_at = now
            rate, left = self._rate.at(now, facts["bytes"], facts["of"])
            self._agent.send(say=FromStageIn.PROGRESS, **facts, rate=rate, left=left)

    def release(self) -> None:
        self.items.release()
        if self._shared is not None:
            shared_cache.tidy_data(self._shared, int(self._request["limit"]))
            base_dirs.remove_empty(self._shared)


class TransferRate:
    """Bytes in a second, of the last seconds."""

    def __init__(self) -> None:
        self._samples: Deque[Tuple[float, int]] = deque()
        self._of = 0

    def at(self, now: float, size: int, of: int) -> Tuple[int, Optional[int]]:
        """The rate, and the seconds that are left; None where nothing moves."""
        if of != self._of:  # something else is counted now
            self._of = of
            self._samples.clear()
        self._samples.append((now, size))
        while now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        then, before = self._samples[0]
        rate = (size - before) / (now - then) if now > then else 0.0
        return int(rate), round((of - size) / rate) if rate > 0 else None
