"""The head agent: starts one node agent per node, hears them, and decides when they stop.

It alone hears job.sh and reads control.jsonl, and its journal alone is enough to say how the attempt ended.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Dict, List, Optional

from serried.agent import notifications, system
from serried.agent.attempt import Work
from serried.agent.attempts import finalize
from serried.agent.attempts.requests import outweighs
from serried.agent.comms import env_file, rendezvous
from serried.agent.comms.channel import Message
from serried.agent.comms.node_registry import Member, Members, Reactions
from serried.agent.head import deadline, monitor
from serried.agent.head.agent_launcher import Launcher, agent_environment, sweep_nodes
from serried.agent.launchers.head_side import Failure, Launching
from serried.agent.loop import Loop
from serried.agent.options import Options
from serried.agent.outcome.evidence import AS_ASKED
from serried.agent.stage_in.head_side import Staging
from serried.fs import files
from serried.protocol import hostlist, names
from serried.protocol.reasons import Reason

CONNECT_SECONDS = 120.0
FAREWELL_SECONDS = 3.0
LEAVE_SECONDS = 13.0
"""For nodes to remove what is left on their disks, more than they take; and for launchers to say what became of one."""
EARLY_SECONDS = 65.0
"""A warning that comes by so much too early is Slurm's own, for the limit; an earlier one has another reason."""
WRITE_SECONDS = 300.0
"""How long the end waits for a disk that is full or away; the scheduler may end us before."""
OBEY_SECONDS = 8.0
"""How long after the grace a node may take to say that its ranks have ended."""


class Head:
    def __init__(self, work: Work, options: Options, launcher: List[str]) -> None:
        self.work = work
        self.loop = Loop()
        self._attempt = work.place.attempt(work.number)
        self._journal = files.Journal(self._attempt.events, work.file_mode)
        self._stop_reason: Optional[Reason] = None
        self._may_save = self._is_going = self._is_over = False
        self._port = rendezvous.hold_port()
        reactions = Reactions(self._welcome, self._on_message, self._lose, lambda: self.note("all-over"))
        self._members = Members(self.loop, work.nodes, hostlist.expand(options.hosts), reactions)
        self._deadline = deadline.of(work, options.end, options.age)
        watched = monitor.Reactions(self._stop, self._ask_to_save, self._lose, self.note)
        self._watch = monitor.Watch(self.loop, work, self._members, self._deadline, watched)
        self._staging = Staging(work, self._members, self.note, self._fail_launch, self._go)
        self._launching = Launching(self.loop, work, self._members, self._fail_starter)
        self._argv = launcher
        self._handover = env_file.Handover(options.environment, work)
        role = system.agent_command("node", *self._handover.words(options.node_variable))
        self._environment = agent_environment(work, self._members.addresses(), self._members.key)
        self._launcher = Launcher(self.loop, [*launcher, *role], self._environment, self._launcher_exited)
        limit = self._deadline.end if self._deadline else None
        self.note("claimed", job=options.job, token=options.token, host=os.uname().nodename, limit=limit)

    def run(self) -> int:
        self.loop.on_signal(signal.SIGTERM, lambda: self._terminated(Reason.CANCEL, "TERM"))
        self.loop.on_signal(signal.SIGUSR1, self._warned)
        self.loop.on_signal(signal.SIGHUP, self._watch.check_parent)
        self.loop.on_signal(signal.SIGCHLD, self._launcher.reap)
        self.note("launching", argv=self._argv)
        self._handover.write(self._environment)
        self._launcher.start()
        system.die_with_parent(signal.SIGHUP)
        self.loop.after(CONNECT_SECONDS, self._check_present)
        self.loop.every(monitor.BEAT_SECONDS, self._check_launcher)
        self._watch.begin()
        self._unpack()
        if not self._is_over or self._launcher.is_running:
            self.loop.run()
        self._launcher.signal(signal.SIGKILL)
        self._handover.remove()
        if self._argv and any(member.is_lost for member in self._members):
            sweep_nodes(self.loop, self._argv, self.work)
        self.note("ended")
        system.retry(self._journal.write, WRITE_SECONDS)
        if self._watch.is_orphaned or self._watch.is_superseded:
            system.retry(lambda: finalize.conclude(self.work), WRITE_SECONDS)
        return names.EXIT_REFUSED if self._watch.is_superseded else 0

    def _unpack(self) -> None:
        """While the launcher is at work: it needs as long."""
        from serried.agent.head import snapshot

        try:
            snapshot.prepare(self.work)
        except OSError as error:
            self._fail_launch(f"cannot prepare the source: {error}")

    def _terminated(self, reason: Reason, because: str, **facts: Any) -> None:
        """By the scheduler: for the limit, where that has passed before we could keep it."""
        is_late = self._deadline is not None and time.time() >= self._deadline.end
        self._stop(Reason.LIMIT if is_late else reason, because, self.work.hurried_grace, **facts)

    def _warned(self) -> None:
        """By the scheduler. Slurm's warning may come a minute early; where we have a clock, ranks keep that minute."""
        if self._deadline and (not self._is_going or 0 < self._deadline.warning - time.time() < EARLY_SECONDS):
            return
        self._ask_to_save(Reason.LIMIT, "USR1")

    # What the nodes say.

    def _welcome(self, member: Member) -> None:
        self.note("connected", node=member.index, host=member.host)
        if member.problem:
            self._fail_launch(f"{member.host}: {member.problem}")
        elif len(self._members) == self.work.nodes:
            self._staging.begin()

    def _go(self) -> None:
        if self._is_over or self._stop_reason:
            return
        self._is_going = True
        self._members.close_door()
        self._handover.remove()
        self.note("go", resume=self._environment[names.RESUME] or None)
        told = {"port": self._port.getsockname()[1], "deadline": self._deadline.at if self._deadline else 0}
        told.update(store=self._open_store(), workers=self._members.workers())
        left = self._deadline.over - time.time() if self._deadline else None
        self._members.tell("go", hosts=[member.host for member in self._members], place=told, left=left)
        self._launching.begin()
        self._watch.ranks_began()
        notifications.tell(self.work, names.EVENT_START)

    def _open_store(self) -> int:
        """The port where Horovod's ranks meet that the agents start; 0 where there are none."""
        if self.work.launcher != "horovod":
            return 0
        from serried.agent.ranks import horovod

        return horovod.open_store(self.work)

    def _on_message(self, member: Member, message: Message) -> None:
        if message["event"] != "beat":
            self._watch.check_parent()
            self._on_news(member, message)
            return
        member.quiet, member.running = message["quiet"], message["running"]
        if self._stop_reason is None:
            self._watch.check_silence()

    def _on_news(self, member: Member, message: Message) -> None:
        facts = {name: value for name, value in message.items() if name != "event"}
        event = message["event"]
        if event == "started":
            self.note("started", node=member.index, host=member.host)
        elif event == "failed":
            self.note("rank-failed", node=member.index, host=member.host, **facts)
            self._judge_failure(member, message["exit"])
        elif event == "stop":
            self._terminated(Reason(message["reason"]), f"TERM on {member.host}", node=member.index)
        elif event == "orphaned":
            self._lose(member, Reason.STEP_ENDED, "the scheduler's process there ended")
        elif event == "done":
            member.is_done = True
            self.note("node-ended", node=member.index, host=member.host, **facts)
            self._check_over()
        elif not (self._watch.on_message(message) or self._staging.heed(member, message)):
            if event == "starter-ended":
                self.note(event, node=member.index, host=member.host, **facts)
            self._launching.heed(member, message)

    def _judge_failure(self, member: Member, exit_: Dict[str, Any]) -> None:
        """Any failure ends the others, but a rank that has left as it was asked to has not failed."""
        if self._may_save and exit_["exit_code"] in AS_ASKED:
            return
        lost = " lost another rank" if exit_.get("stumbled") else ""
        self._stop(Reason.FAILURE, f"rank {exit_['rank']} on {member.host}{lost}", self.work.grace)

    def _lose(self, member: Member, code: Reason, because: str) -> None:
        self._watch.check_parent()
        self._members.disconnect(member)
        if member.is_done or self._is_over:
            return
        member.is_done = member.is_lost = True
        self.note("node-lost", node=member.index, host=member.host, code=code, because=because)
        if self._is_going:
            self._stop(Reason.LOST, f"lost {member.host}", self.work.grace)
        else:
            absent = ", ".join(self._members.missing())
            first = f"no agent answered from {absent}, and " if absent else ""
            self._fail_launch(f"{first}lost the agent on {member.host} before the ranks started")
        self._check_over()

    # Why to stop.

    def _stop(self, reason: Reason, because: str, grace: float, **facts: Any) -> None:
        """End the ranks on every node: TERM, `grace`, KILL."""
        absent = {} if self._is_going else {"absent": self._members.missing()}
        self.note("stopping", reason=reason, because=because, **absent, **facts)
        self._stop_reason = self._stop_reason or reason
        is_new = self._members.stop(reason, grace)
        self._launching.stop()
        if not self._is_going:
            self._abandon_launch()
        elif is_new:
            self.loop.after(grace + OBEY_SECONDS, lambda: self._give_up(Reason.STOP_IGNORED, "it did not stop"))

    def _ask_to_save(self, reason: Reason, because: str, **facts: Any) -> None:
        """Let ranks know that the end is near. A reason that weighs less than one before it changes nothing."""
        if not self._is_going:  # nothing to save
            self._stop(reason, because, self.work.grace, **facts)
        elif outweighs(reason, self._stop_reason):
            self._stop_reason, self._may_save = reason, True
            notice = self.work.plan["limit"]["notify"]
            self.note("stopping", reason=reason, because=because, save=True, notice=notice, **facts)
            self._members.tell("stop", reason=reason, hard=False, grace=0)

    # The launcher, and the end.

    def _check_launcher(self) -> None:
        if not len(self._members) and self._argv and not self._is_over:
            self._launcher.end_if_deaf()

    def _launcher_exited(self, status: int) -> None:
        self._watch.check_parent()
        self.note("launcher-exit", status=status, said=self._launcher.last_lines)
        if self._is_over:
            self._check_over()
        elif self._is_going:
            self.loop.after(LEAVE_SECONDS, lambda: self._give_up(Reason.LAUNCHER_ENDED, "the launcher ended"))
        elif self._stop_reason or len(self._members) or not self._argv or not self._launcher.try_again():
            self._fail_launch(" / ".join(self._launcher.last_lines) or f"the launcher exited with status {status}")

    def _give_up(self, code: Reason, because: str) -> None:
        """Wait no longer for agents that should have been done."""
        self._members.give_up(lambda member: self._lose(member, code, because))

    def _check_present(self) -> None:
        missing = ", ".join(self._members.missing())
        if missing and not self._is_going and not self._is_over:
            self._fail_launch(f"no agent answered from {missing} within {CONNECT_SECONDS:.0f} s")

    def _fail_starter(self, failure: Failure) -> None:
        """What starts the ranks has failed, and no rank."""
        self.note("starter-failed" if self._launching.came else "launch-failed", **failure._asdict())
        self._stop(Reason.LAUNCHER, failure.message, self.work.grace)

    def _fail_launch(self, message: str, code: Reason = Reason.LAUNCH) -> None:
        if not self._stop_reason:
            self.note("launch-failed", code=code, message=message)
        self._abandon_launch()

    def _abandon_launch(self) -> None:
        self._members.expect_nothing()
        self._check_over()

    def _check_over(self) -> None:
        """Once every node is done: let the agents go, and the launcher after them."""
        if not self._members.are_done():
            return
        self._launching.judge()
        if not self._is_over:
            self._is_over = True
            self._members.close_door()
            self._members.tell("bye")
            self.loop.after(self._patience() if len(self._members) else 0, self._end_launcher)
        if not self._launcher.is_running:
            self.loop.stop()

    def _patience(self) -> float:
        """How long the launcher may take to end: it ends where an agent was killed, not where its node is gone.

        Who has not come finds the door closed, and what became of a node is not asked where others are the reason.
        """
        is_alone = any(member.is_lost for member in self._members) or self._members.missing()
        return FAREWELL_SECONDS if is_alone and self._stop_reason != Reason.LOST else LEAVE_SECONDS

    def _end_launcher(self) -> None:
        self.note("ending-launcher")
        self._launcher.signal(signal.SIGTERM)
        self.loop.after(FAREWELL_SECONDS, self.loop.stop)

    def note(self, event: str, **facts: Any) -> None:
        try:
            self._journal.append({"t": round(time.time(), 3), "event": event, **facts})
        except OSError as error:
            system.say(f"cannot write the journal: {error}")
