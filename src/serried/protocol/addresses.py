"""Addresses by which other nodes may reach this one."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import List, Optional, Sequence

LOOPBACK = "127.0.0.1"
_ELSEWHERE = "192.0.2.1"
"""An address that nobody has (RFC 5737): the way to it is the default route."""
_GET_ADDRESS = 0x8915  # SIOCGIFADDR


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


def interface_of(address: str) -> Optional[str]:
    """The name of the interface that has `address`, `eth0` say."""
    try:
        import fcntl
    except ImportError:  # no such thing on this system
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None
