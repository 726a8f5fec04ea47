"""Whether ranks of this node are in contact with other ranks, by the TCP connections that /proc shows.

It is evidence of N separate programs where one of N ranks was meant. What may be contact counts as contact: a warning
without cause is worse than none.
"""

from __future__ import annotations

import ipaddress
import os
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from serried.agent.attempt import Attempt
from serried.agent.loop import Loop
from serried.process import linux
from serried.protocol.events import ToHead

LISTEN = "0A"
EARLY_SECONDS, OFTEN_SECONDS, SELDOM_SECONDS = 60.0, 1.0, 15.0
"""Programs join each other soon after they start: for so long, ranks are looked at often."""

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
End = Tuple[Address, int]


class Connection(NamedTuple):
    local: End
    remote: End
    inode: str
    """`0` where the process has closed its socket."""


class ConnectionMonitor:
    def __init__(self, port: int, leaders: Callable[[], Sequence[int]]) -> None:
        self._port = port
        self._leaders = leaders
        self._used_before = _cpu_seconds()
        self.is_seen: Optional[bool] = False
        """None where this node cannot tell."""
        self._before: Set[Tuple[End, End]] = set()
        """What used the rendezvous port before there were ranks: connections of others, closed within a minute."""
        try:
            self._before = {(it.local, it.remote) for it in _connections() if self._is_at_port(it)}
        except (OSError, ValueError):
            self.is_seen = None

    @property
    def cpu_seconds(self) -> float:
        """What the ranks that have ended have computed."""
        return _cpu_seconds() - self._used_before

    def begin(self, loop: Loop, tell: Callable[..., None]) -> None:
        """Look again and again until there is something to tell the head."""
        since = time.monotonic()

        def again() -> None:
            self.look()
            if self.is_seen is not False:
                tell(ToHead.CONTACT, seen=self.is_seen)
            elif self._leaders():
                is_early = time.monotonic() - since < EARLY_SECONDS
                loop.after(OFTEN_SECONDS if is_early else SELDOM_SECONDS, again)

        loop.after(OFTEN_SECONDS, again)

    def check(self) -> None:
        """Whether anybody uses the rendezvous port, or has used it within the last minute (TIME_WAIT)."""
        if self.is_seen is False:
            self._judge(lambda _: False)

    def look(self) -> None:
        """The same, and whether a rank is connected to what may be another rank by a port of its own."""
        if self.is_seen is False:
            self._judge(self._are_connected)

    def _judge(self, otherwise: Callable[[List[Connection]], bool]) -> None:
        try:
            found = list(_connections())
            others = self._before
            is_used = any(self._is_at_port(it) and (it.local, it.remote) not in others for it in found)
            self.is_seen = is_used or otherwise(found)
        except (OSError, ValueError):
            self.is_seen = None

    def _is_at_port(self, connection: Connection) -> bool:
        return self._port in (connection.local[1], connection.remote[1])

    def _are_connected(self, connections: List[Connection]) -> bool:
        children = _children()
        by_ends = {(it.local, it.remote): it.inode for it in connections}
        networks = {_network(it.local[0]) for it in connections}
        for leader in self._leaders():
            own = _sockets(leader, children)
            for it in connections:
                leaves_rank = it.inode in own and by_ends.get((it.remote, it.local)) not in own
                if leaves_rank and (_network(it.remote[0]) in networks or not it.remote[0].is_global):
                    return True
        return False


def prepare(work: Attempt, port: int, leaders: Callable[[], Sequence[int]]) -> Optional[ConnectionMonitor]:
    """Before the ranks start. None where ranks need not meet, or meet by a launcher's own means."""
    return ConnectionMonitor(port, leaders) if work.expects_connections else None


def _cpu_seconds() -> float:
    """Of the children that have ended, and theirs."""
    used = os.times()
    return used.children_user + used.children_system


def _network(address: Address) -> Tuple[int, bytes]:
    """Nodes of a cluster with public addresses have much of them in common."""
    return address.version, address.packed[: 2 if address.version == 4 else 6]


def _connections() -> Iterator[Connection]:
    """All TCP connections of this machine, and who listens. Raises OSError where there is no such table."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{linux.PROC}/net/{name}", encoding="ascii") as table:  # noqa: PTH123 - a file of /proc
                lines = table.read().splitlines()[1:]
        except FileNotFoundError:
            if name == "tcp":
                raise
            continue
        for fields in map(str.split, lines):
            yield Connection(_end(fields[1]), _end(fields[2]), "" if fields[3] == LISTEN else fields[9])


def _end(text: str) -> End:
    """`0100007F:1F90` is 127.0.0.1:8080: words of four bytes, each in this machine's order."""
    address, _, port = text.partition(":")
    raw = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    ip = ipaddress.ip_address(raw)
    return getattr(ip, "ipv4_mapped", None) or ip, int(port, 16)


def _children() -> Dict[int, List[int]]:
    children: Dict[int, List[int]] = {}
    for pid in linux.pids():
        children.setdefault(linux.parent(pid), []).append(pid)
    return children


def _sockets(leader: int, children: Dict[int, List[int]]) -> Set[str]:
    """The inodes of the sockets that a rank and its descendants have open."""
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
