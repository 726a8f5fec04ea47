"""Data from node to node: each gives the next in line what it has by now, from its own disk.

A chain: node i asks the one before it, and the first reads the source. The one that asks says which item; it gets the
content's key and, unless it has that already, the manifest and then the files in the order in which they came, so that
all nodes are a few parts apart and the source is read once. `Server` gives, `pulling.Predecessor` takes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Tuple

from serried.agent.comms.channel import Guest
from serried.agent.stage_in.availability import FailedError, Holding, Holdings, VoidError
from serried.agent.stage_in.extents import Arrived, Extent, runs
from serried.agent.stage_in.wire import (
    ASK,
    DATA,
    END,
    ENDED,
    FAILED,
    LENGTH,
    MANIFEST,
    MOST_PARTS,
    VOID,
    WAIT,
    WHAT,
    Part,
    Wire,
    pack,
)

PIECE_BYTES = 256 << 10
"""Of a manifest, and of small files together, at a time: what one node is behind the one before it."""
PART_BYTES = 4 << 20
"""Of a large file, which its receiver need not have whole to pass it on."""
AT_ONCE = 4096
"""Extents that are sent before we look whether they are still wanted."""
GREETING_SECONDS = 60.0
"""Patience with a node of ours that is slow; strangers cost nobody anything meanwhile."""
STRANGERS = 64
"""Who call and have not proven themselves, at once: the one that has waited longest makes room."""
NOTED = 10
"""Refusals told of, at most: nobody fills our journal."""
WORD_SECONDS = 5.0
"""How often one who has nothing to send says so."""
LOOK_TRIES, LOOK_SECONDS = 40, 0.05
"""For a file to be where it is said to be: its tree may just be on its way to another name."""


class Server:
    """Serves the holdings of this node to nodes of the same attempt, each in a thread of its own.

    `note(address, because)` is called when somebody is refused.
    """

    def __init__(self, address: str, key: bytes, holdings: Holdings, note: Callable[[str, str], None]) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind((address, 0))
        self._listener.listen(STRANGERS)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._key = key
        self._holdings = holdings
        self._note = note
        self._refused = 0
        self._is_closed = False
        self._strangers: Dict[socket.socket, Tuple[Guest, str, float]] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._receive_callers, daemon=True).start()

    def close(self) -> None:
        """Serve nobody else."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes who waits for callers

    def _receive_callers(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select(1.0 if self._strangers else None):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._strangers:
                    self._hear(key.fileobj)
            for caller in [it for it, (*_, until) in self._strangers.items() if until < time.monotonic()]:
                self._refuse(caller, "it did not say who it is")
        for connection in (self._listener, *self._strangers):
            connection.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            caller, address = self._listener.accept()
        except OSError:
            time.sleep(LOOK_SECONDS)  # too many files are open here, say
            return
        if len(self._strangers) >= STRANGERS:
            self._refuse(next(iter(self._strangers)), "too many call at once")
        try:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest = Guest(caller, self._key)
        except OSError:  # it is gone already
            caller.close()
            return
        self._strangers[caller] = (guest, str(address[0]), time.monotonic() + GREETING_SECONDS)
        self._selector.register(caller, selectors.EVENT_READ)

    def _hear(self, caller: socket.socket) -> None:
        guest = self._strangers[caller][0]
        try:
            answer = guest.receive()
        except BlockingIOError:
            return
        except ENDED as error:
            self._refuse(caller, str(error))
            return
        if answer:
            channel, greeting = answer
            self._forget(caller)
            if "stage" in greeting:
                threading.Thread(target=serve, args=(Wire(channel), self._holdings), daemon=True).start()
            else:
                channel.close()

    def _refuse(self, caller: socket.socket, because: str) -> None:
        address = self._strangers[caller][1]
        self._forget(caller)
        caller.close()
        self._refused += 1
        if self._refused <= NOTED:
            self._note(address, because)

    def _forget(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._strangers[caller]


def serve(line: Wire, holdings: Holdings) -> None:
    """Answer one node until it goes."""
    with contextlib.suppress(*ENDED):
        while True:
            line.await_request()
            asked = line.receive()
            holding = holdings[int(asked.words["item"])]
            try:
                key = _patiently(line, holding.what)
                if asked.kind == ASK:
                    line.say(WHAT, key=key)
                elif asked.words["key"] != key:
                    line.send(VOID)
                else:
                    _send_manifest(line, holding)
                    _send_files(line, holding)
            except VoidError:
                line.send(VOID)
            except FailedError as failure:
                line.say(FAILED, because=str(failure))
    line.close()


def _send_manifest(line: Wire, holding: Holding) -> None:
    length = _patiently(line, holding.length)
    line.say(LENGTH, manifest=length)
    offset = 0
    while offset < length:
        piece = _patiently(line, partial(holding.manifest_from, offset))[:PIECE_BYTES]
        line.send(MANIFEST, data=piece)
        offset += len(piece)


def _send_files(line: Wire, holding: Holding) -> None:
    arrived = _patiently(line, holding.arrived)
    position = 0
    while True:
        was_complete = arrived.is_complete
        extents = arrived.since(position, WORD_SECONDS)[:AT_ONCE]
        holding.check()
        if arrived.problem:
            raise FailedError(arrived.problem)
        try:
            _send_extents(line, arrived, joined(extents))
        except FileNotFoundError:
            holding.check()  # it is being removed, because it is void
            raise
        position += len(extents)
        if not extents:
            line.send(WAIT)
        if not extents and was_complete:
            line.say(END, extents=position)
            return


def _send_extents(line: Wire, arrived: Arrived, extents: List[Extent]) -> None:
    """Small files many at once, larger ones in parts."""
    parts: List[Part] = []
    pieces: List[bytes] = []
    size = 0
    for extent in extents:
        if extent.length < PIECE_BYTES:
            parts.append(Part(*extent, is_data=True))
            pieces.append(_read(arrived, extent))
            size += extent.length
        else:
            _send_large(line, arrived, extent)
        if size >= PIECE_BYTES or len(parts) == MOST_PARTS:
            line.send(DATA, pack(parts), b"".join(pieces))
            parts, pieces, size = [], [], 0
    if parts:
        line.send(DATA, pack(parts), b"".join(pieces))


def joined(extents: List[Extent]) -> List[Extent]:
    """The same, with those made one that follow each other: who is behind catches up in larger parts."""
    found: List[Extent] = []
    for extent in extents:
        last = found[-1] if found else None
        if last and last.number == extent.number and last.offset + last.length == extent.offset:
            found[-1] = last._replace(length=last.length + extent.length)
        else:
            found.append(extent)
    return found


def _send_large(line: Wire, arrived: Arrived, extent: Extent) -> None:
    with _opened(arrived, extent.number) as file:
        for start, length, is_data in runs(file, extent):
            if not is_data:
                line.send(DATA, pack([Part(extent.number, start, length, is_data=False)]))
                continue
            for offset in range(start, start + length, PART_BYTES):
                part = Part(extent.number, offset, min(PART_BYTES, start + length - offset), is_data=True)
                line.send_file(DATA, pack([part]), file, part.offset, part.length)


def _read(arrived: Arrived, extent: Extent) -> bytes:
    with _opened(arrived, extent.number) as file:
        data = os.pread(file, extent.length, extent.offset)
    if len(data) < extent.length:
        raise OSError(errno.EIO, "a file here is shorter than it was")
    return data


@contextlib.contextmanager
def _opened(arrived: Arrived, number: int) -> Iterator[int]:
    for left in reversed(range(LOOK_TRIES)):
        try:
            file = os.open(arrived.path(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            break
        except FileNotFoundError:
            if not left or arrived.problem:
                raise
            time.sleep(LOOK_SECONDS)
    try:
        yield file
    finally:
        os.close(file)


def _patiently(line: Wire, wait: Callable[[float], Any]) -> Any:
    """What `wait(seconds)` returns, however long that takes; the other end is told that we are there."""
    while True:
        try:
            return wait(WORD_SECONDS)
        except TimeoutError:
            line.send(WAIT)
