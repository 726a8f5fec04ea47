"""Where the ranks that a launcher starts and the agent of their node find each other: a Unix socket, JSON lines.

On Linux it has no file but a name, which follows from the attempt's key and the node's name, so that the launcher can
give the same words to all ranks, and no other user can have taken it before us. Both ends look who is there: only
processes of the same user talk. Elsewhere there is one node, and a socket in its private folder.
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
    """One end of an open connection. What is sent is sent whole: the other end always reads."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = json_lines.LineBuffer()

    def send(self, message: Message) -> None:
        """A broken connection shows at the next `receive`."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json_lines.encode(message))

    def receive(self) -> Optional[List[Message]]:
        """What has arrived; None when the connection is over."""
        try:
            data = self.connection.recv(1 << 20)
        except OSError:
            return None
        if not data:
            return None
        return self._buffer.messages(data)


def socket_address(key: bytes, folder: Path) -> str:
    """What ranks are told of where to call: `@TOKEN`, or a path."""
    return f"{NAMED}{sign(key, 'ranks')[:32]}" if sys.platform == "linux" else str(folder / "ranks")


def listen(address: str) -> List[socket.socket]:
    """By each of this node's names. Raises OSError where not even the first is free."""
    listeners: List[socket.socket] = []
    for name in _socket_names(address):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(name)
        except OSError:
            listener.close()
            if not listeners:
                raise
            break  # several nodes of a lab share one host name
        listener.listen(256)
        listeners.append(listener)
    return listeners


def connect(address: str) -> LocalSocket:
    """Call the agent of this node. Raises OSError."""
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
    raise refusal or OSError(f"another user answers at {address}")


def is_same_user(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    if sys.platform != "linux":
        return True  # its folder is private
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1]) == os.getuid()


def _socket_names(address: str) -> List[str]:
    """A lab's nodes have names of their own, which their Slurm daemons set; over ssh the host's is all there is."""
    if not address.startswith(NAMED):
        return [address]
    nodes = [os.environ.get("SLURMD_NODENAME", ""), socket.gethostname()]
    return [f"\0serried-{address[1:]}-{node}" for node in dict.fromkeys(filter(None, nodes))]
