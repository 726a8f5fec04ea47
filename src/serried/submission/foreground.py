"""`serried run`: the same plan, run directory and record as a submitted run, here and now, output passed on."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from serried.fs.files import read_json
from serried.protocol.names import CANCELLED, REQUEUE
from serried.protocol.reasons import Reason
from serried.records.record import Record
from serried.records.status import status as stand
from serried.schedulers.current_job import Inside
from serried.submission import run_directory
from serried.submission.deliver import establish
from serried.submission.output_stream import LiveOutput
from serried.submission.prepared import Prepared

if TYPE_CHECKING:
    from serried.schedulers.local import foreground

INTERRUPTED = 130


@dataclass(frozen=True)
class Outcome:
    record: Record
    status: int
    """The program's own exit status; 130 when it was interrupted from the terminal."""
    end: dict[str, Any] | None
    """The run's exit.json; None where there is none."""


def run_here(
    prepared: Prepared,
    *,
    gpu_ids: Sequence[str] = (),
    inside: Inside | None = None,
    output: BinaryIO | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run it to its end, here or on the nodes of the job that we are in.

    The ranks' output goes to `output` (stdout) as they write it; `tick` is called meanwhile.

    Raises UsageError where this machine has not what the plan asks for; nothing is left then.
    """
    from serried.schedulers.local import foreground

    # Who sits in front of it need not queue again: it goes on in this very job.
    limit = prepared.plan.limit._replace(form=REQUEUE)
    prepared = dataclasses.replace(prepared, plan=dataclasses.replace(prepared.plan, limit=limit), commands=None)
    record, plan = establish(prepared)
    submission = record.submissions[0]
    several = plan.world_size > 1 or plan.array is not None
    to = output or sys.stdout.buffer
    live = LiveOutput(record.where, several=several, to=to)
    started: list[str] = []

    def pass_on() -> None:
        tick()
        try:
            live.pass_on()
        except BrokenPipeError:
            # `serried run … | head` is over: so is the run, as it would be without us. What is left goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())
            signal.raise_signal(signal.SIGTERM)

    def note_start(job: str) -> None:
        record.write_submission(dataclasses.replace(submission, state="submitted", job=job))
        started.append(job)

    try:
        ended = foreground.run_here(
            plan,
            prepared.token,
            prepared.environment,
            gpu_ids=gpu_ids,
            inside=inside,
            on_start=note_start,
            tick=pass_on,
        )
    except BaseException:
        if not started:
            run_directory.remove(record, plan)
        raise
    live.finish()
    end = read_json(record.where.exit)
    return Outcome(record, _status(record, ended, end), end)


def _status(record: Record, ended: foreground.ForegroundEnd, end: dict[str, Any] | None) -> int:
    if end is None:  # job.sh was killed: by a second Ctrl-C, at the limit, or by something else
        verdict = stand(record).verdict
        if ended.was_interrupted or verdict.state == CANCELLED:
            return INTERRUPTED
        return ended.status if verdict.exit_code is None else verdict.exit_code
    # Another terminal's `serried stop` has the cause `user`.
    if end.get("state") == CANCELLED and end.get("cause") == Reason.CANCEL:
        return INTERRUPTED
    code = end.get("exit_code")
    return code if isinstance(code, int) else ended.status
