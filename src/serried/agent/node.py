"""The agent of one node: starts its ranks when the head says so, reports, stops them, and cleans up.

It exits 0 whatever its ranks did: a launcher that sees anything else ends the other nodes without time to save.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple

from serried.agent import containers, orphans, system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.checks.node_side import NodeChecks
from serried.agent.comms import job_environment, rendezvous
from serried.agent.comms.channel import SignedChannel
from serried.agent.loop import Loop, Timer
from serried.agent.node_disk import cleanup
from serried.agent.node_disk.folder import Folder
from serried.agent.ranks import connections, side_commands
from serried.agent.ranks.ranks import ForkedRanks, Rank, Ranks
from serried.agent.ranks.side_commands import SideCommands
from serried.agent.sampling.node_side import RunningRank, SamplerProcess
from serried.agent.stacks.node_side import StackRequests
from serried.agent.stage_in.node_side import StageIn, check_required_paths
from serried.agent.stage_out.node_side import StageOut
from serried.base import files, linux
from serried.base.channel import Message
from serried.base.hosts import LOOPBACK
from serried.base.text import expand_hosts
from serried.schema import names
from serried.schema.codec import facts_of, from_json
from serried.schema.endings import End, NodeEnded, NodeLost, SideExit, Unsaved, entries
from serried.schema.events import JournalEvent, ToHead, ToNode
from serried.schema.exits import Exit
from serried.schema.reasons import Reason

if TYPE_CHECKING:
    from serried.agent.checks.programs import ProbePrograms

JOIN_SECONDS = 60.0
SILENT_HEAD_SECONDS = 60.0
ABANDONED_SECONDS = 180.0
"""How long agents without a head wait for the scheduler to end the job, before they end it themselves."""
REMOVE_SECONDS, URGENT_REMOVE_SECONDS = 10.0, 2.0
"""For deleting the ranks' files on this node's disk at the end; the next job deletes the rest."""
ABORT_SECONDS = 0.5
"""For a rank that ignored TERM to print its stacks before KILL."""
TOGETHER_SECONDS = 1.0
"""How long a rank's death by TERM waits for the agent's own TERM: the scheduler sends both at once."""
LOOK_SECONDS = 75.0
"""The most that a look at the node takes before another round."""
STUMBLED_SECONDS = 5.0
"""After a rank failed because it lost a peer: time to wait for the peer's own exit."""


def main(arguments: List[str]) -> int:
    """`node [--node-variable NAME] [--environment FILE --own PREFIX]`; the environment has the rest.

    Enter the job's setup, connect to the head and run the node's agent.
    """
    options = dict(zip(arguments[::2], arguments[1::2]))
    variables = options.get("--node-variable", "").split(",")
    index = int(next(filter(None, map(os.environ.get, variables)), 0))
    if "--environment" in options:
        job_environment.load(options.pop("--environment"), options.pop("--own", ""))
    task = os.environ.get(names.TASK)
    attempt = Attempt.load(run_directory(), int(task) if task else None, int(os.environ[names.ATTEMPT]))
    words = [word for option in options.items() for word in option]
    problem = job_environment.enter_setup(attempt, words) or check_required_paths(attempt.plan)
    set_umask(attempt)
    key = bytes.fromhex(os.environ.pop(names.KEY))
    greeting = {"node": index, "host": socket.gethostname(), "version": sys.version.split()[0], "problem": problem}
    try:
        channel, master = rendezvous.connect(os.environ[names.HEAD], key, greeting, JOIN_SECONDS)
    except OSError as error:
        print(f"serried: node {index} ({socket.gethostname()}) cannot reach the head agent: {error}", file=sys.stderr)
        return 1
    Node(attempt, index, key, channel, master if attempt.agents > 1 else LOOPBACK).run()
    return 0


class Exits:
    """Reports the exits of ranks to the head: at once, or when the cause is known."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._held: List[Exit] = []
        self._tails: Set[bool] = set()
        """The head has the output of a rank that only lost another one (True), of one that failed itself (False)."""

    @property
    def have_all_been_sent(self) -> bool:
        return not self._held

    def add(self, ranks: Ranks, exit_: Exit, *, is_stopping: bool) -> None:
        if (exit_.signal == signal.SIGTERM or exit_.vanished) and not exit_.ended_by_us:
            self._held.append(exit_)
            self._node.loop.after(TOGETHER_SECONDS, lambda: self.release(ranks))
        elif exit_.stumbled and not is_stopping:
            self._held.append(exit_)
            self._node.loop.after(STUMBLED_SECONDS, lambda: self.release(ranks, stumbled=True))
        else:
            self._report(ranks, exit_)

    def release(self, ranks: Ranks, *, stumbled: bool = False) -> None:
        """Report the held exits: those by a lost peer if `stumbled`, else the others."""
        released = [exit_ for exit_ in self._held if exit_.stumbled == stumbled]
        self._held = [exit_ for exit_ in self._held if exit_ not in released]
        for exit_ in released:
            is_ours = exit_.ended_by_us or ranks.was_killed_by_launcher(exit_)
            self._report(ranks, exit_._replace(ended_by_us=is_ours))
        self._node.finish_if_ended()

    def mark_ended_by_us(self) -> None:
        """Mark the held exits: the scheduler's TERM caused them."""
        self._held = [exit_._replace(ended_by_us=True) for exit_ in self._held]

    def _report(self, ranks: Ranks, exit_: Exit) -> None:
        ranks.exits[exit_.rank] = exit_
        self._node.log_event(JournalEvent.RANK_EXIT, **exit_.to_json())
        if not exit_.ended_by_us and exit_.has_failed:
            tail = [] if {exit_.stumbled, False} & self._tails else ranks.tail(exit_.rank)
            self._tails.add(exit_.stumbled)
            self._node.send(ToHead.FAILED, exit=exit_.to_json(), tail=tail)


class Node:
    def __init__(self, attempt: Attempt, index: int, key: bytes, channel: SignedChannel, master: str) -> None:
        self.attempt = attempt
        self.loop = Loop()
        self._key = key
        self._index = index
        self._channel: Optional[SignedChannel] = channel
        self._last_message_at = self.loop.awake()
        self._master, self._address = master, channel.connection.getsockname()[0]
        files.make_directory(attempt.files.node(index), attempt.directory_mode)
        self._journal = files.Journal(attempt.files.node_events(index), attempt.file_mode)
        self._folder = Folder(attempt, index)
        self._private = self._folder.path
        self._image = containers.ImageCopy(self.loop, attempt, self._folder, self.log_event)
        self._stage_in = StageIn(self.loop, attempt, self._folder, self.log_event, self.send)
        self._stage_out = StageOut(self.loop, attempt, index, self._folder, self.log_event)
        self._checks = NodeChecks(self.loop, attempt, index, self._folder, self.send)
        self._sampling = SamplerProcess(
            self.loop, attempt, index, str(self._private), running=self._running_ranks, send=self.send
        )
        self._parent = os.getppid()
        self._ranks: Optional[Ranks] = None
        self._side_commands: Optional[SideCommands] = None
        self._connections: Optional[connections.ConnectionMonitor] = None
        self._probes: Optional[ProbePrograms] = None
        self._script_pid = 0
        """The user's script, which is measured as rank 0 while it has launched no rank here. 0 if it runs elsewhere."""
        self._exits = Exits(self)
        self._stacks = StackRequests(self.loop, attempt, index, self._private, self.send)
        self._is_stopping = False
        """TERM has been sent, or there is nothing to send it to."""
        self._is_urgent = self._is_hung = False
        self._is_done = False
        self._holds = bool(attempt.plan.limit.rounds)
        """Another round may follow once the ranks have ended."""
        self._held: Optional[Tuple[NodeEnded, bool]] = None
        """How the round ended here, and whether its files can be trusted, while the head decides what follows."""
        self._is_spare = index >= attempt.nodes
        """It has no ranks in this round."""
        self._has_left = False
        """It has ended without its head, and waits for the end of the job."""
        self._round = 1
        self._memories: List[int] = []
        """The memory in which the training library copies a state to save it; it outlives the ranks of a round."""
        self._kill: Optional[Timer] = None
        self._lingering_since = 0.0

    def run(self) -> None:
        linux.adopt_orphans()
        cleanup.start(self.attempt)
        linux.die_with_parent(signal.SIGHUP)
        self.loop.on_signal(signal.SIGTERM, self._terminated)
        self.loop.on_signal(signal.SIGHUP, self._check_parent)
        self.loop.on_signal(signal.SIGUSR1, lambda: None)
        self.loop.on_signal(signal.SIGCHLD, self.reap)
        self.loop.every(self.attempt.heartbeat_seconds, self._send_heartbeat)
        if self._channel:
            self.loop.watch(self._channel.connection, self._receive)
        self._stage_in.prepare(self._index, self._key, self._address, self._master)
        self._checks.begin(self._key, self._master)
        try:
            self.loop.run()
        finally:
            self._checks.end()
            self._sampling.wait_for_exit()
            until = time.monotonic() + (URGENT_REMOVE_SECONDS if self._is_urgent else REMOVE_SECONDS)
            self._stage_in.release(until - time.monotonic())
            self._image.release()
            self._folder.remove(until - time.monotonic())

    # Messages from the head.

    def _receive(self) -> None:
        if self._channel is None:
            return
        messages = self._channel.receive()
        if messages is None:
            self._on_head_lost()
            return
        self._last_message_at = self.loop.awake()
        for message in messages:
            self._on_message(message)

    def _on_message(self, message: Message) -> None:
        self._stage_in.on_message(message)
        self._stage_out.on_message(message)
        self._checks.on_message(message)
        if message["do"] == ToNode.START_RANKS:
            self._image.when_ready(lambda: self._go(message))
        elif message["do"] == ToNode.PROBE:
            self._image.when_ready(lambda: self._probe(message))
        elif message["do"] == ToNode.STOP and message["hard"]:
            self._stop(message["reason"], message["grace"])
        elif message["do"] == ToNode.STOP:
            self._ask_to_save(message["reason"])
        elif message["do"] == ToNode.SCRIPT_STARTED:
            self._script_pid = message["pid"] if message["host"] == os.uname().nodename else 0
        elif message["do"] in (ToNode.PUBLISH, ToNode.FINISH):
            self._after_round(message["do"])
        elif message["do"] == ToNode.BYE:
            self._leave()
        elif message["do"] == ToNode.STACKS:
            self._stacks.add(message, self._running)
        elif self._ranks:
            self._ranks.on_message(message)
            self.finish_if_ended()

    def _begin_round(self, message: Message) -> None:
        """Start the ranks again. The files of the last round stay."""
        self._round = message["round"]
        self.log_event(JournalEvent.ROUND, round=self._round)
        if self._kill:  # a stop may have come after the last rank had ended
            self._kill.cancel()
        self._ranks = self._side_commands = self._connections = self._kill = self._held = None
        self._exits = Exits(self)
        self._is_stopping = self._is_done = self._is_hung = False
        self._lingering_since = 0.0

    @property
    def _stop_file(self) -> Path:
        return self._private / (f"stop-{self._round}" if self._round > 1 else "stop")

    def _go(self, message: Message) -> None:
        if message["round"] != self._round and (self._held or self._is_spare):
            self._begin_round(message)
        places = message["nodes"] or range(self.attempt.nodes)
        is_new, self._is_spare = self._round == 1 or self._is_spare, self._index not in places
        if self._is_stopping or self._is_spare:
            return
        os.environ[names.RESUME] = message["resume"]
        parameters = message.get("parameters")
        if parameters:  # of a search: drawn since this process began
            self.attempt.parameters = parameters
        variables = {**message["place"], "master": self._master, "stop_file": str(self._stop_file)}
        variables.update(round=self._round, memory=self._memory_of_ranks())
        variables.update(
            self._stage_out.begin(message["left"]), local=str(self._folder.scratch), **self._stage_in.variables
        )
        hosts = expand_hosts(message["hosts"])
        if not (self.attempt.is_script or self.attempt.plan.container):
            from serried.agent.launchers.shell_functions import write_submitters

            with contextlib.suppress(OSError):  # on a full disk
                variables["submitters"] = write_submitters(self._private / "outside", system.agent_command("")[:-1])
        place = places.index(self._index)
        self._start(variables, hosts, place)
        if self.attempt.plan.beside:
            self._side_commands = SideCommands(
                self.attempt, self._index, variables, self.loop, self._on_side_command_exit
            )
        if is_new:
            self._sampling.begin(hosts[place], variables.get("results", ""))
        self.reap()

    def _memory_of_ranks(self) -> str:
        if not (self._holds and self.attempt.plan.launch.kind == "agent" and hasattr(os, "memfd_create")):
            return ""
        for _ in range(self.attempt.ranks - len(self._memories)):
            self._memories.append(os.memfd_create(names.MEMORY_FILE, os.MFD_CLOEXEC))
        return ",".join(f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in self._memories)

    def _start(self, variables: Dict[str, Any], hosts: List[str], place: int) -> None:
        """Start the ranks of this node, or let the script or the launcher start them. `place` is among the `hosts`."""
        if self.attempt.is_script:
            from serried.agent.launchers import local_socket
            from serried.agent.launchers.script import ScriptNode

            address = local_socket.socket_address(self._key, self._private)
            self._ranks = ScriptNode(self.attempt, self._index, variables, self, rank_socket=address)
            if self._index == 0:
                self.send(ToHead.SCRIPT_PLACE, place=variables, address=address)
        elif self.attempt.agents_start_ranks:
            self._connections = connections.prepare(
                self.attempt, self._index, variables["port"], lambda: [rank.pid for rank in self._running]
            )
            self._ranks = ForkedRanks(self.attempt, self._index, variables, group=place)
            for rank in self._ranks.running:
                self.log_event(JournalEvent.STARTED, rank=rank.number, local_rank=rank.local_rank, pid=rank.pid)
            self.send(ToHead.STARTED)
            if self._connections:
                self._connections.begin(self.loop, self.send)
        else:
            from serried.agent.launchers import local_socket
            from serried.agent.launchers.node_side import LaunchedRanks

            self._ranks = LaunchedRanks(
                self.attempt,
                self._index,
                variables,
                self,
                rank_socket=local_socket.socket_address(self._key, self._private),
                hosts=hosts,
                address=self._address,
                folder=self._private,
            )

    def _probe(self, message: Message) -> None:
        """Pass a job of the head to the probes, which run in place of ranks. Without a job, end them."""
        from serried.agent.checks.probe import ProbeJob
        from serried.agent.checks.programs import ProbePrograms

        if self._is_stopping or self._ranks:
            return
        if message["job"] is None:
            self._end_probes()
            return
        self._probes = self._probes or ProbePrograms(self.loop, self.attempt, self._index, self.send)
        own = {"master": self._master, "stop_file": str(self._private / "stop"), "local": str(self._folder.scratch)}
        job = from_json(ProbeJob, message["job"])
        self._probes.run(job, message["active"], message["ranks"], {**message["place"], **own})

    def _end_probes(self) -> None:
        if self._probes:
            self._probes.end()
            self._probes = None

    def _on_side_command_exit(self, exit_: SideExit) -> None:
        self.log_event(JournalEvent.SIDE_COMMAND_EXITED, **exit_.to_json())
        if side_commands.has_failed(exit_) and not self._is_stopping:
            self.send(ToHead.SIDE_COMMAND_FAILED, **exit_.to_json())

    @property
    def _running(self) -> List[Rank]:
        return self._ranks.running if self._ranks else []

    def _running_ranks(self) -> List[RunningRank]:
        if self._ranks is None:
            return []
        running = [RunningRank(rank.number, rank.pid, str(self._ranks.log_path(rank))) for rank in self._ranks.running]
        if not running and self._script_pid:
            log = self.attempt.files.script_log
            return [RunningRank(0, self._script_pid, str(log))]
        return sorted(running)

    def _on_head_lost(self) -> None:
        """End the ranks of this node, which nobody controls any more."""
        if self._channel:
            self.loop.forget(self._channel.connection)
            self._channel.close()
            self._channel = None
            self.log_event(JournalEvent.HEAD_LOST)
        if self._is_replaced():
            self._stage_out.abandon()
            if self._ranks:
                self._ranks.kill()
        self._stop(Reason.LOST, self.attempt.grace_seconds)
        if self._ranks:
            self._ranks.on_head_lost()
        self._stage_out.on_head_lost(self.attempt.grace_seconds)
        if self._is_done and self._stage_out.is_drained:
            self._leave()

    def _is_replaced(self) -> bool:
        """Whether the head continues without this node: then it must not end the job, nor its ranks write any more."""
        if not self.attempt.plan.allocation.spare_nodes:
            return False
        with contextlib.suppress(OSError):
            journal = files.entries(self.attempt.files.events)
            events = (JournalEvent.NODE_LOST, JournalEvent.SPARE_LOST)
            return self._index in {it.node for event in events for it in entries(journal, event, NodeLost)}
        return False

    def _leave(self) -> None:
        if self._has_left:
            return
        self.log_event(JournalEvent.ENDED)
        if self._channel is None and self.attempt.plan.allocation.spare_nodes and not self._is_replaced():
            self._has_left = True  # the scheduler ends this process if it still has the first node
            self.loop.after(ABANDONED_SECONDS * (1 + min(self._index, 20) / 20), self._end_job)
        else:
            self.loop.stop()

    def _end_job(self) -> None:
        """End the job, which has lost its first node and would last until its limit."""
        import subprocess

        from serried.agent.attempts import finalize, history
        from serried.agent.outcome import reconcile

        attempt = self.attempt
        if not (history.is_superseded(attempt) or self._is_replaced()):
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
                end = End.read(attempt.files.exit)
                if end is None:
                    end = finalize.assess(attempt, is_unrecorded=True)
                    end = reconcile.by_the_scheduler(end, names.NODE_FAIL, is_unrecorded=True)
                    end = finalize.publish(attempt, finalize.reconsider(attempt, end, ""), lingers=False)
                job = attempt.job_of(str(history.claim_of(attempt).get("job", "")))
                again = "again" if end.state == names.REQUEUED and attempt.plan.may_requeue else ""
                words = ["/bin/bash", "-c", attempt.plan.site.dialect.job_end, "end", job, again]
                subprocess.run(words, timeout=system.ANSWER_SECONDS, check=False)
        self.loop.stop()

    # Observations on this node.

    def _send_heartbeat(self) -> None:
        self._check_parent()
        self._folder.touch()
        if self._channel and self.loop.awake() - self._last_message_at > SILENT_HEAD_SECONDS:
            self._on_head_lost()
        running = [rank.number for rank in self._running]
        quiet = self._ranks.quiet_seconds() if self._ranks and running else 0.0
        self._sampling.update()
        self.send(ToHead.HEARTBEAT, quiet=round(quiet, 1), running=running, **self._stage_out.heartbeat_facts)

    def _check_parent(self) -> None:
        """Stop if the launcher's process on this node has ended: then the scheduler has lost this node."""
        if os.getppid() != self._parent and (self._holds or not self._is_stopping):
            self.send(ToHead.ORPHANED)
            self._stop(Reason.LOST, self.attempt.urgent_grace_seconds)
            self._stage_out.on_head_lost(self.attempt.urgent_grace_seconds)

    def _terminated(self) -> None:
        """Stop after the scheduler's TERM, which all agents and ranks receive at once."""
        if self._has_left:
            self.loop.stop()
        if self._holds or not self._is_stopping:
            self.send(ToHead.STOP, reason=Reason.CANCEL)
        self._stop(Reason.CANCEL, self.attempt.urgent_grace_seconds)

    def reap(self) -> None:
        children = system.reap()
        if self._ranks is None:
            return
        if self._side_commands:
            self._side_commands.reap(children)
        if self._connections and children:
            self._connections.check()
        for exit_ in self._ranks.reap(children):
            if exit_.has_failed and exit_.exit_code not in names.OBEYED_STATUSES:
                self._stage_out.doubt(trusted=False)
            self._exits.add(self._ranks, exit_, is_stopping=self._is_stopping)
        self.finish_if_ended()

    # Stopping.

    def _ask_to_save(self, reason: str) -> None:
        """Send ranks the stop notice: they may save and exit by themselves."""
        self._record_stop(reason)
        self._stage_out.set_urgent()
        if self._ranks:
            self._ranks.notify(self.attempt.plan.limit.notify)

    def _stop(self, reason: str, grace: float) -> None:
        """TERM now, KILL after `grace` seconds. A second stop can only bring the KILL forward."""
        is_repeated = self._holds and reason in (Reason.FAILURE, Reason.SILENCE)
        if is_repeated and self._is_spare:
            return
        self._is_urgent |= reason in (Reason.CANCEL, Reason.LOST)
        self._is_hung |= reason == Reason.SILENCE
        if is_repeated:
            self._stage_out.were_ended = True
            self._stage_out.doubt(trusted=True)
        else:
            self._stage_out.stop(reason, grace)
            self._stop_holding()
        if reason == Reason.CANCEL:
            self._exits.mark_ended_by_us()
        if self._ranks and not self._is_stopping:
            self.reap()
        if not self._is_stopping:
            self._is_stopping = True
            self._end_probes()
            self._record_stop(reason)
            if self._ranks:
                if reason == Reason.SILENCE:  # their stacks show where they hang
                    self._ranks.abort()
                else:
                    self._ranks.terminate()
                self._exits.release(self._ranks, stumbled=True)
        if self._ranks and (self._kill is None or self._kill.due > time.monotonic() + grace):
            if self._kill:
                self._kill.cancel()
            self._kill = self.loop.after(grace, self._end_ranks)
        self.finish_if_ended()

    def _end_ranks(self) -> None:
        if self._ranks:
            self._ranks.abort()
            self._kill = self.loop.after(ABORT_SECONDS, self._ranks.kill)

    def _record_stop(self, reason: str) -> None:
        self.log_event(JournalEvent.STOPPING, reason=reason)
        with contextlib.suppress(OSError):  # a full /tmp must not keep ranks from being ended
            files.write_text(self._stop_file, reason)

    # The end.

    def finish_if_ended(self) -> None:
        """Finish once every rank has ended; after a success, first let remaining processes end by themselves."""
        if self._ranks:
            self._ranks.report_launcher_exit(all_sent=self._exits.have_all_been_sent)
        if self._ranks is None and self._is_stopping and not self._is_done:
            self._finish([])
        if self._is_done or self._ranks is None or not self._ranks.have_ended or not self._exits.have_all_been_sent:
            return
        leftovers = self._find_leftovers_of_round()
        can_wait = not (self._is_stopping or self._ranks.may_leave_processes)
        can_wait = can_wait and not any(exit_.has_failed for exit_ in self._ranks.exits.values())
        if leftovers and can_wait:
            self._lingering_since = self._lingering_since or time.monotonic()
            lingered = time.monotonic() - self._lingering_since
            if lingered <= self.attempt.grace_seconds:  # a helper often ends shortly after its program
                self.loop.after(min(1.0, 0.02 + lingered), self.finish_if_ended)
                return
        if self._side_commands and not self._side_commands.end(self.finish_if_ended, is_urgent=self._is_stopping):
            return
        self._finish([leftover.command for leftover in leftovers] if can_wait else [])

    def find_leftovers(self) -> List[orphans.Leftover]:
        return orphans.leftovers(self.attempt.process_tag, self._index, os.getpid())

    def _find_leftovers_of_round(self) -> List[orphans.Leftover]:
        return [leftover for leftover in self.find_leftovers() if not leftover.may_outlive_ranks]

    def _finish(self, leftovers: List[str]) -> None:
        self._is_done = True
        self._stacks.keep_records()
        if not self._holds:
            self._sampling.end()
        if self._kill:
            self._kill.cancel()
        is_over = bool(self._ranks and self._ranks.have_exited_by_themselves)
        may_trust = is_over and not self._find_leftovers_of_round()
        find = self._find_leftovers_of_round if self._holds else self.find_leftovers
        count = orphans.end(find, self._reap_remaining)
        if self._holds and not leftovers:  # then KILL has not ended them
            leftovers = [leftover.command for leftover in find()]
        orphans.end_groups(self._ranks.leaders if self._ranks else [])
        self.log_event(JournalEvent.SWEPT, count=count, left=leftovers)
        exits = tuple(self._ranks.exits.values()) if self._ranks else ()
        ended = NodeEnded(exits, left=tuple(leftovers), swept=count)
        with contextlib.suppress(ValueError):  # none, or of another program
            unsaved = files.read_json(self._stop_file.with_name(f"{self._stop_file.name}{names.UNSAVED_SUFFIX}"))
            ended = ended._replace(unsaved=from_json(Unsaved, unsaved))
        if self._connections:
            seconds = round(self._connections.cpu_seconds, 2)
            ended = ended._replace(contact=self._connections.is_seen, cpu_seconds=seconds)
        if not self._holds:
            self._drain(ended, may_trust)
            return
        self._held = ended, may_trust
        has_failed = any(exit_.has_failed and not exit_.ended_by_us for exit_ in exits)
        if self._is_stopping or has_failed:
            self.send(ToHead.HEARTBEAT, quiet=0.0, running=[], over=False, patience=LOOK_SECONDS)
            self._checks.look_again(self._end_round, is_suspect=has_failed or self._is_hung)
        else:
            self._end_round("")

    def _end_round(self, unfit: str) -> None:
        if self._held:  # else the attempt has ended meanwhile
            ended, may_trust = self._held
            self._held = ended._replace(unfit=unfit), may_trust
            self.send(ToHead.ROUND_ENDED, **facts_of(self._held[0]))

    def _after_round(self, do: str) -> None:
        if do == ToNode.FINISH:
            self._stop_holding()
        elif self._held:
            self._stage_out.publish(lambda: self.send(ToHead.PUBLISHED), trusted=self._held[1])

    def _stop_holding(self) -> None:
        self._holds = False
        if self._held:
            self._drain(*self._held)
        elif self._is_spare and not (self._is_done or self._is_stopping):
            self._is_stopping = True
            self.finish_if_ended()

    def _drain(self, ended: NodeEnded, may_trust: bool) -> None:
        """Copy the rest of the outputs, then report the end."""
        self._held = None
        while self._memories:
            os.close(self._memories.pop())
        self._sampling.end()
        self._stage_out.drain(lambda missing: self._send_done(ended._replace(missing=missing)), trusted=may_trust)
        self.send(ToHead.HEARTBEAT, quiet=0.0, running=[], **self._stage_out.heartbeat_facts)

    def _reap_remaining(self) -> None:
        """Reap children after the ranks' end: a launcher on another node may wait for a process on this node."""
        children = system.reap()
        if self._ranks:
            self._ranks.reap(children)

    def _send_done(self, ended: NodeEnded) -> None:
        self.send(ToHead.DONE, **facts_of(ended))
        if self._channel is None:
            self._leave()

    def log_event(self, event: str, **facts: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk must not keep ranks from being ended: the head knows too
            self._journal.append({"t": round(time.time(), 3), "event": event, **facts})

    def send(self, event: str, **facts: Any) -> None:
        if self._channel:
            self._channel.send({"event": event, **facts})
            self.loop.watch(self._channel.connection, self._receive, writable=bool(self._channel.backlog))
