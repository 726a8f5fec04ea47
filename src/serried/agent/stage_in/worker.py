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
from serried.agent.node_disk import cleanup, shared_cache
from serried.agent.node_disk.folder import remove_empty
from serried.agent.stage_in import source
from serried.agent.stage_in.cache import StagingCache
from serried.agent.stage_in.data_client import PeerLostError, Predecessor
from serried.agent.stage_in.data_server import DataServer
from serried.agent.stage_in.item import StagedItem, StageError, UnavailableError
from serried.agent.stage_in.stager import Stager
from serried.fs import files, scan
from serried.protocol import names
from serried.protocol.events import FromStageIn, JournalEvent, ToHelper
from serried.protocol.json_lines import Message

PROGRESS_SECONDS = 2.0
RATE_SECONDS = 10.0


def main(arguments: List[str]) -> int:  # noqa: ARG001 - the agent sends what is to be staged
    os.umask(0o077)
    agent = AgentConnection()
    worker: Optional[StageInWorker] = None
    while True:
        seconds = PROGRESS_SECONDS if worker and worker.is_busy else None
        watched: List[Any] = [agent, worker] if worker else [agent]
        readable, _, _ = select.select(watched, [], [], seconds)
        received = agent.receive(0.0) if agent in readable else []
        if received is None:
            return 0  # the agent has exited; the exit of this process frees its locks
        for message in received:
            if message["do"] == ToHelper.PREPARE:
                worker = StageInWorker(agent, message)
            elif worker and message["do"] == ToHelper.STAGE:
                worker.begin(message["before"])
            elif worker and message["do"] == ToHelper.SERVED:
                worker.end_serving()
            elif worker and message["do"] == ToHelper.RELEASE:
                worker.release()
                return 0
        if worker:
            worker.flush()


class StageInWorker:
    def __init__(self, agent: AgentConnection, request: Message) -> None:
        self._agent = agent
        self._request = request
        self._outbox: Deque[Dict[str, Any]] = deque()
        self._woken, self._waker = os.pipe()
        """Written to when there is a message. (To poll for messages would take Python's lock from copying threads.)"""
        os.set_blocking(self._woken, False)
        self._key = bytes.fromhex(request["key"])
        os.environ[names.MARK] = request["mark"]  # marks child processes as the attempt's, should this one be killed,
        os.environ[names.SETUP] = names.IN_SETUP  # and not as processes that ranks have left
        self._shared = Path(request["shared"]) if request["shared"] else None
        self._thread: Optional[threading.Thread] = None
        self._is_resolved = False
        self._rate = TransferRate()
        self._progress_sent_at = 0.0
        items = [StagedItem(*item) for item in request["items"]]
        cache = self._open_cache()
        self.stager = Stager(items, Path(request["view"]), cache, self._log_event, has_disk=bool(request["has_disk"]))
        self._server = self._start_server(request["serves"]) if cache else None
        agent.send(say=FromStageIn.READY, port=self._server.port if self._server else 0)

    def _open_cache(self) -> Optional[StagingCache]:
        if self._shared is None:
            return None
        try:
            files.make_ours_alone(self._shared)
        except OSError as error:
            self._log_problem(f"{self._shared}: {scan.reason(error)}")
            return None
        request = self._request
        return StagingCache(self._shared, hashed=bool(request["hashed"]), run=str(request["run"]), sweep=cleanup.free)

    def _start_server(self, address: Optional[str]) -> Optional[DataServer]:
        """None if this node is not to serve others, or cannot. The next node then uses another one, or the source."""
        if address is None:
            return None
        try:
            return DataServer(address, self._key, self.stager.items, self._on_refused)
        except OSError as error:
            self._log_problem(f"cannot serve other nodes: {scan.reason(error)}")
            return None

    def _on_refused(self, address: str, because: str) -> None:
        self._log_event(JournalEvent.STAGING_REFUSED, address=address, because=because)

    # In a thread of its own.

    def begin(self, before: Optional[List[Any]]) -> None:
        """Stage. `before` is the address and port of the node before this one; None for the source."""
        self._thread = threading.Thread(target=self._stage, args=(before,), daemon=True)
        self._thread.start()

    def _stage(self, before: Optional[List[Any]]) -> None:
        began_at = time.monotonic()
        try:
            self.stager.stage_all(self._connect(before))
        except BaseException as error:  # noqa: BLE001 - other nodes must not wait for this one, whatever happens
            because = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
            self._resolve(say=FromStageIn.FAILED, because=because)
            return
        size, files = self.stager.arrived
        self._resolve(say=FromStageIn.STAGED, bytes=size, files=files, seconds=round(time.monotonic() - began_at, 2))

    def _connect(self, before: Optional[List[Any]]) -> Optional[Predecessor]:
        if before is None:
            return None
        try:
            return Predecessor((str(before[0]), int(before[1])), self._key, int(self._request["node"]))
        except PeerLostError as error:
            self._log_event(JournalEvent.STAGING_ALONE, because=str(error))
            return None

    def _resolve(self, **message: Any) -> None:
        """Send the result once: a read of an unreachable file system may return much later."""
        if self._is_resolved:
            return
        self._is_resolved = True
        if message["say"] == FromStageIn.FAILED:
            for item in self.stager.items:
                item.availability.fail(UnavailableError(message["because"]))
        self._post(**message)

    # Messages to the agent.

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def fileno(self) -> int:
        """Readable when there is a message to send."""
        return self._woken

    def _log_event(self, event: str, **facts: Any) -> None:
        self._post(say=FromStageIn.LOG, event=event, **facts)

    def _log_problem(self, problem: str) -> None:
        self._log_event(JournalEvent.STAGING_PROBLEM, item="", problem=problem)

    def _post(self, **message: Any) -> None:
        self._outbox.append(message)
        os.write(self._waker, b".")

    def flush(self) -> None:
        """Send what has happened since, and from time to time the progress."""
        now = time.monotonic()
        if self.is_busy and now - self._progress_sent_at >= PROGRESS_SECONDS:
            self.stager.heartbeat()
            self._send_progress(now)
        silent = self.stager.watchdog.silent_source
        if silent:
            seconds = f"{source.SILENT_SECONDS:.0f}"
            self._resolve(say=FromStageIn.FAILED, because=f"`{silent}` has not answered for {seconds} s")
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        while self._outbox:
            self._agent.send(**self._outbox.popleft())

    def _send_progress(self, now: float) -> None:
        facts = self.stager.progress
        if facts["of"] or facts["waits_for"] is not None:
            self._progress_sent_at = now
            rate, left = self._rate.at(now, facts["bytes"], facts["of"])
            self._agent.send(say=FromStageIn.PROGRESS, **facts, rate=rate, left=left)

    # The end.

    def end_serving(self) -> None:
        """All nodes have all items."""
        if self._server:
            self._server.close()
            self._server = None
        self.stager.end_serving()

    def release(self) -> None:
        self.stager.release()
        if self._shared is not None:
            shared_cache.tidy_data(self._shared, int(self._request["limit"]))
            remove_empty(self._shared)


class TransferRate:
    """Bytes per second, over the last RATE_SECONDS."""

    def __init__(self) -> None:
        self._samples: Deque[Tuple[float, int]] = deque()
        self._of = 0

    def at(self, now: float, size: int, of: int) -> Tuple[int, Optional[int]]:
        """The rate, and the seconds left; None while nothing moves."""
        if of != self._of:  # another total: an archive, or all items
            self._of = of
            self._samples.clear()
        self._samples.append((now, size))
        while now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        then, before = self._samples[0]
        rate = (size - before) / (now - then) if now > then else 0.0
        return int(rate), round((of - size) / rate) if rate > 0 else None
