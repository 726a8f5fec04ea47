"""The end of a file that grows: new lines, read in constant memory however large the file is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import List, Tuple

_ENDS = re.compile(rb"[\r\n]")
"""A progress bar ends each of its states with a carriage return."""


class TailReader:
    """Reads the lines that a file got since the last call. Of very many it reads the newest."""

    def __init__(self, path: Path, most: int) -> None:
        """`most` is the number of bytes that one call reads."""
        self._path = path
        self._most = most
        self._file: Tuple[int, int] = (0, 0)
        """The device and the number of the file, which may be replaced by another."""
        self._offset = 0
        self._rest = b""
        self.changed_at = 0.0
        """When the file last changed, by the clock of its file system, in seconds since the epoch."""

    @property
    def size(self) -> int:
        """The bytes that have been seen."""
        return self._offset

    def lines(self) -> List[bytes]:
        """The new lines without their ends, and without a last line that is incomplete. None of a missing file."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return []
        try:
            return self._read(descriptor)
        except OSError:
            return []
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int) -> List[bytes]:
        state = os.fstat(descriptor)
        self.changed_at = state.st_mtime
        if (state.st_dev, state.st_ino) != self._file or state.st_size < self._offset:
            self._file, self._offset, self._rest = (state.st_dev, state.st_ino), 0, b""
        is_cut = state.st_size - self._offset > self._most
        if is_cut:
            self._offset, self._rest = state.st_size - self._most, b""
        text = os.pread(descriptor, state.st_size - self._offset, self._offset)
        self._offset += len(text)
        *lines, self._rest = _ENDS.split(self._rest + text)
        self._rest = self._rest[-self._most :]
        return lines[1:] if is_cut else lines
