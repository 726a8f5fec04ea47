"""`serried metrics --format prometheus`: the present values of a run, printed or in a file that is replaced."""

from __future__ import annotations

import time
from pathlib import Path

from serried.cli.log_follow import RunClock
from serried.errors import SerriedError
from serried.fs.files import write_bytes
from serried.protocol.live import SHORTEST_SECONDS
from serried.records import live
from serried.records.evidence import attempt_numbers
from serried.records.index import Selection
from serried.records.prometheus import exposition
from serried.records.run_status import RunStatus
from serried.records.status import statuses_of
from serried.ui import console

_READABLE = 0o666
"""Less the umask, as for a file that the shell creates: the collector runs as another user."""


def export(selection: Selection, to: Path | None, *, follow: bool) -> None:
    """Write once; with `follow` until the run has ended, and then its end without its last values."""
    clock = RunClock(selection, awaits="measurements")
    while True:
        is_over = clock.is_run_over() if follow else True
        status = statuses_of([selection])[0] if is_over or clock.status is None else clock.status
        _write(to, _text(selection, status))
        if is_over:
            return
        now = _live(selection)
        time.sleep(now.interval if now else SHORTEST_SECONDS)


def _text(selection: Selection, status: RunStatus) -> str:
    return exposition(status, None if status.has_ended else _live(selection))


def _live(selection: Selection) -> live.Live | None:
    numbers = attempt_numbers(selection.place)
    return live.read(selection.place.attempt(numbers[-1]).live) if numbers else None


def _write(to: Path | None, text: str) -> None:
    if to is None:
        console.out(text.rstrip("\n"))
        return
    try:
        write_bytes(to, text.encode(), _READABLE)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SerriedError(
            f"cannot write `{to}`: {reason.lower()}", hint="its folder must exist and be writable"
        ) from error
