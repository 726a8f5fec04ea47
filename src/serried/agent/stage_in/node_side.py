"""A node agent's end of stage-in: its process, reports to the head, and variables for ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional

from serried.agent.attempt import Attempt
from serried.agent.helper_process import HelperProcess
from serried.agent.loop import Loop
from serried.agent.node_disk import Folder, base_dirs
from serried.agent.stage_in.topology import serving_interface, staged_data, uses_chain
from serried.fs import locks
from serried.protocol.events import FromStageIn, JournalEvent, ToHead, ToHelper, ToNode
from serried.protocol.json_lines import Message

HOLD_TRIES, HOLD_SECONDS = 100, 0.05
VIEW = "data"
"""An attempt's own links to what was staged."""


class StageIn:
    """`note` writes to the node's journal, `tell` sends to the head."""

    def __init__(
        self, loop: Loop, work: Attempt, folder: Folder, log_event: Callable[..., None], send: Callable[..., None]
    ) -> None:
        self._loop, self._work, self._folder = loop, work, folder
        self._log_event, self._send = log_event, send
        self._process: Optional[HelperProcess] = None
        self._is_resolved = False
        self._head = ""

    def prepare(self, index: int, key: bytes, address: str, head: str) -> None:
        """Start the process, if the plan has work for it. `address` is ours on the network where `head` is the head."""
        self._head = head
        data = staged_data(self._work)
        if data is None:
            return
        site = self._work.plan["site"]
        self._process = HelperProcess(self._loop, "stage-in", [], self._on_worker_message)
        self._process.send(
            {
                "do": ToHelper.PREPARE,
                "items": [[item["source"], item["to"], item["unpack"]] for item in data["stage"]],
                "view": str(self._view),
                "shared": str(self._folder.room / base_dirs.DATA) if self._folder.room else "",
                "has_disk": self._folder.has_disk,
                "hashed": data["verify"] == "hashes",
                "limit": site.get("cache_bytes", 0),
                "key": key.hex(),
                "mark": self._work.process_tag,
                "run": self._work.name,
                "node": index,
                "serves": serving_interface(address, head)
                if uses_chain(self._work) and self._folder.has_disk
                else None,
            }
        )

    @property
    def _view(self) -> Path:
        return self._folder.path / VIEW

    @property
    def variables(self) -> Dict[str, str]:
        """What ranks are told of it."""
        data = staged_data(self._work)
        return {"data": str(self._view)} if data else {}

    def on_message(self, message: Message) -> None:
        """The head says `stage`, with the node before this one, or `go`."""
        if self._process and message["do"] == ToNode.STAGE:
            before = message["before"]
            self._process.send({"do": ToHelper.STAGE, "before": before and [before[0] or self._head, before[1]]})
        elif self._process and message["do"] == ToNode.START_RANKS:
            self._process.send({"do": ToHelper.SERVED})

    def release(self, seconds: float) -> None:
        """Ranks have ended: what nobody uses goes, as far as that is done in time."""
        if self._process:
            self._process.send({"do": ToHelper.RELEASE})
            self._process.wait_for_exit(seconds)
            self._process.kill()
            self._process = None

    def _on_worker_message(self, message: Optional[Message]) -> None:
        if message is None:
            self._process = None
            if self._is_resolved:
                self._hold(list(self._slots()), HOLD_TRIES)
            else:
                self._fail("the process that stages ended without a word")
            return
        say = message.pop("say")
        if say == FromStageIn.LOG:
            is_read_there = message.get("origin") == "in place" and self._folder.no_disk
            self._log_event(**message, **({"because": self._folder.no_disk} if is_read_there else {}))
        elif say == FromStageIn.READY:
            self._send(ToHead.STAGE_PORT, port=message["port"])
        elif say == FromStageIn.FAILED:
            self._fail(message["because"])
        elif say == FromStageIn.PROGRESS:
            self._send(ToHead.STAGING, **message)
        else:
            self._is_resolved = True
            self._log_event(JournalEvent.STAGED, **message)
            self._send(ToHead.STAGED, **message)

    def _hold(self, slots: List[Path], tries: int) -> None:
        """It was killed while ranks run, and its locks went with it: ours keep what they read from other jobs."""
        left = [slot for slot in slots if not _is_held(slot)]
        if left and tries:
            self._loop.after(HOLD_SECONDS, lambda: self._hold(left, tries - 1))
            return
        self._log_event(JournalEvent.STAGING_PROBLEM, item="", problem="the process that held the data has ended")

    def _slots(self) -> Iterator[Path]:
        """In the cache, what ranks read."""
        for link in filter(Path.is_symlink, self._view.rglob("*")):
            slot = Path(os.readlink(link)).parent
            if self._folder.room and slot.parent == self._folder.room / base_dirs.DATA:
                yield slot

    def _fail(self, because: str) -> None:
        self._is_resolved = True
        self._log_event(JournalEvent.STAGE_FAILED, because=because)
        self._send(ToHead.STAGE_FAILED, because=because)


def _is_held(slot: Path) -> bool:
    """By us from now on; False where somebody has it, who may only look for a moment whether it is in use."""
    try:
        locks.hold(slot, locks.SHARED | locks.AT_ONCE)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
