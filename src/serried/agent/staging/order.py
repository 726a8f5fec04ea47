"""Who gets its data from whom, and where nodes find each other: on the network by which agents reach the head."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

Address = Tuple[str, int]


def predecessors(ports: Mapping[int, int], hosts: Mapping[int, str]) -> Dict[int, Optional[Address]]:
    """By node: where the one before it serves, among those that do; None for one that has to read the source.

    `ports` are those where nodes serve, 0 where one does not; `hosts` the addresses from which they called the head.
    Of the first node, where the head is, that may be the loopback's: for it the host is empty, and means the head's.
    """
    before: Dict[int, Optional[Address]] = {}
    last: Optional[Address] = None
    for node in sorted(ports):
        before[node] = last
        if ports[node]:
            last = ("" if node == 0 else hosts[node], ports[node])
    return before


def interface(node: int, own: str) -> str:
    """The address on which to serve, `own` being that of the connection to the head: no other network is offered any.

    The first node may have called the head by the loopback, and serves wherever the head does.
    """
    return "" if node == 0 else own
