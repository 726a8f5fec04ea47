"""A node's side of a launcher: the launcher's process, its ranks on this node, and the commands that it sends by `ssh`.

Ranks are accepted, given their program, watched and released. The launcher does not see the end of a rank until all
ranks of all nodes have ended, or the attempt is being ended. So the agents end the other ranks, with their grace
period, as they do without a launcher. Only a launcher that may restart failed ranks sees a failure at once. That
failure does not count until the launcher gives up.
"""

from __future__ import annotations

import abc
import errno
import os
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Protocol, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import kinds, local_socket
from serried.agent.launchers.kinds import KINDS, LaunchCommand, LaunchContext, LauncherKind, private_tmpdir
from serried.agent.loop import Loop
from serried.agent.outcome.diagnose import read_tail
from serried.agent.ranks import binding, command
from serried.agent.ranks.ranks import Rank, Ranks
from serried.base.channel import Message
from serried.schema import names
from serried.schema.events import FromLaunched, JournalEvent, ToHead, ToLaunched, ToNode
from serried.schema.exits import Exit

LAST_LINES = 5
LAST_SECONDS = 2.0
"""From a launcher's TERM to its KILL, once none of its ranks runs."""
END_SECONDS = 10.0
"""Between TERM and KILL, for a command whose `ssh` has disconnected."""
KILLED: Message = {"status": signal.SIGKILL, "problem": None, "signal": 0, "oom": False}
"""In place of the last message of a rank program that was killed."""


class NodeServices(Protocol):
    """The node's agent, as launchers and their ranks use it."""

    loop: Loop

    def send(self, event: str, **facts: Any) -> None:
        """Send a message to the head."""

    def log_event(self, event: str, **facts: Any) -> None: ...
    def reap(self) -> None:
        """Collect the exits of ranks, and finish once all have ended."""


class RankConnection:
    """To a program that a launcher started: a rank, or an `ssh`."""

    def __init__(self, line: local_socket.LocalSocket) -> None:
        self.socket = line
        self.rank: Optional[Rank] = None
        """None for an `ssh`, and until the rank has identified itself."""
        self.is_starting = False
        """Its program may run, though its pid is not yet known."""
        self.has_ended = False
        """Its program has."""

    def refuse(self, because: str) -> None:
        self.socket.send({"do": ToLaunched.REFUSE, "because": because})


class ConnectedRanks(Ranks, abc.ABC):
    """Ranks that a launcher starts. Each is connected to the agent of its node."""

    def __init__(
        self, attempt: Attempt, node: int, variables: Dict[str, Any], agent: NodeServices, threads: int
    ) -> None:
        super().__init__(attempt, node, variables["stop_file"])
        self._agent = agent
        self._place = command.RankPlace(node=node, rank=0, local_rank=0, threads=threads, **variables)
        self._connections: List[RankConnection] = []
        self._unreaped: List[Exit] = []
        """Not yet returned by `reap`."""
        self._is_stopping = False

    def _listen(self, address: str) -> None:
        """Raises OSError."""
        for listener in local_socket.listen(address):
            self._agent.loop.watch(listener, partial(self._accept, listener))

    def _accept(self, listener: socket.socket) -> None:
        accepted = local_socket.accept(listener)
        if accepted is not None:
            connection = RankConnection(accepted)
            self._connections.append(connection)
            self._agent.loop.watch(accepted.connection, partial(self._receive, connection))

    def _receive(self, connection: RankConnection) -> None:
        messages = connection.socket.receive()
        if messages is None:
            self._agent.loop.forget(connection.socket.connection)
            connection.socket.close()
            self._connections.remove(connection)
            self._on_closed(connection)
            if connection.rank and connection.is_starting:  # killed, and its program with it
                self._end(connection, connection.rank, KILLED)
            elif connection.rank and not connection.has_ended:
                os.close(connection.rank.log)
            return
        for message in messages:
            event, rank = message.get("event"), connection.rank
            if rank is None:
                self._on_first_message(connection, message)
            elif event == FromLaunched.RANK_STARTING:
                connection.is_starting = True
            elif event == FromLaunched.RANK_STARTED and connection.is_starting and not rank.pid:
                rank.pid = message["pid"]
                self._running[rank.pid] = rank
                self.leaders.append(rank.pid)
                self._on_started(rank)
                if self._is_stopping:
                    self.terminate()
            elif event == FromLaunched.RANK_ENDED and connection.is_starting:
                self._end(connection, rank, message)

    def _end(self, connection: RankConnection, rank: Rank, message: Message) -> None:
        connection.is_starting, connection.has_ended = False, True
        self._running.pop(rank.pid, None)
        exit_ = self.record(rank, message["status"], message["problem"], is_oom=message["oom"] or None)
        self._on_ended(connection, rank, exit_, message)
        self._agent.reap()

    @abc.abstractmethod
    def _on_first_message(self, connection: RankConnection, message: Message) -> None:
        """Handle a message of a program that is no identified rank."""

    def _on_started(self, rank: Rank) -> None: ...
    def _on_ended(self, connection: RankConnection, rank: Rank, exit_: Exit, message: Message) -> None: ...
    def _on_closed(self, connection: RankConnection) -> None: ...
    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:  # noqa: ARG002 - they belong to no rank
        ended, self._unreaped = self._unreaped, []
        self.exits.update((exit_.rank, exit_) for exit_ in ended)
        return ended

    def terminate(self) -> None:
        self._is_stopping = True
        super().terminate()

    def kill(self) -> None:
        self._is_stopping = True
        super().kill()


class LaunchedRanks(ConnectedRanks):
    def __init__(
        self,
        attempt: Attempt,
        node: int,
        variables: Dict[str, Any],
        agent: NodeServices,
        *,
        rank_socket: str,
        hosts: Sequence[str],
        address: str,
        folder: Path,
    ) -> None:
        """Listen for ranks, then start the launcher if this node has one."""
        super().__init__(attempt, node, variables, agent, binding.threads(attempt))
        self._kind = KINDS[attempt.plan.launch.kind]
        self._shares = binding.shares(attempt.ranks)
        self._remote = RemoteCommands(attempt, self._place, hosts, folder, agent)
        self._excused: Dict[int, Exit] = {}
        """Failures after which the launcher may restart the rank."""
        self._has_begun = self._is_released = False
        self._was_killed = False
        """A launcher, by a signal."""
        self._have_all_launchers_ended = False
        """On all nodes."""
        self._launcher: Optional[LauncherProcess] = None
        self._launcher_exit: Optional[Dict[str, Any]] = None
        try:
            self._listen(rank_socket)
        except OSError as error:
            agent.send(ToHead.LAUNCHER_PROBLEM, message=f"cannot listen for ranks on {socket.gethostname()}: {error}")
            return
        if not (self._kind.everywhere or node == 0):
            return
        rank_command = system.agent_command("rank", rank_socket)
        if attempt.plan.container and self._kind.is_inside:
            rank_command[0] = "python3"  # this node's Python may not exist in the container
        context = LaunchContext(
            attempt=attempt,
            node=node,
            hosts=hosts,
            master=variables["master"],
            address=address,
            port=variables["port"],
            rank=rank_command,
            folder=folder,
            remote=system.agent_command("remote", rank_socket),
        )
        self._launcher = LauncherProcess(self._kind, context, self._place)
        agent.log_event(JournalEvent.LAUNCHING, argv=self._launcher.command, pid=self._launcher.pid)

    def _on_first_message(self, connection: RankConnection, message: Message) -> None:
        if message.get("event") == FromLaunched.RUN_REMOTE:
            self._remote.request(connection.socket, message["host"], message["command"])
        elif message.get("event") == FromLaunched.RANK_WAITS:
            self._on_identified(connection, message["environ"])

    def _on_identified(self, connection: RankConnection, environ: Dict[str, str]) -> None:
        attempt = self.attempt
        known = [(other.rank, other.has_ended) for other in self._connections if other.rank]
        alive = {rank.number: rank.restarts for rank, has_ended in known if not has_ended}
        try:
            identity = kinds.identify(attempt, self._kind.sources, environ, alive)
        except ValueError as problem:
            connection.refuse(str(problem))
            self._agent.send(ToHead.LAUNCHER_PROBLEM, message=str(problem))
            return
        if self._is_stopping or self._is_released:
            connection.refuse("the attempt is being ended")
            return
        number, local_rank = identity.rank, identity.local_rank
        if local_rank is None:
            used = {rank.local_rank for rank, _ in known}
            local_rank = next(free for free in range(len(known) + 1) if free not in used)
        # If the launcher restarts the rank, its earlier exit does not count.
        self.exits.pop(number, None)
        self._unreaped = [exit_ for exit_ in self._unreaped if exit_.rank != number]
        log = self.open_log(number)
        before = self._excused.pop(number, None)
        if before is not None:
            self._agent.log_event(JournalEvent.RANK_RESTARTED, **before.to_json())
            os.write(log, f"serried: {attempt.plan.launch.kind} restarts rank {number}\n".encode())
        connection.rank = Rank(number, local_rank, 0, log)
        connection.rank.restarts = identity.incarnation
        program = command.program(
            attempt,
            self._place._replace(rank=number, local_rank=local_rank),
            kinds.rank_environment(attempt, environ),
            is_inside=self._kind.is_inside,
        )
        request = {
            "do": ToLaunched.RUN,
            "argv": program.argv,
            "environment": program.environment,
            "directory": str(attempt.workdir),
            "log": str(attempt.log_of(number, self.node)),
            "mode": attempt.file_mode,
            "cpus": self._shares[local_rank] if local_rank < len(self._shares) else [],
        }
        connection.socket.send(request)

    def _on_started(self, rank: Rank) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._agent.send(ToHead.STARTED)
        self._agent.log_event(JournalEvent.STARTED, rank=rank.number, local_rank=rank.local_rank, pid=rank.pid)
        self._agent.send(ToHead.RANK_STARTED, rank=rank.number)

    def _on_closed(self, connection: RankConnection) -> None:
        self._remote.cancel(connection.socket)

    def _on_ended(self, connection: RankConnection, rank: Rank, exit_: Exit, message: Message) -> None:
        # By the launcher, or because the attempt is being ended: such a rank did not end by itself.
        has_vanished = message is KILLED
        is_signalled = self._is_stopping if has_vanished else bool(message["signal"])
        exit_ = exit_._replace(ended_by_us=exit_.ended_by_us or is_signalled, vanished=has_vanished)
        obeys_notice = self.are_notified and exit_.exit_code in names.OBEYED_STATUSES
        has_restarts_left = rank.restarts < self.attempt.plan.launch.max_restarts
        may_return = exit_.has_failed and has_restarts_left and not self._is_stopping and not obeys_notice
        if may_return:
            self._excused[rank.number] = exit_
            self._agent.log_event(JournalEvent.RANK_EXCUSED, **exit_.to_json())
        else:
            self._unreaped.append(exit_)
            taken = is_signalled and not self._is_stopping
            self._agent.send(ToHead.RANK_ENDED, rank=rank.number, well=not exit_.has_failed, taken=taken)
        if may_return or self._is_released:
            connection.socket.send({"do": ToLaunched.LEAVE})

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:
        self._remote.reap(children)
        for pid, status in children:
            if self._launcher and pid == self._launcher.pid:
                self._launcher_exit = self._launcher.on_exit(status)
                self._was_killed = self._launcher_exit["status"] < 0
                self._report_excused()
        return super().reap(children)

    def _report_excused(self) -> None:
        """Report failures after which the launcher might have restarted the rank, once it can restart none."""
        for number, exit_ in self._excused.items():
            self._agent.send(ToHead.RANK_ENDED, rank=number, well=False, taken=exit_.ended_by_us)
        self._unreaped += self._excused.values()
        self._excused.clear()

    def report_launcher_exit(self, *, all_sent: bool) -> None:
        # Whether a launcher was killed decides how the head judges ranks of other nodes.
        if self._launcher_exit and (all_sent or self._was_killed):
            self._agent.log_event(JournalEvent.LAUNCHER_EXITED, **self._launcher_exit)
            self._agent.send(ToHead.LAUNCHER_EXITED, **self._launcher_exit)
            self._launcher_exit = None

    @property
    def have_ended(self) -> bool:
        may_start = self._launcher.is_running if self._launcher else not self._have_all_launchers_ended
        return not self._running and not may_start

    def on_message(self, message: Message) -> None:
        self._remote.on_message(message)
        if message["do"] == ToNode.RELEASE:
            self._release_ranks(message["patience"])
        elif message["do"] == ToNode.LAUNCHERS_EXITED:
            self._have_all_launchers_ended = True
            self._was_killed = message["killed"]

    def on_head_lost(self) -> None:
        self._have_all_launchers_ended = True
        self._release_ranks(self.attempt.grace_seconds)

    def was_killed_by_launcher(self, exit_: Exit) -> bool:
        return exit_.vanished and self._was_killed

    def _release_ranks(self, timeout: float) -> None:
        """Let the launcher see the ends of its ranks. It has `timeout` seconds to exit."""
        if self._is_released:
            return
        self._is_released = True
        failed = any(exit_.has_failed for exit_ in [*self.exits.values(), *self._unreaped])
        if failed and self.attempt.plan.launch.max_restarts and self._launcher:  # it would restart them
            self._launcher.terminate()
        for connection in [connection for connection in self._connections if connection.has_ended]:
            connection.socket.send({"do": ToLaunched.LEAVE})
        self._end_launcher(timeout)

    def terminate(self) -> None:
        self._report_excused()
        super().terminate()

    def abort(self) -> None:
        self._is_stopping = True
        self._report_excused()
        super().abort()

    def kill(self) -> None:
        super().kill()
        self._remote.kill()
        self._release_ranks(0.0)
        self._end_launcher(0.0)

    def _end_launcher(self, timeout: float) -> None:
        """TERM after `timeout` seconds, KILL soon after."""
        if self._launcher:
            self._agent.loop.after(timeout, self._launcher.terminate)
            self._agent.loop.after(timeout + LAST_SECONDS, self._launcher.kill)


class LauncherProcess:
    def __init__(self, kind: LauncherKind, context: LaunchContext, place: command.RankPlace) -> None:
        attempt = context.attempt
        launch = kind.command(context)
        self.command = launch.argv
        """Without the words of a container."""
        self._name = os.path.basename(launch.argv[0])  # noqa: PTH119 - a bare string
        if self._name.startswith("python") and launch.argv[1:2] == ["-m"]:
            self._name = attempt.plan.launch.kind
        self._log = attempt.directory.attempt(attempt.number).launcher_log(context.node)
        argv, environment = launch.argv, kinds.launcher_environment(attempt, place, launch)
        container = command.container_of(attempt, place) if kind.is_inside else None
        if container is not None:
            argv, environment = container.enter(argv, container.inherited(environment))
        self._child = system.spawn_with_log(
            argv, environment, self._log, attempt.file_mode, directory=str(attempt.workdir)
        )
        self.pid = self._child.pid
        self.is_running = True

    def on_exit(self, wait_status: int) -> Dict[str, Any]:
        """The fields of `ToHead.LAUNCHER_EXITED`: `status` is negative for a signal."""
        self.is_running = False
        stage, number = self._child.problem() or ("", 0)
        return {
            "name": self._name,
            "status": os.waitstatus_to_exitcode(wait_status),
            "said": read_tail(self._log, LAST_LINES),
            "problem": os.strerror(number).lower() if stage else None,
            "is_absent": number == errno.ENOENT,
        }

    def terminate(self) -> None:
        """Send TERM to the launcher alone, which ends its own processes. To its group, TERM would end both at once."""
        if self.is_running:
            system.send_signal(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.is_running:
            system.send_signal(self.pid, signal.SIGKILL, to_group=True)


class RemoteCommands:
    """The `ssh` of launchers: commands for other nodes go through the head, and those of other nodes run here.

    The id of a command is the node that requested it, and the count of that node's requests.
    """

    def __init__(
        self, attempt: Attempt, place: command.RankPlace, hosts: Sequence[str], folder: Path, agent: NodeServices
    ) -> None:
        self._attempt = attempt
        self._place = place
        self._hosts = hosts
        self._folder = folder
        self._agent = agent
        self._count = 0
        self._waiting: Dict[int, Tuple[local_socket.LocalSocket, int]] = {}
        """By the number of a request of this node: the `ssh`, and the node that runs the command."""
        self._running: Dict[Tuple[int, int], system.Child] = {}
        """By id."""

    def request(self, connection: local_socket.LocalSocket, host: str, text: str) -> None:
        """Run the command `text` on `host` for a program of this node."""
        node = find_host(host, self._hosts)
        if node is None:
            because = f"`{host}` is not a node of this attempt: {', '.join(self._hosts)}"
            connection.send({"do": ToLaunched.REFUSE, "because": because})
            return
        self._count += 1
        self._waiting[self._count] = connection, node
        self._send(node, {"do": ToNode.REMOTE_RUN, "id": [self._place.node, self._count], "command": text})

    def cancel(self, connection: local_socket.LocalSocket) -> None:
        for number, (waiting, node) in list(self._waiting.items()):
            if waiting is connection:
                del self._waiting[number]
                self._send(node, {"do": ToNode.REMOTE_CANCEL, "id": [self._place.node, number]})

    def _send(self, node: int, message: Message) -> None:
        if node == self._place.node:
            self.on_message(message)
        else:
            self._agent.send(ToHead.RELAY, to=node, message=message)

    def on_message(self, message: Message) -> None:
        """Handle a message of another node's RemoteCommands, or of this one; ignore all others."""
        if message["do"] == ToNode.REMOTE_RUN:
            attempt, (node, number) = self._attempt, message["id"]
            launch = LaunchCommand([], private_tmpdir(self._folder / f"{node}-{number}"), without=command.OF_MPI)
            self._running[node, number] = system.spawn_with_log(
                ["/bin/sh", "-c", message["command"]],
                kinds.launcher_environment(attempt, self._place, launch),
                attempt.directory.attempt(attempt.number).launcher_log(self._place.node),
                attempt.file_mode,
                directory=str(attempt.workdir),
            )
        elif message["do"] == ToNode.REMOTE_CANCEL:
            self._end(tuple(message["id"]), signal.SIGTERM)
            self._agent.loop.after(END_SECONDS, partial(self._end, tuple(message["id"]), signal.SIGKILL))
        elif message["do"] == ToNode.REMOTE_EXITED:
            connection, _ = self._waiting.pop(message["id"][1], (None, 0))
            if connection is not None:
                connection.send({"do": ToLaunched.REMOTE_EXITED, "status": message["status"]})

    def _end(self, command_id: Tuple[int, int], number: signal.Signals) -> None:
        if command_id in self._running:
            system.send_signal(self._running[command_id].pid, number, to_group=True)

    def kill(self) -> None:
        for command_id in self._running:
            self._end(command_id, signal.SIGKILL)

    def reap(self, children: Iterable[Tuple[int, int]]) -> None:
        statuses = dict(children)
        for command_id in [command_id for command_id, child in self._running.items() if child.pid in statuses]:
            child = self._running.pop(command_id)
            child.problem()
            status = system.shell_status(statuses[child.pid])
            self._send(command_id[0], {"do": ToNode.REMOTE_EXITED, "id": command_id, "status": status})


def find_host(host: str, hosts: Sequence[str]) -> Optional[int]:
    """The index of `host`, by its whole name, else by the name before the first dot."""
    if host in hosts:
        return hosts.index(host)
    short = [name.partition(".")[0] for name in hosts]
    wanted = host.partition(".")[0]
    return short.index(wanted) if short.count(wanted) == 1 else None
