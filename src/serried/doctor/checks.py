"""Checks: their ids, why each matters, their findings, and a process that runs them.

No check reports that all is well: it reports what it saw, or why it could not look.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Callable, NoReturn

from serried.base import NamedTuple
from serried.base.errors import SerriedError

OK, NOTE, PROBLEM, NOT_TESTED = "ok", "note", "problem", "not tested"
"""A problem makes something fail. A note may be harmless. A finding `not tested` says what a test would need."""
LIMIT_SECONDS = 5.0
"""A check that takes longer is reported, and the others continue: a dead file system never answers."""

WHY = {
    "python": "Serried needs Python 3.11 here, and 3.9 on nodes and on login nodes that a laptop uses.",
    "settings": "A wrong setting stops each submit.",
    "scheduler": "Without its answer no job can be submitted, and no state is current.",
    "cluster": "The profile of a cluster has its partitions, limits, GPUs and the folder of its runs.",
    "account": "Some sites refuse a job that names no account to charge.",
    "root": "Run directories, logs and checkpoints are written there.",
    "root-on-nodes": "Jobs write to the same folder: nodes must have it, under the same path.",
    "root-clock": "Times of files there are compared with times here.",
    "records": "Serried keeps the record of each run there, and needs it to submit once.",
    "home": "Environments, caches and settings are there. Many programs fail without a word when it is full.",
    "temporary": "Compilers, caches and sockets use it.",
    "umask": "New files get their modes from it.",
    "locale": "Names and output that are not ASCII need UTF-8.",
    "git": "A snapshot takes the files that git lists, and the commit is recorded with the run.",
    "processes": "A limit on processes ends a submit, a build or a data loader in the middle.",
    "open-files": "Data loaders and checkpoints open many files.",
    "connections": "Commands for a cluster behind `ssh` need a connection.",
}
"""Why each check matters, by its id."""


class Finding(NamedTuple):
    """The result of one check."""

    id: str
    level: str
    seen: str
    fix: str = ""
    """The exact change, or what a test would need."""

    def to_json(self) -> dict[str, str | None]:
        return {**self._asdict(), "fix": self.fix or None, "why": WHY[self.id]}


Check = Callable[[], tuple[str, ...]]
"""Returns a level, what it saw, and optionally how to fix it."""


def findings(checks: Mapping[str, Check], limit: float = LIMIT_SECONDS) -> Iterator[Finding]:
    """Run all checks in order, each within `limit` seconds.

    They run in a process of their own, so that a file system that does not answer cannot block this one.
    """
    left = dict(checks)
    while left:
        reads, writes = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reads)
            _examine(left, writes)
        os.close(writes)
        try:
            with open(reads, "rb", buffering=0) as results:  # noqa: PTH123 - a descriptor
                for name in list(left):
                    line = _line(results.fileno(), time.monotonic() + limit)
                    del left[name]
                    if line:
                        yield Finding(*json.loads(line))
                        continue
                    seen = f"gave no answer within {limit:g} s" if line is None else "the check itself failed"
                    yield Finding(name, PROBLEM, seen, "a file system or a program hangs: ask the site's support")
                    break
        finally:  # also after Ctrl-C, or if the caller stops early
            for kill in (os.killpg, os.kill):  # its child processes are in its group
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)  # a process that waits for a dead disk ends later


def _line(descriptor: int, deadline: float) -> bytes | None:
    """The next line; None if it does not arrive in time, empty at the end."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        byte = os.read(descriptor, 1)
        if not byte:
            return b""
        line += byte
    return line


def _examine(checks: Mapping[str, Check], writes: int) -> NoReturn:
    problems: dict[str, str] = {}
    """The first check that failed with each message: later ones refer to it."""
    try:
        os.setpgid(0, 0)
        for name, check in checks.items():
            try:
                found = (name, *check())
            except SerriedError as error:
                first = problems.setdefault(error.message, name)  # wrong settings stop several checks
                found = (name, PROBLEM, error.message, error.hint or "")
                found = found if first == name else (name, NOT_TESTED, f"needs `{first}` to be in order")
            except OSError as error:
                found = (name, PROBLEM, f"{error.filename or name}: {error.strerror}")
            os.write(writes, json.dumps(found).encode() + b"\n")
    except BrokenPipeError:
        pass
    except BaseException:  # noqa: BLE001 - never return into the parent's code
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)
