"""The connection between the agent of a node and the programs that a launcher starts there: a Unix socket, JSON lines.

On Linux the socket is abstract, without a file. Its name follows from the attempt's key and the node's name. So the
launcher can pass one address to all ranks, and no other user can take the name first. Both ends check that the other
process has the same user. On other systems there is only one node, with a socket in its private folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from pathlib import Path
from typing import List, Optional

from serried.agent.comms.channel import sign
from serried.protocol import json_lines
from serried.protocol.json_lines import Message

NAMED = "@"
_CREDENTIALS = struct.Struct("iII")


class LocalSocket:
    """One end of an open connection. `send` blocks until all is sent: the other end always reads."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = json_lines.LineBuffer()

    def send(self, message: Message) -> None:
        """A broken connection shows at the next `receive`."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json_lines.encode(message))

    def receive(self) -> Optional[List[Message]]:
        """The messages that have arrived; None at the end of the connection."""
        try:
            data = self.connection.recv(1 << 20)
        except OSError:
            return None
        if not data:
            return None
        return self._buffer.messages(data)


def socket_address(key: bytes, folder: Path) -> str:
    """Where ranks connect: `@TOKEN`, or a path."""
    return f"{NAMED}{sign(key, 'ranks')[:32]}" if sys.platform == "linux" else str(folder / "ranks")


def listen(address: str) -> List[socket.socket]:
    """A socket for each of this node's names. Raises OSError if not even the first name is free."""
    listeners: List[socket.socket] = []
    for name in _socket_names(address):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(name)
        except OSError:
            listener.close()
            if not listeners:
                raise
            break  # several nodes of a lab have the same host name
        listener.listen(256)
        listeners.append(listener)
    return listeners


def connect(address: str) -> LocalSocket:
    """Connect to the agent of this node. Raises OSError."""
    refusal: Optional[OSError] = None
    for name in _socket_names(address):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(name)
        except OSError as error:
            connection.close()
            refusal = refusal or error
            continue
        if is_same_user(connection):
            return LocalSocket(connection)
        connection.close()
    raise refusal or OSError(f"a process of another user listens at {address}")


def is_same_user(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    if sys.platform != "linux":
        return True  # its folder is private
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1]) == os.getuid()


def _socket_names(address: str) -> List[str]:
    """A lab's nodes share a host name, so each has a name from its Slurm daemon; over ssh there is only the host's."""
    if not address.startswith(NAMED):
        return [address]
    nodes = [os.environ.get("SLURMD_NODENAME", ""), socket.gethostname()]
    return [f"\0serried-{address[1:]}-{node}" for node in dict.fromkeys(filter(None, nodes))]
