"""Publishes copies in the run directory, under another name where the name is taken."""

from __future__ import annotations

import errno
import filecmp
import os
from pathlib import Path
from typing import List, Optional, Set, Tuple

from serried.agent.attempt import Attempt
from serried.agent.stage_out import file_copy
from serried.agent.stage_out.completeness import Artifact
from serried.agent.stage_out.ledger import Ledger, LedgerEntry
from serried.agent.stage_out.throttle import Throttle
from serried.fs import files
from serried.protocol import checkpoint_integrity, checkpoints
from serried.protocol.layout import CHECKPOINTS, RESULTS

APPEND_ONLY = "tfevents"
"""What has this in its name is only ever appended to: TensorBoard's logs, which some program may be reading."""
COMPARED = 4096


class Publisher:
    def __init__(self, work: Attempt, node: int, throttle: Throttle) -> None:
        self.work = work
        self._node = node
        self.throttle = throttle
        self._modes = file_copy.CopyModes(work.modes)
        self._ledger = Ledger(work, node)
        self._published: Set[Tuple[str, str, int, int]] = set()
        self._directories: Set[Tuple[Path, str]] = set()
        self._roots = {RESULTS: work.directory.results, CHECKPOINTS: work.directory.checkpoints}
        self._temporary = work.directory.attempt(work.number).node(node) / "bringing"
        """Where copies are made: in the run directory, and nobody else's."""
        if self._temporary.exists():
            file_copy.remove(self._temporary)

    def is_published(self, kind: str, artifact: Artifact) -> bool:
        """Whether it was brought, as it is now."""
        key = (kind, artifact.name, artifact.size, artifact.mtime_ns)
        entry = self._ledger.get(kind, artifact.name)
        if artifact.kind == "folder" and not artifact.files:
            return (self._roots[kind] / artifact.name).is_dir()
        if (
            key not in self._published
            and entry
            and entry.matches(artifact)
            and entry.is_unchanged_in(self._roots[kind])
        ):
            self._published.add(key)
        return key in self._published

    @property
    def has_checkpoints(self) -> bool:
        """Whether this attempt has brought any."""
        entries = (entry for entry in self._ledger.entries(CHECKPOINTS) if entry.attempt == self.work.number)
        return any(not checkpoint_integrity.is_log(entry.name.rpartition("/")[2]) for entry in entries)

    def is_still_published(self, artifact: Artifact) -> bool:
        """Whether a checkpoint is among the run's own, as it is now; looked at anew."""
        entry = self._ledger.get(CHECKPOINTS, artifact.name)
        return bool(entry and entry.matches(artifact) and entry.is_unchanged_in(self._roots[CHECKPOINTS]))

    def publish(self, kind: str, artifact: Artifact, urgent_before: Optional[int] = None) -> None:
        """Raises OSError, and what the pace raises."""
        self._make_directory(self._temporary, "")
        if artifact.kind == "folder" and not artifact.files:
            file_copy.make_directories(self._roots[kind], artifact.name, self.work.directory_mode)
        elif artifact.kind == "folder":
            self._publish_folder(kind, artifact, urgent_before)
        elif not (APPEND_ONLY in artifact.path.rpartition("/")[2] and self._append(kind, artifact)):
            with file_copy.temporary_path(self._temporary) as path:
                stamp = file_copy.copy_file(artifact, path, self._modes, self.throttle, urgent_before)
                self._publish_file(kind, artifact, path, stamp)
        self._published.add((kind, artifact.name, artifact.size, artifact.mtime_ns))

    def prune(self, pattern: str, keep: int) -> None:
        """Remove what we brought of a pattern's checkpoints but the newest `keep`."""
        root = self._roots[CHECKPOINTS]
        entries = [
            entry
            for entry in self._ledger.entries(CHECKPOINTS)
            if entry.pattern == pattern
            and not checkpoint_integrity.is_log(entry.name.rpartition("/")[2])
            and entry.is_unchanged_in(root)
        ]
        for entry in sorted(entries, key=lambda entry: entry.stamp, reverse=True)[keep:]:
            if entry.is_folder:
                self._prune_folder(root, entry)
            else:
                (root / entry.at).unlink()
            self._ledger.remove(entry)

    def close(self) -> None:
        """Nothing more will come: what was copied shall be on disk, and nothing of ours left beside it."""
        self._directories.clear()
        if self._temporary.exists():
            file_copy.remove(self._temporary)

    def _publish_file(self, kind: str, artifact: Artifact, path: Path, stamp: int) -> None:
        root = self._roots[kind]
        entry = self._ledger.get(kind, artifact.name)
        if entry and not entry.is_folder and entry.is_unchanged_in(root):
            if kind == CHECKPOINTS or entry.attempt == self.work.number:
                self._ledger.record(self._ledger_entry(kind, artifact, entry.at, stamp, before=entry.stamp))
                path.replace(root / entry.at)
                return
            self._keep_earlier(root, entry, path)
        for at in self._candidate_names(artifact.name):
            try:
                self._make_directory(root, at.rpartition("/")[0])
                self._ledger.record(self._ledger_entry(kind, artifact, at, stamp))
                file_copy.publish_exclusive(path, root / at)
            except (FileExistsError, NotADirectoryError):
                continue
            except FileNotFoundError:  # somebody has removed it
                self._directories.clear()
                raise
            return
        if entry := self._ledger.get(kind, artifact.name):
            self._ledger.remove(entry)
        raise FileExistsError(errno.EEXIST, "all its names are taken", str(root / artifact.name))

    def _make_directory(self, root: Path, folder: str) -> None:
        """Once: looking at it for each file would take longer than the file."""
        if (root, folder) not in self._directories:
            file_copy.make_directories(root, folder, self.work.directory_mode)
            self._directories.add((root, folder))

    def _candidate_names(self, name: str) -> Tuple[str, ...]:
        """The second where another node has brought one of that name; the third where somebody has changed ours."""
        own = f"node-{self._node}"
        return (name, f"{own}/{name}", f"{own}/attempt-{self.work.number}/{name}")

    def _keep_earlier(self, root: Path, entry: LedgerEntry, path: Path) -> None:
        """An attempt begins with an empty folder: what one before it has brought is not what this one goes on with."""
        if not path.is_symlink() and filecmp.cmp(path, root / entry.at, shallow=False):
            (root / entry.at).unlink()
            return
        kept = root / f"attempt-{entry.attempt}" / entry.at
        file_copy.make_directories(
            root, f"attempt-{entry.attempt}/{entry.at}".rpartition("/")[0], self.work.directory_mode
        )
        try:
            file_copy.publish_exclusive(root / entry.at, kept)
        except FileExistsError:
            return
        (root / entry.at).unlink(missing_ok=True)

    def _ledger_entry(
        self, kind: str, artifact: Artifact, at: str, stamp: int, *, before: int = 0, is_folder: bool = False
    ) -> LedgerEntry:
        return LedgerEntry(
            kind=kind,
            name=artifact.name,
            at=at,
            size=artifact.size,
            changed=artifact.mtime_ns,
            stamp=stamp,
            before=before,
            is_folder=is_folder,
            pattern=artifact.pattern,
            attempt=self.work.number,
        )

    def _append(self, kind: str, artifact: Artifact) -> bool:
        """Whether what was brought is the beginning of it, and now the rest is there too."""
        entry = self._ledger.get(kind, artifact.name)
        if entry is None or entry.attempt != self.work.number:
            return False
        target = self._roots[kind] / entry.at
        begin = _common_prefix(artifact.source, target)
        if begin is None:
            return False
        stamp = file_copy.append_tail(artifact, target, begin, self.throttle)
        self._ledger.record(self._ledger_entry(kind, artifact, entry.at, stamp))
        return True

    def _publish_folder(self, kind: str, artifact: Artifact, urgent_before: Optional[int]) -> None:
        """At once where none has its name, or all of that is ours. Else file by file: nodes may write one together."""
        root = self._roots[kind]
        parts = [
            part._replace(name=f"{artifact.name}/{part.path[len(artifact.path) + 1 :]}") for part in artifact.files
        ]
        parts.sort(key=lambda part: part.path.endswith(f"/{checkpoints.COMPLETE}"))
        stamps = []
        is_new = not (root / artifact.name).exists()
        if is_new or self._owns_all(root, artifact.name):
            with file_copy.temporary_path(self._temporary) as path:
                for part in parts:
                    below = part.name[len(artifact.name) + 1 :]
                    file_copy.make_directories(path, below.rpartition("/")[0], self.work.directory_mode)
                    stamp = self._link_existing(kind, part, path / below)
                    stamps.append(
                        stamp or file_copy.copy_file(part, path / below, self._modes, self.throttle, urgent_before)
                    )
                for part, stamp in zip(parts, stamps):  # noqa: B905 - `strict` is 3.10's
                    previous = self._ledger.get(kind, part.name)
                    self._ledger.record(
                        self._ledger_entry(kind, part, part.name, stamp, before=previous.stamp if previous else 0)
                    )
                self._ledger.record(self._ledger_entry(kind, artifact, artifact.name, max(stamps), is_folder=True))
                file_copy.make_directories(root, artifact.name.rpartition("/")[0], self.work.directory_mode)
                try:
                    (file_copy.publish_exclusive if is_new else file_copy.exchange)(path, root / artifact.name)
                except FileExistsError:  # another node was quicker
                    pass
                else:
                    return
        for part in parts:
            if not self.is_published(kind, part):
                self.publish(kind, part, urgent_before)
        entries = [self._ledger.get(kind, part.name) for part in parts]
        newest = max(entry.stamp for entry in entries if entry)
        self._ledger.record(self._ledger_entry(kind, artifact, artifact.name, newest, is_folder=True))

    def _link_existing(self, kind: str, artifact: Artifact, target: Path) -> int:
        """What is there already need not be copied again: its time, or 0 where it is not."""
        entry = self._ledger.get(kind, artifact.name)
        if entry is None or artifact.kind != "file" or not entry.matches(artifact):
            return 0
        try:
            os.link(self._roots[kind] / entry.at, target)
        except OSError:
            return 0
        return entry.stamp

    def _prune_folder(self, root: Path, folder: LedgerEntry) -> None:
        """Set aside first, where all of it is ours: one half of a checkpoint must not be taken for one."""
        entries = self._own_entries(folder.name)
        if self._owns_all(root, folder.name):
            files.make_directory(self._temporary, self.work.directory_mode)
            with file_copy.temporary_path(self._temporary) as path:
                (root / folder.at).rename(path)
        else:
            for at in sorted(entry.at for entry in entries if entry.is_unchanged_in(root)):
                (root / at).unlink(missing_ok=True)
        for entry in entries:
            self._ledger.remove(entry)

    def _own_entries(self, folder: str) -> List[LedgerEntry]:
        """Of the files in a checkpoint's folder."""
        return [entry for entry in self._ledger.entries(CHECKPOINTS) if entry.name.startswith(f"{folder}/")]

    def _owns_all(self, root: Path, folder: str) -> bool:
        paths = {str(path.relative_to(root)) for path in (root / folder).rglob("*") if not path.is_dir()}
        return paths <= {entry.at for entry in self._own_entries(folder) if entry.is_unchanged_in(root)}


def _common_prefix(source: str, target: Path) -> Optional[int]:
    """How much of `source` is in `target`, if all of `target` is; by its size and its end."""
    try:
        with open(source, "rb") as source_file, target.open("rb") as target_file:  # noqa: PTH123 - a bare string
            length = os.fstat(target_file.fileno()).st_size
            if os.fstat(source_file.fileno()).st_size < length:
                return None
            for file in (source_file, target_file):
                file.seek(max(0, length - COMPARED))
            return length if source_file.read(min(length, COMPARED)) == target_file.read() else None
    except OSError:
        return None
