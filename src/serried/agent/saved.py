"""What an attempt has saved, by what its checkpoints directory shows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

_UNFINISHED = (".tmp", ".corrupt")
"""How what cannot be gone on from is called: by Serried's own library, and by most programs."""
_WHOLE = re.compile(r"step-(\d{1,18})/COMPLETE")


class Saved(NamedTuple):
    is_newer: bool
    """Something there is newer than the attempt, whoever wrote it."""
    step: Optional[int]
    """Of the newest checkpoint that the training library made whole in this attempt."""


def since(directory: Path, claim: Path) -> Saved:
    """What is in `directory` and newer than `claim`: both by the clock of the file server."""
    try:
        began = claim.stat().st_mtime_ns
    except OSError:
        return Saved(False, None)
    newer = [path for path in _files(directory) if _changed(path) > began]
    whole = (_WHOLE.fullmatch(os.path.relpath(path, directory)) for path in newer)
    return Saved(bool(newer), max((int(match[1]) for match in whole if match), default=None))


def _files(directory: Path) -> Iterator[str]:
    for folder, below, found in os.walk(directory):
        below[:] = [name for name in below if not name.endswith(_UNFINISHED)]
        yield from (os.path.join(folder, name) for name in found if not name.endswith(_UNFINISHED))  # noqa: PTH118 - os.walk's own words


def _changed(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:  # removed meanwhile: older checkpoints are
        return 0
