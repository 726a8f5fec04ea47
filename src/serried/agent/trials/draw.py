"""The role `draw`: the trial that a job of a sweep's array runs next, where jobs run several (`--workers`).

A job begins with its own trial. Then it draws others, whose jobs still wait. A trial has one owner for ever: a job that
the scheduler starts again resumes its own trial, and no other job touches it.

A job draws only after an end that exit.json proves alone. After any other end, such as a lost node, the job ends too,
because its last trial takes the scheduler's word for the job. The next waiting job continues.
"""

from __future__ import annotations

import sys
import time
from typing import List, Optional, cast

from serried.agent import system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.attempts import deadline
from serried.agent.options import Options, parse
from serried.agent.outcome import reconcile
from serried.base import files
from serried.base.text import ranges
from serried.schema import layout, names, successor_commands
from serried.schema.reasons import NOT_STARTED, Reason

SPARE = 1.5
"""The time that must be left for a trial, in times of the longest so far."""
RETRY_SECONDS = 60.0
IDLE = "idle"
"""The first word if no trial is left. The indices of jobs that wait for nothing follow, as the scheduler counts."""


def main(arguments: List[str]) -> int:
    """`draw TOKEN --job ID --task I [--ended TRIAL --longest SECONDS …]`: print a trial, nothing, or IDLE."""
    options = parse(arguments)
    until, may_have_one = time.monotonic() + RETRY_SECONDS, options.ended is None
    while True:
        try:
            print(answer(options, may_have_one=may_have_one))
        except (OSError, ValueError) as error:
            if time.monotonic() > until:
                print(f"serried: cannot draw a trial: {error}", file=sys.stderr)
                return 1
            may_have_one = True  # an operation that failed may have succeeded on the server
            time.sleep(system.RETRY_PAUSE_SECONDS)
        else:
            return 0


def answer(options: Options, *, may_have_one: bool) -> str:
    """`may_have_one`: a trial may belong to the job already. Raises OSError and ValueError."""
    attempt = Attempt.load(run_directory(), options.task, 0)
    set_umask(attempt)
    if options.ended is not None:
        limit = deadline.deadline_of(attempt, options.end, options.age)
        has_time = limit is None or limit.warning - time.time() > SPARE * options.longest
        if not (has_time and _may_draw(attempt, options.ended)):
            return ""
    trial = draw(attempt, options.job, may_have_one=may_have_one)
    if trial is not None:
        return str(trial)
    # The jobs that have run no trial, as the scheduler counts: of the job's own part of the array.
    offset, busy = attempt.index_offset, {layout.worker_of(attempt.run, task) for task in attempt.tasks}
    idle = [task for task in attempt.tasks if task not in busy and task != attempt.task]
    own_part = (task for task in idle if successor_commands.offset_of(attempt.plan.offsets, task) == offset)
    return f"{IDLE} {ranges(task - offset for task in own_part)}".strip()


def _may_draw(attempt: Attempt, ended: int) -> bool:
    """Whether the trial has completed, or failed by its own fault."""
    end = files.read_json(attempt.run.task(ended).exit) or {}
    if end.get("state") == names.COMPLETED:
        return True
    doubtful = NOT_STARTED | reconcile.RESTARTABLE | {Reason.LAUNCHER}
    killed = (end.get("first_failure") or {}).get("signal") == 9
    return end.get("state") == names.FAILED and end.get("cause") not in doubtful and not killed


def draw(attempt: Attempt, job: str, *, may_have_one: bool) -> Optional[int]:
    """The trial that the job of `attempt.task` runs next, which then belongs to it; None if none is left."""
    own = cast("int", attempt.task)
    if may_have_one and attempt.directory.path.exists():  # the job ran before, or another has drawn its trial
        for trial in layout.trials_of(attempt.run, own):
            end = files.read_json(attempt.run.task(trial).exit)
            # The scheduler has interrupted the job, and started it again.
            was_interrupted = end and end.get("job") == job and end.get("cause") in reconcile.RESTARTABLE
            if end is None or was_interrupted:
                return trial
    if _claim(attempt, own):
        return own
    begun_by_any = set(files.numbers(attempt.run.tasks))
    return next((trial for trial in attempt.tasks if trial not in begun_by_any and _claim(attempt, trial)), None)


def _claim(attempt: Attempt, trial: int) -> bool:
    """Make the trial the job's own, unless it belongs to a job already."""
    place = attempt.run.task(trial)
    files.make_directory(place.path, attempt.directory_mode)
    if place.worker.exists():
        return False
    mine = f"{attempt.task}"
    return files.claim(place.worker, mine) == mine
