"""Frames: numbered channels over one pair of pipes. The laptop and the login node use the same code.

A frame is a header (channel, kind, length) and a payload. The laptop numbers the channels. A REQUEST opens a channel,
an EXIT closes it.

A tunnel uses the same frames between its two programs: one listens, the other runs beside the server.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import socket
import struct
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from serried.base import NamedTuple

HEADER = struct.Struct(">IBI")
LONGEST = 1 << 20
"""The most bytes of a payload. A longer stream takes several frames."""
CHUNK = 1 << 18
_SET_PIPE_SIZE = 1031
"""F_SETPIPE_SZ. Python has the name since 3.10."""
REQUEST, INPUT, OUTPUT, ERRORS, SIGNAL, EXIT, WINDOW = range(1, 8)
"""Kinds. REQUEST and EXIT hold a JSON object, SIGNAL and WINDOW a number in decimal digits. An empty INPUT is the end
of file."""
WINDOW_BYTES = 1 << 20
"""The most bytes of a connection that one end of a tunnel sends before the other end has passed them on."""
MOST_BACKLOG = 4 << 20
Address = Tuple[int, Any]
"""The family and the address of a socket."""


class Malformed(ValueError):  # noqa: N818 - reads as what happened
    """The other end sent something that is not a frame of this protocol."""


class RemoteFrame(NamedTuple):
    channel: int
    kind: int
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return HEADER.size + len(self.payload)

    def json(self) -> dict[str, Any]:
        try:
            value = json.loads(self.payload)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise Malformed("the payload is not a JSON object")
        return value


def encode(channel: int, kind: int, payload: bytes = b"") -> bytes:
    parts = [payload[at : at + LONGEST] for at in range(0, len(payload), LONGEST)] or [b""]
    if len(parts) > 1 and kind in (REQUEST, EXIT):
        raise Malformed("the document is longer than a frame")
    return b"".join(HEADER.pack(channel, kind, len(part)) + part for part in parts)


def encode_json(channel: int, kind: int, value: dict[str, Any]) -> bytes:
    return encode(channel, kind, json.dumps(value).encode())


def decode(data: bytearray) -> list[RemoteFrame]:
    """The complete frames at the beginning of `data`, which keeps the rest. Raises Malformed."""
    frames, at = [], 0
    while len(data) - at >= HEADER.size:
        channel, kind, length = HEADER.unpack_from(data, at)
        if not REQUEST <= kind <= WINDOW or length > LONGEST:
            raise Malformed(f"a frame of kind {kind} with {length} bytes")
        end = at + HEADER.size + length
        if len(data) < end:
            break
        frames.append(RemoteFrame(channel, kind, bytes(data[at + HEADER.size : end])))
        at = end
    del data[:at]
    return frames


class FrameWire:
    """One end of a connection. Reads and writes never block: bytes that the pipe does not take are in `backlog`."""

    def __init__(self, reads: int, writes: int, received: bytes = b"") -> None:
        """`received`: bytes that have been read from `reads` already."""
        self.reads, self.writes = reads, writes
        self.backlog = bytearray()
        self.has_ended = False
        """The other end has closed the connection, or has sent something that is not a frame."""
        self._received = bytearray(received)
        for descriptor in (reads, writes):
            os.set_blocking(descriptor, False)
            widen(descriptor)

    def send(self, data: bytes) -> None:
        self.backlog += data
        self.flush()

    def flush(self) -> None:
        try:
            while self.backlog and not self.has_ended:
                with memoryview(self.backlog) as whole, whole[:LONGEST] as part:  # a copy takes longer than the write
                    count = os.write(self.writes, part)
                del self.backlog[:count]
        except BlockingIOError:
            return
        except OSError:
            self.has_ended = True

    def receive(self) -> list[RemoteFrame]:
        """The complete frames that have arrived, also before the end of the connection."""
        data = read(self.reads)
        self.has_ended |= data == b""
        self._received += data or b""
        try:
            return decode(self._received)
        except Malformed:
            self.has_ended = True
            return []


def widen(pipe: int) -> None:
    """Enlarge a pipe's buffer: a long stream spends most of its time in switches between its processes."""
    with contextlib.suppress(OSError):  # not a pipe, or the user's quota is used up
        fcntl.fcntl(pipe, _SET_PIPE_SIZE, LONGEST)


def read(descriptor: int) -> bytes | None:
    """The bytes that have arrived; empty at the end, None if there are none yet."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class TunnelConnection:
    """A socket of this machine, and the state of its channel."""

    def __init__(self, connection: socket.socket, addresses: Iterator[Address]) -> None:
        """`addresses`: further ones to try, in this order, if the socket cannot connect."""
        connection.setblocking(False)
        self.socket, self.addresses = connection, addresses
        self.is_connected = True
        self.backlog = bytearray()
        """Bytes that the socket has not taken yet: at most WINDOW_BYTES."""
        self.granted = WINDOW_BYTES
        self.taken = 0
        self.has_sent_end = self.has_received_end = self.is_shut = False

    @property
    def may_read(self) -> bool:
        return self.is_connected and self.granted > 0 and not self.has_sent_end

    @property
    def may_write(self) -> bool:
        return bool(self.backlog) or not self.is_connected or (self.has_received_end and not self.is_shut)


class TunnelEnd:
    """One end of a tunnel: connections of this machine, each carried by a channel of a wire.

    A REQUEST opens a channel. INPUT is data, in either direction. WINDOW grants further bytes, so that a reader that
    stops does not delay other connections. EXIT closes the channel, with the name of a failure's errno.
    """

    def __init__(self, wire: FrameWire, addresses: Callable[[], Iterator[Address]] = lambda: iter(())) -> None:
        """`addresses`: where a server may listen, at the end that connects."""
        self.wire, self._addresses = wire, addresses
        self.connections: Dict[int, TunnelConnection] = {}
        self._has_sent = False

    def send(self, channel: int, kind: int, payload: bytes) -> None:
        self.wire.send(encode(channel, kind, payload))
        self._has_sent = True

    def add(self, channel: int, connection: socket.socket) -> None:
        self.connections[channel] = TunnelConnection(connection, iter(()))

    def step(self, others: Sequence[int], seconds: Optional[float]) -> Tuple[List[int], List[RemoteFrame]]:
        """Wait until there is something to do, and do it. Returns the descriptors of `others` that can be read.

        Also returns the frames that close a channel, and those of channel 0, which carries no connection.
        """
        wire, is_full = self.wire, len(self.wire.backlog) > MOST_BACKLOG
        sockets = {each.socket.fileno(): (channel, each) for channel, each in self.connections.items()}
        reads = [] if is_full else [number for number, (_, each) in sockets.items() if each.may_read]
        writes = [number for number, (_, each) in sockets.items() if each.may_write]
        writes += [wire.writes] if wire.backlog else []
        readable, writable, _ = select.select([wire.reads, *others, *reads], writes, [], seconds)
        wire.flush()
        for number in (number for number in writable if number in sockets):
            self._write(*sockets[number])
        for number in (number for number in readable if number in sockets):
            channel, connection = sockets[number]
            if channel in self.connections:
                self._read(channel, connection)
        frames = [frame for frame in wire.receive() if self._handle(frame)] if wire.reads in readable else []
        if self._has_sent:  # some schedulers forward output line by line
            wire.send(encode(0, WINDOW, b"\n"))
            self._has_sent = False
        return [number for number in readable if number in others], frames

    def close(self) -> None:
        for channel in list(self.connections):
            self._close(channel, is_reset=True)

    def _handle(self, frame: RemoteFrame) -> bool:
        """Handle a frame. Returns whether the caller must see it too."""
        connection = self.connections.get(frame.channel)
        if frame.kind == REQUEST and connection is None:
            self._try_next(frame.channel, self._addresses(), errno.ECONNREFUSED)
        elif connection is not None and frame.kind == INPUT:
            connection.backlog += frame.payload
            if len(connection.backlog) > WINDOW_BYTES:
                raise Malformed("more than was granted")
            connection.has_received_end |= not frame.payload
            self._write(frame.channel, connection)
        elif connection is not None and frame.kind == WINDOW:
            connection.granted += int(frame.payload)
        elif connection is not None and frame.kind == EXIT:
            self._close(frame.channel, is_reset="errno" in frame.json())
        return frame.kind == EXIT or (not frame.channel and frame.kind != WINDOW)

    def _read(self, channel: int, connection: TunnelConnection) -> None:
        try:
            data = connection.socket.recv(min(CHUNK, connection.granted))
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(channel, error.errno)
            return
        connection.granted -= len(data)
        connection.has_sent_end = not data
        self.send(channel, INPUT, data)
        self._end_if_done(channel, connection)

    def _write(self, channel: int, connection: TunnelConnection) -> None:
        if not connection.is_connected:
            number = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                self._try_next(channel, connection.addresses, number, connection)
                return
            try:
                connection.socket.getpeername()
            except OSError:  # still connecting
                return
            connection.is_connected = True
        try:
            while connection.backlog:
                count = connection.socket.send(connection.backlog[:CHUNK])
                del connection.backlog[:count]
                connection.taken += count
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(channel, error.errno)
            return
        if connection.taken >= WINDOW_BYTES // 4:
            self.send(channel, WINDOW, b"%d" % connection.taken)
            connection.taken = 0
        if connection.has_received_end and not connection.backlog and not connection.is_shut:
            connection.is_shut = True
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_WR)
            self._end_if_done(channel, connection)

    def _try_next(
        self,
        channel: int,
        addresses: Iterator[Address],
        number: int,
        before: Optional[TunnelConnection] = None,
    ) -> None:
        """Connect to the next address, and keep the data that has arrived for the connection."""
        if before is not None:
            before.socket.close()
        for family, address in addresses:
            connection = socket.socket(family)
            carried = TunnelConnection(connection, addresses)
            number = connection.connect_ex(address)
            if number in (0, errno.EINPROGRESS):
                carried.is_connected = not number
                if before is not None:
                    carried.backlog, carried.has_received_end = before.backlog, before.has_received_end
                self.connections[channel] = carried
                return
            connection.close()
        self.connections.pop(channel, None)
        self._report(channel, number)

    def _report(self, channel: int, number: Optional[int]) -> None:
        """Send the name of the error: numbers differ between systems."""
        self.send(channel, EXIT, json.dumps({"errno": errno.errorcode.get(number or 0, "EIO")}).encode())

    def _fail(self, channel: int, number: Optional[int]) -> None:
        self._report(channel, number)
        self._close(channel, is_reset=True)

    def _end_if_done(self, channel: int, connection: TunnelConnection) -> None:
        if connection.has_sent_end and connection.is_shut:
            self._close(channel, is_reset=False)

    def _close(self, channel: int, *, is_reset: bool) -> None:
        connection = self.connections.pop(channel).socket
        if is_reset:  # the other side of the connection sees a reset, not an end of file
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
