"""Checks before the first byte that the data fits, including what archives unpack to as far as they tell."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence, Tuple

from serried.agent.stage_in.cache import NoRoomError, StagingCache
from serried.agent.stage_in.item import StagedItem, StageError
from serried.agent.stage_in.watchdog import Watchdog
from serried.fs import archive_size, scan
from serried.fs.manifest import Manifest

UNPACKED = "-unpacked"
"""Of the key of an archive, for what it became."""


def make_room(cache: StagingCache, wanted: Sequence[Tuple[StagedItem, Manifest]], pulse: Watchdog) -> None:
    """For all that is not here. Raises NoRoomError, UnreadableError, and StageError for an archive that is none."""
    by_key = {manifest.key: (item, manifest) for item, manifest in wanted}
    held = [key for key in by_key if cache.has(key) or cache.has(key + UNPACKED)]
    needed = [_required(item, manifest, pulse) for key, (item, manifest) in by_key.items() if key not in held]
    if needed:
        cache.make_room(sum(size for size, _ in needed), sum(files for _, files in needed), keep=held)


def make_room_to_unpack(cache: StagingCache, item: StagedItem, archive: Path) -> None:
    """Raises StageError."""
    more = _least_size(item, str(archive))
    try:
        cache.make_room(more.bytes, more.files)
    except NoRoomError as error:
        raise StageError(f"cannot unpack `{item.source}`: {error}") from None


def _required(item: StagedItem, manifest: Manifest, pulse: Watchdog) -> Tuple[int, int]:
    """Bytes and files; a squashfs is mounted where that can be done."""
    if not item.unpack or item.unpack == "squashfs":
        return manifest.blocks, manifest.inodes
    with pulse.watch(item.source):
        more = _least_size(item, item.source)
    return manifest.blocks + more.bytes, manifest.inodes + more.files


def _least_size(item: StagedItem, path: str) -> archive_size.Least:
    try:
        return archive_size.least(path, item.unpack)
    except ValueError as error:
        raise StageError(f"cannot unpack `{item.source}`: it is no whole zip: {error}") from None
    except OSError as error:
        raise scan.UnreadableError(scan.encode(path), error) from None
