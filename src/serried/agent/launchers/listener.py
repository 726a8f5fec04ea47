"""Accepts the ranks that a launcher starts on this node."""

from __future__ import annotations

import socket
from typing import Callable, Dict, List, NamedTuple, Optional

from serried.agent.launchers import local_socket
from serried.agent.launchers.remote_exec import RemoteExec
from serried.agent.loop import Loop
from serried.agent.ranks.ranks import Rank
from serried.protocol.json_lines import Message


class RankConnection:
    """A process that a launcher has started as a rank."""

    def __init__(self, line: local_socket.LocalSocket) -> None:
        self.socket = line
        self.number = -1
        """Its rank; -1 before it has said so."""
        self.local_rank = -1
        self.incarnation = 0
        self.rank: Optional[Rank] = None
        """Its program, once it runs."""
        self.is_starting = False
        """Its program may run, though its pid is not known yet."""
        self.has_ended = False
        """Its program has."""


class RankEvents(NamedTuple):
    """What is called from the loop: a guest says who it is, that its program runs or has ended; it is gone."""

    identified: Callable[[RankConnection, Dict[str, str]], None]
    started: Callable[[RankConnection, int], None]
    ended: Callable[[RankConnection, Message], None]
    lost: Callable[[RankConnection], None]


class RankListener:
    def __init__(self, loop: Loop, address: str, events: RankEvents, remote_exec: RemoteExec) -> None:
        """Raises OSError."""
        self._loop = loop
        self._remote_exec = remote_exec
        self._events = events
        self.connections: List[RankConnection] = []
        for listener in local_socket.listen(address):
            self._watch(listener)

    def _watch(self, listener: socket.socket) -> None:
        self._loop.watch(listener, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if not local_socket.is_same_user(connection):
            connection.close()
            return
        rank = RankConnection(local_socket.LocalSocket(connection))
        self.connections.append(rank)
        self._loop.watch(connection, lambda: self._receive(rank))

    def _receive(self, rank: RankConnection) -> None:
        messages = rank.socket.receive()
        if messages is None:
            self._loop.forget(rank.socket.connection)
            rank.socket.connection.close()
            self.connections.remove(rank)
            self._remote_exec.cancel(rank.socket)
            self._events.lost(rank)
            return
        for message in messages:
            if "remote" in message:
                self._remote_exec.run_on(rank.socket, message["remote"], message["command"])
            elif "environ" in message:
                self._events.identified(rank, message["environ"])
            elif "starting" in message:
                rank.is_starting = True
            elif "began" in message:
                self._events.started(rank, message["began"])
            elif "ended" in message:
                self._events.ended(rank, message)
