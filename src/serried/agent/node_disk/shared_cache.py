"""What several jobs of a user share on this node's disk, and what of it goes when none of them uses it any more.

images/    copies of images, which go with the last that used them
data/      items of data, which stay for the next job as far as the site's limit says, the longest unused go first
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Optional

from serried.fs import files, locks, removal

FACTS = "facts.json"
"""Within an item, how large it is."""


def tidy_images(folder: Path, mine: Optional[Path] = None, *, dry: bool = False) -> List[Path]:
    """Remove the copies that nobody holds, but `mine`: whoever made them was killed. Those that went, or would."""
    found = [path for path in locks.things(folder) if path != mine and path.suffix != locks.PART]
    return [path for path in found if locks.remove_unused(path, remove_image, dry=dry)]


def remove_image(path: Path) -> None:
    for name in (path, path.with_name(f"{path.name}{locks.PART}")):
        name.unlink(missing_ok=True)


def tidy_data(folder: Path, limit: int = 0, until: Optional[float] = None, *, dry: bool = False) -> List[Path]:
    """Remove what nobody uses and no limit keeps, and what killed jobs have left half done; what went, or would.

    `until` on the monotonic clock it stops: what is half removed then goes with the next job.
    """
    went = []
    sizes: Dict[Path, Optional[int]] = {path: _size(path) for path in oldest_first(folder)}
    total = sum(size or 0 for size in sizes.values())

    def remove(path: Path) -> None:
        remove_item(path, until)

    for path, size in sizes.items():
        is_over = size is None or not limit or total > limit  # an item without facts is half done, or torn by a crash
        if is_over and locks.remove_unused(path, remove, dry=dry):
            total -= size or 0
            went.append(path)
    return went


def oldest_first(folder: Path) -> List[Path]:
    """Items of data by when they were last taken, those that are half done before all others."""
    found = {path.with_name(path.name.removesuffix(locks.PART)) for path in locks.things(folder)}
    return sorted(found, key=lambda path: (_time(path), path.name))


def remove_item(path: Path, until: Optional[float] = None) -> None:
    """Aside first: what is half removed must not look like an item. Raises OSError where it stays."""
    part = path.with_name(path.name + locks.PART)
    removal.remove(part, until)
    if path.exists():
        path.rename(part)
        removal.remove(part, until)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> Optional[int]:
    """None where nothing says."""
    size = (files.read_json(path / FACTS) or {}).get("bytes")
    return size if isinstance(size, int) else None
