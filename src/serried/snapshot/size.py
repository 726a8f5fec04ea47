"""The guard against sending a data set along with the code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from serried.contract.sizes import spell
from serried.errors import UsageError

BYTES_LIMIT = 200_000_000
FILES_LIMIT = 50_000
"""Each is an inode of the user's quota, for every run."""
LISTED = 6


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
