"""Frames: numbered channels over one pair of pipes. The laptop and the login node use the same code.

A frame is a header (channel, kind, length) and a payload. The laptop numbers the channels. A REQUEST opens a channel,
an EXIT closes it.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

from serried.base import NamedTuple

HEADER = struct.Struct(">IBI")
LONGEST = 1 << 20
"""The most bytes of a payload. A longer stream is several frames."""
CHUNK = 1 << 16
REQUEST, INPUT, OUTPUT, ERRORS, SIGNAL, EXIT = range(1, 7)
"""Kinds. REQUEST and EXIT hold a JSON object, SIGNAL a number in decimal digits. An empty INPUT is the end of file."""


class Malformed(ValueError):  # noqa: N818 - reads as what happened
    """The other end sent something that is not a frame of this protocol."""


class RemoteFrame(NamedTuple):
    channel: int
    kind: int
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes on the connection."""
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
    """One frame, or several for a long stream."""
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
        if not REQUEST <= kind <= EXIT or length > LONGEST:
            raise Malformed(f"a frame of kind {kind} with {length} bytes")
        end = at + HEADER.size + length
        if len(data) < end:
            break
        frames.append(RemoteFrame(channel, kind, bytes(data[at + HEADER.size : end])))
        at = end
    del data[:at]
    return frames


class FrameWire:
    """One end of a connection. Neither reading nor writing waits: what the pipe does not take yet is in `backlog`."""

    def __init__(self, reads: int, writes: int, received: bytes = b"") -> None:
        """`received`: bytes that have been read from `reads` already."""
        self.reads, self.writes = reads, writes
        self.backlog = bytearray()
        self.has_ended = False
        """The other end has gone, or has sent something that is not a frame."""
        self._received = bytearray(received)
        os.set_blocking(reads, False)
        os.set_blocking(writes, False)

    def send(self, data: bytes) -> None:
        self.backlog += data
        self.flush()

    def flush(self) -> None:
        try:
            while self.backlog and not self.has_ended:
                del self.backlog[: os.write(self.writes, self.backlog[:LONGEST])]
        except BlockingIOError:
            return
        except OSError:
            self.has_ended = True

    def receive(self) -> list[RemoteFrame]:
        """The frames that have arrived, complete ones before the end included."""
        data = read(self.reads)
        self.has_ended |= data == b""
        self._received += data or b""
        try:
            return decode(self._received)
        except Malformed:
            self.has_ended = True
            return []


def read(descriptor: int) -> bytes | None:
    """What has arrived; empty at the end, None if nothing has arrived."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""
