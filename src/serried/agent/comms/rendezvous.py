"""Ports on the first node, and the addresses by which the other nodes may reach it."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Iterator, List, Sequence, Tuple

from serried.agent.comms.channel import Channel, ProtocolError, greet
from serried.protocol.addresses import LOOPBACK
from serried.protocol.addresses import own as own_addresses
from serried.protocol.json_lines import Message

TRY_SECONDS = 3.0
PROOF_SECONDS = 60.0
"""For the head to answer a greeting: who leaves when it has counted him in is lost to it, and the attempt with him."""


def hold_port() -> socket.socket:
    """A bound socket that does not listen: it keeps its port for rank 0's store and from everybody else.

    SO_REUSEADDR set after the bind lets torch's TCPStore, which sets it too, bind the same port while this is open;
    every other bind gets EADDRINUSE, before and after.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.bind(("", 0))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def listen(nodes: int) -> socket.socket:
    """Where node agents call: on every interface, or on none but the loopback when there is one node."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((LOOPBACK if nodes == 1 else "", 0))
    listener.listen(min(nodes + 8, 1024))
    listener.setblocking(False)
    return listener


def addresses(hosts: Sequence[str], nodes: int) -> List[str]:
    """This host's addresses, the likeliest first, the loopback last."""
    return [*(own_addresses(hosts) if nodes > 1 else ()), LOOPBACK]


def connect(candidates: str, key: bytes, greeting: Message, timeout: float) -> Tuple[Channel, str]:
    """Call the head at each of `host:port,…` until one proves to be it; the channel and the host that worked.

    Raises OSError when none did within `patience` seconds.
    """
    end = time.monotonic() + timeout
    refusal = "no answer"
    while time.monotonic() < end:
        for host, port in _parse(candidates):
            connection = None
            try:
                connection = socket.create_connection((host, port), TRY_SECONDS)
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
