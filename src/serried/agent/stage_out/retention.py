"""Removes from the node's disk old checkpoints of programs that keep all of theirs, once newer ones are brought."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, List, Sequence, Set

from serried.agent.stage_out import completeness
from serried.agent.stage_out.completeness import Found
from serried.fs import removal


def spare(found: Sequence[Found], is_safe: Callable[[Found], bool], keep: int, keep_local: int) -> List[Found]:
    """Of one pattern's checkpoints, the newest first, those that nobody needs here.

    What is not among the run's own yet may go only where `keep` newer ones are: it would be removed there at once.
    """
    safe = 0
    needless = []
    for each in found:
        is_there = is_safe(each)
        if is_there or safe >= keep:
            needless.append(each)
        safe += is_there
    return needless[keep_local:]


def remove(found: Sequence[Found], kept: Set[str]) -> None:
    """Remove them, but what is in `kept`, led to by a link that is, or open for writing. Raises OSError."""
    if not found:
        return
    writing = completeness.open_for_writing()
    wanted = {*kept, *map(os.path.realpath, kept)}
    for each in found:
        is_wanted = each.source in wanted or os.path.realpath(each.source) in wanted
        if is_wanted or not writing.isdisjoint(one.state[:2] for one in (each, *each.files)):
            continue
        if each.kind == "folder":
            _remove_folder(Path(each.source))
        elif completeness.state_of(os.lstat(each.source)) == each.state:
            os.unlink(each.source)  # noqa: PTH108 - a bare string


def _remove_folder(path: Path) -> None:
    """Under a name first by which nobody takes the half of it for a checkpoint."""
    aside = path.with_name(f".serried-{os.urandom(6).hex()}.part")
    path.rename(aside)
    removal.remove(aside)
