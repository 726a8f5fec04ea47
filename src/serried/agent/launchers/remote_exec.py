"""Runs commands that a launcher on another node requested, and returns the status of those requested here."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import local_socket, rank_identity
from serried.agent.launchers.kinds import LaunchCommand, mpi
from serried.agent.loop import Loop
from serried.agent.ranks import command
from serried.protocol.events import ToHead, ToNode
from serried.protocol.json_lines import Message

END_SECONDS = 10.0
"""Between TERM and KILL for what nobody waits for any more."""


class CommandId(NamedTuple):
    """Names a command on all nodes: which node asked, and its how-manieth it is."""

    node: int
    number: int


class RemoteExec:
    def __init__(self, work: Attempt, node: int, loop: Loop, send: Callable[..., None]) -> None:
        self._work = work
        self._node = node
        self._loop = loop
        self._send_to_head = send
        self._hosts: Sequence[str] = ()
        self._place: Optional[command.RankPlace] = None
        self._folder = Path()
        self._count = 0
        self._waiting: Dict[CommandId, local_socket.LocalSocket] = {}
        self._running: Dict[CommandId, system.Child] = {}

    def begin(self, place: command.RankPlace, hosts: Sequence[str], folder: Path) -> None:
        """Before anybody asks: what this node tells its ranks, the names of all nodes, and its private folder."""
        self._place, self._hosts, self._folder = place, hosts, folder

    # Of those who ask on this node.

    def run_on(self, connection: local_socket.LocalSocket, host: str, command: str) -> None:
        node = find_host(host, self._hosts)
        if node is None:
            connection.send({"refused": f"`{host}` is no node of this attempt: {', '.join(self._hosts)}"})
            return
        self._count += 1
        command_id = CommandId(self._node, self._count)
        self._waiting[command_id] = connection
        self._send(node, "run", command_id, command=command)

    def cancel(self, connection: local_socket.LocalSocket) -> None:
        """Nobody waits at this line any more."""
        for command_id in [command_id for command_id, waiting in self._waiting.items() if waiting is connection]:
            del self._waiting[command_id]
            for node in range(self._work.nodes):
                self._send(node, "end", command_id)

    # Between the nodes.

    def _send(self, node: int, action: str, command_id: CommandId, **facts: Any) -> None:
        message = {"what": action, "ask": list(command_id), **facts}
        if node == self._node:
            self.on_message(message)
        else:
            self._send_to_head(ToHead.RELAY, to=node, message={"do": ToNode.REMOTE, **message})

    def on_message(self, message: Message) -> None:
        command_id = CommandId(*message["ask"])
        if message["what"] == "run":
            self._run(command_id, message["command"])
        elif message["what"] == "end":
            self._end(command_id)
        elif command_id in self._waiting:
            self._waiting.pop(command_id).send({"exited": message["status"]})

    # Of what runs on this node.

    def _run(self, command_id: CommandId, command: str) -> None:
        assert self._place is not None  # noqa: S101 - nobody asks before `begin`
        start = LaunchCommand(
            [], mpi.temporary(self._folder / f"{command_id.node}-{command_id.number}"), without=mpi.OF_ANOTHER_STEP
        )
        log = os.open(
            self._work.directory.attempt(self._work.number).launcher_log(self._node),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND,
            self._work.file_mode,
        )
        null = os.open(os.devnull, os.O_RDONLY)
        self._running[command_id] = system.spawn(
            ["/bin/sh", "-c", command],
            rank_identity.launcher_environment(self._work, self._place, start),
            (null, log, log),
            directory=str(self._work.workdir),
            parent_death=signal.SIGKILL,
            own_group=True,
        )
        os.close(null)
        os.close(log)

    def _end(self, command_id: CommandId) -> None:
        if command_id in self._running:
            self._signal(command_id, signal.SIGTERM)
            self._loop.after(END_SECONDS, lambda: self._signal(command_id, signal.SIGKILL))

    def kill(self) -> None:
        for command_id in self._running:
            self._signal(command_id, signal.SIGKILL)

    def _signal(self, command_id: CommandId, number: signal.Signals) -> None:
        if command_id in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._running[command_id].pid, number)

    def reap(self, children: Iterable[Tuple[int, int]]) -> None:
        statuses = dict(children)
        ended: List[CommandId] = [command_id for command_id, child in self._running.items() if child.pid in statuses]
        for command_id in ended:
            child = self._running.pop(command_id)
            child.problem()
            status = statuses[child.pid]
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self._send(command_id.node, "exited", command_id, status=code)


def find_host(host: str, hosts: Sequence[str]) -> Optional[int]:
    """The index of `host`, by its whole name, else by the name before the first dot."""
    if host in hosts:
        return hosts.index(host)
    short = [name.partition(".")[0] for name in hosts]
    wanted = host.partition(".")[0]
    return short.index(wanted) if short.count(wanted) == 1 else None
