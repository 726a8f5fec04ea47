"""JSON messages between processes, one per line, over a socket or a pair of pipes."""

from __future__ import annotations

import json
import os
import select
import socket
from io import FileIO
from typing import Any, Dict, List, Optional, Union

Message = Dict[str, Any]
CHUNK = 1 << 16


def encode(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Channel:
    """One end of an open connection. What a non-blocking connection does not accept yet waits in `backlog`.

    Any failure of the connection shows as its end at the next `receive`.
    """

    def __init__(self, connection: Union[socket.socket, FileIO], writes: Optional[FileIO] = None) -> None:
        """`writes`: the pipe to the other end, if `connection` is only the one from there."""
        self.connection = connection
        self._writes = writes or connection
        self.backlog = b""
        self.partial = b""
        """The beginning of a line whose end has not arrived."""

    def send(self, message: Message) -> None:
        self.send_text(json.dumps(message))

    def send_text(self, text: str) -> None:
        """Send a message in JSON: one text serves many channels."""
        self.backlog += self._seal(text).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        while self.backlog:
            try:
                self.backlog = self.backlog[os.write(self._writes.fileno(), self.backlog) :]
            except BlockingIOError:
                return
            except OSError:
                self.backlog = b""

    def receive(self) -> Optional[List[Message]]:
        """The messages that have arrived; None at the end of the connection, and after a line that is no message."""
        self.flush()
        try:
            data = os.read(self.connection.fileno(), CHUNK)
            *lines, self.partial = (self.partial + data).split(b"\n")
            return [json.loads(self._open(line)) for line in lines] if data else None
        except BlockingIOError:
            return []
        except (OSError, ValueError, RecursionError):
            return None

    def receive_within(self, seconds: Optional[float]) -> Optional[List[Message]]:
        """The messages that arrive first, none after `seconds`; None as `receive`."""
        poll = select.poll()  # `select` cannot wait for descriptors beyond 1023, and data loaders open more
        poll.register(self.connection, select.POLLIN)
        return self.receive() if poll.poll(None if seconds is None else max(0.0, 1000 * seconds)) else []

    def close(self) -> None:
        self.connection.close()
        self._writes.close()

    def _seal(self, text: str) -> str:
        return text

    def _open(self, line: bytes) -> bytes:
        """The JSON in a line. Raises ValueError if it is not of the other end."""
        return line
