"""`TF_CONFIG`, by which TensorFlow's ranks know one another: an address for each, which each of them listens at."""

from __future__ import annotations

import json
import socket
from typing import Any, Dict, List, Sequence

from serried.agent.attempt import Attempt
from serried.agent.comms import rendezvous


def hold_ports(work: Attempt) -> List[socket.socket]:
    """A port for each rank of this node, kept until the node agent ends; none where nobody asked for them."""
    return [rendezvous.hold_port() for _ in range(work.ranks)] if is_wanted(work) else []


def is_wanted(work: Attempt) -> bool:
    return bool(work.plan.get("launch", {}).get("tf_config"))


def config(workers: Sequence[str], rank: int) -> Dict[str, str]:
    """Every rank is a worker, and rank 0 the chief among them, as MultiWorkerMirroredStrategy takes it."""
    told: Dict[str, Any] = {"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": rank}}
    return {"TF_CONFIG": json.dumps(told)} if workers else {}
