"""What ranks write, passed on while they write it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from serried.protocol.json_lines import LineBuffer
from serried.protocol.layout import RunDirectory

LONGEST_PART = 65_536
"""A line that is longer is passed on in parts."""


class LiveOutput:
    """The logs of all ranks of a run as one stream; with several ranks, whole lines with the rank before them."""

    def __init__(self, run: RunDirectory, *, several: bool, to: BinaryIO) -> None:
        self._run = run
        self._several = several
        self._to = to
        self._logs: dict[Path, _Log] = {}

    def pass_on(self) -> None:
        """Write what came since the last call."""
        for path in self._new_logs():
            self._logs[path] = _Log(path, self._label(path))
        wrote = False
        for log in self._logs.values():
            for part in log.parts() if self._several else log.chunks():
                self._to.write(part)
                wrote = True
        if wrote:
            self._to.flush()

    def finish(self) -> None:
        """Write what is left, unfinished lines too."""
        self.pass_on()
        for log in self._logs.values():
            if log.rest:
                self._to.write(log.label + log.rest + b"\n")
            log.close()
        self._to.flush()

    def _new_logs(self) -> Iterator[Path]:
        found = [*self._run.path.glob("attempts/*/node-*/rank-*.log")]
        if self._run.elements.is_dir():
            found += self._run.elements.glob("*/attempts/*/node-*/rank-*.log")
        yield from sorted(path for path in found if path not in self._logs)

    def _label(self, path: Path) -> bytes:
        rank = path.stem.removeprefix("rank-")
        inside = path.relative_to(self._run.path).parts
        element = f"{inside[1]}/" if inside[0] == self._run.elements.name else ""
        return f"[{element}{rank}] ".encode()


class _Log:
    def __init__(self, path: Path, label: bytes) -> None:
        self.label = label
        self._buffer = LineBuffer()
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def rest(self) -> bytes:
        return self._buffer.rest

    def close(self) -> None:
        os.close(self._descriptor)

    def chunks(self) -> Iterator[bytes]:
        while chunk := os.read(self._descriptor, LONGEST_PART):
            yield chunk

    def parts(self) -> Iterator[bytes]:
        """Whole lines, labelled. Of what a progress bar wrote over itself on one line, the last state."""
        for chunk in self.chunks():
            yield from (self.label + _last_state(line) + b"\n" for line in self._buffer.lines(chunk))
            self._buffer.rest = _last_state(self._buffer.rest)
            if len(self._buffer.rest) >= LONGEST_PART:
                yield self.label + self._buffer.rest + b"\n"
                self._buffer.rest = b""


def _last_state(line: bytes) -> bytes:
    r"""`a\rb\r` shows as `b`."""
    body = line.rstrip(b"\r")
    return body.rpartition(b"\r")[2] + line[len(body) :]
