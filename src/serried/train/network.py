"""Addresses, ports and interfaces of the rendezvous, if the launcher does not set them."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import warnings
from pathlib import Path
from typing import Iterator, Mapping, Optional, Tuple

from serried.protocol import addresses, hostlist
from serried.train.errors import StartError
from serried.train.identities import Identity

_PORTS = range(10000, 30000)
_CANDIDATES = 20


def given(who: Identity, environ: Mapping[str, str]) -> Optional[Tuple[str, int]]:
    """Rank 0's address and port from the launcher, or None. Raises StartError if they cannot be right."""
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not host:
        return None
    if who.spans_nodes and is_loopback(host):
        raise StartError(
            f"`MASTER_ADDR={host}` is a loopback address, but the {who.world_size} ranks are on several nodes",
            "export the first node's address, or leave MASTER_ADDR unset",
        )
    if port and not port.isdecimal():
        raise StartError(f"`MASTER_PORT={port}` is not a number")
    return host, int(port) if port else next(ports(who))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def ports(who: Identity) -> Iterator[int]:
    """The same few ports on every rank of this launch, and likely others than those of another launch.

    Outside the range from which the system takes ports for outgoing connections.
    """
    digest = hashlib.sha256((who.launch or "serried").encode()).digest()
    low, high = _ephemeral()
    allowed = [port for port in _PORTS if not low <= port <= high] or list(_PORTS)
    start = int.from_bytes(digest[:4], "big")
    for step in range(_CANDIDATES):
        yield allowed[(start + step * 7) % len(allowed)]


def _ephemeral() -> Tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 32768, 60999
    return int(low), int(high)


def own_address(who: Identity) -> str:
    """This host's address for the other nodes."""
    if not who.spans_nodes:
        return addresses.LOOPBACK
    found = addresses.own(hostlist.expand(who.hosts))
    if not found:
        warnings.warn(
            f"`{socket.gethostname()}` has only loopback addresses, so other nodes cannot reach rank 0\n"
            "hint: export MASTER_ADDR, an address of this node that the other nodes can reach",
            stacklevel=2,
        )
    return found[0] if found else addresses.LOOPBACK


def first_host(who: Identity) -> Optional[str]:
    """Rank 0's host as the launcher names it, if this node can resolve the name."""
    hosts = hostlist.expand(who.hosts)
    return hosts[0] if hosts and addresses.resolve(hosts[0]) else None


def gloo_interface(who: Identity, master: str, environ: Mapping[str, str]) -> Optional[str]:
    """The interface that gloo must be told to use; None where it finds a good one by itself.

    It binds to the address of the host's name, which on many a Debian is 127.0.1.1: no other node can reach that.
    """
    if not who.spans_nodes or environ.get("GLOO_SOCKET_IFNAME"):
        return None
    named = addresses.resolve(socket.gethostname())
    if named and not is_loopback(named[0]):
        return None
    towards = addresses.route_to(master)
    return None if towards is None or is_loopback(towards) else addresses.interface_of(towards)


def threads(who: Identity, environ: Mapping[str, str]) -> Optional[int]:
    """The number of threads for torch, if no variable sets it: this rank's share of the node."""
    if environ.get("OMP_NUM_THREADS") or who.local_world_size == 1:
        return None
    told = environ.get("SLURM_CPUS_PER_TASK", "")
    if who.source == "slurm" and told.isdecimal():
        return max(1, int(told))
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, allowed // who.local_world_size)
