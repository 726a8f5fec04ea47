"""Serves data to other nodes, from this node's disk and as far as it has arrived.

The nodes form a chain: each requests the items from the node before it, and the first reads the source. For each item
a node gets the key and, unless its cache has an item of that key, the manifest and then the files in the order of their
arrival. So the nodes are a few parts apart, and the source is read once. `data_client` is the other end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from functools import partial
from typing import Callable, Iterator, List, Sequence, TypeVar

from serried.agent.comms.channel import Channel
from serried.agent.comms.rendezvous import MOST_UNPROVEN, Acceptor
from serried.agent.loop import Loop
from serried.agent.stage_in.item import Availability, RestartedError, StagedItem, UnavailableError
from serried.agent.stage_in.tree_writer import Extent, ExtentLog, split_holes
from serried.agent.stage_in.wire import ENDED, MOST_PARTS, FrameKind, Part, Wire, pack
from serried.protocol.json_lines import Message

PIECE_BYTES = 256 << 10
"""Of a manifest, or of small files together, in one frame."""
PART_BYTES = 4 << 20
"""Of a large file in one frame: the receiver can pass it on before the file is complete."""
AT_ONCE = 4096
"""Extents that are sent before the server checks that the item is still the same."""
GREETING_SECONDS = 60.0
"""For a slow node of this attempt to prove itself; other connections do not wait meanwhile."""
MOST_LOGGED = 10
"""Refused connections that are logged, so that strangers cannot fill the journal."""
KEEPALIVE_SECONDS = 5.0
"""Between two frames, if there is nothing to send."""
OPEN_TRIES, OPEN_SECONDS = 40, 0.05
"""For a file whose tree is being renamed."""

T = TypeVar("T")


class DataServer:
    """Serves nodes of the same attempt, each in a thread of its own.

    `on_refused(address, because)` is called for connections that are refused.
    """

    def __init__(
        self, address: str, key: bytes, items: Sequence[StagedItem], on_refused: Callable[[str, str], None]
    ) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind((address, 0))
        self._listener.listen(MOST_UNPROVEN)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._items = items
        self._on_refused = on_refused
        self._refused = 0
        self._loop = Loop()
        self._acceptor = Acceptor(
            self._loop,
            self._listener,
            key,
            self._serve,
            most=MOST_UNPROVEN,
            seconds=GREETING_SECONDS,
            on_refused=self._log_refused,
        )
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._loop.stop()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts

    def _run(self) -> None:
        self._loop.run()
        self._acceptor.close()

    def _serve(self, channel: Channel, greeting: Message, _: str) -> None:
        if "stage" in greeting:
            threading.Thread(target=serve, args=(Wire(channel), self._items), daemon=True).start()
        else:
            channel.close()

    def _log_refused(self, address: str, because: str) -> None:
        self._refused += 1
        if self._refused <= MOST_LOGGED:
            self._on_refused(address, because)


def serve(wire: Wire, items: Sequence[StagedItem]) -> None:
    """Answer one node until it disconnects."""
    with contextlib.suppress(*ENDED):
        while True:
            wire.await_request()
            request = wire.receive()
            item = items[int(request.words["item"])].availability
            try:
                key = _wait_with_keepalive(wire, item.wait_for_key)
                if request.kind == FrameKind.ASK:
                    wire.send_message(FrameKind.WHAT, key=key)
                elif request.words["key"] != key:
                    wire.send(FrameKind.VOID)
                else:
                    _send_manifest(wire, item)
                    _send_files(wire, item)
            except RestartedError:
                wire.send(FrameKind.VOID)
            except UnavailableError as failure:
                wire.send_message(FrameKind.FAILED, because=str(failure))
    wire.close()


def _send_manifest(wire: Wire, item: Availability) -> None:
    length = _wait_with_keepalive(wire, item.wait_for_manifest_length)
    wire.send_message(FrameKind.LENGTH, manifest=length)
    offset = 0
    while offset < length:
        piece = _wait_with_keepalive(wire, partial(item.manifest_from, offset))[:PIECE_BYTES]
        wire.send(FrameKind.MANIFEST, data=piece)
        offset += len(piece)


def _send_files(wire: Wire, item: Availability) -> None:
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
            item.raise_problem()  # after a restart its files are being deleted
            raise
        position += len(extents)
        if not extents:
            wire.send(FrameKind.WAIT)
        if not extents and was_complete:
            wire.send_message(FrameKind.END, extents=position)
            return


def _send_extents(wire: Wire, log: ExtentLog, extents: List[Extent]) -> None:
    """Many small files in one frame, larger files in parts."""
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
            wire.send(FrameKind.DATA, pack(parts), b"".join(pieces))
            parts, pieces, size = [], [], 0
    if parts:
        wire.send(FrameKind.DATA, pack(parts), b"".join(pieces))


def joined(extents: List[Extent]) -> List[Extent]:
    """Adjacent extents as one: a node that lags behind catches up in larger parts."""
    result: List[Extent] = []
    for extent in extents:
        last = result[-1] if result else None
        if last and last.number == extent.number and last.offset + last.length == extent.offset:
            result[-1] = last._replace(length=last.length + extent.length)
        else:
            result.append(extent)
    return result


def _send_large(wire: Wire, log: ExtentLog, extent: Extent) -> None:
    with _opened(log, extent.number) as file:
        for start, length, is_data in split_holes(file, extent):
            if not is_data:
                wire.send(FrameKind.DATA, pack([Part(extent.number, start, length, is_data=False)]))
                continue
            for offset in range(start, start + length, PART_BYTES):
                part = Part(extent.number, offset, min(PART_BYTES, start + length - offset), is_data=True)
                wire.send_file(FrameKind.DATA, pack([part]), file, part.offset, part.length)


def _read(log: ExtentLog, extent: Extent) -> bytes:
    with _opened(log, extent.number) as file:
        data = os.pread(file, extent.length, extent.offset)
    if len(data) < extent.length:
        raise OSError(errno.EIO, "a staged file was truncated")
    return data


@contextlib.contextmanager
def _opened(log: ExtentLog, number: int) -> Iterator[int]:
    for left in reversed(range(OPEN_TRIES)):
        try:
            file = os.open(log.path(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            break
        except FileNotFoundError:
            if not left or log.problem:
                raise
            time.sleep(OPEN_SECONDS)
    try:
        yield file
    finally:
        os.close(file)


def _wait_with_keepalive(wire: Wire, wait: Callable[[float], T]) -> T:
    """Call `wait(seconds)` until it returns. Meanwhile the other end receives keepalives."""
    while True:
        try:
            return wait(KEEPALIVE_SECONDS)
        except TimeoutError:
            wire.send(FrameKind.WAIT)
