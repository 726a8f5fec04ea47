"""Horovod's ranks, started by the agents: what they find in their environment, and the store where they meet."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Dict

from serried.agent import rendezvous, system
from serried.agent.launch import agent_command
from serried.agent.work import Work
from serried.contract import addresses

if TYPE_CHECKING:
    from serried.agent.command import Place


def open_store(work: Work) -> int:
    """Start the store, which ends with this process; its port, or 0 where nobody needs it."""
    if work.launcher != "horovod":
        return 0
    listener = rendezvous.listen(work.nodes)
    listener.setblocking(True)
    system.spawn(
        [system.encode(word) for word in agent_command("store", str(work.nodes), str(work.ranks))],
        os.environb,
        system.encode(os.sep),
        (listener.fileno(), 1, 2),
        parent_death=signal.SIGKILL,
    )
    port = int(listener.getsockname()[1])
    listener.close()
    return port


def environment(work: Work, place: Place) -> Dict[str, str]:
    """As horovodrun says it. Ranks meet and reduce on CPUs by gloo; on GPUs by what Horovod was built with."""
    own = {
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(work.nodes * work.ranks),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(work.ranks),
        "HOROVOD_CROSS_RANK": str(place.node),
        "HOROVOD_CROSS_SIZE": str(work.nodes),
        "HOROVOD_HOSTNAME": f"node-{place.node}",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": place.master,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(place.store),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    interface = addresses.interface_of(addresses.route_to(place.master) or "")
    return {**own, "HOROVOD_GLOO_IFACE": interface} if interface else own
