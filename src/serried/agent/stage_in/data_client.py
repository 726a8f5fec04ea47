"""Receives items from the node before this one; the client of `data_server`."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from serried.agent.comms.channel import Channel, ProtocolError
from serried.agent.stage_in import wire
from serried.agent.stage_in.availability import ItemAvailability, RestartedError
from serried.agent.stage_in.tree_writer import TreeWriter
from serried.agent.stage_in.wire import (
    ASK,
    DATA,
    END,
    ENDED,
    FAILED,
    LENGTH,
    MANIFEST,
    SEND,
    VOID,
    WAIT,
    WHAT,
    Frame,
    Part,
    Wire,
)
from serried.agent.stage_in.write_pool import WritePool
from serried.fs import scan
from serried.protocol.events import JournalEvent

LEAST_BYTES, MOST_PIECES = 256 << 10, 4096
CALLS, CALL_SECONDS, PAUSE_SECONDS = 3, 20.0, 0.5
"""A node that is gone says so at once, or its kernel does: who takes its time is busy, and spares us the source."""


class FilePiece(NamedTuple):
    """Of a file, or all of it: `data` is None for a hole."""

    number: int
    offset: int
    length: int
    data: Optional[memoryview]


class PeerLostError(Exception):
    """The node before us will not send more, and why: go on from the source with what is missing."""


class ItemRefusedError(PeerLostError):
    """It will not send this item, and may well send others."""


class Predecessor:
    """The node before us, asked for one item after the other. Raises BrokenError once it is of no more use."""

    def __init__(self, address: Tuple[str, int], key: bytes, me: int, silence: float = wire.SILENCE_SECONDS) -> None:
        self._host = address[0]
        with self._translating_errors():
            self._wire = Wire(_connect(address, key, me), silence)

    def close(self) -> None:
        self._wire.close()

    def item_key(self, item: int) -> str:
        """The key of what `item` is by now. Ask for no more of it if that is here."""
        with self._translating_errors():
            while True:
                self._wire.send_message(ASK, item=item)
                with contextlib.suppress(RestartedError):
                    return str(self._expect(WHAT).words["key"])

    def manifest(self, item: int, key: str, availability: ItemAvailability) -> bytes:
        """Its manifest, passed on as it comes. Then come its files: `bring` them.

        Raises VoidError where the source was changed: `renew` the holding and ask again what the item is.
        """
        with self._translating_errors():
            self._wire.send_message(SEND, item=item, key=key)
            length = int(self._expect(LENGTH).words["manifest"])
            availability.expect(length)
            received = bytearray()
            while len(received) < length:
                piece = self._wire.data(self._expect(MANIFEST))
                availability.add_manifest(piece)
                received += piece
            return bytes(received)

    def receive_into(self, writer: TreeWriter) -> None:
        """The files into `target`, which is complete then. Raises VoidError, and OSError where it cannot be written."""
        sizes = [entry.size for entry in writer.extents.manifest.entries]
        write = partial(_write, writer)
        with WritePool(write) as pool:
            for pieces in self._pieces(sizes):
                (pool.submit if len(pieces) > 1 else write)(pieces)
        if not writer.extents.is_complete:
            raise PeerLostError("it has not sent all")

    def _pieces(self, sizes: Sequence[int]) -> Iterator[List[FilePiece]]:
        """Many small files at a time, or one piece of a large one."""
        with self._translating_errors():
            while True:
                frame = self._expect(DATA, END)
                if frame.kind == END:
                    return
                parts = wire.unpack(frame.body)
                if sum(part.length for part in parts if part.is_data) != frame.length:
                    raise ProtocolError("it sends other than it says")
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
        except BlockingIOError:  # the limit of a socket, see `Wire`
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
            if frame.kind == VOID:
                raise RestartedError("it is begun again")
            if frame.kind == FAILED:
                raise ItemRefusedError(str(frame.words["because"]))
            if frame.kind != WAIT:
                raise ProtocolError("it says what was not asked")


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
    except ValueError as error:  # proven or not, it cannot make us write where nothing belongs
        raise PeerLostError(str(error)) from None


def _least(size: int) -> int:
    """How much of a file of `size` bytes is written, and passed on, at once: little, so that a thousand nodes are close
    behind each other, but not in so many pieces that the list of them is long.
    """
    return max(LEAST_BYTES, size // MOST_PIECES)


class PredecessorState:
    """The node before us as long as it is of use: all the time, for all but one item, or no more."""

    def __init__(self, predecessor: Optional[Predecessor], log_event: Callable[..., None]) -> None:
        self.peer = predecessor
        """From where the item at hand comes; None for the source."""
        self._predecessor = predecessor
        self._log_event = log_event

    def next_item(self) -> None:
        """Another item."""
        self.peer = self._predecessor

    def drop(self, error: PeerLostError) -> None:
        self._log_event(JournalEvent.STAGING_ALONE, because=str(error))
        self.peer = None
        if not isinstance(error, ItemRefusedError):
            self.close()

    def close(self) -> None:
        if self._predecessor:
            self._predecessor.close()
        self._predecessor = None


def _connect(address: Tuple[str, int], key: bytes, me: int) -> Channel:
    for left in reversed(range(CALLS)):
        try:
            return wire.call(address, key, {"stage": me}, CALL_SECONDS)
        except OSError:
            if not left:
                raise
            time.sleep(PAUSE_SECONDS)
    raise AssertionError
