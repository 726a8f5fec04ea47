"""A node agent's end of staging: the process that does it, what the head is told of it, where ranks find the data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional

from serried.agent.attempt import Work
from serried.agent.comms.channel import Message as Told
from serried.agent.helper_process import Beside, Message
from serried.agent.loop import Loop
from serried.agent.node_disk import Folder, base_dirs
from serried.agent.stage_in.topology import interface, passes_on, wanted
from serried.fs import locks

HOLD_TRIES, HOLD_SECONDS = 100, 0.05
VIEW = "data"
"""An attempt's own links to what was staged."""


class Staging:
    """`note` writes to the node's journal, `tell` sends to the head."""

    def __init__(
        self, loop: Loop, work: Work, own: Folder, note: Callable[..., None], tell: Callable[..., None]
    ) -> None:
        self._loop, self._work, self._own = loop, work, own
        self._note, self._tell = note, tell
        self._process: Optional[Beside] = None
        self._is_settled = False
        self._head = ""

    def prepare(self, index: int, key: bytes, address: str, head: str) -> None:
        """Start the process, if the plan has work for it. `address` is ours on the network where `head` is the head."""
        self._head = head
        data = wanted(self._work)
        if data is None:
            return
        site = self._work.plan["site"]
        self._process = Beside(self._loop, "stage", [], self._hear)
        self._process.tell(
            {
                "do": "prepare",
                "items": [[item["source"], item["to"], item["unpack"]] for item in data["stage"]],
                "view": str(self._view),
                "shared": str(self._own.room / base_dirs.DATA) if self._own.room else "",
                "has_disk": self._own.has_disk,
                "hashed": data["verify"] == "hashes",
                "limit": site.get("cache_bytes", 0),
                "key": key.hex(),
                "mark": self._work.mark,
                "run": self._work.name,
                "node": index,
                "serves": interface(address, head) if passes_on(self._work) and self._own.has_disk else None,
            }
        )

    @property
    def _view(self) -> Path:
        return self._own.path / VIEW

    @property
    def place(self) -> Dict[str, str]:
        """What ranks are told of it."""
        data = wanted(self._work)
        return {"data": str(self._view)} if data else {}

    def heed(self, message: Told) -> None:
        """The head says `stage`, with the node before this one, or `go`."""
        if self._process and message["do"] == "stage":
            before = message["before"]
            self._process.tell({"do": "stage", "before": before and [before[0] or self._head, before[1]]})
        elif self._process and message["do"] == "go":
            self._process.tell({"do": "served"})

    def release(self, seconds: float) -> None:
        """Ranks have ended: what nobody uses goes, as far as that is done in time."""
        if self._process:
            self._process.tell({"do": "release"})
            self._process.wait(seconds)
            self._process.kill()
            self._process = None

    def _hear(self, message: Optional[Message]) -> None:
        if message is None:
            self._process = None
            if self._is_settled:
                self._hold(list(self._slots()), HOLD_TRIES)
            else:
                self._fail("the process that stages ended without a word")
            return
        say = message.pop("say")
        if say == "note":
            is_read_there = message.get("origin") == "in place" and self._own.no_disk
            self._note(**message, **({"because": self._own.no_disk} if is_read_there else {}))
        elif say == "ready":
            self._tell("stage-port", port=message["port"])
        elif say == "failed":
            self._fail(message["because"])
        elif say == "progress":
            self._tell("staging", **message)
        else:
            self._is_settled = True
            self._note("staged", **message)
            self._tell("staged", **message)

    def _hold(self, slots: List[Path], tries: int) -> None:
        """It was killed while ranks run, and its locks went with it: ours keep what they read from other jobs."""
        left = [slot for slot in slots if not _is_held(slot)]
        if left and tries:
            self._loop.after(HOLD_SECONDS, lambda: self._hold(left, tries - 1))
            return
        self._note("staging-problem", item="", problem="the process that held the data has ended")

    def _slots(self) -> Iterator[Path]:
        """In the cache, what ranks read."""
        for link in filter(Path.is_symlink, self._view.rglob("*")):
            slot = Path(os.readlink(link)).parent
            if self._own.room and slot.parent == self._own.room / base_dirs.DATA:
                yield slot

    def _fail(self, because: str) -> None:
        self._is_settled = True
        self._note("stage-failed", because=because)
        self._tell("stage-failed", because=because)


def _is_held(slot: Path) -> bool:
    """By us from now on; False where somebody has it, who may only look for a moment whether it is in use."""
    try:
        locks.hold(slot, locks.SHARED | locks.AT_ONCE)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
