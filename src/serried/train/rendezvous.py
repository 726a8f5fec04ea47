"""The rendezvous of the ranks: addresses, one store at rank 0, and a roll call that names missing ranks."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import socket
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch.distributed

from serried.base import files
from serried.base.hosts import LOOPBACK, expand_hosts, interface_of, own_addresses, resolve, route_to
from serried.base.text import ranges
from serried.train.errors import StartError
from serried.train.identities import Identity

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

dist: Any = torch.distributed
"""Its stubs leave out the stores."""

PATIENCE_SECONDS = 10.0
"""How long a rank waits for rank 0's address file before it tries the most likely address."""
FAREWELL_SECONDS = 60.0
"""How long rank 0 keeps the store alive, so that the other ranks can read which ranks are missing."""
_ALL_HERE = "all"
_PORTS = range(10000, 30000)
_CANDIDATES = 20

_stores: Dict[Tuple[str, int], Store] = {}
"""One per address, for the life of the process: a second session must not race with the end of the first."""
_joins = 0


def join(who: Identity, seconds: float) -> Store:
    """A store that all ranks of this launch share. Raises StartError after `seconds`, naming the missing ranks."""
    global _joins  # noqa: PLW0603 - sessions of this process are numbered, the same on every rank
    _joins += 1
    end = time.monotonic() + seconds
    host, port = given(who, os.environ) or (None, None)
    if host and port:
        store = _open(who, host, port, seconds)
    elif who.rank == 0:
        host, port, store = _serve(who, seconds)
    else:
        host, port = _find(who, end)
        store = _open(who, host, port, seconds)
    os.environ.update(who.variables(), MASTER_ADDR=host, MASTER_PORT=str(port))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared: Store = dist.PrefixStore(f"serried/{attempt}/{_joins}", store)
    try:
        _roll_call(shared, who, end, f"{host}:{port}")
    finally:
        if who.rank == 0:
            _note(who).unlink(missing_ok=True)
    return shared


def _open(who: Identity, host: str, port: int, seconds: float) -> Store:
    if (host, port) not in _stores:
        # torchrun's agent may serve the store itself.
        serves = who.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            _stores[host, port] = dist.TCPStore(
                host, port, None, serves, timedelta(seconds=seconds), wait_for_workers=False
            )
        except (RuntimeError, ValueError, OSError) as error:  # torch 2.1 calls it a TimeoutError
            raise _unreachable(who, f"{host}:{port}", error) from None
    return _stores[host, port]


def _unreachable(who: Identity, where: str, error: Exception) -> StartError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if who.rank == 0:
        return StartError(f"rank 0 cannot serve at `{where}`: {reason}", "another program may hold that port")
    return StartError(
        f"rank {who.rank} on {socket.gethostname()} got no answer from rank 0 at `{where}`: {reason}",
        "rank 0 has not started, has ended, or is on a network that this node cannot reach",
    )


def _serve(who: Identity, seconds: float) -> Tuple[str, int, Store]:
    """Open the store at the first free port, and write the address to a file."""
    host, problem = own_address(who), ""
    for port in ports(who):
        try:
            store = _open(who, host, port, seconds)
        except StartError as error:
            problem = error.message
            continue
        with contextlib.suppress(OSError):  # in a read-only directory the other ranks try the first port
            files.write_json(_note(who), {"host": host, "port": port})
        return host, port, store
    raise StartError(problem, "export MASTER_ADDR and MASTER_PORT, the same on every rank")


def _find(who: Identity, end: float) -> Tuple[str, int]:
    """Rank 0's address from its file, or the most likely address if this node does not see the file."""
    note, began = _note(who), time.monotonic()
    likely = LOOPBACK if not who.spans_nodes else first_host(who)
    while time.monotonic() < end:
        address = files.read_json(note)
        if address:
            return str(address["host"]), int(address["port"])
        if likely and time.monotonic() - began > PATIENCE_SECONDS:
            return likely, next(ports(who))
        time.sleep(min(1.0, 0.02 + (time.monotonic() - began) / 10))
    raise StartError(
        f"rank {who.rank} on {socket.gethostname()} cannot find rank 0: no address file at `{note}`",
        "rank 0 has not started, or sees another directory; export MASTER_ADDR and MASTER_PORT",
    )


def _note(who: Identity) -> Path:
    """The file with rank 0's address: in this node's /tmp, or in the working directory that all nodes share."""
    name = hashlib.sha256(f"{who.launch or os.getppid()}/{_joins}".encode()).hexdigest()[:16]
    if who.spans_nodes:
        if not who.launch:
            raise StartError(
                f"no variable gives the address of rank 0, and the {who.world_size} ranks are on several nodes",
                "export MASTER_ADDR and MASTER_PORT",
            )
        return Path(f".serried-rank-0-{name}").absolute()
    private = Path(tempfile.gettempdir(), f"serried-{os.getuid()}")
    try:
        return files.make_ours_alone(private) / f"rank-0-{name}"
    except OSError:
        raise StartError(
            f"`{private}` is not a directory that only you can write to", "set TMPDIR to a directory of your own"
        ) from None


def _roll_call(store: Store, who: Identity, end: float, where: str) -> None:
    """Wait for all ranks. The last rank to join, or rank 0 after the time-out, writes the outcome for all."""
    try:
        store.set(f"host/{who.rank}", socket.gethostname())
        store.add(f"here/{who.rank}", 1)
        if store.add("count", 1) == who.world_size:
            store.compare_set("roll", "", _ALL_HERE)  # the first writer decides for all
            store.set("called", "")
        answer = _await_roll_call(store, who, end)
    except RuntimeError as error:
        raise _unreachable(who, where, error) from None
    if answer != _ALL_HERE:
        raise StartError(answer, "their logs say why, or they are still waiting for a node; see `start_seconds`")


def _await_roll_call(store: Store, who: Identity, end: float) -> str:
    # The others wait a little longer, so that rank 0 writes the message for all.
    left = max(1.0, end - time.monotonic()) + (0.0 if who.rank == 0 else 5.0)
    try:
        store.wait(["called"], timedelta(seconds=left))  # in torch 2.1, `compare_set` does not end a wait
    except RuntimeError:
        if who.rank != 0:
            raise
        here = _present_ranks(store, who)
        answer = bytes(store.compare_set("roll", "", _describe_missing(store, who, here))).decode()
        store.set("called", "")
        if answer != _ALL_HERE:
            _await_acknowledgements(store, len(here))
    answer = bytes(store.get("roll")).decode()
    if answer != _ALL_HERE:
        with contextlib.suppress(RuntimeError):  # the message has been read, and rank 0 may have exited
            store.add("heard", 1)
    return answer


def _await_acknowledgements(store: Store, count: int) -> None:
    """Wait until `count` ranks, rank 0 among them, have read the message."""
    end = time.monotonic() + FAREWELL_SECONDS
    while store.add("heard", 0) < count - 1 and time.monotonic() < end:
        time.sleep(0.02)


def _present_ranks(store: Store, who: Identity) -> List[int]:
    return [rank for rank in range(who.world_size) if store.add(f"here/{rank}", 0)]


def _describe_missing(store: Store, who: Identity, here: List[int]) -> str:
    hosts = sorted({bytes(store.get(f"host/{rank}")).decode() for rank in here})
    missing = [rank for rank in range(who.world_size) if rank not in here]
    ranks, have = ("rank", "has") if len(missing) == 1 else ("ranks", "have")
    return (
        f"{ranks} {ranges(missing)} of {who.world_size} {have} not joined; "
        f"joined: {ranges(here)} on {', '.join(hosts)}"
    )  # fmt: skip


# Addresses, ports and interfaces, if the launcher does not set them.


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
    """The same few ports on every rank of this launch, and probably different ones for another launch.

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
        return LOOPBACK
    own = own_addresses(expand_hosts(who.hosts))
    if not own:
        warnings.warn(
            f"`{socket.gethostname()}` has only loopback addresses, so other nodes cannot reach rank 0\n"
            "hint: export MASTER_ADDR, an address of this node that the other nodes can reach",
            stacklevel=2,
        )
    return own[0] if own else LOOPBACK


def first_host(who: Identity) -> Optional[str]:
    """Rank 0's host as the launcher names it, if this node can resolve the name."""
    hosts = expand_hosts(who.hosts)
    return hosts[0] if hosts and resolve(hosts[0]) else None


def gloo_interface(who: Identity, master: str, environ: Mapping[str, str]) -> Optional[str]:
    """The interface to set for gloo; None if gloo selects a good one itself.

    Gloo binds to the address of the host's name. On many Debian systems that is 127.0.1.1, which no other node reaches.
    """
    if not who.spans_nodes or environ.get("GLOO_SOCKET_IFNAME"):
        return None
    named = resolve(socket.gethostname())
    if named and not is_loopback(named[0]):
        return None
    towards = route_to(master)
    return None if towards is None or is_loopback(towards) else interface_of(towards)
