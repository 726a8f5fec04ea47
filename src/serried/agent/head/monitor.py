"""The deadline of an attempt, and what the head checks periodically.

These are the limit, requests, the heartbeats of nodes, whether ranks and job.sh are alive, and whether a later attempt
has begun. A node that is silent for 60 s is lost.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Optional

from serried.agent import notifications, system
from serried.agent.attempt import Attempt
from serried.agent.attempts import finalize, history
from serried.agent.comms.node_registry import NodeRegistry
from serried.agent.outcome.verdict import unconnected_message
from serried.protocol import names
from serried.protocol.events import JournalEvent, ToHead, ToNode
from serried.protocol.json_lines import Message
from serried.protocol.reasons import Reason

if TYPE_CHECKING:
    from serried.agent.head.head import Head

CONTROL_SECONDS = 2.0
HEARTBEAT_SECONDS = 5.0
SILENT_NODE_SECONDS = 60.0
UNCONNECTED_SECONDS = 120.0
"""Ranks that have not connected by then are reported, though they may be preparing data and connect later."""
MARGIN_SECONDS = 15.0
"""Before the limit, for ending ranks and recording the end."""


class Deadline(NamedTuple):
    at: float
    """When the scheduler ends the job, in seconds since the epoch."""
    warning: float
    """When ranks receive the stop notice."""
    end: float
    """When ranks receive TERM."""
    grace: float
    """Seconds from TERM to KILL; a third of the margin is left for cleaning up."""

    @property
    def over(self) -> float:
        """When nodes must be done, so that the head can still record the end."""
        return self.at - (self.at - self.end) / 6


def decide_deadline(
    began: float, limit: Optional[float], scheduler_end: float, lead: float, grace: float
) -> Optional[Deadline]:
    """None without a limit. `scheduler_end` is when the scheduler says that it ends the job; 0 if it does not say."""
    if limit is None:
        return None
    at = min(began + limit, scheduler_end or float("inf"))
    margin = min(MARGIN_SECONDS, limit / 20)
    return Deadline(at, at - min(lead, limit / 4), at - margin, min(grace, margin * 2 / 3))


def deadline_of(work: Attempt, scheduler_end: float, age: float = 0.0) -> Optional[Deadline]:
    """The deadline of an attempt that begins now, in a job that began `age` seconds ago."""
    began = time.time() - age
    limit: Optional[float] = work.plan["allocation"]["time_seconds"]
    script = work.plan.get("script")
    if script and limit is None and scheduler_end:  # a script without a limit has its partition's
        limit = scheduler_end - began
    deadline = decide_deadline(began, limit, scheduler_end, work.lead_seconds, work.grace_seconds)
    if script and script["notice_to"] and deadline:  # its own directive says when it gets the signal
        deadline = deadline._replace(warning=min(deadline.end, max(began, deadline.at - work.lead_seconds)))
    if limit is None or deadline is None or not work.has_outputs:
        return deadline
    copy_seconds = min(names.COPY_BACK_SECONDS, limit / 20)
    return deadline._replace(warning=deadline.warning - copy_seconds, end=deadline.end - copy_seconds)


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

    def begin(self) -> None:
        self._loop.every(CONTROL_SECONDS, self._read_control)
        self._loop.every(HEARTBEAT_SECONDS, self._send_heartbeat)
        if self._deadline:
            now, grace = time.time(), self._deadline.grace
            because = "time limit"
            self._loop.after(
                max(0.0, self._deadline.warning - now), lambda: self._head.ask_to_save(Reason.LIMIT, because)
            )
            self._loop.after(max(0.0, self._deadline.end - now), lambda: self._head.stop(Reason.LIMIT, because, grace))

    def ranks_began(self) -> None:
        self._loop.after(UNCONNECTED_SECONDS, self._check_connections)

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
            message = unconnected_message(self._work.nodes * self._work.ranks, UNCONNECTED_SECONDS)
            self._head.log_event(JournalEvent.RANKS_UNCONNECTED, message=message)
            system.log(f"warning: {message}")

    def _read_control(self) -> None:
        for stop in self._requests.stops():
            if stop.may_save:
                self._head.ask_to_save(stop.reason, stop.by, by=stop.by)
                late = partial(self._head.stop, stop.reason, "not saved", self._work.grace_seconds, by=stop.by)
                self._loop.after(self._work.lead_seconds, late)
            else:
                self._head.stop(stop.reason, stop.by, self._work.grace_seconds, by=stop.by)

    def _send_heartbeat(self) -> None:
        self.check_parent()
        self._check_superseded()
        self._nodes.broadcast(ToNode.HEARTBEAT)
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
        silence_seconds = self._work.plan["limit"]["silence_seconds"]
        if silence_seconds is None:
            return
        is_notified_now = False
        if self._nodes.silent_ranks(float(silence_seconds) / 2):
            is_notified_now = notifications.notify(self._work, names.EVENT_STALL) is not None
        silent = self._nodes.silent_ranks(float(silence_seconds))
        if silent and not is_notified_now:  # else at the next beat: the notifying process would be killed with the job
            self._head.stop(Reason.SILENCE, ", ".join(map(str, silent)), self._work.grace_seconds, ranks=silent)
