"""A node's side of a launcher: the launcher's process, its ranks on this node, and the commands that it sends by `ssh`.

Ranks are accepted, given their program, watched and released. The launcher does not see the end of a rank until all
ranks of all nodes have ended, or the attempt is being ended. So the agents end the other ranks, with their grace
period, as they do without a launcher. Only a launcher that may restart failed ranks sees a failure at once. That
failure does not count until the launcher gives up.
"""

from __future__ import annotations

import contextlib
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


class NodeServices(Protocol):
    """The node's agent, as launchers and their ranks use it."""

    loop: Loop

    def send(self, event: str, **facts: Any) -> None:
        """Send a message to the head."""

    def log_event(self, event: str, **facts: Any) -> None: ...

    def reap(self) -> None:
        """Collect the exits of ranks, and finish once all have ended."""


class RankConnection:
    """To a program that a launcher started: a rank, or an `ssh`, which has no number."""

    def __init__(self, line: local_socket.LocalSocket) -> None:
        self.socket = line
        self.number = -1
        self.local_rank = -1
        self.incarnation = 0
        self.rank: Optional[Rank] = None
        """Its program, once that runs."""
        self.is_starting = False
        """Its program may run, though its pid is not yet known."""
        self.has_ended = False
        """Its program has."""


class LaunchedRanks(Ranks):
    def __init__(
        self,
        work: Attempt,
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
        super().__init__(work, node, variables["stop_file"])
        self._kind = KINDS[work.plan.launch.kind]
        self._agent = agent
        self._shares = binding.shares(work.ranks)
        self._place = command.RankPlace(node=node, rank=0, local_rank=0, threads=binding.threads(work), **variables)
        self._connections: List[RankConnection] = []
        self._remote = RemoteCommands(work, self._place, hosts, folder, agent)
        self._unreaped: List[Exit] = []
        """Not yet returned by `reap`."""
        self._excused: Dict[int, Exit] = {}
        """Failures after which the launcher may restart the rank."""
        self._has_begun = False
        self._is_stopping = False
        self._is_released = False
        self._was_killed = False
        """A launcher, by a signal."""
        self._have_all_launchers_ended = False
        """On all nodes."""
        self._launcher: Optional[LauncherProcess] = None
        self._launcher_exit: Optional[Dict[str, Any]] = None
        try:
            for listener in local_socket.listen(rank_socket):
                agent.loop.watch(listener, partial(self._accept, listener))
        except OSError as error:
            message = f"cannot listen for ranks on {socket.gethostname()}: {error}"
            agent.send(ToHead.LAUNCHER_PROBLEM, message=message)
            return
        if not (self._kind.everywhere or node == 0):
            return
        rank_command = system.agent_command("rank", rank_socket)
        if work.plan.container and self._kind.is_inside:
            rank_command[0] = "python3"  # this node's Python may not exist in the container
        context = LaunchContext(
            work=work,
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

    # Ranks connect and start.

    def _accept(self, listener: socket.socket) -> None:
        accepted = local_socket.accept(listener)
        if accepted is not None:
            rank = RankConnection(accepted)
            self._connections.append(rank)
            self._agent.loop.watch(accepted.connection, lambda: self._receive(rank))

    def _receive(self, connection: RankConnection) -> None:
        messages = connection.socket.receive()
        if messages is None:
            self._agent.loop.forget(connection.socket.connection)
            connection.socket.connection.close()
            self._connections.remove(connection)
            self._remote.cancel(connection.socket)
            if connection.is_starting and not connection.has_ended:  # killed, and its program with it
                exit_ = self.record(self._forget(connection), signal.SIGKILL, None, is_oom=False)
                self._finish_rank(connection, exit_._replace(vanished=True), is_signalled=self._is_stopping)
            return
        for message in messages:
            event = message["event"]
            if event == FromLaunched.RUN_REMOTE:
                self._remote.request(connection.socket, message["host"], message["command"])
            elif event == FromLaunched.RANK_WAITS:
                self._on_identified(connection, message["environ"])
            elif connection.number < 0:
                continue  # not a rank
            elif event == FromLaunched.RANK_STARTING:
                connection.is_starting = True
            elif event == FromLaunched.RANK_STARTED:
                self._on_started(connection, message["pid"])
            elif event == FromLaunched.RANK_ENDED:
                self._on_ended(connection, message)

    def _on_identified(self, connection: RankConnection, environ: Dict[str, str]) -> None:
        work = self.work
        alive = {other.number: other.incarnation for other in self._connections if not other.has_ended}
        try:
            identity = kinds.identify(work, self._kind.sources, environ, alive)
        except ValueError as problem:
            connection.socket.send({"do": ToLaunched.REFUSE, "because": str(problem)})
            self._agent.send(ToHead.LAUNCHER_PROBLEM, message=str(problem))
            return
        if self._is_stopping or self._is_released:
            connection.socket.send({"do": ToLaunched.REFUSE, "because": "the attempt is being ended"})
            return
        connection.number, connection.incarnation = identity.rank, identity.incarnation
        connection.local_rank = self._free_local_rank() if identity.local_rank is None else identity.local_rank
        self._clear_earlier_exit(connection)
        environment = kinds.rank_environment(work, environ)
        place = self._place._replace(rank=connection.number, local_rank=connection.local_rank)
        program = command.program(work, place, environment, is_inside=self._kind.is_inside)
        request = {
            "do": ToLaunched.RUN,
            "argv": program.argv,
            "environment": program.environment,
            "directory": str(work.workdir),
            "log": str(work.log_of(connection.number, self.node)),
            "mode": work.file_mode,
            "cpus": self._shares[connection.local_rank] if connection.local_rank < len(self._shares) else [],
        }
        connection.socket.send(request)

    def _free_local_rank(self) -> int:
        used = {connection.local_rank for connection in self._connections}
        return next(local_rank for local_rank in range(len(self._connections) + 1) if local_rank not in used)

    def _clear_earlier_exit(self, connection: RankConnection) -> None:
        """The exit of a rank that is restarted does not count."""
        self.exits.pop(connection.number, None)
        self._unreaped = [exit_ for exit_ in self._unreaped if exit_.rank != connection.number]
        before = self._excused.pop(connection.number, None)
        if before is not None:
            self._agent.log_event(JournalEvent.RANK_RESTARTED, **before.to_json())
            with self.work.log_of(connection.number, self.node).open("ab") as log:
                log.write(f"serried: {self.work.plan.launch.kind} restarts rank {connection.number}\n".encode())

    def _on_started(self, connection: RankConnection, pid: int) -> None:
        rank = Rank(connection.number, connection.local_rank, pid, self.open_log(connection.number))
        connection.rank = self._running[pid] = rank
        self.leaders.append(pid)
        if not self._has_begun:
            self._has_begun = True
            self._agent.send(ToHead.STARTED)
        self._agent.log_event(JournalEvent.STARTED, rank=rank.number, local_rank=rank.local_rank, pid=pid)
        self._agent.send(ToHead.RANK_STARTED, rank=rank.number)
        if self._is_stopping:
            self.terminate()

    # Ranks end.

    def _on_ended(self, connection: RankConnection, message: Dict[str, Any]) -> None:
        connection.has_ended = True
        problem = tuple(message["problem"]) if message["problem"] else None
        exit_ = self.record(self._forget(connection), message["status"], problem, is_oom=message["oom"])
        self._finish_rank(connection, exit_, is_signalled=bool(message["signal"]))

    def _forget(self, connection: RankConnection) -> Rank:
        """The rank of a program that no longer runs, or never started."""
        rank = connection.rank or Rank(connection.number, connection.local_rank, 0, self.open_log(connection.number))
        self._running.pop(rank.pid, None)
        return rank

    def _finish_rank(self, connection: RankConnection, exit_: Exit, *, is_signalled: bool) -> None:
        """`is_signalled`: by the launcher, or because the attempt is being ended. The rank did not end by itself."""
        exit_ = exit_._replace(ended_by_us=exit_.ended_by_us or is_signalled)
        may_return = self._may_restart(connection, exit_)
        if may_return:
            self._excused[connection.number] = exit_
            self._agent.log_event(JournalEvent.RANK_EXCUSED, **exit_.to_json())
        else:
            self._unreaped.append(exit_)
            taken = is_signalled and not self._is_stopping
            self._agent.send(ToHead.RANK_ENDED, rank=connection.number, well=not exit_.has_failed, taken=taken)
        if may_return or self._is_released:
            connection.socket.send({"do": ToLaunched.LEAVE})
        self._agent.reap()

    def _may_restart(self, connection: RankConnection, exit_: Exit) -> bool:
        most = self.work.plan.launch.max_restarts
        if not exit_.has_failed or connection.incarnation >= most or self._is_stopping:
            return False
        return not (self.are_notified and exit_.exit_code in names.OBEYED_STATUSES)

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:
        self._remote.reap(children)
        for pid, status in children:
            if self._launcher and pid == self._launcher.pid:
                self._launcher.set_exited(status)
                self._was_killed = self._launcher.was_killed
                self._report_excused()
                self._launcher_exit = self._launcher.exit_facts()
        ended, self._unreaped = self._unreaped, []
        self.exits.update((exit_.rank, exit_) for exit_ in ended)
        return ended

    def _report_excused(self) -> None:
        """The launcher restarts no rank from here on."""
        for number in self._excused:
            self._agent.send(ToHead.RANK_ENDED, rank=number, well=False, taken=self._excused[number].ended_by_us)
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
        return not self._running and not self._is_launcher_running

    @property
    def _is_launcher_running(self) -> bool:
        return self._launcher.is_running if self._launcher else not self._have_all_launchers_ended

    def on_message(self, message: Message) -> None:
        self._remote.on_message(message)
        if message["do"] == ToNode.RELEASE:
            self._release_ranks(message["patience"])
        elif message["do"] == ToNode.LAUNCHERS_EXITED:
            self._have_all_launchers_ended = True
            self._was_killed = message["killed"]

    def on_head_lost(self) -> None:
        self._have_all_launchers_ended = True
        self._release_ranks(self.work.grace_seconds)

    def was_killed_by_launcher(self, exit_: Exit) -> bool:
        return exit_.vanished and self._was_killed

    # The launcher ends.

    def _release_ranks(self, timeout: float) -> None:
        """Let the launcher see the ends of its ranks. It has `timeout` seconds to exit."""
        if self._is_released:
            return
        self._is_released = True
        failed = any(exit_.has_failed for exit_ in [*self.exits.values(), *self._unreaped])
        if failed and self.work.plan.launch.max_restarts and self._launcher:  # it would restart them
            self._launcher.terminate()
        for connection in [connection for connection in self._connections if connection.has_ended]:
            connection.socket.send({"do": ToLaunched.LEAVE})
        self._end_launcher(timeout)

    def terminate(self) -> None:
        self._stop()
        super().terminate()

    def abort(self) -> None:
        self._stop()
        super().abort()

    def _stop(self) -> None:
        self._is_stopping = True
        self._report_excused()

    def kill(self) -> None:
        self._is_stopping = True
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
        """Start the launcher, in the ranks' container if the launcher belongs there."""
        work = context.work
        launch = kind.command(context)
        self.command = launch.argv
        """Without the words of a container."""
        self.name = os.path.basename(launch.argv[0])  # noqa: PTH119 - a bare string
        if self.name.startswith("python") and launch.argv[1:2] == ["-m"]:
            self.name = work.plan.launch.kind
        self._log = work.directory.attempt(work.number).launcher_log(context.node)
        self._status: Optional[int] = None
        self._problem: Optional[Tuple[str, int]] = None
        argv, environment = launch.argv, kinds.launcher_environment(work, place, launch)
        container = command.container_of(work, place) if kind.is_inside else None
        if container is not None:
            argv, environment = container.enter(argv, container.inherited(environment))
        self._child = system.spawn_with_log(argv, environment, self._log, work.file_mode, directory=str(work.workdir))

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._status is None

    @property
    def was_killed(self) -> bool:
        """By a signal."""
        return self._status is not None and self._status < 0

    def set_exited(self, wait_status: int) -> None:
        is_killed = os.WIFSIGNALED(wait_status)
        self._status = -os.WTERMSIG(wait_status) if is_killed else os.WEXITSTATUS(wait_status)
        self._problem = self._child.problem()

    def exit_facts(self) -> Dict[str, Any]:
        """The fields of `ToHead.LAUNCHER_EXITED`: `status` is negative for a signal."""
        number = self._problem[1] if self._problem else 0
        return {
            "name": self.name,
            "status": self._status,
            "said": read_tail(self._log, LAST_LINES),
            "problem": os.strerror(number).lower() if self._problem else None,
            "is_absent": number == errno.ENOENT,
        }

    def terminate(self) -> None:
        """Send TERM to the launcher alone, which ends its own processes. To its group, TERM would end both at once."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.is_running:
            _signal_group(self._child, signal.SIGKILL)


class RemoteCommands:
    """The `ssh` of launchers: commands for other nodes go through the head, and those of other nodes run here.

    The id of a command is the node that requested it, and the count of that node's requests.
    """

    def __init__(
        self, work: Attempt, place: command.RankPlace, hosts: Sequence[str], folder: Path, agent: NodeServices
    ) -> None:
        self._work = work
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
        """End the commands of a program that has disconnected."""
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
            self._run(tuple(message["id"]), message["command"])
        elif message["do"] == ToNode.REMOTE_CANCEL:
            self._end(tuple(message["id"]), signal.SIGTERM)
            self._agent.loop.after(END_SECONDS, partial(self._end, tuple(message["id"]), signal.SIGKILL))
        elif message["do"] == ToNode.REMOTE_EXITED:
            connection, _ = self._waiting.pop(message["id"][1], (None, 0))
            if connection is not None:
                connection.send({"do": ToLaunched.REMOTE_EXITED, "status": message["status"]})

    def _run(self, command_id: Tuple[int, int], text: str) -> None:
        work, (node, number) = self._work, command_id
        launch = LaunchCommand([], private_tmpdir(self._folder / f"{node}-{number}"), without=command.OF_MPI)
        self._running[command_id] = system.spawn_with_log(
            ["/bin/sh", "-c", text],
            kinds.launcher_environment(work, self._place, launch),
            work.directory.attempt(work.number).launcher_log(self._place.node),
            work.file_mode,
            directory=str(work.workdir),
        )

    def _end(self, command_id: Tuple[int, int], number: signal.Signals) -> None:
        if command_id in self._running:
            _signal_group(self._running[command_id], number)

    def kill(self) -> None:
        for child in self._running.values():
            _signal_group(child, signal.SIGKILL)

    def reap(self, children: Iterable[Tuple[int, int]]) -> None:
        statuses = dict(children)
        for command_id in [command_id for command_id, child in self._running.items() if child.pid in statuses]:
            child = self._running.pop(command_id)
            child.problem()
            status = statuses[child.pid]
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self._send(command_id[0], {"do": ToNode.REMOTE_EXITED, "id": command_id, "status": code})


def find_host(host: str, hosts: Sequence[str]) -> Optional[int]:
    """The index of `host`, by its whole name, else by the name before the first dot."""
    if host in hosts:
        return hosts.index(host)
    short = [name.partition(".")[0] for name in hosts]
    wanted = host.partition(".")[0]
    return short.index(wanted) if short.count(wanted) == 1 else None


def _signal_group(child: system.Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)
