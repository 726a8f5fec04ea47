"""A node agent's end of stage-in: checks paths, runs the process that stages, and reports to the head.

`serried shell` has no head: there, `StandaloneStageIn` stages the data before the prompt appears.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from serried.agent.attempt import Attempt
from serried.agent.helper_process import HelperProcess
from serried.agent.loop import Loop
from serried.agent.node_disk import shared_cache
from serried.agent.node_disk.folder import DATA, JOBS, Folder, is_of, rooms
from serried.base import locks
from serried.base.channel import Message
from serried.base.text import progress
from serried.schema.events import FromStageIn, ItemOrigin, JournalEvent, ToHead, ToHelper, ToNode
from serried.schema.plan import Plan

VIEW = "data"
"""The folder of an attempt's links to its staged data."""
PRINT_SECONDS = 5.0
RELEASE_SECONDS = 10.0
REPORTS_PER_SECOND = 500
"""The most progress reports that the head gets from all nodes together."""
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def check_required_paths(plan: Plan) -> str:
    """The problem of the first path of `data.require` that this node cannot read; empty if it can read all."""
    for path in plan.data.require if plan.data else ():
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return f"data: `{path}` does not exist"
        except OSError as error:
            return f"data: `{path}`: {error.strerror}"
        if not os.access(path, os.R_OK):
            return f"data: `{path}` cannot be read"
    return ""


class StageIn:
    """`log_event` writes to the node's journal, `send` sends to the head."""

    def __init__(
        self, loop: Loop, attempt: Attempt, folder: Folder, log_event: Callable[..., None], send: Callable[..., None]
    ) -> None:
        self._loop, self._attempt, self._folder = loop, attempt, folder
        self._log_event, self._send = log_event, send
        self._process: Optional[HelperProcess] = None
        self._is_resolved = False
        self._next_report = 0.0
        self._head = ""

    def prepare(self, index: int, key: bytes, address: str, head: str) -> None:
        """Start the process, if the plan stages data. `address` is this node's on the network of `head`."""
        self._head = head
        data, site = self._attempt.plan.data, self._attempt.plan.site
        if not (data and data.stage):
            return
        serves = self._attempt.agents > 1 and site.data_transfer == "chain" and self._folder.has_disk
        self._process = HelperProcess(self._loop, "stage-in", [], self._on_worker_message)
        self._process.send(
            {
                "do": ToHelper.PREPARE,
                "items": [[item.source, item.to, item.unpack] for item in data.stage],
                "view": str(self._view),
                "shared": str(self._folder.room / DATA) if self._folder.room else "",
                "has_disk": self._folder.has_disk,
                "hashed": data.verify == "hashes",
                "limit": site.data_cache_bytes,
                "key": key.hex(),
                "mark": self._attempt.process_tag,
                "run": self._attempt.name,
                "node": index,
                "serves": serving_interface(address, head) if serves else None,
            }
        )

    @property
    def _view(self) -> Path:
        return self._folder.path / VIEW

    @property
    def variables(self) -> Dict[str, str]:
        return {"data": str(self._view)} if self._attempt.plan.staged_items else {}

    def on_message(self, message: Message) -> None:
        """ToNode.STAGE, with the node before this one, or ToNode.START_RANKS."""
        if self._process and message["do"] == ToNode.STAGE:
            before = message["before"]
            self._process.send({"do": ToHelper.STAGE, "before": before and [before[0] or self._head, before[1]]})
        elif self._process and message["do"] == ToNode.START_RANKS:
            self._process.send({"do": ToHelper.SERVED})

    def release(self, seconds: float) -> None:
        """The ranks have ended: let the process delete what no job needs, for `seconds` at most."""
        if self._process:
            self._process.send({"do": ToHelper.RELEASE})
            self._process.wait_for_exit(seconds)
            self._process.kill()
            self._process = None

    def _on_worker_message(self, message: Optional[Message]) -> None:
        if message is None:
            self._on_worker_exit()
            return
        say = message.pop("say")
        if say == FromStageIn.LOG:
            is_read_there = message.get("origin") == ItemOrigin.IN_PLACE and self._folder.no_disk
            self._log_event(**message, **({"because": self._folder.no_disk} if is_read_there else {}))
        elif say == FromStageIn.READY:
            self._send(ToHead.STAGE_PORT, port=message["port"])
        elif say == FromStageIn.FAILED:
            self._fail(message["because"])
        elif say == FromStageIn.PROGRESS:
            now = time.monotonic()
            if now >= self._next_report:
                self._next_report = now + self._attempt.agents / REPORTS_PER_SECOND
                self._send(ToHead.STAGING, **message)
        else:
            self._is_resolved = True
            self._log_event(JournalEvent.STAGED, **message)
            self._send(ToHead.STAGED, **message)

    def _on_worker_exit(self) -> None:
        """If the process was killed while ranks run, its locks are free: hold those of the items that ranks read."""
        self._process = None
        if not self._is_resolved:
            self._fail("the process that stages the data was killed")
            return
        # The items in the cache that ranks read.
        slots = [Path(os.readlink(link)).parent for link in filter(Path.is_symlink, self._view.rglob("*"))]
        room, problem = self._folder.room, "the process that held the data has ended"
        shared_cache.hold(
            self._loop.after,
            [slot for slot in slots if room and slot.parent == room / DATA],
            lambda _: self._log_event(JournalEvent.STAGING_PROBLEM, item="", problem=problem),
        )

    def _fail(self, because: str) -> None:
        self._is_resolved = True
        self._log_event(JournalEvent.STAGE_FAILED, because=because)
        self._send(ToHead.STAGE_FAILED, because=because)


def serving_interface(own: str, head: str) -> str:
    """The address on which a node serves: that of its connection to the head, so that no other network can reach it.

    The head's own host serves on all interfaces, because other nodes may reach it by another address.
    """
    return "" if own == head else own


class StandaloneStageIn:
    def __init__(self, attempt: Attempt, folder: Folder) -> None:
        self._attempt = attempt.resized(nodes=1, ranks=attempt.ranks)
        self._loop = Loop()
        self._stage_in = StageIn(self._loop, self._attempt, folder, lambda *_, **__: None, self._on_event)
        self._printed_at = time.monotonic()
        self.problem = ""
        """Why the data cannot be staged."""
        self.signal = 0
        """The signal that ended `stage`."""

    def stage(self) -> Dict[str, str]:
        """Stage the data, and return the variables of its path. Handles END_SIGNALS meanwhile."""
        if not self._attempt.plan.staged_items:
            return {}

        def end(number: int) -> None:
            self.signal = number
            self._loop.stop()

        for number in END_SIGNALS:
            self._loop.on_signal(number, partial(end, number))
        self._stage_in.prepare(0, os.urandom(32), "", "")
        self._loop.run()
        return {} if self.problem else {"SERRIED_DATA_DIR": self._stage_in.variables["data"]}

    def release(self) -> None:
        self._stage_in.release(RELEASE_SECONDS)

    def _on_event(self, event: str, **facts: Any) -> None:
        """Act as the head, on a message that an agent would send there."""
        if event == ToHead.STAGE_PORT:
            self._stage_in.on_message({"do": ToNode.STAGE, "before": None})
        elif event == ToHead.STAGE_FAILED:
            self.problem = f"data: {facts['because']}"
            self._loop.stop()
        elif event == ToHead.STAGED:
            self._stage_in.on_message({"do": ToNode.START_RANKS})
            self._loop.stop()
        elif event == ToHead.STAGING and time.monotonic() - self._printed_at > PRINT_SECONDS:
            self._printed_at = time.monotonic()
            print(f"serried: staging {progress(facts)}", file=sys.stderr)


def running_attempt_variables(attempt: Attempt) -> Dict[str, str]:
    """The variables of a shell that joins an attempt on this node."""
    for room in rooms(attempt):
        for path in locks.things(room / JOBS):
            if is_of(path, attempt.process_tag) and (path / VIEW).is_dir():
                return {"SERRIED_DATA_DIR": str(path / VIEW)}
    return {}
