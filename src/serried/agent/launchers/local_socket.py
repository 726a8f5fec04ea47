"""The connection between the agent of a node and the programs that a launcher starts there: a Unix socket, JSON lines.

On Linux the socket is abstract, without a file. Its name follows from the attempt's key and the node's name. So the
launcher can pass one address to all ranks, and no other user can take the name first. Both ends check that the other
process has the same user. On other systems there is only one node, with a socket in its private folder.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from serried.agent.comms.channel import sign
from serried.base.channel import Channel, Message
from serried.schema.events import FromLaunched, ToLaunched

NAMED = "@"
_CREDENTIALS = struct.Struct("iII")
LONGEST_MESSAGE = 16 << 20
"""In bytes: a message contains an environment, which Linux limits to 6 MiB."""
_OPTIONAL = type(None)
FIELDS: Dict[str, Dict[str, Any]] = {
    FromLaunched.RUN_REMOTE: {"host": str, "command": str},
    FromLaunched.RANK_WAITS: {"environ": dict},
    FromLaunched.PROGRAM_WAITS: {"launch": str, "environ": dict, "is_detached": bool},
    FromLaunched.RANK_STARTING: {},
    FromLaunched.RANK_STARTED: {"pid": int},
    FromLaunched.RANK_ENDED: {"status": int, "problem": (list, _OPTIONAL), "signal": int, "oom": bool},
    ToLaunched.RUN: {},
    ToLaunched.REFUSE: {"because": str},
    ToLaunched.LEAVE: {},
    ToLaunched.REMOTE_EXITED: {"status": int},
}
"""The fields of each message. Any process of this user can connect, so the agent does not rely on the sender."""


class LocalSocket(Channel):
    """One end of an open connection. `send` blocks until all is sent: the other end always reads."""

    connection: socket.socket

    def receive(self) -> Optional[List[Message]]:
        messages = super().receive()
        if len(self.partial) > LONGEST_MESSAGE:
            return None
        for message in messages or ():
            fields = FIELDS.get(str(message.get("event", message.get("do")))) if isinstance(message, dict) else None
            if fields is None or not all(isinstance(message.get(name), kind) for name, kind in fields.items()):
                return None
        return messages


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


def accept(listener: socket.socket) -> Optional[LocalSocket]:
    """The next connection, if it is of a process of this user; else it is closed."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return None
    if is_same_user(connection):
        return LocalSocket(connection)
    connection.close()
    return None


def connect(address: str) -> LocalSocket:
    """Connect to the agent of this node. Raises OSError."""
    refusal: Optional[OSError] = None
    for name in _socket_names(address):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(name)
            if is_same_user(connection):
                return LocalSocket(connection)
        except OSError as error:
            refusal = refusal or error
        connection.close()
    raise refusal or OSError(f"a process of another user listens at {address}")


def is_same_user(connection: socket.socket) -> bool:
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
