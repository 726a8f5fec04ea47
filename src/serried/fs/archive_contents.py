"""What an archive has put into a working tree, and whether a file there is still that."""

from __future__ import annotations

import calendar
import os
import time
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Optional

_CHUNK = 1 << 20


def moment_of(plan: Mapping[str, Any]) -> int:
    """When the run was submitted: the time of every file of the snapshot that no program has changed."""
    return calendar.timegm(time.strptime(plan["created"], "%Y-%m-%dT%H:%M:%SZ"))


class Contents:
    """Of an archive, as it was unpacked into the working trees of a run."""

    def __init__(self, archive: Optional[Path], links: Mapping[str, str], moment: int) -> None:
        """`links` are those to entries of the project, with where they lead; `moment` is the time of every file."""
        self._archive = archive
        self._links = links
        self._moment = moment * 10**9

    def has(self, tree: Path, path: str, kind: str, size: int, changed: int) -> bool:
        """Whether the file or link at `path` of a working tree is as the snapshot had it."""
        if kind == "link" and path in self._links:
            return _target(tree / path) == self._links[path]
        if self._members is None:  # the time alone has to do
            return changed == self._moment
        member = self._members.get(path)
        if member is None:
            return False
        if kind == "link":
            return member.kind == kind and _target(tree / path) == member.leads_to
        if member.kind != kind or member.size != size:
            return False
        return changed == self._moment or self._has_content(member, tree / path)

    @cached_property
    def _members(self) -> Optional[Dict[str, _Member]]:
        """None where the archive cannot be read."""
        import tarfile

        if self._archive is None:
            return None
        try:
            return _members_of(os.path.normpath(self._archive))
        except (OSError, tarfile.TarError):
            return None

    def _has_content(self, member: _Member, path: Path) -> bool:
        left = member.size
        try:
            with self._archive.open("rb") as archive, path.open("rb") as file:  # type: ignore[union-attr]
                archive.seek(member.offset)
                while left:
                    chunk = archive.read(min(left, _CHUNK))
                    if not chunk or file.read(len(chunk)) != chunk:
                        return False
                    left -= len(chunk)
        except OSError:
            return False
        return True


class _Member(NamedTuple):
    kind: str
    size: int
    offset: int
    """Of its content in the archive."""
    leads_to: str


@lru_cache(maxsize=8)
def _members_of(archive: str) -> Dict[str, _Member]:
    """By path. Many runs have the same code, and an archive is named after its content: it never changes."""
    import tarfile

    with tarfile.open(archive) as tar:
        return {
            one.name: _Member("link" if one.issym() else "file", one.size, one.offset_data, one.linkname) for one in tar
        }


def _target(path: Path) -> Optional[str]:
    try:
        return str(path.readlink())
    except OSError:
        return None
