"""Frames between two stage-in processes: a kind, a signed body, and data that follow unsigned.

The signature covers the sender, the frame's number on this connection, and the length of the data. So no statement
about files can be forged, repeated or left out. The data themselves are sent by `sendfile`, as reliably as TCP and the
file systems carry them; with `data.verify` the manifest has hashes as well.
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import select
import socket
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from serried.agent.comms.channel import Channel, ProtocolError, greet
from serried.agent.stage_in.item import Bytes
from serried.protocol.json_lines import Message

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
    # The receiving node sends:
    ASK = b"a"
    """item: what is its key?"""
    SEND = b"s"
    """item, key: send its manifest and its files."""

    # The serving node sends:
    WHAT = b"w"
    """key."""
    LENGTH = b"l"
    """manifest: its length."""
    MANIFEST = b"m"
    """A piece follows."""
    DATA = b"d"
    """A table of parts; their contents follow."""
    END = b"e"
    """extents: how many extents were sent, which is all of them."""
    WAIT = b"."
    """Nothing to send yet."""
    VOID = b"v"
    """The item is staged again from its beginning."""
    FAILED = b"f"
    """because: this node will not have the item."""


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

    def __init__(self, channel: Channel, silence: float = SILENCE_SECONDS) -> None:
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
        """Send a part of an open file, inside the kernel."""
        self._socket.sendall(self._frame(kind, body, length), socket.MSG_MORE)
        while length:
            sent = os.sendfile(self._socket.fileno(), file, offset, length)
            if not sent:
                raise OSError(errno.EIO, "a staged file was truncated")
            offset += sent
            length -= sent

    def receive(self) -> Frame:
        """The next frame; `data` or `pieces` returns the data that follow."""
        header = self._exactly(_HEADER.size)
        kind, body_length, length, signature = _HEADER.unpack(header)
        if body_length > LONGEST_BODY or length > LONGEST_DATA:
            raise ProtocolError("the frame is too long")
        body = bytes(self._exactly(body_length))
        self._received += 1
        if not hmac.compare_digest(signature, self._sign(self._other, self._received, kind, body, length)):
            raise ProtocolError("the frame has a wrong signature")
        return Frame(kind, body, length)

    def data(self, frame: Frame) -> bytearray:
        """The data of the frame that `receive` has just returned."""
        return self._exactly(frame.length)

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

    def _exactly(self, length: int) -> bytearray:
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


def call(address: Tuple[str, int], key: bytes, greeting: Message, seconds: float) -> Channel:
    """Connect and authenticate both ends. Raises OSError or ProtocolError."""
    connection = socket.create_connection(address, seconds)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return greet(connection, key, greeting, seconds)
    except BaseException:
        connection.close()
        raise
