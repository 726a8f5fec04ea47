"""Nobody's any more: renamed aside, so that what is half removed looks like nothing, and removed as time allows."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Callable, Optional

from serried.agent.node_disk import base_dirs, mounts
from serried.fs import removal


def remove(own: Optional[Path], path: Path, until: Optional[float]) -> None:
    """Remove `path`, which is in room `own`, as far as time goes: the rest has no owner and no name."""
    mounts.unmount_below(path, until)
    with contextlib.suppress(OSError):
        if own is not None:
            path.chmod(0o700)  # a rank may have made it anything, and what cannot be written cannot be moved
            aside = base_dirs.sub(own, base_dirs.GONE) / path.name
            path = path.rename(aside)
    removal.remove(path, until)


def finish(own: Path, until: Optional[float] = None, of: Callable[[Path], bool] = lambda _: True) -> None:
    """Remove what others had no time for, or what of it `of` wants. Two may do so at once."""
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(base_dirs.sub(own, base_dirs.GONE)), key=lambda entry: entry.name):
            path = Path(entry.path)
            if not of(path):
                continue
            if entry.is_dir(follow_symlinks=False):
                mounts.unmount_below(path, until)
                removal.remove(path, until)
            else:
                path.unlink(missing_ok=True)
