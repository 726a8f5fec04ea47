"""Checks before a run: of a machine by `serried doctor`, of a job's nodes by their agents (`agent/checks`).

No check reports that all is well: it reports what it saw, or why it could not look.
"""

from __future__ import annotations

from typing import Dict, Tuple

from serried.base import NamedTuple

OK, NOTE, PROBLEM, NOT_TESTED = "ok", "note", "problem", "not tested"
"""A problem makes something fail. A note may be harmless. A finding `not tested` says what a test would need."""
BAD_SHARE, LOW_SHARE = 0.70, 0.85
"""A figure below these shares of the job's median is a problem or a note."""

OF_MACHINE = {
    "python": "Serried needs Python 3.11 here, and 3.9 on nodes and on login nodes that a laptop uses.",
    "home": "Environments, caches and settings are there. Many programs fail silently when it is full.",
    "temporary": "Compilers, caches and sockets use it.",
    "settings": "A wrong setting stops each submit.",
    "scheduler": "Without its answer, no job can be submitted and no state is current.",
    "account": "Some sites refuse a job that names no account to charge, or that exceeds its limits.",
    "cluster": "The profile of a cluster has its partitions, limits, GPUs and the folder of its runs.",
    "root": "Run directories, logs and checkpoints are written there.",
    "root-on-nodes": "Jobs write to the same folder: nodes must have it, under the same path.",
    "root-clock": "Times of files there are compared with times here.",
    "records": "Serried keeps the record of each run there, and needs it to submit once.",
    "quota": "A full quota of bytes or files ends runs, though the disk has room.",
    "umask": "New files get their modes from it.",
    "locale": "Names and output that are not ASCII need UTF-8.",
    "git": "A snapshot takes the files that git lists, and the commit is recorded with the run.",
    "processes": "A limit on processes stops a submit, a build or a data loader halfway.",
    "open-files": "Data loaders and checkpoints open many files.",
    "ssh": "Commands for a cluster behind `ssh` need a connection.",
}
"""Checks of a login node or a laptop: why each matters, by its id."""

OF_NODES: Dict[str, str] = {
    "node-answers": "A process on each node looks at the node, and connects to the other nodes.",
    "root-visible": "Checkpoints, logs and the run's state pass through the run directory, which all nodes must share.",
    "connections": "Ranks of all nodes connect to each other, in both directions.",
    "mtu": "A packet that is larger than a link allows is lost. Small messages pass, and the first large one hangs.",
    "rendezvous": "Ranks meet at a port of the first node.",
    "names": "Without `GLOO_SOCKET_IFNAME` gloo takes the address of the node's own host name.",
    "interface": "gloo and NCCL take the address of one interface, which the other nodes must reach.",
    "clock": "Tokens, certificates and `make` depend on the time, and so do the times in logs.",
    "memlock": "InfiniBand needs locked memory. Jobs may have another limit than a login shell.",
    "shared-memory": "NCCL and data loaders exchange data in `/dev/shm`.",
    "disk": "Temporary files, staged data and caches of compilers are on the node's disk.",
    "versions": "Ranks with different versions of torch or NCCL may hang, or fail at their first collective.",
    "infiniband": "NCCL uses the active ports of each node. Without one it falls back to the slow network, silently.",
    "gpus": "Each rank needs its GPU.",
    "gpu-memory": "Your ranks cannot use GPU memory that another program holds.",
    "gpu-errors": "A GPU that reports errors may fail again, or slow down all ranks.",
    "import-time": "Each rank imports torch before its first step. A shared file system serves all of them at once.",
    "matrix-product": "A slow device slows all ranks, which wait for it. A broken one computes wrong values.",
    "device-copy": "Each batch is copied from memory to the GPU.",
    "root-bandwidth": "Checkpoints and results are written to the run's folder.",
    "disk-bandwidth": "Staged data is read from the node's own disk.",
    "all-reduce": "Ranks exchange gradients in each step, at the speed of the slowest link.",
    "launch": "Each attempt waits for the scheduler to start the agents.",
    "container": "Each rank waits for the start of its container.",
}
"""Checks of the nodes of a job, likewise."""


class Finding(NamedTuple):
    id: str
    level: str
    seen: str
    fix: str = ""
    """The exact change, or what a test would need."""
    hosts: Tuple[str, ...] = ()
    """Of a job: the nodes that it is about; empty for all, or if it cannot tell which."""

    def to_json(self) -> Dict[str, object]:
        why = OF_MACHINE.get(self.id) or OF_NODES.get(self.id)
        return {**self._asdict(), "fix": self.fix or None, "hosts": list(self.hosts), "why": why}


class CheckResults(NamedTuple):
    """The results of one part of a job's checks, as the head logs them."""

    part: str
    findings: Tuple[Finding, ...] = ()
    seconds: float = 0.0
