"""Where a node's agent receives the ranks that a launcher starts there."""

from __future__ import annotations

import socket
from typing import Callable, Dict, List, NamedTuple, Optional

from serried.agent.launchers import local_socket
from serried.agent.launchers.remote_exec import Remotes
from serried.agent.loop import Loop
from serried.agent.ranks.ranks import Rank


class Guest:
    """A process that a launcher has started as a rank."""

    def __init__(self, line: local_socket.Line) -> None:
        self.line = line
        self.number = -1
        """Its rank; -1 before it has said so."""
        self.local = -1
        self.incarnation = 0
        self.rank: Optional[Rank] = None
        """Its program, once it runs."""
        self.is_starting = False
        """Its program may run, though its pid is not known yet."""
        self.has_ended = False
        """Its program has."""


class Reactions(NamedTuple):
    """What is called from the loop: a guest says who it is, that its program runs or has ended; it is gone."""

    arrival: Callable[[Guest, Dict[str, str]], None]
    began: Callable[[Guest, int], None]
    ended: Callable[[Guest, local_socket.Message], None]
    loss: Callable[[Guest], None]


class Door:
    def __init__(self, loop: Loop, where: str, reactions: Reactions, remotes: Remotes) -> None:
        """Raises OSError."""
        self._loop = loop
        self._remotes = remotes
        self._on = reactions
        self.guests: List[Guest] = []
        for listener in local_socket.listen(where):
            self._watch(listener)

    def _watch(self, listener: socket.socket) -> None:
        self._loop.watch(listener, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if not local_socket.is_ours(connection):
            connection.close()
            return
        guest = Guest(local_socket.Line(connection))
        self.guests.append(guest)
        self._loop.watch(connection, lambda: self._receive(guest))

    def _receive(self, guest: Guest) -> None:
        messages = guest.line.receive()
        if messages is None:
            self._loop.forget(guest.line.connection)
            guest.line.connection.close()
            self.guests.remove(guest)
            self._remotes.forget(guest.line)
            self._on.loss(guest)
            return
        for message in messages:
            if "remote" in message:
                self._remotes.ask(guest.line, message["remote"], message["command"])
            elif "environ" in message:
                self._on.arrival(guest, message["environ"])
            elif "starting" in message:
                guest.is_starting = True
            elif "began" in message:
                self._on.began(guest, message["began"])
            elif "ended" in message:
                self._on.ended(guest, message)
