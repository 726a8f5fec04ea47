"""Addresses by which other nodes may reach this one."""

from __future__ import annotations

import contextlib
import socket
from typing import List, Optional, Sequence

LOOPBACK = "127.0.0.1"
_ELSEWHERE = "192.0.2.1"
"""An address that nobody has (RFC 5737): the way to it is the default route."""


def own(hosts: Sequence[str]) -> List[str]:
    """This host's addresses but the loopback's, the likeliest first; `hosts` are the job's, this one first."""
    found = [route_to(host) for host in hosts[1:2]]
    found += [*resolve(socket.gethostname()), route_to(_ELSEWHERE)]
    return list(dict.fromkeys(address for address in found if address and not address.startswith("127.")))


def resolve(host: str) -> List[str]:
    """What the name `host` means here; nothing where it means nothing."""
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, socket.AF_INET)]
    except OSError:
        return []


def route_to(host: str) -> Optional[str]:
    """The address of the interface that routes to `host`. A connected UDP socket knows it; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
    return None
