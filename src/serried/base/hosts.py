"""The addresses of hosts."""

from __future__ import annotations

import contextlib
import socket
from typing import List, Optional, Sequence

LOOPBACK = "127.0.0.1"
_ELSEWHERE = "192.0.2.1"
"""A reserved address (RFC 5737), whose route is the default route."""
_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def own_addresses(hosts: Sequence[str]) -> List[str]:
    """This host's addresses without the loopback, the likeliest first. `hosts` are the job's, this one first."""
    addresses = [route_to(host) for host in hosts[1:2]]
    addresses += [*resolve(socket.gethostname()), route_to(_ELSEWHERE)]
    return list(dict.fromkeys(address for address in addresses if address and not address.startswith("127.")))


def resolve(host: str) -> List[str]:
    """The addresses of the name `host` on this node; empty if it does not resolve."""
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


def interface_of(address: str) -> Optional[str]:
    """The name of the interface with `address`, for example `eth0`."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, name.encode()[:15].ljust(256, b"\0"))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None
