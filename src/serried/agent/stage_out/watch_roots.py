"""The folders of this node where a program writes checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import List, NamedTuple, Optional

from serried.agent.attempt import Attempt
from serried.protocol import checkpoints
from serried.protocol.checkpoints import IN_CHECKPOINTS, IN_SCRATCH
from serried.protocol.layout import CHECKPOINTS


class WatchRoot(NamedTuple):
    root: str
    below: str
    """The pattern from there on."""
    pattern: str
    """As it was asked for."""
    is_shared: bool = False
    """Other nodes write there too."""
    since: int = 0
    """What is older was there before the run, and is none of its checkpoints; nanoseconds since the epoch."""


def watch_roots(work: Attempt, node: int, local: Optional[Path], scratch: Path) -> List[WatchRoot]:
    """What this node watches: on its own disk, and the first also where ranks start, which all nodes see."""
    roots = []
    began_ns = checkpoints.changed(work.directory.attempt(1).claim)
    for pattern in (work.plan.get("sync") or {}).get("watch", ()):
        prefix = next((prefix for prefix in IN_SCRATCH if pattern.startswith(prefix)), "")
        if pattern.startswith(IN_CHECKPOINTS) and local is None:
            continue  # ranks write where it would be brought
        if local and pattern.startswith(IN_CHECKPOINTS):
            roots.append(WatchRoot(str(local / CHECKPOINTS), pattern[len(IN_CHECKPOINTS) :], pattern))
        elif prefix:
            roots.append(WatchRoot(str(scratch), pattern[len(prefix) :], pattern))
        elif node == 0:
            roots.append(WatchRoot(str(work.workdir), pattern, pattern, work.nodes > 1, began_ns))
    return roots
