"""Where a node looks for checkpoints that a program writes by itself."""

from __future__ import annotations

from pathlib import Path
from typing import List, NamedTuple, Optional

from serried.agent.attempt import Work
from serried.protocol import checkpoints
from serried.protocol.checkpoints import IN_CHECKPOINTS, IN_SCRATCH
from serried.protocol.layout import CHECKPOINTS


class Watch(NamedTuple):
    root: str
    below: str
    """The pattern from there on."""
    pattern: str
    """As it was asked for."""
    is_shared: bool = False
    """Other nodes write there too."""
    since: int = 0
    """What is older was there before the run, and is none of its checkpoints; nanoseconds since the epoch."""


def watches(work: Work, node: int, local: Optional[Path], scratch: Path) -> List[Watch]:
    """What this node watches: on its own disk, and the first also where ranks start, which all nodes see."""
    found = []
    began = checkpoints.changed(work.place.attempt(1).claim)
    for pattern in (work.plan.get("sync") or {}).get("watch", ()):
        prefix = next((prefix for prefix in IN_SCRATCH if pattern.startswith(prefix)), "")
        if pattern.startswith(IN_CHECKPOINTS) and local is None:
            continue  # ranks write where it would be brought
        if local and pattern.startswith(IN_CHECKPOINTS):
            found.append(Watch(str(local / CHECKPOINTS), pattern[len(IN_CHECKPOINTS) :], pattern))
        elif prefix:
            found.append(Watch(str(scratch), pattern[len(prefix) :], pattern))
        elif node == 0:
            found.append(Watch(str(work.workdir), pattern, pattern, work.nodes > 1, began))
    return found
