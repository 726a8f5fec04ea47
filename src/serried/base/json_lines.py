"""JSON messages between processes, one per line."""

from __future__ import annotations

import json
from typing import Any, Dict, List

Message = Dict[str, Any]


def encode(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


class LineBuffer:
    """Cuts what a socket or a pipe delivers into lines."""

    def __init__(self) -> None:
        self.rest = b""
        """The beginning of a line whose end has not arrived."""

    def lines(self, received: bytes) -> List[bytes]:
        """The lines that end in `received`, without their newlines."""
        *lines, self.rest = (self.rest + received).split(b"\n")
        return lines

    def messages(self, received: bytes) -> List[Message]:
        return [json.loads(line) for line in self.lines(received)]
