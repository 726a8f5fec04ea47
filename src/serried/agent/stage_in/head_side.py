"""The head's end of staging: it tells the nodes when to begin, and ranks start when all have the data."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict

from serried.agent import system
from serried.agent.attempt import Work
from serried.agent.comms.channel import Message
from serried.agent.comms.node_registry import Member, Members
from serried.agent.stage_in.topology import HEAD, host, predecessors, wanted
from serried.protocol.reasons import Reason
from serried.protocol.sizes import progress

NOTE_SECONDS = 5.0
SAY_SECONDS = 30.0
"""The same in the job's own log, which nobody is to scroll through."""


class Staging:
    """`go` is called when every node has its data, `fail` with a sentence where one cannot have it."""

    def __init__(
        self,
        work: Work,
        members: Members,
        note: Callable[..., None],
        fail: Callable[[str, Reason], None],
        go: Callable[[], None],
    ) -> None:
        self._work, self._members = work, members
        self._note, self._fail, self._go = note, fail, go
        self._is_open = self._has_begun = False
        self._ports: Dict[int, int] = {}
        self._progress: Dict[int, Message] = {}
        self._staged: Dict[int, Message] = {}
        self._noted = self._began = self._said = 0.0

    def begin(self) -> None:
        """All nodes are here."""
        self._is_open = True
        if wanted(self._work) is None:
            self._go()
        else:
            self._began = self._said = time.monotonic()
            self._tell()

    def heed(self, member: Member, message: Message) -> bool:
        """Whether it was about this."""
        event = message["event"]
        if event == "stage-port":
            self._ports[member.index] = message["port"]
            self._tell()
        elif event == "staging":
            self._progress[member.index] = message
            self._note_progress()
        elif event == "staged":
            self._staged[member.index] = message
            if len(self._staged) == self._work.nodes:
                self._note("staged", **self._sum(), seconds=round(time.monotonic() - self._began, 2))
                self._go()
        elif event == "stage-failed":
            self._fail(f"{member.host}: data: {message['because']}", Reason.NO_DATA)
        else:
            return False
        return True

    def _tell(self) -> None:
        """Once all are here and listen: who takes it from whom."""
        if not self._is_open or len(self._ports) < self._work.nodes or self._has_begun:
            return
        self._has_begun = True
        self._note("staging", bytes=0, of=0, files=0, of_files=0, rate=0, left=None)
        before = predecessors(self._ports, {member.index: _where(member) for member in self._members})
        for member in self._members:
            self._members.pass_on(member.index, {"do": "stage", "before": before[member.index]})

    def _note_progress(self) -> None:
        """Of the node that is furthest behind: it is waited for."""
        now = time.monotonic()
        if now - self._noted < NOTE_SECONDS:
            return
        self._noted = now
        waited_for = [it for index, it in self._progress.items() if index not in self._staged]
        slowest = min(waited_for, key=lambda it: (it["unpacks"], int(it["bytes"])))
        alike = [it for it in self._progress.values() if it["unpacks"] == slowest["unpacks"]]
        of = {name: max(int(it[name]) for it in alike) for name in ("of", "of_files")}
        rate = slowest["rate"]
        left = round((of["of"] - slowest["bytes"]) / rate) if rate else None
        same = {name: slowest[name] for name in ("bytes", "files", "waits_for", "unpacks")}
        far = {**same, **of, "rate": rate, "left": left}
        self._note("staging", **far)
        if now - self._said >= SAY_SECONDS:
            self._said = now
            system.say(f"staging {progress(far)}")

    def _sum(self) -> Dict[str, Any]:
        return {name: max(int(it[name]) for it in self._staged.values()) for name in ("bytes", "files")}


def _where(member: Member) -> str:
    """The address at which the others find it."""
    connection = member.channel.connection
    try:
        return host(str(connection.getpeername()[0]), str(connection.getsockname()[0]))
    except OSError:
        return HEAD  # it is gone, which will show
