"""Frames between two stage processes: a kind, signed words, and data that follow them unsigned.

Signed are who sends it, its number on this connection, and how many bytes follow: what is said of files cannot be
forged, repeated or left out. The bytes themselves go by `sendfile`, as TCP and the file systems carry them; who does
not trust those has hashes in the manifest (`data.verify`).
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
from serried.agent.stage_in.availability import Bytes
from serried.protocol.json_lines import Message

LONGEST_BODY = 4 << 20
LONGEST_DATA = 64 << 20
"""Nobody makes us keep more than this at once."""
SILENCE_SECONDS = 60.0
"""Who says nothing for so long is gone."""
MOST_PARTS = 65536
"""Of files in one frame."""

ASK, SEND = b"a", b"s"
"""What one who wants an item says: what is it? Send it."""
WHAT, LENGTH, MANIFEST, DATA, END, WAIT = b"w", b"l", b"m", b"d", b"e", b"."
VOID, FAILED = b"v", b"f"
"""The item is begun again; it will not come from here."""

ENDED = (OSError, ProtocolError, ValueError, LookupError)
"""What a connection ends with, whatever the other end does."""

_HEADER = struct.Struct("<cIQ32s")
_PART = struct.Struct("<QQQ?")
_TIME = struct.Struct("ll")


class Part(NamedTuple):
    """Of a file, all of a small one: its number in the manifest, where, how long, and whether it is no hole."""

    number: int
    offset: int
    length: int
    is_data: bool


def pack(parts: Sequence[Part]) -> bytes:
    return b"".join([_PART.pack(*part) for part in parts])


def unpack(table: bytes) -> List[Part]:
    """Raises ValueError on what `pack` has not made."""
    try:
        return [Part(*fields) for fields in _PART.iter_unpack(table)]
    except struct.error:
        raise ValueError("no table of parts") from None


class Frame(NamedTuple):
    kind: bytes
    body: bytes
    length: int
    """Of the data that follow."""

    @property
    def words(self) -> Dict[str, Any]:
        """The body, where it is JSON."""
        said = json.loads(self.body)
        if not isinstance(said, dict):
            raise ProtocolError("no object")
        return said


class Wire:
    """One end of a proven connection. Every call waits; OSError or ProtocolError when it is over."""

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
        """A part of an open file, which never passes through this process."""
        self._socket.sendall(self._frame(kind, body, length), socket.MSG_MORE)
        while length:
            sent = os.sendfile(self._socket.fileno(), file, offset, length)
            if not sent:
                raise OSError(errno.EIO, "a file here is shorter than it was")
            offset += sent
            length -= sent

    def receive(self) -> Frame:
        """The next frame; `data` brings what follows it."""
        header = self._exactly(_HEADER.size)
        kind, body_length, length, signature = _HEADER.unpack(header)
        if body_length > LONGEST_BODY or length > LONGEST_DATA:
            raise ProtocolError("a frame that is too long")
        body = bytes(self._exactly(body_length))
        self._received += 1
        if not hmac.compare_digest(signature, self._sign(self._other, self._received, kind, body, length)):
            raise ProtocolError("a frame with a wrong signature")
        return Frame(kind, body, length)

    def data(self, frame: Frame) -> bytearray:
        """What follows the frame that `receive` has just returned."""
        return self._exactly(frame.length)

    def pieces(self, frame: Frame, least: int) -> Iterator[Tuple[int, memoryview]]:
        """The same as it comes: where in it, and at least so many bytes, but for the last."""
        view = memoryview(bytearray(frame.length))
        got = given = 0
        while got < frame.length:
            count = self._socket.recv_into(view[got:])
            if not count:
                raise ProtocolError("the connection ended")
            got += count
            if got - given >= least or got == frame.length:
                yield given, view[given:got]
                given = got

    def await_request(self) -> None:
        """However long it takes the other end to say more: it may be at work on what it has."""
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
        said = b"%b %d %b %d " % (who, number, kind, length)
        return hmac.digest(self._key, said + body, "sha256")


def call(address: Tuple[str, int], key: bytes, greeting: Message, seconds: float) -> Channel:
    """Connect, and prove both ends. Raises OSError or ProtocolError."""
    connection = socket.create_connection(address, seconds)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return greet(connection, key, greeting, seconds)
    except BaseException:
        connection.close()
        raise
