"""Passes items from node to node: the nodes form a chain, and the first reads the source.

Each node requests the items from the node before it, and serves them from its own disk as far as they have arrived. For
each item it gets the key and, unless its cache has an item of that key, the manifest and then the files in the order of
their arrival. So the nodes are a few parts apart, and the source is read once.

They exchange frames: a kind, a signed body, and data that follow unsigned. The signature covers the sender, the frame's
number on this connection, and the length of the data. So no statement about files can be forged, repeated or left out.
The data themselves are sent by `sendfile`, as reliably as TCP and the file systems carry them; with `data.verify` the
manifest has hashes as well.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import queue
import select
import socket
import struct
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

from serried.agent.comms.channel import ProtocolError, SignedChannel, greet
from serried.agent.comms.rendezvous import MOST_UNPROVEN, Acceptor
from serried.agent.loop import Loop
from serried.agent.stage_in.items import (
    Availability,
    Bytes,
    Extent,
    ExtentLog,
    RestartedError,
    StagedItem,
    TreeWriter,
    UnavailableError,
    split_holes,
)
from serried.base.channel import Message
from serried.base.manifest import error_text

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
TRUNCATED = "a staged file was truncated"

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
        self._loop = Loop()
        refused = 0

        def serve_node(channel: SignedChannel, greeting: Message, _: str) -> None:
            if "stage" in greeting:
                threading.Thread(target=serve, args=(Wire(channel), items), daemon=True).start()
            else:
                channel.close()

        def log_refused(address: str, because: str) -> None:
            nonlocal refused
            refused += 1
            if refused <= MOST_LOGGED:
                on_refused(address, because)

        def run() -> None:
            self._loop.run()
            self._acceptor.close()

        self._acceptor = Acceptor(
            self._loop,
            self._listener,
            key,
            serve_node,
            most=MOST_UNPROVEN,
            seconds=GREETING_SECONDS,
            on_refused=log_refused,
        )
        threading.Thread(target=run, daemon=True).start()

    def close(self) -> None:
        self._loop.stop()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


def serve(wire: Wire, items: Sequence[StagedItem]) -> None:
    with contextlib.suppress(*ENDED):
        while True:
            wire.await_request()
            request = wire.receive()
            item = items[int(request.words["item"])].availability
            try:
                key = _await(wire, item.wait_for_key)
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
    length = _await(wire, partial(item.wait_for, lambda item: item.manifest_bytes))
    wire.send_message(FrameKind.LENGTH, manifest=length)
    offset = 0

    def next_piece(item: Availability) -> Optional[bytearray]:
        return item.manifest[offset : offset + PIECE_BYTES] or None

    while offset < length:
        piece = _await(wire, partial(item.wait_for, next_piece))
        wire.send(FrameKind.MANIFEST, data=piece)
        offset += len(piece)


def _send_files(wire: Wire, item: Availability) -> None:
    log = _await(wire, partial(item.wait_for, lambda item: item.extents))
    position = 0
    while True:
        was_complete = log.is_complete
        extents = log.since(position, KEEPALIVE_SECONDS)[:AT_ONCE]
        if item.problem or log.problem:
            raise item.problem or UnavailableError(log.problem)
        try:
            _send_extents(wire, log, joined(extents))
        except FileNotFoundError as error:
            raise item.problem or error from None  # after a restart its files are being deleted
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
            with _opened(log, extent.number) as file:
                pieces.append(os.pread(file, extent.length, extent.offset))
            if len(pieces[-1]) < extent.length:
                raise OSError(errno.EIO, TRUNCATED)
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


def _await(wire: Wire, wait: Callable[[float], T]) -> T:
    """Call `wait(seconds)` until it returns. Meanwhile the other end receives keepalives."""
    while True:
        try:
            return wait(KEEPALIVE_SECONDS)
        except TimeoutError:
            wire.send(FrameKind.WAIT)


LONGEST_BODY = 4 << 20
LONGEST_DATA = 64 << 20
"""A peer cannot make this process hold more than this at once."""
SILENCE_SECONDS = 60.0
"""A peer that sends nothing for so long is lost."""
MOST_PARTS = 65536
"""In one frame."""

ENDED = (OSError, ProtocolError, ValueError, LookupError)
"""A connection ends with one of these, whatever the other end does."""


class FrameKind:
    """With the fields of their messages."""

    # The receiving node sends:
    ASK = b"a"  # item: what is its key?
    SEND = b"s"  # item, key: send its manifest and its files

    # The serving node sends:
    WHAT = b"w"  # key
    LENGTH = b"l"  # manifest: its length
    MANIFEST = b"m"  # a piece follows
    DATA = b"d"  # a table of parts; their contents follow
    END = b"e"  # extents: how many extents were sent, which is all of them
    WAIT = b"."  # nothing to send yet
    VOID = b"v"  # the item is staged again from its beginning
    FAILED = b"f"  # because: this node will not have the item


_HEADER = struct.Struct("<cIQ32s")
_PART = struct.Struct("<QQQ?")
_TIME = struct.Struct("ll")


class Part(NamedTuple):
    """A part of a file, or a whole small file."""

    number: int
    """The file's place in the manifest's entries."""
    offset: int
    length: int
    is_data: bool
    """False for a hole."""


FilePiece = Tuple[Part, memoryview]
"""Without data for a hole."""


def pack(parts: Sequence[Part]) -> bytes:
    return b"".join([_PART.pack(*part) for part in parts])


def unpack(table: bytes) -> List[Part]:
    """Raises ValueError."""
    try:
        return [Part(*fields) for fields in _PART.iter_unpack(table)]
    except struct.error:
        raise ValueError("not a table of parts") from None


class Frame(NamedTuple):
    kind: bytes
    body: bytes
    length: int
    """Of the data that follow the body."""

    @property
    def words(self) -> Dict[str, Any]:
        """The body as JSON. Raises ValueError, ProtocolError."""
        words = json.loads(self.body)
        if not isinstance(words, dict):
            raise ProtocolError("a frame without a JSON object")
        return words


class Wire:
    """One end of an authenticated connection. Calls block, and raise OSError or ProtocolError once it has ended."""

    def __init__(self, channel: SignedChannel, silence: float = SILENCE_SECONDS) -> None:
        self._socket = channel.connection
        self._socket.setblocking(True)
        limit = _TIME.pack(int(silence), int(silence % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._key = channel.key
        self._me, self._other = channel.me.encode(), channel.other.encode()
        self._sent = self._received = 0

    def send(self, kind: bytes, body: bytes = b"", data: Bytes = b"") -> None:
        self._socket.sendall(self._frame(kind, body, len(data)))
        if data:
            self._socket.sendall(data)

    def send_message(self, kind: bytes, **words: Any) -> None:
        self.send(kind, json.dumps(words).encode())

    def send_file(self, kind: bytes, body: bytes, file: int, offset: int, length: int) -> None:
        self._socket.sendall(self._frame(kind, body, length), socket.MSG_MORE)
        while length:
            sent = os.sendfile(self._socket.fileno(), file, offset, length)
            if not sent:
                raise OSError(errno.EIO, TRUNCATED)
            offset += sent
            length -= sent

    def receive(self) -> Frame:
        """The next frame; `read` or `pieces` returns the data that follow."""
        header = self.read(_HEADER.size)
        kind, body_length, length, signature = _HEADER.unpack(header)
        if body_length > LONGEST_BODY or length > LONGEST_DATA:
            raise ProtocolError("the frame is too long")
        body = bytes(self.read(body_length))
        self._received += 1
        if not hmac.compare_digest(signature, self._sign(self._other, self._received, kind, body, length)):
            raise ProtocolError("the frame has a wrong signature")
        return Frame(kind, body, length)

    def pieces(self, frame: Frame, least: int) -> Iterator[Tuple[int, memoryview]]:
        """The same data as they arrive: each piece with its offset, and at least `least` bytes except for the last."""
        view = memoryview(bytearray(frame.length))
        received = given = 0
        while received < frame.length:
            count = self._socket.recv_into(view[received:])
            if not count:
                raise ProtocolError("the connection ended")
            received += count
            if received - given >= least or received == frame.length:
                yield given, view[given:received]
                given = received

    def await_request(self) -> None:
        """Wait without a time limit: the other end may be at work on what it received."""
        while not select.select([self._socket], [], [], 3600)[0]:
            pass

    def close(self) -> None:
        self._socket.close()

    def read(self, length: int) -> bytearray:
        buffer = bytearray(length)
        view, got = memoryview(buffer), 0
        while got < length:
            count = self._socket.recv_into(view[got:], 0, socket.MSG_WAITALL)
            if not count:
                raise ProtocolError("the connection ended")
            got += count
        return buffer

    def _frame(self, kind: bytes, body: bytes, length: int) -> bytes:
        self._sent += 1
        return _HEADER.pack(kind, len(body), length, self._sign(self._me, self._sent, kind, body, length)) + body

    def _sign(self, who: bytes, number: int, kind: bytes, body: bytes, length: int) -> bytes:
        head = b"%b %d %b %d " % (who, number, kind, length)
        return hmac.digest(self._key, head + body, "sha256")


LEAST_BYTES, MOST_PIECES = 256 << 10, 4096
"""Of a large file: the bytes that are written, and passed on, at once; and the most such pieces."""
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

    def __init__(self, address: Tuple[str, int], key: bytes, me: int, silence: float = SILENCE_SECONDS) -> None:
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
            availability.add(manifest_bytes=length)
            received = bytearray()
            while len(received) < length:
                piece = self._wire.read(self._expect(FrameKind.MANIFEST).length)
                availability.add(manifest=piece)
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
                parts = unpack(frame.body)
                if sum(part.length for part in parts if part.is_data) != frame.length:
                    raise ProtocolError("a frame of another length than its table of parts")
                if len(parts) == 1 and frame.length:
                    # Few bytes let many nodes follow each other closely, but the list of pieces must not get long.
                    least = max(LEAST_BYTES, sizes[parts[0].number] // MOST_PIECES)
                    for at, data in self._wire.pieces(frame, least):
                        yield [(parts[0]._replace(offset=parts[0].offset + at, length=len(data)), data)]
                    continue
                pieces, left = [], memoryview(self._wire.read(frame.length))
                for part in parts:
                    length = part.length if part.is_data else 0
                    pieces.append((part, left[:length]))
                    left = left[length:]
                yield pieces

    @contextlib.contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:  # the time limit of a socket, see `Wire`
            raise PeerLostError(f"{self._host} fell silent") from None
        except OSError as error:
            raise PeerLostError(f"{self._host}: {error_text(error)}") from error
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


def _write(writer: TreeWriter, pieces: Sequence[FilePiece]) -> None:
    try:
        for part, data in pieces:
            if part.is_data:
                writer.write(part.number, part.offset, data)
            else:
                writer.skip(part.number, part.offset, part.length)
    except ValueError as error:  # a peer, proven or not, cannot make this node write beyond the manifest
        raise PeerLostError(str(error)) from None


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
            self._threads.append(threading.Thread(target=self._attempt, daemon=True))
            self._threads[-1].start()
        self._batches.put(batch)

    def _attempt(self) -> None:
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
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            thread.join()


def _connect(address: Tuple[str, int], key: bytes, me: int) -> SignedChannel:
    """Connect and authenticate both ends. Raises OSError or ProtocolError."""
    for left in reversed(range(CALLS)):
        try:
            connection = socket.create_connection(address, CALL_SECONDS)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return greet(connection, key, {"stage": me}, CALL_SECONDS)
            except BaseException:
                connection.close()
                raise
        except OSError:
            if not left:
                raise
            time.sleep(PAUSE_SECONDS)
    raise AssertionError
