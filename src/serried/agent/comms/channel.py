"""Messages between the head and the node agents: JSON lines over TCP, both ends proven, every line signed.

Each end proves that it knows the attempt's key by signing the other end's nonce. Both nonces give the key of this
connection, and each line starts with a signature over its sender and number. The content is not secret, but no other
user of the cluster's network may stop a job or report its end.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Optional, Tuple, Union

from serried.base.channel import Channel, Message

try:  # `hmac` and `hashlib` would load OpenSSL, which takes as long as dozens of modules
    from _blake2 import blake2b
    from _operator import _compare_digest as compare_digest
except ImportError:
    from hashlib import blake2b
    from hmac import compare_digest  # type: ignore[no-redef]

LONGEST_GREETING = 3072
"""The most bytes that either end buffers for a connection that is not authenticated."""
NONCE_BYTES = 16


class ProtocolError(Exception):
    """The other end failed to authenticate."""


def sign(key: bytes, *parts: Union[str, bytes]) -> str:
    """BLAKE2 with a key, as RFC 7693 has it."""
    message = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return blake2b(message, key=key, digest_size=32).hexdigest()


def is_signed(signature: bytes, key: bytes, *parts: Union[str, bytes]) -> bool:
    """Whether `signature`, bytes of any origin, is that of `parts`."""
    return compare_digest(signature, sign(key, *parts).encode())


class SignedChannel(Channel):
    """One end of an open connection that never blocks. Each line is signed; a wrong signature ends the connection."""

    connection: socket.socket

    def __init__(self, connection: socket.socket, key: bytes, me: str, other: str) -> None:
        connection.setblocking(False)
        super().__init__(connection)
        self.key = key
        """The key of this connection, not the attempt's."""
        self.me, self.other = me, other
        self._sent, self._received = 0, 0

    def _seal(self, text: str) -> str:
        self._sent += 1
        return f"{sign(self.key, self.me, str(self._sent), text)} {text}"

    def _open(self, line: bytes) -> bytes:
        signature, _, text = line.partition(b" ")
        self._received += 1
        if not is_signed(signature, self.key, self.other, str(self._received), text):
            raise ValueError("a line with a wrong signature")
        return text


class UnprovenConnection:
    """A connection that has been accepted and is not trusted yet. Raises OSError if it is already closed."""

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._key = key
        self._nonce = os.urandom(NONCE_BYTES).hex()
        self._partial = b""
        connection.send(f"{self._nonce}\n".encode())

    def receive(self) -> Optional[Tuple[SignedChannel, Message]]:
        """The channel and the node's greeting once it is authenticated; None while the greeting is incomplete.

        Raises ProtocolError, or OSError when the connection breaks.
        """
        data = self.connection.recv(LONGEST_GREETING)
        self._partial += data
        if not data or len(self._partial) >= LONGEST_GREETING:
            raise ProtocolError("no greeting")
        if not self._partial.endswith(b"\n"):
            return None
        signature, _, rest = self._partial.rstrip(b"\n").partition(b" ")
        nonce, _, text = rest.partition(b" ")
        if not is_signed(signature, self._key, "node", self._nonce, nonce, text):
            raise ProtocolError("a greeting with a wrong signature")
        self.connection.send(f"{sign(self._key, 'head', nonce, self._nonce)}\n".encode())
        key = bytes.fromhex(sign(self._key, "session", self._nonce, nonce))
        return SignedChannel(self.connection, key, "head", "node"), json.loads(text)


def greet(connection: socket.socket, key: bytes, greeting: Message, timeout: float) -> SignedChannel:
    """The node's side of the handshake, on a connection with a timeout; `timeout` is for the answer to the greeting.

    Raises ProtocolError or OSError if the other end is not the head of this attempt.
    """
    until = time.monotonic() + (connection.gettimeout() or 0.0)
    theirs = _read_line(connection, until)
    if len(theirs) != 2 * NONCE_BYTES:
        raise ProtocolError("no greeting")
    nonce, text = os.urandom(NONCE_BYTES).hex(), json.dumps(greeting)
    connection.sendall(f"{sign(key, 'node', theirs, nonce, text)} {nonce} {text}\n".encode())
    connection.settimeout(timeout)
    until = time.monotonic() + timeout
    if not is_signed(_read_line(connection, until), key, "head", nonce, theirs):
        raise ProtocolError("the head could not prove itself")
    return SignedChannel(connection, bytes.fromhex(sign(key, "session", theirs, nonce)), "node", "head")


def _read_line(connection: socket.socket, until: float) -> bytes:
    """Read one line and not a byte more: the following bytes belong to the channel."""
    line = b""
    while not line.endswith(b"\n"):
        seen = connection.recv(LONGEST_GREETING, socket.MSG_PEEK)
        if not seen or len(line) > LONGEST_GREETING or time.monotonic() > until:
            raise ProtocolError("no greeting")
        line += connection.recv(seen.find(b"\n") + 1 or len(seen))
    return line.rstrip(b"\n")
