"""Which names in the run directory a node owns. A node records a name before it writes the file.

A name that another node owns, or that changed since the copy, is never overwritten.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional

from serried.agent.attempt import Attempt
from serried.agent.stage_out.completeness import Artifact
from serried.fs import files


class LedgerEntry(NamedTuple):
    kind: str
    name: str
    at: str
    """Where it is, below the run's results or checkpoints."""
    size: int
    changed: int
    """Of the source when it was copied."""
    stamp: int
    """The time of the copy, by which one sees that it is still ours; of a folder its newest file's."""
    before: int
    """That of the copy which it replaces: written down first, so that a death in between loses neither."""
    is_folder: bool
    pattern: str
    """That it was found by; empty for a file in the folder of a checkpoint."""
    attempt: int

    def matches(self, artifact: Artifact) -> bool:
        """Whether it was made from `found` as it is now."""
        return (self.size, self.changed) == (artifact.size, artifact.mtime_ns)

    def is_unchanged_in(self, folder: Path) -> bool:
        """Whether what we put there is there, and unchanged."""
        try:
            status = (folder / self.at).lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) if self.is_folder else status.st_mtime_ns in (self.stamp, self.before)


class Ledger:
    def __init__(self, work: Attempt, node: int) -> None:
        self._attempt_number = work.number
        self._mode = work.file_mode
        directory = work.directory.attempt(work.number).node(node)
        files.make_directory(directory, work.directory_mode)
        self._path = work.directory.attempt(work.number).brought(node)
        self._entries: Dict[str, LedgerEntry] = {}
        for number in (number for number in files.numbers(work.directory.attempts) if number <= work.number):
            for entry in files.read_journal(work.directory.attempt(number).brought(node)):
                self._apply(entry, number)
        self._file = -1
        self._lock = threading.Lock()
        self._is_torn = not _ends_with_newline(self._path)

    def get(self, kind: str, name: str) -> Optional[LedgerEntry]:
        return self._entries.get(f"{kind}/{name}")

    def entries(self, kind: str) -> Iterator[LedgerEntry]:
        return (entry for entry in list(self._entries.values()) if entry.kind == kind)

    def record(self, entry: LedgerEntry) -> None:
        """Raises OSError where that cannot be kept: then it must not be brought."""
        facts = entry._asdict()
        del facts["attempt"]
        self._append(facts)
        self._entries[f"{entry.kind}/{entry.name}"] = entry

    def remove(self, entry: LedgerEntry) -> None:
        """It is not there any more, or never came to be."""
        self._append({"kind": entry.kind, "name": entry.name, "gone": True})
        self._entries.pop(f"{entry.kind}/{entry.name}", None)

    def _append(self, entry: Dict[str, Any]) -> None:
        line = (json.dumps(entry) + "\n").encode()
        with self._lock:
            self._write(line)

    def _write(self, line: bytes) -> None:
        if self._is_torn:
            line = b"\n" + line
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, self._mode)
        self._is_torn = True
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._is_torn = False

    def _apply(self, entry: Dict[str, Any], attempt: int) -> None:
        key = f"{entry.get('kind')}/{entry.get('name')}"
        if entry.get("gone"):
            self._entries.pop(key, None)
        elif {*LedgerEntry._fields} - {"attempt"} <= entry.keys():
            self._entries[key] = LedgerEntry(
                attempt=attempt, **{name: entry[name] for name in LedgerEntry._fields[:-1]}
            )


def _ends_with_newline(path: Path) -> bool:
    """Whether the last line is whole, or there is none."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return True
