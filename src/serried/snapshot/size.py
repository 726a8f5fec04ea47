"""The guards against sending data, or what earlier runs have left in the project, along with the code."""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from serried.errors import UsageError
from serried.protocol.sizes import spell

if TYPE_CHECKING:
    from serried.snapshot.listing import Survey

BYTES_LIMIT = 200_000_000
FILES_LIMIT = 50_000
"""Each is an inode of the user's quota, for every run."""
LISTED = 6

GREW_BYTES = 5_000_000
"""More than this since the project's last snapshot is hardly code."""
FIRST_BYTES = 20_000_000
"""The same for its first."""
LARGE_BYTES = BYTES_LIMIT // 2
"""Named each time, however slowly it has come to that."""
NAMED = 3

TREES_FILES = 100_000
"""So many files at most in the working trees of an array's elements together: quotas are of some 500,000 and more."""
TREES_BYTES = 20_000_000_000


def fits_each(survey: Survey, elements: int) -> bool:
    """Whether each of so many elements may have a copy of its own."""
    return len(survey.files) * elements <= TREES_FILES and survey.bytes * elements <= TREES_BYTES


def growth(survey: Survey, sources: Path) -> Iterator[str]:
    """A sentence where the snapshot is much larger than the newest archive in `sources`, or large in any case.

    Checkpoints and logs of earlier runs on this machine come along like that.
    """
    last = _newest_archive(sources)
    grown = survey.bytes - (last.stat().st_size if last else 0)
    if grown < (GREW_BYTES if last else FIRST_BYTES) and survey.bytes < LARGE_BYTES:
        return
    before = _sizes_in(last) if last else {}
    sizes = {path: _size(survey.project / path) for path in survey.files}
    fresh = {path: size - before.get(path, 0) for path, size in sizes.items() if size > before.get(path, 0)}
    if last and grown >= GREW_BYTES:
        what = f"the snapshot is {spell(grown)} larger than the last one of this project"
    else:
        what, fresh = f"the snapshot holds {spell(survey.bytes)}", sizes
    largest = sorted(fresh, key=lambda path: (-fresh[path], path))[:NAMED]
    names = ", ".join(f"`{path}` ({spell(sizes[path])})" for path in largest)
    more = f" and {len(fresh) - NAMED} more" if len(fresh) > NAMED else ""
    yield f"{what}: {names}{more}; what is no code stays out by a line in `.gitignore`, or `link` under `[project]`"


def _newest_archive(sources: Path) -> Path | None:
    found = []
    for path in sources.glob("[0-9a-f]*.tar"):
        try:
            found.append((path.stat().st_mtime, path))
        except FileNotFoundError:  # removed meanwhile
            continue
    return max(found)[1] if found else None


def _sizes_in(archive: Path) -> dict[str, int]:
    try:
        with tarfile.open(archive) as tar:
            return {member.name: member.size for member in tar}
    except (OSError, tarfile.TarError):
        return {}


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def refuse_if_large(sizes: Mapping[str, int]) -> None:
    """Raise UsageError, with what is largest, where a snapshot of these files would be too large."""
    total = sum(sizes.values())
    if total <= BYTES_LIMIT and len(sizes) <= FILES_LIMIT:
        return
    if total > BYTES_LIMIT:
        message = f"the snapshot would hold {spell(total)}, more than {spell(BYTES_LIMIT)}"
        largest = [f"{spell(size):>10}  {path}" for path, size in _largest(sizes)]
    else:
        message = f"the snapshot would hold {len(sizes):,} files, more than {FILES_LIMIT:,}"
        largest = [f"{count:>10,}  {path}" for path, count in _largest(dict.fromkeys(sizes, 1))]
    raise UsageError(
        message,
        details="\n".join(largest),
        hint="add data to `.gitignore` (it is then linked to, not copied), link to it by "
        '`link = ["data"]` under `[project]`, or run in place: `--set project.snapshot=false`',
    )


def _largest(weights: Mapping[str, int]) -> list[tuple[str, int]]:
    """Top-level folders and files by weight; a folder that is most of it is opened, to name what is inside."""
    top: Counter[str] = Counter()
    second: Counter[str] = Counter()
    for path, weight in weights.items():
        parts = path.split("/")
        top[parts[0] + ("/" if len(parts) > 1 else "")] += weight
        if len(parts) > 1:
            second["/".join(parts[:2]) + ("/" if len(parts) > 2 else "")] += weight
    both = dict(top) | {path: weight for path, weight in second.items() if weight * 5 > sum(weights.values())}
    return sorted(both.items(), key=lambda item: (-item[1], item[0]))[:LISTED]
