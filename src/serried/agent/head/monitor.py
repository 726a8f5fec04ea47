"""What the head checks periodically.

These are the limit, requests, the heartbeats of nodes, whether ranks and job.sh are alive, and whether a later attempt
has begun. A node that is silent for 60 s is lost.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Optional

from serried.agent import notifications, system
from serried.agent.attempts import history
from serried.agent.attempts.deadline import Deadline
from serried.agent.comms.node_registry import NodeRegistry
from serried.protocol import names
from serried.protocol.events import JournalEvent, ToHead, ToNode
from serried.protocol.json_lines import Message
from serried.protocol.reasons import Reason

if TYPE_CHECKING:
    from serried.agent.head.head import Head

CONTROL_SECONDS = 2.0
CHECK_SECONDS = 5.0
SILENT_NODE_SECONDS = 60.0
UNCONNECTED_SECONDS = 120.0
"""Ranks that have not connected by then are reported, though they may be preparing data and connect later."""


class Monitor:
    def __init__(self, head: Head, nodes: NodeRegistry, deadline: Optional[Deadline]) -> None:
        self._head = head
        self._loop = head.loop
        self._work = work = head.work
        self._nodes = nodes
        self._parent = os.getppid()
        self._requests = history.Requests(work.directory.attempt(work.number).control)
        self._deadline = deadline
        self.is_orphaned = False
        """job.sh was killed."""
        self.is_superseded = False
        """A later attempt has begun."""
        self._may_be_unconnected = work.expects_connections
        silence = work.plan.limit.silence_seconds
        self._silence_seconds = None if silence is None else float(silence)

    def begin(self) -> None:
        self._loop.every(CONTROL_SECONDS, self._read_control)
        self._loop.every(CHECK_SECONDS, self._check)
        self._loop.every(max(CHECK_SECONDS, self._work.heartbeat_seconds), self._send_heartbeat)
        if self._silence_seconds is not None:
            self._loop.every(self._work.heartbeat_seconds, self.check_silence)
        if self._deadline:
            now, grace = time.time(), self._deadline.grace
            because = "time limit"
            self._loop.after(
                max(0.0, self._deadline.warning - now), lambda: self._head.ask_to_save(Reason.LIMIT, because)
            )
            self._loop.after(max(0.0, self._deadline.end - now), lambda: self._head.stop(Reason.LIMIT, because, grace))

    def ranks_began(self) -> None:
        self._loop.after(UNCONNECTED_SECONDS, self._check_connections)
        self._loop.after(CONTROL_SECONDS, _import_finalize)

    def on_message(self, message: Message) -> bool:
        """Handle a node's report that ranks have connected to others; `seen` is None if the node cannot tell.

        Returns whether `message` is such a report.
        """
        if message["event"] == ToHead.CONTACT and self._may_be_unconnected:
            self._may_be_unconnected = False
            self._head.log_event(JournalEvent.RANKS_CONNECTED, seen=message["seen"])
        return bool(message["event"] == ToHead.CONTACT)

    def _check_connections(self) -> None:
        if self._may_be_unconnected and not self._nodes.are_done():
            from serried.agent.outcome.verdict import unconnected_message

            message = unconnected_message(self._work.nodes * self._work.ranks, UNCONNECTED_SECONDS)
            self._head.log_event(JournalEvent.RANKS_UNCONNECTED, message=message)
            system.log(f"warning: {message}")

    def _read_control(self) -> None:
        for request in self._requests.new():
            if isinstance(request, history.StacksRequest):
                self._head.request_stacks(request)
            elif request.may_save:
                self._head.ask_to_save(request.reason, request.by, by=request.by)
                late = partial(self._head.stop, request.reason, "not saved", self._work.grace_seconds, by=request.by)
                self._loop.after(self._work.lead_seconds, late)
            else:
                self._head.stop(request.reason, request.by, self._work.grace_seconds, by=request.by)

    def _send_heartbeat(self) -> None:
        self._nodes.broadcast(ToNode.HEARTBEAT)

    def _check(self) -> None:
        self.check_parent()
        self._check_superseded()
        for agent in self._nodes:
            if not agent.is_done and self._loop.awake() - agent.last_message_at > SILENT_NODE_SECONDS:
                self._head.on_node_lost(agent, Reason.NODE_SILENT, f"silent for {SILENT_NODE_SECONDS:.0f} s")

    def check_parent(self) -> None:
        """Record the end if job.sh was killed: it cannot run `finish`, and this process may be killed next.

        The scheduler kills ranks, agents and launchers too, in any order. So this check precedes any use of their ends.
        """
        if os.getppid() != self._parent and not self.is_orphaned:
            self.is_orphaned = True
            self._head.log_event(JournalEvent.ORPHANED)
            try:
                from serried.agent.attempts import finalize

                finalize.conclude(self._work)
            except OSError as error:  # the head tries again when the ranks have ended
                system.log(f"cannot conclude yet: {error}")
            self._head.stop(Reason.LOST, "job.sh ended", self._work.grace_seconds)

    def _check_superseded(self) -> None:
        """Stop if the scheduler restarted the job elsewhere: two attempts must not write the same files."""
        if not self.is_superseded and history.is_superseded(self._work):
            self.is_superseded = True
            self._head.log_event(JournalEvent.SUPERSEDED)
            self._head.stop(Reason.LOST, "a later attempt has begun", 0.0)

    def check_silence(self) -> None:
        """Notify people after half of the plan's limit of silence, and end the ranks after all of it."""
        if self._silence_seconds is None or self._head.is_stopping:
            return
        is_notified_now = False
        if self._nodes.silent_ranks(self._silence_seconds / 2):
            is_notified_now = notifications.notify(self._work, names.EVENT_STALL) is not None
        silent = self._nodes.silent_ranks(self._silence_seconds)
        if silent and not is_notified_now:  # else at the next beat: the notifying process would be killed with the job
            self._head.stop(Reason.SILENCE, ", ".join(map(str, silent)), self._work.grace_seconds, ranks=silent)


def _import_finalize() -> None:
    """After the ranks have started, and before it is needed: where job.sh is killed, each millisecond counts."""
    from serried.agent.attempts import finalize  # noqa: F401
