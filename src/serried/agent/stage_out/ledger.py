"""Whose a name in the run directory is: each node writes down what it brings before it is there.

A name that is another's, or that changed since we brought it, is never written over.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional

from serried.agent.attempt import Work
from serried.agent.stage_out.completeness import Found
from serried.fs import files


class Brought(NamedTuple):
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

    def is_of(self, found: Found) -> bool:
        """Whether it was made from `found` as it is now."""
        return (self.size, self.changed) == (found.size, found.changed)

    def is_in(self, folder: Path) -> bool:
        """Whether what we put there is there, and unchanged."""
        try:
            it = (folder / self.at).lstat()
        except OSError:
            return False
        return stat.S_ISDIR(it.st_mode) if self.is_folder else it.st_mtime_ns in (self.stamp, self.before)


class Ledger:
    def __init__(self, work: Work, node: int) -> None:
        self._attempt = work.number
        self._mode = work.file_mode
        place = work.place.attempt(work.number).node(node)
        files.make_directory(place, work.directory_mode)
        self._path = work.place.attempt(work.number).brought(node)
        self._entries: Dict[str, Brought] = {}
        for number in (each for each in files.numbers(work.place.attempts) if each <= work.number):
            for entry in files.read_journal(work.place.attempt(number).brought(node)):
                self._take(entry, number)
        self._file = -1
        self._lock = threading.Lock()
        self._is_torn = not _ends_well(self._path)

    def of(self, kind: str, name: str) -> Optional[Brought]:
        return self._entries.get(f"{kind}/{name}")

    def all(self, kind: str) -> Iterator[Brought]:
        return (entry for entry in list(self._entries.values()) if entry.kind == kind)

    def write(self, brought: Brought) -> None:
        """Raises OSError where that cannot be kept: then it must not be brought."""
        facts = brought._asdict()
        del facts["attempt"]
        self._append(facts)
        self._entries[f"{brought.kind}/{brought.name}"] = brought

    def strike(self, brought: Brought) -> None:
        """It is not there any more, or never came to be."""
        self._append({"kind": brought.kind, "name": brought.name, "gone": True})
        self._entries.pop(f"{brought.kind}/{brought.name}", None)

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

    def _take(self, entry: Dict[str, Any], attempt: int) -> None:
        key = f"{entry.get('kind')}/{entry.get('name')}"
        if entry.get("gone"):
            self._entries.pop(key, None)
        elif {*Brought._fields} - {"attempt"} <= entry.keys():
            self._entries[key] = Brought(attempt=attempt, **{name: entry[name] for name in Brought._fields[:-1]})


def _ends_well(path: Path) -> bool:
    """Whether the last line is whole, or there is none."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return True
