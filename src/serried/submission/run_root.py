"""Whether run directories can be written where they should go, found out before anything depends on it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from serried.errors import UsageError, reason
from serried.fs.files import PRIVATE_FILE, make_directory
from serried.protocol.sizes import spell
from serried.records.record import Record

SPARE_BYTES = 10_000_000
"""Left for the run's own files beside the snapshot."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


def probe(root: Path, bytes_needed: int, mode: int) -> None:
    """Make `root`, write to it, and see that there is room. Raises UsageError."""
    with plain_errors(root):
        make_directory(root, mode)
        test = root / f".probe-{os.urandom(4).hex()}"
        try:
            descriptor = os.open(test, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            try:
                os.write(descriptor, b"serried\n")
            finally:
                os.close(descriptor)
        finally:
            with contextlib.suppress(OSError):
                test.unlink()
        space = os.statvfs(root)
    free = space.f_bavail * space.f_frsize
    if free < bytes_needed + SPARE_BYTES:
        raise UsageError(
            f"only {spell(free)} are free in `{root}`, and this run needs {spell(bytes_needed + SPARE_BYTES)}",
            hint="`serried clean --older-than 30d` removes old runs; or set another `root` in the cluster's profile",
        )


def check_there(record: Record, what: str) -> None:
    """Raises UsageError where a run's directory is gone, and with it `what` is wanted of it."""
    if not record.where.path.is_dir():
        raise UsageError(
            f"the run directory of `{record.id}` is gone, and its {what} with it",
            hint=f"it was `{record.where.path}`; a site purges old files",
        )


@contextlib.contextmanager
def plain_errors(place: Path) -> Iterator[None]:
    """Turn an OSError within into a sentence about `place` and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise UsageError(
                f"no space is left in `{place}`",
                hint="`serried du` says what takes space, `serried clean` removes it",
                details=str(error),
            ) from error
        raise UsageError(
            f"cannot write to `{place}`: {reason(error)}",
            hint="runs go to the `root` of the cluster's profile, records to `$XDG_STATE_HOME/serried`; "
            "both must be folders that you may write to",
        ) from error
