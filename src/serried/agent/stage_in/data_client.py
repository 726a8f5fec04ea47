"""Receives items from the node before this one; the client of `data_server`."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from serried.agent.comms.channel import Channel, ProtocolError
from serried.agent.stage_in import wire
from serried.agent.stage_in.item import Availability, RestartedError
from serried.agent.stage_in.tree_writer import TreeWriter
from serried.agent.stage_in.wire import ENDED, Frame, FrameKind, Part, Wire
from serried.fs import scan

LEAST_BYTES, MOST_PIECES = 256 << 10, 4096
CALLS, CALL_SECONDS, PAUSE_SECONDS = 3, 20.0, 0.5
"""A dead node refuses at once, or its kernel does. A node that takes long is busy, and spares the source a reader."""
WRITERS, MOST_WAITING = 4, 8
"""Threads that write small files, and batches of files that wait for them."""


class PeerLostError(Exception):
    """The node before this one will not send more. `str` says why. The source has the rest."""


class ItemRefusedError(PeerLostError):
    """The node before this one will not send this item, but may send others."""


class Predecessor:
    """The node before this one, which sends one item after the other. Raises PeerLostError."""

    def __init__(self, address: Tuple[str, int], key: bytes, me: int, silence: float = wire.SILENCE_SECONDS) -> None:
        self._host = address[0]
        with self._translating_errors():
            self._wire = Wire(_connect(address, key, me), silence)

    def close(self) -> None:
        self._wire.close()

    def item_key(self, item: int) -> str:
        """The key of `item`. If the cache has an item of this key, no further request is needed."""
        with self._translating_errors():
            while True:
                self._wire.send_message(FrameKind.ASK, item=item)
                with contextlib.suppress(RestartedError):
                    return str(self._expect(FrameKind.WHAT).words["key"])

    def manifest(self, item: int, key: str, availability: Availability) -> bytes:
        """The manifest, which `availability` gets piece by piece. Call `receive_into` next.

        Raises RestartedError if the source has changed; the item has another key then.
        """
        with self._translating_errors():
            self._wire.send_message(FrameKind.SEND, item=item, key=key)
            length = int(self._expect(FrameKind.LENGTH).words["manifest"])
            availability.expect(length)
            received = bytearray()
            while len(received) < length:
                piece = self._wire.data(self._expect(FrameKind.MANIFEST))
                availability.add_manifest(piece)
                received += piece
            return bytes(received)

    def receive_into(self, writer: TreeWriter) -> None:
        """Receive all files. Raises RestartedError, and OSError if a file cannot be written."""
        sizes = [entry.size for entry in writer.extents.manifest.entries]
        pool = _WritePool(writer)
        try:
            for pieces in self._pieces(sizes):
                if len(pieces) > 1:
                    pool.submit(pieces)
                else:
                    _write(writer, pieces)
        finally:
            pool.join()
        if pool.problem:
            raise pool.problem
        if not writer.extents.is_complete:
            raise PeerLostError("the node before this one did not send all files")

    def _pieces(self, sizes: Sequence[int]) -> Iterator[List[FilePiece]]:
        """Many small files at a time, or one piece of a large file."""
        with self._translating_errors():
            while True:
                frame = self._expect(FrameKind.DATA, FrameKind.END)
                if frame.kind == FrameKind.END:
                    return
                parts = wire.unpack(frame.body)
                if sum(part.length for part in parts if part.is_data) != frame.length:
                    raise ProtocolError("a frame of another length than its table of parts")
                if len(parts) == 1 and frame.length:
                    number, offset = parts[0].number, parts[0].offset
                    for at, data in self._wire.pieces(frame, _least(sizes[number])):
                        yield [FilePiece(number, offset + at, len(data), data)]
                else:
                    yield _cut(parts, memoryview(self._wire.data(frame)))

    @contextlib.contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:  # the time limit of a socket, see `Wire`
            raise PeerLostError(f"{self._host} fell silent") from None
        except OSError as error:
            raise PeerLostError(f"{self._host}: {scan.reason(error)}") from error
        except ENDED as error:
            raise PeerLostError(f"{self._host}: {error}") from error

    def _expect(self, *kinds: bytes) -> Frame:
        while True:
            frame = self._wire.receive()
            if frame.kind in kinds:
                return frame
            if frame.kind == FrameKind.VOID:
                raise RestartedError("the item is staged again")
            if frame.kind == FrameKind.FAILED:
                raise ItemRefusedError(str(frame.words["because"]))
            if frame.kind != FrameKind.WAIT:
                raise ProtocolError("unexpected frame")


class FilePiece(NamedTuple):
    """A file, or a part; `data` is None for a hole."""

    number: int
    offset: int
    length: int
    data: Optional[memoryview]


def _cut(parts: Sequence[Part], data: memoryview) -> List[FilePiece]:
    pieces, at = [], 0
    for number, offset, length, is_data in parts:
        pieces.append(FilePiece(number, offset, length, data[at : at + length] if is_data else None))
        at += length * is_data
    return pieces


def _write(writer: TreeWriter, pieces: Sequence[FilePiece]) -> None:
    try:
        for number, offset, length, data in pieces:
            if data is None:
                writer.skip(number, offset, length)
            else:
                writer.write(number, offset, data)
    except ValueError as error:  # a peer, proven or not, cannot make this node write beyond the manifest
        raise PeerLostError(str(error)) from None


def _least(size: int) -> int:
    """The bytes of a file of `size` bytes that are written, and passed on, at once.

    With few bytes a thousand nodes follow each other closely, but the list of pieces must not get long.
    """
    return max(LEAST_BYTES, size // MOST_PIECES)


class _WritePool:
    """Threads that write small files: creating a file takes the kernel longer than Python needs to request it."""

    def __init__(self, writer: TreeWriter) -> None:
        self._writer = writer
        self._batches: "queue.Queue[Optional[List[FilePiece]]]" = queue.Queue(MOST_WAITING)
        self._threads: List[threading.Thread] = []
        self.problem: Optional[Exception] = None
        """The first error. No later file is written."""

    def submit(self, batch: List[FilePiece]) -> None:
        """Raises the first error."""
        if self.problem:
            raise self.problem
        while len(self._threads) < WRITERS:
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()
        self._batches.put(batch)

    def _work(self) -> None:
        while True:
            batch = self._batches.get()
            if batch is None:
                return
            if self.problem is None:
                try:
                    _write(self._writer, batch)
                except Exception as problem:  # noqa: BLE001 - the thread that receives raises it
                    self.problem = problem

    def join(self) -> None:
        """Wait until all submitted files are written."""
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            thread.join()


def _connect(address: Tuple[str, int], key: bytes, me: int) -> Channel:
    for left in reversed(range(CALLS)):
        try:
            return wire.call(address, key, {"stage": me}, CALL_SECONDS)
        except OSError:
            if not left:
                raise
            time.sleep(PAUSE_SECONDS)
    raise AssertionError
