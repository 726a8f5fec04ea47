"""Detects whether ranks of this node are connected to other ranks, by the TCP connections in /proc.

Ranks without a connection are evidence of N separate programs in place of one program with N ranks. In doubt a
connection counts as one between ranks, because a needless warning is worse than a missing one.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.loop import Loop
from serried.base import NamedTuple, linux
from serried.schema.events import ToHead

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

    Address = Union[IPv4Address, IPv6Address]
    End = Tuple[Address, int]

LISTEN = "0A"
CLOSED = "0"
"""In place of the inode, if the process has closed its socket."""
EARLY_SECONDS, OFTEN_SECONDS, SELDOM_SECONDS = 60.0, 1.0, 15.0
"""Programs connect soon after they start: for EARLY_SECONDS the checks are frequent."""
MOST_OF_A_CORE = 0.001
"""A node with thousands of connections or processes is checked less often, but whenever its ranks are twice as old."""


class Connection(NamedTuple):
    local: End
    remote: End
    inode: str
    """Empty for a listening socket."""


class ConnectionMonitor:
    def __init__(self, port: int, leaders: Callable[[], Sequence[int]], *, holds_port: bool) -> None:
        """`holds_port`: the rendezvous port is reserved on this node, so no other program uses it."""
        self._port = f":{port:04X}"
        self._holds_port = holds_port
        self._leaders = leaders
        self._ranks: Sequence[int] = ()
        self.is_seen: Optional[bool] = False
        """Have ranks connected? None if this node cannot tell."""

    @property
    def cpu_seconds(self) -> float:
        return sum(system.CPU_SECONDS.get(pid, 0.0) for pid in self._ranks)

    def begin(self, loop: Loop, send: Callable[..., None]) -> None:
        """Check repeatedly until there is a result to send to the head."""
        since, self._ranks = time.monotonic(), self._leaders()

        def again() -> None:
            used = time.process_time()
            self.look()
            used = time.process_time() - used
            if self.is_seen is not False:
                send(ToHead.CONTACT, seen=self.is_seen)
            elif self._leaders():
                age = time.monotonic() - since
                least = OFTEN_SECONDS if age < EARLY_SECONDS else SELDOM_SECONDS
                loop.after(max(least, min(age, used / MOST_OF_A_CORE)), again)

        loop.after(OFTEN_SECONDS, again)

    def check(self) -> None:
        """Check whether a program uses the rendezvous port, or used it within the last minute (TIME_WAIT).

        On other nodes another program may have a port of this number, and is unlikely to connect to one.
        """
        if self.is_seen is False:
            self._judge(lambda _: False)

    def look(self) -> None:
        """`check`, and whether a rank is connected to a possible other rank by a port of its own."""
        if self.is_seen is False:
            self._judge(self._are_connected)

    def _judge(self, otherwise: Callable[[List[Connection]], bool]) -> None:
        try:
            entries = _entries()
            remote = any(entry[2].endswith(self._port) for entry in entries)
            local = self._holds_port and any(entry[1].endswith(self._port) for entry in entries)
            self.is_seen = remote or local or otherwise([_connection(entry) for entry in entries if entry[9] != CLOSED])
        except (OSError, ValueError):
            self.is_seen = None

    def _are_connected(self, connections: List[Connection]) -> bool:
        children: Dict[int, List[int]] = {}
        for pid in linux.pids():
            children.setdefault(linux.parent(pid), []).append(pid)
        by_ends = {(it.local, it.remote): it.inode for it in connections}
        networks = {_network(it.local[0]) for it in connections}
        for leader in self._leaders():
            own = _sockets(leader, children)
            for it in connections:
                leaves_rank = it.inode in own and by_ends.get((it.remote, it.local)) not in own
                if leaves_rank and (_network(it.remote[0]) in networks or not it.remote[0].is_global):
                    return True
        return False


def prepare(
    attempt: Attempt, node: int, port: int, leaders: Callable[[], Sequence[int]]
) -> Optional[ConnectionMonitor]:
    """None if ranks need not connect, or if a launcher connects them."""
    return ConnectionMonitor(port, leaders, holds_port=node == 0) if attempt.expects_connections else None


def _network(address: Address) -> Tuple[int, bytes]:
    """The beginning of `address`, which the nodes of a cluster share even if their addresses are public."""
    return address.version, address.packed[: 2 if address.version == 4 else 6]


def _entries() -> List[List[str]]:
    """The fields of the kernel's table of TCP sockets, which takes milliseconds to read. Raises OSError without one."""
    entries: List[List[str]] = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{linux.PROC}/net/{name}", encoding="utf-8") as table:  # noqa: PTH123 - a file of /proc
                lines = table.read().splitlines()[1:]
        except FileNotFoundError:
            if name == "tcp":
                raise
            continue
        entries += map(str.split, lines)
    return entries


def _connection(entry: List[str]) -> Connection:
    return Connection(_end(entry[1]), _end(entry[2]), "" if entry[3] == LISTEN else entry[9])


def _end(text: str) -> End:
    """Parse `0100007F:1F90`, which is 127.0.0.1:8080: words of four bytes, each in this machine's order."""
    import ipaddress  # once ranks run

    address, _, port = text.partition(":")
    raw = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    ip = ipaddress.ip_address(raw)
    return getattr(ip, "ipv4_mapped", None) or ip, int(port, 16)


def _sockets(leader: int, children: Dict[int, List[int]]) -> Set[str]:
    sockets: Set[str] = set()
    waiting = [leader]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        for path in linux.descriptors(pid):
            try:
                target = os.readlink(path)  # noqa: PTH115
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    return sockets
