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

from serried.agent.comms.channel import UnprovenConnection
from serried.agent.stage_in.availability import Availability, ItemAvailability, RestartedError, UnavailableError
from serried.agent.stage_in.extents import Extent, ExtentLog, split_holes
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
MOST_UNPROVEN = 64
"""Who call and have not proven themselves, at once: the one that has waited longest makes room."""
MOST_LOGGED = 10
"""Refusals told of, at most: nobody fills our journal."""
KEEPALIVE_SECONDS = 5.0
"""How often one who has nothing to send says so."""
OPEN_TRIES, OPEN_SECONDS = 40, 0.05
"""For a file to be where it is said to be: its tree may just be on its way to another name."""


class DataServer:
    """Serves the holdings of this node to nodes of the same attempt, each in a thread of its own.

    `note(address, because)` is called when somebody is refused.
    """

    def __init__(
        self, address: str, key: bytes, availability: Availability, on_refused: Callable[[str, str], None]
    ) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind((address, 0))
        self._listener.listen(MOST_UNPROVEN)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._key = key
        self._availability = availability
        self._on_refused = on_refused
        self._refused = 0
        self._is_closed = False
        self._unproven: Dict[socket.socket, Tuple[UnprovenConnection, str, float]] = {}
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
            for key, _ in self._selector.select(1.0 if self._unproven else None):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._unproven:
                    self._read_greeting(key.fileobj)
            for caller in [it for it, (*_, until) in self._unproven.items() if until < time.monotonic()]:
                self._refuse(caller, "it did not say who it is")
        for connection in (self._listener, *self._unproven):
            connection.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            caller, address = self._listener.accept()
        except OSError:
            time.sleep(OPEN_SECONDS)  # too many files are open here, say
            return
        if len(self._unproven) >= MOST_UNPROVEN:
            self._refuse(next(iter(self._unproven)), "too many call at once")
        try:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest = UnprovenConnection(caller, self._key)
        except OSError:  # it is gone already
            caller.close()
            return
        self._unproven[caller] = (guest, str(address[0]), time.monotonic() + GREETING_SECONDS)
        self._selector.register(caller, selectors.EVENT_READ)

    def _read_greeting(self, caller: socket.socket) -> None:
        guest = self._unproven[caller][0]
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
                threading.Thread(target=serve, args=(Wire(channel), self._availability), daemon=True).start()
            else:
                channel.close()

    def _refuse(self, caller: socket.socket, because: str) -> None:
        address = self._unproven[caller][1]
        self._forget(caller)
        caller.close()
        self._refused += 1
        if self._refused <= MOST_LOGGED:
            self._on_refused(address, because)

    def _forget(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._unproven[caller]


def serve(wire: Wire, availability: Availability) -> None:
    """Answer one node until it goes."""
    with contextlib.suppress(*ENDED):
        while True:
            wire.await_request()
            request = wire.receive()
            item = availability[int(request.words["item"])]
            try:
                key = _wait_with_keepalive(wire, item.wait_for_key)
                if request.kind == ASK:
                    wire.send_message(WHAT, key=key)
                elif request.words["key"] != key:
                    wire.send(VOID)
                else:
                    _send_manifest(wire, item)
                    _send_files(wire, item)
            except RestartedError:
                wire.send(VOID)
            except UnavailableError as failure:
                wire.send_message(FAILED, because=str(failure))
    wire.close()


def _send_manifest(wire: Wire, item: ItemAvailability) -> None:
    length = _wait_with_keepalive(wire, item.wait_for_manifest_length)
    wire.send_message(LENGTH, manifest=length)
    offset = 0
    while offset < length:
        piece = _wait_with_keepalive(wire, partial(item.manifest_from, offset))[:PIECE_BYTES]
        wire.send(MANIFEST, data=piece)
        offset += len(piece)


def _send_files(wire: Wire, item: ItemAvailability) -> None:
    log = _wait_with_keepalive(wire, item.wait_for_extents)
    position = 0
    while True:
        was_complete = log.is_complete
        extents = log.since(position, KEEPALIVE_SECONDS)[:AT_ONCE]
        item.raise_problem()
        if log.problem:
            raise UnavailableError(log.problem)
        try:
            _send_extents(wire, log, joined(extents))
        except FileNotFoundError:
            item.raise_problem()  # it is being removed, because it is void
            raise
        position += len(extents)
        if not extents:
            wire.send(WAIT)
        if not extents and was_complete:
            wire.send_message(END, extents=position)
            return


def _send_extents(wire: Wire, log: ExtentLog, extents: List[Extent]) -> None:
    """Small files many at once, larger ones in parts."""
    parts: List[Part] = []
    pieces: List[bytes] = []
    size = 0
    for extent in extents:
        if extent.length < PIECE_BYTES:
            parts.append(Part(*extent, is_data=True))
            pieces.append(_read(log, extent))
            size += extent.length
        else:
            _send_large(wire, log, extent)
        if size >= PIECE_BYTES or len(parts) == MOST_PARTS:
            wire.send(DATA, pack(parts), b"".join(pieces))
            parts, pieces, size = [], [], 0
    if parts:
        wire.send(DATA, pack(parts), b"".join(pieces))


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


def _send_large(line: Wire, arrived: ExtentLog, extent: Extent) -> None:
    with _opened(arrived, extent.number) as file:
        for start, length, is_data in split_holes(file, extent):
            if not is_data:
                line.send(DATA, pack([Part(extent.number, start, length, is_data=False)]))
                continue
            for offset in range(start, start + length, PART_BYTES):
                part = Part(extent.number, offset, min(PART_BYTES, start + length - offset), is_data=True)
                line.send_file(DATA, pack([part]), file, part.offset, part.length)


def _read(arrived: ExtentLog, extent: Extent) -> bytes:
    with _opened(arrived, extent.number) as file:
        data = os.pread(file, extent.length, extent.offset)
    if len(data) < extent.length:
        raise OSError(errno.EIO, "a file here is shorter than it was")
    return data


@contextlib.contextmanager
def _opened(arrived: ExtentLog, number: int) -> Iterator[int]:
    for left in reversed(range(OPEN_TRIES)):
        try:
            file = os.open(arrived.path(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            break
        except FileNotFoundError:
            if not left or arrived.problem:
                raise
            time.sleep(OPEN_SECONDS)
    try:
        yield file
    finally:
        os.close(file)


def _wait_with_keepalive(wire: Wire, wait: Callable[[float], Any]) -> Any:
    """What `wait(seconds)` returns, however long that takes; the other end is told that we are there."""
    while True:
        try:
            return wait(KEEPALIVE_SECONDS)
        except TimeoutError:
            wire.send(WAIT)
