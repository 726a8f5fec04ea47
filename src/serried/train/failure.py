"""A failing rank reports its error before it closes connections: closing them makes the other ranks fail too."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from typing import Iterator, Optional, Tuple

from serried.protocol import failure_report, names
from serried.train.identities import Identity

LONGEST = 300


def report(error: BaseException, who: Identity, at: float, order: Optional[int]) -> None:
    """Report that `error` ends this rank. Does nothing if no agent started the rank."""
    stop_file = os.environ.get(names.STOP_FILE)
    if not stop_file:
        return
    code, number = _status(error)
    lines = [traceback.format_exception_only(type(each), each)[-1].partition("\n")[0] for each in _chain(error)]
    lost_peer = failure_report.comes_from_a_lost_peer(lines)
    word = failure_report.Word(who.world_size, at, code, number, lines[0][:LONGEST], lost_peer, order)
    with contextlib.suppress(OSError):
        failure_report.write(stop_file, who.rank, word)


def retract(who: Identity) -> None:
    """Delete the report of an earlier failure that this process survived."""
    stop_file = os.environ.get(names.STOP_FILE)
    if stop_file:
        with contextlib.suppress(OSError):
            failure_report.path(stop_file, who.rank).unlink(missing_ok=True)


def _status(error: BaseException) -> Tuple[Optional[int], Optional[int]]:
    """The exit code or the signal with which Python ends if `error` is not caught."""
    if isinstance(error, KeyboardInterrupt):
        return None, int(signal.SIGINT)
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code & 0xFF, None
    return 1, None


def _chain(error: Optional[BaseException]) -> Iterator[BaseException]:
    """`error`, its cause or context, and so on."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
