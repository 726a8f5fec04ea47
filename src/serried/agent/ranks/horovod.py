"""Where Horovod's ranks meet that the agents start: `store` beside the head."""

from __future__ import annotations

import signal

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.comms import rendezvous


def open_store(work: Attempt) -> int:
    """Start the store, which ends with this process; its port."""
    listener = rendezvous.listen(work.nodes)
    listener.setblocking(True)
    system.spawn(
        system.agent_command("horovod-store", str(work.nodes), str(work.ranks)),
        system.environment(),
        (listener.fileno(), 1, 2),
        directory="/",
        parent_death=signal.SIGKILL,
    )
    port = int(listener.getsockname()[1])
    listener.close()
    return port
