"""Which node takes data from which, and at what address."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

from serried.agent.attempt import Attempt

Address = Tuple[str, int]
HEAD_ADDRESS = ""
"""Instead of an address: that of the head, by which each node has found it."""


def staged_data(work: Attempt) -> Any:
    """What the plan says of data, if any is staged."""
    data = work.plan.get("data")
    return data if data and data["stage"] else None


def uses_chain(work: Attempt) -> bool:
    """Whether nodes pass data on."""
    return bool(work.nodes > 1 and staged_data(work) and work.plan["site"].get("transfer", "chain") == "chain")


def predecessors(ports: Mapping[int, int], hosts: Mapping[int, str]) -> Dict[int, Optional[Address]]:
    """By node: where the one before it serves, among those that do; None for one that has to read the source.

    `ports` are those where nodes serve, 0 where one does not.
    """
    before: Dict[int, Optional[Address]] = {}
    last: Optional[Address] = None
    for node in sorted(ports):
        before[node] = last
        if ports[node]:
            last = (hosts[node], ports[node])
    return before


def peer_host(called_from: str, called: str) -> str:
    """Where others find the node that has called the head from there: where they find the head, if it is the same."""
    return HEAD_ADDRESS if called_from == called else called_from


def serving_interface(own: str, head: str) -> str:
    """The address on which a node serves: that from which it calls the head, so that no other network is offered any.

    On the head's own host it serves wherever the head does: others may have found that by another address.
    """
    return "" if own == head else own
