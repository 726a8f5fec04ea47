"""A process that runs the checks of this machine, so that a file system that does not answer cannot block it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Callable, NoReturn

from serried.base.errors import SerriedError
from serried.schema.checks import NOT_TESTED, PROBLEM, Finding

FIXES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "serried clean --list shows the largest files of runs")
LIMIT_SECONDS = 5.0
"""A check that takes longer is reported, and the others continue: a dead file system never answers."""
AGAIN_SECONDS = 2.0
"""The limit of each further check that gives no answer. It may hang for the same reason, and is not tested."""

Check = Callable[[], tuple[str, ...]]
"""Returns a level, what it saw, and optionally how to fix it."""


def findings(checks: Mapping[str, Check], limit: float = LIMIT_SECONDS) -> Iterator[Finding]:
    """Run all checks in order, each within `limit` seconds.

    They run in a process of their own, so that a file system that does not answer cannot block this one.
    """
    left, level, fix = dict(checks), PROBLEM, "a file system or a program hangs: ask the site's support"
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
                    if line is None:
                        yield Finding(name, level, f"gave no answer within {limit:g} s", fix)
                        if level == PROBLEM:
                            level, limit, fix = NOT_TESTED, min(limit, AGAIN_SECONDS), f"mend `{name}` first"
                    else:
                        yield Finding(name, NOT_TESTED, "the process of the checks was killed", "serried doctor, again")
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
                found = (name, PROBLEM, f"{error.filename or name}: {error.strerror}", FIXES.get(error.errno or 0, ""))
            except Exception as error:  # noqa: BLE001 - a defect of one check says nothing about the machine
                where = error.__traceback__ and traceback.extract_tb(error.__traceback__)[-1]
                at = f" ({where.filename.rpartition('/')[2]}:{where.lineno})" if where else ""
                fix = "this is a defect of Serried: please report this line"
                found = (name, NOT_TESTED, f"the check failed: {type(error).__name__}: {error}{at}", fix)
            os.write(writes, json.dumps(found).encode() + b"\n")
    except BrokenPipeError:
        pass
    finally:
        os._exit(0)  # never return into the parent's code
