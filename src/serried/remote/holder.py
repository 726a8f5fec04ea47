"""A process on this machine that holds the one session of a cluster, and lends it to all commands.

For clusters that allow one session for each connection. `link.connect` starts it and connects to its socket. A command
numbers its channels itself; the holder gives each channel a number of its own in the session.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

from serried.base import NamedTuple, frames
from serried.base.frames import FrameWire, RemoteFrame
from serried.remote import far_part, link
from serried.remote.client import RemoteSession

MOST_BACKLOG = 4 << 20
"""Bytes that a command may leave unread before the session waits for it."""
STALLED_SECONDS = 10
"""A command that reads nothing for so long loses its connection: others wait for it."""
_TERM = b"15"


class Borrower:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.wire = FrameWire(connection.fileno(), connection.fileno())
        self.channels: dict[int, int] = {}
        """Its own numbers of channels, and those in the session."""
        self.left, self.read_at = 0, time.monotonic()

    def is_stalled(self) -> bool:
        if len(self.wire.backlog) != self.left:
            self.left, self.read_at = len(self.wire.backlog), time.monotonic()
        return self.left > MOST_BACKLOG and time.monotonic() - self.read_at > STALLED_SECONDS


class LentChannel(NamedTuple):
    borrower: Borrower
    own: int | None
    """Its number for the borrower; None for the question whether the session lives."""
    changes: bool
    is_typed: bool
    """Its input comes from a terminal. Any other input must not end early: it would be shorter."""


class Holder:
    def __init__(self, far: FrameWire, listener: socket.socket, greeting: bytes, keep_seconds: float) -> None:
        self.far, self.listener, self.greeting, self.keep_seconds = far, listener, greeting, keep_seconds
        self.borrowers: list[Borrower] = []
        self.lent: dict[int, LentChannel] = {}
        self.number = 0

    def run(self) -> None:
        """Until the session ends, does not answer, or was not used for long."""
        used_at, asked_at = time.monotonic(), None
        while not self.far.has_ended:
            is_full = any(len(each.wire.backlog) > MOST_BACKLOG for each in self.borrowers)
            wires = {each.wire.reads: each for each in self.borrowers}
            reads = [self.listener.fileno(), *([] if is_full else [self.far.reads])]
            reads += [] if len(self.far.backlog) > MOST_BACKLOG else [*wires]
            writes = [fd for fd, each in wires.items() if each.wire.backlog]
            ready, _, _ = select.select(reads, [*writes, *([self.far.writes] if self.far.backlog else [])], [], 1.0)
            now = time.monotonic()
            for wire in (self.far, *(each.wire for each in self.borrowers)):
                wire.flush()
            if self.listener.fileno() in ready:
                self.welcome(Borrower(self.listener.accept()[0]))
            for borrower in [wires[fd] for fd in ready if fd in wires]:
                for frame in borrower.wire.receive():
                    self.pass_on(borrower, frame)
            if self.far.reads in ready:
                for frame in self.far.receive():
                    self.bring_back(frame)
            for borrower in [each for each in self.borrowers if each.wire.has_ended or each.is_stalled()]:
                self.dismiss(borrower)
            used_at = now if self.borrowers else used_at
            waits = any(lent.own is None for lent in self.lent.values())
            asked_at = (asked_at or now) if waits else None
            if now - used_at > self.keep_seconds or (asked_at and now - asked_at > link.ANSWER_SECONDS):
                return

    def welcome(self, borrower: Borrower) -> None:
        """Ask the far end for a sign of life; the greeting follows it."""
        self.borrowers.append(borrower)
        self.lend(borrower, None, RemoteFrame(0, frames.REQUEST, b'{"function": "alive"}'))

    def lend(self, borrower: Borrower, own: int | None, frame: RemoteFrame) -> None:
        request = frame.json()
        is_typed = bool((request.get("terminals") or [False])[0])
        self.number += 1
        self.lent[self.number] = LentChannel(borrower, own, bool(request.get("changes")), is_typed)
        self.far.send(frames.encode(self.number, frame.kind, frame.payload))
        if own is not None:
            borrower.channels[own] = self.number

    def pass_on(self, borrower: Borrower, frame: RemoteFrame) -> None:
        number = borrower.channels.get(frame.channel)
        if number is not None and frame.kind != frames.REQUEST:
            self.far.send(frames.encode(number, frame.kind, frame.payload))
        elif number is None and frame.kind == frames.REQUEST:
            try:
                self.lend(borrower, frame.channel, frame)
            except frames.Malformed:
                borrower.wire.has_ended = True

    def bring_back(self, frame: RemoteFrame) -> None:
        lent = self.lent.get(frame.channel)
        if lent is None:
            return
        if frame.kind == frames.EXIT:
            del self.lent[frame.channel]
            lent.borrower.channels.pop(-1 if lent.own is None else lent.own, None)
        if lent.borrower in self.borrowers:
            is_alive = lent.own is None
            lent.borrower.wire.send(self.greeting if is_alive else frames.encode(lent.own or 0, *frame[1:]))

    def dismiss(self, borrower: Borrower) -> None:
        """End what the command has begun, but not what changes something."""
        self.borrowers.remove(borrower)
        borrower.connection.close()
        for number in borrower.channels.values():
            lent = self.lent[number]
            if not lent.changes:
                self.far.send(frames.encode(number, frames.SIGNAL, _TERM))
            if lent.is_typed or not lent.changes:
                self.far.send(frames.encode(number, frames.INPUT))


def main(cluster: str, host: str) -> None:
    login = link.last_login(host)
    if login is None:
        raise link.not_connected(cluster, host)
    path = link.session_socket(host)
    path.unlink(missing_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    with RemoteSession(cluster, host, connect=link.over_master) as session, socket.socket(socket.AF_UNIX) as listener:
        far = session.open()
        greeting = f"{link.SESSION_GREETING}\n{far_part.archive(os.environ).digest}\n".encode()
        listener.bind(str(aside))
        listener.listen(64)
        aside.rename(path)
        try:
            Holder(far, listener, greeting, login.keep_seconds).run()
        finally:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
