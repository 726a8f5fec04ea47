"""Where the ranks that a launcher starts and the agent of their node find each other: a Unix socket, JSON lines.

On Linux it has no file but a name, which follows from the attempt's key and the node's name, so that the launcher can
give the same words to all ranks, and no other user can have taken it before us. Both ends look who is there: only
processes of the same user talk. Elsewhere there is one node, and a socket in its private folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from serried.agent.comms.channel import sign

Message = Dict[str, Any]
NAMED = "@"
_CREDENTIALS = struct.Struct("iII")


class Line:
    """One end of an open connection. What is sent is sent whole: the other end always reads."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._partial = b""

    def send(self, message: Message) -> None:
        """A broken connection shows at the next `receive`."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Optional[List[Message]]:
        """What has arrived; None when the connection is over."""
        try:
            data = self.connection.recv(1 << 20)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in lines]


def word(key: bytes, folder: Path) -> str:
    """What ranks are told of where to call: `@TOKEN`, or a path."""
    return f"{NAMED}{sign(key, 'ranks')[:32]}" if sys.platform == "linux" else str(folder / "ranks")


def listen(where: str) -> List[socket.socket]:
    """By each of this node's names. Raises OSError where not even the first is free."""
    listeners: List[socket.socket] = []
    for address in _addresses(where):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(address)
        except OSError:
            listener.close()
            if not listeners:
                raise
            break  # several nodes of a lab share one host name
        listener.listen(256)
        listeners.append(listener)
    return listeners


def join(where: str) -> Line:
    """Call the agent of this node. Raises OSError."""
    refusal: Optional[OSError] = None
    for address in _addresses(where):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            refusal = refusal or error
            continue
        if is_ours(connection):
            return Line(connection)
        connection.close()
    raise refusal or OSError(f"another user answers at {where}")


def is_ours(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    if sys.platform != "linux":
        return True  # its folder is private
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1]) == os.getuid()


def _addresses(where: str) -> List[str]:
    """A lab's nodes have names of their own, which their Slurm daemons set; over ssh the host's is all there is."""
    if not where.startswith(NAMED):
        return [where]
    nodes = [os.environ.get("SLURMD_NODENAME", ""), socket.gethostname()]
    return [f"\0serried-{where[1:]}-{node}" for node in dict.fromkeys(filter(None, nodes))]
