"""Deletes old checkpoints from the node's disk once newer ones are in the run directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, List, Sequence, Set

from serried.agent.stage_out import completeness
from serried.agent.stage_out.completeness import Artifact
from serried.fs import removal


def find_surplus(
    artifacts: Sequence[Artifact], is_safe: Callable[[Artifact], bool], keep: int, keep_local: int
) -> List[Artifact]:
    """Of one pattern's checkpoints, the newest first, those that nobody needs here.

    What is not among the run's own yet may go only where `keep` newer ones are: it would be removed there at once.
    """
    published = 0
    surplus = []
    for artifact in artifacts:
        is_published = is_safe(artifact)
        if is_published or published >= keep:
            surplus.append(artifact)
        published += is_published
    return surplus[keep_local:]


def remove_surplus(artifacts: Sequence[Artifact], kept: Set[str]) -> None:
    """Remove them, but what is in `kept`, led to by a link that is, or open for writing. Raises OSError."""
    if not artifacts:
        return
    writing = completeness.open_for_writing()
    wanted = {*kept, *map(os.path.realpath, kept)}
    for artifact in artifacts:
        is_wanted = artifact.source in wanted or os.path.realpath(artifact.source) in wanted
        if is_wanted or not writing.isdisjoint(part.fingerprint[:2] for part in (artifact, *artifact.files)):
            continue
        if artifact.kind == "folder":
            _remove_folder(Path(artifact.source))
        elif completeness.fingerprint_of(os.lstat(artifact.source)) == artifact.fingerprint:
            os.unlink(artifact.source)  # noqa: PTH108 - a bare string


def _remove_folder(path: Path) -> None:
    """Under a name first by which nobody takes the half of it for a checkpoint."""
    renamed = path.with_name(f".serried-{os.urandom(6).hex()}.part")
    path.rename(renamed)
    removal.remove(renamed)
