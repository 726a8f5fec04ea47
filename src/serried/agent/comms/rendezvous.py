"""Ports on the first node, and the addresses by which the other nodes may reach it."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Any, Iterator, List, Sequence, Tuple

from serried.agent.comms.channel import Channel, ProtocolError, greet
from serried.protocol.addresses import LOOPBACK
from serried.protocol.addresses import own as own_addresses
from serried.protocol.json_lines import Message

TRY_SECONDS = 3.0
PROOF_SECONDS = 60.0
"""For the head's answer to a greeting. The head gives up the attempt if a node that it accepted disconnects."""


def hold_port() -> socket.socket:
    """A bound socket that does not listen: it reserves its port for rank 0's store.

    SO_REUSEADDR set after the bind lets torch's TCPStore, which sets it too, bind the same port while this is open;
    every other bind gets EADDRINUSE, before and after.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.bind(("", 0))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def listen(nodes: int) -> socket.socket:
    """The socket for node agents: on every interface, or only on the loopback for one node."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((LOOPBACK if nodes == 1 else "", 0))
    listener.listen(nodes + 8)  # the kernel's own limit is 4096; nodes beyond it try again after a second
    listener.setblocking(False)
    return listener


def addresses(hosts: Sequence[str], nodes: int) -> List[str]:
    """This host's addresses, the likeliest first, the loopback last."""
    return [*(own_addresses(hosts) if nodes > 1 else ()), LOOPBACK]


def connect(candidates: str, key: bytes, greeting: Message, timeout: float) -> Tuple[Channel, str]:
    """Connect to each of `host:port,…` until one authenticates as the head. Returns the channel and that host.

    Raises OSError if none does within `timeout` seconds.
    """
    end = time.monotonic() + timeout
    refusal = "no answer"
    while time.monotonic() < end:
        for host, port in _parse(candidates):
            connection = None
            try:
                name: Any = host.encode()  # Python would load its tables of international names for text
                connection = socket.create_connection((name, port), TRY_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return greet(connection, key, greeting, PROOF_SECONDS), host
            except (OSError, ProtocolError) as error:
                refusal = str(error)
                if connection:
                    connection.close()
        time.sleep(0.2)
    raise OSError(errno.ETIMEDOUT, f"{os.strerror(errno.ETIMEDOUT)} ({refusal})", candidates)


def _parse(candidates: str) -> Iterator[Tuple[str, int]]:
    for candidate in candidates.split(","):
        host, _, port = candidate.rpartition(":")
        yield host, int(port)
