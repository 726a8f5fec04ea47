"""What the head watches as time goes by: the limit, requests from outside, and who should still be there.

That is the nodes and their ranks, job.sh, and the attempt itself, which a later one may have taken the place of.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Callable, NamedTuple, Optional

from serried.agent import notifications, system
from serried.agent.attempt import Work
from serried.agent.attempts import finalize, history
from serried.agent.attempts.requests import Requests
from serried.agent.comms.channel import Message
from serried.agent.comms.node_registry import Member, Members
from serried.agent.head.deadline import Deadline
from serried.agent.loop import Loop
from serried.agent.outcome import unconnected
from serried.protocol import names
from serried.protocol.reasons import Reason

CONTROL_SECONDS = 2.0
BEAT_SECONDS = 5.0
SILENT_NODE_SECONDS = 60.0
APART_SECONDS = 120.0
"""Ranks that have not connected by then are reported, though they may be preparing data and connect later."""


class Reactions(NamedTuple):
    """What is called from the loop: ranks have to be ended, or may save first, or a node is lost, each with why.

    And what is to stand in the journal.
    """

    stop: Callable[..., None]
    ask_to_save: Callable[..., None]
    lose: Callable[[Member, Reason, str], None]
    note: Callable[..., None]


class Watch:
    def __init__(
        self, loop: Loop, work: Work, members: Members, deadline: Optional[Deadline], reactions: Reactions
    ) -> None:
        self._loop = loop
        self._work = work
        self._members = members
        self._on = reactions
        self._parent = os.getppid()
        self._requests = Requests(work.place.attempt(work.number).control)
        self._deadline = deadline
        self.is_orphaned = False
        """job.sh was killed."""
        self.is_superseded = False
        """A later attempt has begun."""
        self._may_be_apart = work.expects_contact

    def begin(self) -> None:
        self._loop.every(CONTROL_SECONDS, self._read_control)
        self._loop.every(BEAT_SECONDS, self._beat)
        if self._deadline:
            now, grace = time.time(), self._deadline.grace
            because = "time limit"
            self._loop.after(
                max(0.0, self._deadline.warning - now), lambda: self._on.ask_to_save(Reason.LIMIT, because)
            )
            self._loop.after(max(0.0, self._deadline.end - now), lambda: self._on.stop(Reason.LIMIT, because, grace))

    def ranks_began(self) -> None:
        self._loop.after(APART_SECONDS, self._check_contact)

    def on_message(self, message: Message) -> bool:
        """Whether it was about contact, which a node has seen between its ranks and others; None: it cannot tell."""
        if message["event"] == "contact" and self._may_be_apart:
            self._may_be_apart = False
            self._on.note("ranks-in-contact", seen=message["seen"])
        return bool(message["event"] == "contact")

    def _check_contact(self) -> None:
        if self._may_be_apart and not self._members.are_done():
            message = unconnected.early_message(self._work.nodes * self._work.ranks, APART_SECONDS)
            self._on.note(Reason.RANKS_APART, message=message)
            system.say(f"warning: {message}")

    def _read_control(self) -> None:
        for stop in self._requests.stops():
            if stop.may_save:
                self._on.ask_to_save(stop.reason, stop.by, by=stop.by)
                late = partial(self._on.stop, stop.reason, "not saved", self._work.grace, by=stop.by)
                self._loop.after(self._work.lead, late)
            else:
                self._on.stop(stop.reason, stop.by, self._work.grace, by=stop.by)

    def _beat(self) -> None:
        self.check_parent()
        self._check_superseded()
        self._members.tell("beat")
        for member in self._members:
            if not member.is_done and self._loop.awake() - member.heard > SILENT_NODE_SECONDS:
                self._on.lose(member, Reason.NODE_SILENT, f"silent for {SILENT_NODE_SECONDS:.0f} s")

    def check_parent(self) -> None:
        """job.sh was killed: nobody will call `finish` for us, and we may be next. Write first, then tidy.

        Its scheduler kills ranks, agents and launchers too, in any order: so this is asked before their ends count.
        """
        if os.getppid() != self._parent and not self.is_orphaned:
            self.is_orphaned = True
            self._on.note("orphaned")
            try:
                finalize.conclude(self._work)
            except OSError as error:  # the head tries again when the ranks have ended
                system.say(f"cannot conclude yet: {error}")
            self._on.stop(Reason.LOST, "job.sh ended", self._work.grace)

    def _check_superseded(self) -> None:
        """A scheduler that lost sight of this node has begun anew elsewhere, and two must not write the same files."""
        if not self.is_superseded and history.is_superseded(self._work):
            self.is_superseded = True
            self._on.note("superseded")
            self._on.stop(Reason.LOST, "a later attempt has begun", 0.0)

    def check_silence(self) -> None:
        """Whether no rank has written anything for as long as the plan bears."""
        said = self._work.plan["limit"]["silence_seconds"]
        if said is None:
            return
        is_told_now = False
        if self._members.silent_ranks(float(said) / 2):
            is_told_now = notifications.tell(self._work, names.EVENT_STALL) is not None
        silent = self._members.silent_ranks(float(said))
        if silent and not is_told_now:  # else with the next beat: who tells of it would be killed with the job
            self._on.stop(Reason.SILENCE, ", ".join(map(str, silent)), self._work.grace, ranks=silent)
