"""Processes that a node's agent starts for a launcher: the launcher itself, and the commands that it runs by `ssh`."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path
from typing import Any, Dict, Iterable, NamedTuple, Optional, Protocol, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import rank_identity
from serried.agent.launchers.kinds import LaunchCommand, LaunchContext, LauncherKind, private_tmpdir
from serried.agent.launchers.local_socket import LocalSocket
from serried.agent.loop import Loop
from serried.agent.outcome.diagnose import read_tail
from serried.agent.ranks.command import OF_MPI, RankPlace, container_of
from serried.protocol.events import ToHead, ToLaunched, ToNode
from serried.protocol.json_lines import Message

LAST_LINES = 5
END_SECONDS = 10.0
"""Between TERM and KILL, for a command whose caller has disconnected."""


class NodeServices(Protocol):
    """The node's agent, as launchers and their ranks use it."""

    loop: Loop

    def send(self, event: str, **facts: Any) -> None:
        """Send a message to the head."""

    def log_event(self, event: str, **facts: Any) -> None: ...

    def reap(self) -> None:
        """Collect the exits of ranks, and finish once all have ended."""


class LauncherProcess:
    def __init__(self, kind: LauncherKind, context: LaunchContext, place: RankPlace) -> None:
        """Start the launcher, in the ranks' container if the launcher belongs there."""
        work = context.work
        launch = kind.command(context)
        self.command = launch.argv
        """Without the words of a container."""
        self.name = os.path.basename(launch.argv[0])  # noqa: PTH119 - a bare string
        if self.name.startswith("python") and launch.argv[1:2] == ["-m"]:
            self.name = work.launcher
        self._log = work.directory.attempt(work.number).launcher_log(context.node)
        self._status: Optional[int] = None
        self._problem: Optional[Tuple[str, int]] = None
        argv, environment = launch.argv, rank_identity.launcher_environment(work, place, launch)
        container = container_of(work, place) if kind.is_inside else None
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


class CommandId(NamedTuple):
    """Identifies a command on all nodes: the requesting node, and a number that counts that node's requests."""

    node: int
    number: int


class RemoteExec:
    """Runs commands that launchers requested on any node, and returns the statuses of those requested on this node."""

    def __init__(
        self, work: Attempt, place: RankPlace, hosts: Sequence[str], folder: Path, agent: NodeServices
    ) -> None:
        self._work = work
        self._place = place
        self._node = place.node
        self._hosts = hosts
        self._folder = folder
        self._agent = agent
        self._count = 0
        self._waiting: Dict[CommandId, LocalSocket] = {}
        self._running: Dict[CommandId, system.Child] = {}

    def run_on(self, connection: LocalSocket, host: str, command: str) -> None:
        """Run `command` on `host` for a program of this node."""
        node = find_host(host, self._hosts)
        if node is None:
            because = f"`{host}` is not a node of this attempt: {', '.join(self._hosts)}"
            connection.send({"do": ToLaunched.REFUSE, "because": because})
            return
        self._count += 1
        command_id = CommandId(self._node, self._count)
        self._waiting[command_id] = connection
        self._send(node, ToNode.REMOTE_RUN, command_id, command=command)

    def cancel(self, connection: LocalSocket) -> None:
        """End the commands of a program that has disconnected."""
        for command_id in [command_id for command_id, waiting in self._waiting.items() if waiting is connection]:
            del self._waiting[command_id]
            for node in range(self._work.nodes):
                self._send(node, ToNode.REMOTE_CANCEL, command_id)

    def _send(self, node: int, do: str, command_id: CommandId, **facts: Any) -> None:
        message = {"do": do, "id": command_id, **facts}
        if node == self._node:
            self.on_message(message)
        else:
            self._agent.send(ToHead.RELAY, to=node, message=message)

    def on_message(self, message: Message) -> None:
        """Handle a message of another node's RemoteExec, or of this one; ignore all others."""
        if message["do"] == ToNode.REMOTE_RUN:
            self._run(CommandId(*message["id"]), message["command"])
        elif message["do"] == ToNode.REMOTE_CANCEL:
            self._end(CommandId(*message["id"]))
        elif message["do"] == ToNode.REMOTE_EXITED:
            connection = self._waiting.pop(CommandId(*message["id"]), None)
            if connection is not None:
                connection.send({"do": ToLaunched.REMOTE_EXITED, "status": message["status"]})

    def _run(self, command_id: CommandId, command: str) -> None:
        work = self._work
        tmpdir = private_tmpdir(self._folder / f"{command_id.node}-{command_id.number}")
        launch = LaunchCommand([], tmpdir, without=OF_MPI)
        self._running[command_id] = system.spawn_with_log(
            ["/bin/sh", "-c", command],
            rank_identity.launcher_environment(work, self._place, launch),
            work.directory.attempt(work.number).launcher_log(self._node),
            work.file_mode,
            directory=str(work.workdir),
        )

    def _end(self, command_id: CommandId) -> None:
        child = self._running.get(command_id)
        if child is not None:
            _signal_group(child, signal.SIGTERM)
            self._agent.loop.after(END_SECONDS, lambda: self._kill(command_id))

    def _kill(self, command_id: CommandId) -> None:
        if command_id in self._running:
            _signal_group(self._running[command_id], signal.SIGKILL)

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
            self._send(command_id.node, ToNode.REMOTE_EXITED, command_id, status=code)


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
