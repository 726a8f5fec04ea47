"""The hosts of a job: Slurm's compact host lists (`gpu-a[1-2]-n[001-004],login` names nine), and their addresses."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
from typing import List, Optional, Sequence

LOOPBACK = "127.0.0.1"
_ELSEWHERE = "192.0.2.1"
"""A reserved address (RFC 5737), whose route is the default route."""
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_NUMBERED = r"([^.]*?)(\d{1,9})((?:\..*)?)"
"""A host's name up to its number, the number, and the domain."""
_GROUP = r"\[([^\]]*)\]"


def expand_hosts(text: str) -> List[str]:
    """The hosts that `text` names, in its order, zero padding kept."""
    hosts: List[str] = []
    for part in _split(text):
        pieces = re.split(_GROUP, part)
        choices = [_numbers(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
        hosts += map("".join, itertools.product(*choices))
    return hosts


def fold_hosts(hosts: Sequence[str]) -> str:
    """A short list of `hosts`, in their order: neighbours with consecutive numbers become one range."""
    runs: List[List[str]] = []
    for host in hosts:
        match = re.fullmatch(_NUMBERED, host)
        prefix, number, suffix = match.groups() if match else (host, "", "")
        last = runs[-1] if runs else ["", "", "", ""]
        follows = number and last[2] and number == str(int(last[2]) + 1).zfill(len(last[1]))
        if follows and (prefix, suffix) == (last[0], last[3]):
            last[2] = number
        else:
            runs.append([prefix, number, number, suffix])
    return ",".join(
        f"{prefix}{first}{suffix}" if first == last else f"{prefix}[{first}-{last}]{suffix}"
        for prefix, first, last, suffix in runs
    )


def _split(text: str) -> List[str]:
    """Split at commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _numbers(group: str) -> List[str]:
    numbers: List[str] = []
    for item in group.split(","):
        first, dash, last = item.partition("-")
        if dash:
            numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
        else:
            numbers.append(item)
    return numbers


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
