"""The agent's part of `serried stacks`: a process for each request, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, List, Optional, Sequence

from serried.agent.attempt import Attempt
from serried.agent.helper_process import HelperProcess
from serried.agent.loop import Loop
from serried.agent.ranks.command import RECORD_PREFIX
from serried.agent.ranks.ranks import Rank
from serried.base.channel import Message
from serried.schema import names

MOST_WAITING = 8
"""Further requests are dropped: their commands report that."""


class StackRequests:
    def __init__(self, loop: Loop, attempt: Attempt, node: int, private: Path, send: Callable[..., None]) -> None:
        """`private` is the attempt's folder on the node's disk; `send` sends an event to the head."""
        self._loop = loop
        self._attempt = attempt
        self._records, self._send = str(private / RECORD_PREFIX), send
        self._node = node
        self._waiting: List[Message] = []
        self._worker: Optional[HelperProcess] = None

    def add(self, request: Message, running: Sequence[Rank]) -> None:
        """Handle a request: `id`, the numbers of `ranks` or None for all, and the pid of the `script`, if any.

        With `hang`, the head gets a report too.
        """
        leaders = [{"rank": rank.number, "pid": rank.pid, "launch": rank.launch or None} for rank in running]
        if request.get("script") and self._node == 0:
            leaders.insert(0, {"rank": names.SCRIPT_RANK, "pid": request["script"], "launch": None})
        chosen = request.get("ranks")
        directory = self._attempt.directory.attempt(self._attempt.number)
        job = {
            "id": str(request["id"]),
            "path": str(directory.stacks(self._node, str(request["id"]))),
            "mode": self._attempt.file_mode,
            "node": self._node,
            "hang": bool(request.get("hang")),
            "records": self._records,
            "ranks": [leader for leader in leaders if chosen is None or leader["rank"] in chosen],
        }
        self._waiting = [*self._waiting, job][:MOST_WAITING]
        self._begin()

    def keep_records(self) -> None:
        """Copy torch's records, which the disk loses: torch writes them too when a collective times out."""
        own = Path(self._records)
        if any(own.parent.glob(f"{own.name}*[0-9]")):
            from serried.agent.stacks import flight_recorder

            flight_recorder.copy(self._records, self._attempt.files.node(self._node))

    def _begin(self) -> None:
        if self._worker is None and self._waiting:
            self._worker = HelperProcess(self._loop, "stacks", (), self._on_message)
            self._worker.send(self._waiting.pop(0))

    def _on_message(self, message: Optional[Message]) -> None:
        if message is None:
            self._worker = None
            self._begin()
        else:
            self._send(**message)
