"""Brings one thing to where it belongs in the run directory, and finds another place where its name is taken."""

from __future__ import annotations

import errno
import filecmp
import os
from pathlib import Path
from typing import List, Optional, Set, Tuple

from serried.agent.attempt import Work
from serried.agent.stage_out import file_copy
from serried.agent.stage_out.completeness import Found
from serried.agent.stage_out.ledger import Brought, Ledger
from serried.agent.stage_out.throttle import Pace
from serried.fs import files
from serried.protocol import checkpoint_integrity, checkpoints
from serried.protocol.layout import CHECKPOINTS, RESULTS

GROWING = "tfevents"
"""What has this in its name is only ever appended to: TensorBoard's logs, which some program may be reading."""
COMPARED = 4096


class Places:
    def __init__(self, work: Work, node: int, pace: Pace) -> None:
        self.work = work
        self._node = node
        self.pace = pace
        self._modes = file_copy.Modes(work.modes)
        self._ledger = Ledger(work, node)
        self._known: Set[Tuple[str, str, int, int]] = set()
        self._made: Set[Tuple[Path, str]] = set()
        self._folders = {RESULTS: work.place.results, CHECKPOINTS: work.place.checkpoints}
        self._making = work.place.attempt(work.number).node(node) / "bringing"
        """Where copies are made: in the run directory, and nobody else's."""
        if self._making.exists():
            file_copy.remove(self._making)

    def is_there(self, kind: str, found: Found) -> bool:
        """Whether it was brought, as it is now."""
        key = (kind, found.name, found.size, found.changed)
        entry = self._ledger.of(kind, found.name)
        if found.kind == "folder" and not found.files:
            return (self._folders[kind] / found.name).is_dir()
        if key not in self._known and entry and entry.is_of(found) and entry.is_in(self._folders[kind]):
            self._known.add(key)
        return key in self._known

    @property
    def has_checkpoints(self) -> bool:
        """Whether this attempt has brought any."""
        brought = (entry for entry in self._ledger.all(CHECKPOINTS) if entry.attempt == self.work.number)
        return any(not checkpoint_integrity.is_log(entry.name.rpartition("/")[2]) for entry in brought)

    def is_safe(self, found: Found) -> bool:
        """Whether a checkpoint is among the run's own, as it is now; looked at anew."""
        entry = self._ledger.of(CHECKPOINTS, found.name)
        return bool(entry and entry.is_of(found) and entry.is_in(self._folders[CHECKPOINTS]))

    def put(self, kind: str, found: Found, urgent: Optional[int] = None) -> None:
        """Raises OSError, and what the pace raises."""
        self._make(self._making, "")
        if found.kind == "folder" and not found.files:
            file_copy.make_folders(self._folders[kind], found.name, self.work.directory_mode)
        elif found.kind == "folder":
            self._put_folder(kind, found, urgent)
        elif not (GROWING in found.path.rpartition("/")[2] and self._append(kind, found)):
            with file_copy.aside(self._making) as path:
                stamp = file_copy.copy(found, path, self._modes, self.pace, urgent)
                self._publish(kind, found, path, stamp)
        self._known.add((kind, found.name, found.size, found.changed))

    def retire(self, pattern: str, keep: int) -> None:
        """Remove what we brought of a pattern's checkpoints but the newest `keep`."""
        root = self._folders[CHECKPOINTS]
        brought = [
            entry
            for entry in self._ledger.all(CHECKPOINTS)
            if entry.pattern == pattern
            and not checkpoint_integrity.is_log(entry.name.rpartition("/")[2])
            and entry.is_in(root)
        ]
        for entry in sorted(brought, key=lambda entry: entry.stamp, reverse=True)[keep:]:
            if entry.is_folder:
                self._retire_folder(root, entry)
            else:
                (root / entry.at).unlink()
            self._ledger.strike(entry)

    def end(self) -> None:
        """Nothing more will come: what was copied shall be on disk, and nothing of ours left beside it."""
        self._made.clear()
        if self._making.exists():
            file_copy.remove(self._making)

    def _publish(self, kind: str, found: Found, path: Path, stamp: int) -> None:
        root = self._folders[kind]
        entry = self._ledger.of(kind, found.name)
        if entry and not entry.is_folder and entry.is_in(root):
            if kind == CHECKPOINTS or entry.attempt == self.work.number:
                self._ledger.write(self._entry(kind, found, entry.at, stamp, before=entry.stamp))
                path.replace(root / entry.at)
                return
            self._keep_earlier(root, entry, path)
        for at in self._choices(found.name):
            try:
                self._make(root, at.rpartition("/")[0])
                self._ledger.write(self._entry(kind, found, at, stamp))
                file_copy.publish_new(path, root / at)
            except (FileExistsError, NotADirectoryError):
                continue
            except FileNotFoundError:  # somebody has removed it
                self._made.clear()
                raise
            return
        if entry := self._ledger.of(kind, found.name):
            self._ledger.strike(entry)
        raise FileExistsError(errno.EEXIST, "all its names are taken", str(root / found.name))

    def _make(self, root: Path, folder: str) -> None:
        """Once: looking at it for each file would take longer than the file."""
        if (root, folder) not in self._made:
            file_copy.make_folders(root, folder, self.work.directory_mode)
            self._made.add((root, folder))

    def _choices(self, name: str) -> Tuple[str, ...]:
        """The second where another node has brought one of that name; the third where somebody has changed ours."""
        own = f"node-{self._node}"
        return (name, f"{own}/{name}", f"{own}/attempt-{self.work.number}/{name}")

    def _keep_earlier(self, root: Path, entry: Brought, path: Path) -> None:
        """An attempt begins with an empty folder: what one before it has brought is not what this one goes on with."""
        if not path.is_symlink() and filecmp.cmp(path, root / entry.at, shallow=False):
            (root / entry.at).unlink()
            return
        kept = root / f"attempt-{entry.attempt}" / entry.at
        file_copy.make_folders(root, f"attempt-{entry.attempt}/{entry.at}".rpartition("/")[0], self.work.directory_mode)
        try:
            file_copy.publish_new(root / entry.at, kept)
        except FileExistsError:
            return
        (root / entry.at).unlink(missing_ok=True)

    def _entry(
        self, kind: str, found: Found, at: str, stamp: int, *, before: int = 0, is_folder: bool = False
    ) -> Brought:
        return Brought(
            kind=kind,
            name=found.name,
            at=at,
            size=found.size,
            changed=found.changed,
            stamp=stamp,
            before=before,
            is_folder=is_folder,
            pattern=found.pattern,
            attempt=self.work.number,
        )

    def _append(self, kind: str, found: Found) -> bool:
        """Whether what was brought is the beginning of it, and now the rest is there too."""
        entry = self._ledger.of(kind, found.name)
        if entry is None or entry.attempt != self.work.number:
            return False
        target = self._folders[kind] / entry.at
        begin = _common(found.source, target)
        if begin is None:
            return False
        stamp = file_copy.append(found, target, begin, self.pace)
        self._ledger.write(self._entry(kind, found, entry.at, stamp))
        return True

    def _put_folder(self, kind: str, found: Found, urgent: Optional[int]) -> None:
        """At once where none has its name, or all of that is ours. Else file by file: nodes may write one together."""
        root = self._folders[kind]
        parts = [each._replace(name=f"{found.name}/{each.path[len(found.path) + 1 :]}") for each in found.files]
        parts.sort(key=lambda each: each.path.endswith(f"/{checkpoints.COMPLETE}"))
        stamps = []
        is_new = not (root / found.name).exists()
        if is_new or self._is_all_ours(root, found.name):
            with file_copy.aside(self._making) as path:
                for each in parts:
                    below = each.name[len(found.name) + 1 :]
                    file_copy.make_folders(path, below.rpartition("/")[0], self.work.directory_mode)
                    stamp = self._link(kind, each, path / below)
                    stamps.append(stamp or file_copy.copy(each, path / below, self._modes, self.pace, urgent))
                for each, stamp in zip(parts, stamps):  # noqa: B905 - `strict` is 3.10's
                    old = self._ledger.of(kind, each.name)
                    self._ledger.write(self._entry(kind, each, each.name, stamp, before=old.stamp if old else 0))
                self._ledger.write(self._entry(kind, found, found.name, max(stamps), is_folder=True))
                file_copy.make_folders(root, found.name.rpartition("/")[0], self.work.directory_mode)
                try:
                    (file_copy.publish_new if is_new else file_copy.exchange)(path, root / found.name)
                except FileExistsError:  # another node was quicker
                    pass
                else:
                    return
        for each in parts:
            if not self.is_there(kind, each):
                self.put(kind, each, urgent)
        entries = [self._ledger.of(kind, each.name) for each in parts]
        newest = max(entry.stamp for entry in entries if entry)
        self._ledger.write(self._entry(kind, found, found.name, newest, is_folder=True))

    def _link(self, kind: str, found: Found, target: Path) -> int:
        """What is there already need not be copied again: its time, or 0 where it is not."""
        entry = self._ledger.of(kind, found.name)
        if entry is None or found.kind != "file" or not entry.is_of(found):
            return 0
        try:
            os.link(self._folders[kind] / entry.at, target)
        except OSError:
            return 0
        return entry.stamp

    def _retire_folder(self, root: Path, folder: Brought) -> None:
        """Set aside first, where all of it is ours: one half of a checkpoint must not be taken for one."""
        ours = self._ours(folder.name)
        if self._is_all_ours(root, folder.name):
            files.make_directory(self._making, self.work.directory_mode)
            with file_copy.aside(self._making) as path:
                (root / folder.at).rename(path)
        else:
            for at in sorted(each.at for each in ours if each.is_in(root)):
                (root / at).unlink(missing_ok=True)
        for each in ours:
            self._ledger.strike(each)

    def _ours(self, folder: str) -> List[Brought]:
        """Of the files in a checkpoint's folder."""
        return [each for each in self._ledger.all(CHECKPOINTS) if each.name.startswith(f"{folder}/")]

    def _is_all_ours(self, root: Path, folder: str) -> bool:
        there = {str(path.relative_to(root)) for path in (root / folder).rglob("*") if not path.is_dir()}
        return there <= {each.at for each in self._ours(folder) if each.is_in(root)}


def _common(source: str, target: Path) -> Optional[int]:
    """How much of `source` is in `target`, if all of `target` is; by its size and its end."""
    try:
        with open(source, "rb") as one, target.open("rb") as other:  # noqa: PTH123 - a bare string
            length = os.fstat(other.fileno()).st_size
            if os.fstat(one.fileno()).st_size < length:
                return None
            for file in (one, other):
                file.seek(max(0, length - COMPARED))
            return length if one.read(min(length, COMPARED)) == other.read() else None
    except OSError:
        return None
