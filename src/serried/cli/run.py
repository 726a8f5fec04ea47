"""`serried run`: run an experiment here and now, in the foreground."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from serried.base.errors import UsageError
from serried.base.text import duration
from serried.cli import options
from serried.config import catalogue
from serried.records import outputs
from serried.records.logs import smoke_result
from serried.records.status import status
from serried.schedulers import job_around
from serried.schedulers.clusters import LOCAL
from serried.schema import names
from serried.schema.endings import End, recoveries
from serried.submission.foreground import INTERRUPTED, Outcome, run_here
from serried.submission.prepare import prepare
from serried.submission.request import decide, decide_inside
from serried.views import console
from serried.views.plan_lines import smoke_text
from serried.views.text import harmless, printable, unfinished_lines

_LONGEST = 51
"""Columns for a next step, which leave room for its purpose on a line of 80."""


@click.command(cls=options.TakesCommand)
@click.argument("experiment", required=False, type=options.PROGRAM)
@options.flags
@click.option("--gpu-ids", metavar="IDS", help="GPUs to use: 0,2.  [default: idle ones]")
def command(*, cluster: str | None, dry_run: bool, as_json: bool, gpu_ids: str | None, **values: Any) -> None:
    r"""Run an experiment, or any command, here and now, with its output.

    \b
    serried run                                the only experiment of serried.toml
    serried run --ranks 2 -- python train.py   two ranks on CPUs
    serried run --gpu-ids 0,2 train            on these GPUs
    serried run train --smoke                  a few steps, saved and loaded

    In a job (`serried shell`, `salloc`, `qsub -I`) the run uses all its nodes, else this machine.
    Ranks start in your project itself, without a snapshot. The exit status is the program's own: that
    of the first rank that failed. Ctrl-C ends all ranks; a second Ctrl-C does not wait for them.
    """
    job = job_around(os.environ) if cluster != LOCAL else None
    if job is None and cluster not in (None, LOCAL):
        raise UsageError(f"`serried run` runs here, not on `{cluster}`", hint=f"serried submit --cluster {cluster} …")
    gpus = [word.strip() for word in gpu_ids.split(",")] if gpu_ids else []
    if job and gpus:
        raise UsageError(f"`--gpu-ids` is for this machine, and this is job {job.job}", hint="leave it out")
    request = options.request(values, cluster if job else LOCAL).with_setting("project.snapshot", value=False)
    if gpus and "resources.gpus" not in request.overrides:
        request = request.with_setting("resources.gpus", value=len(gpus))
    decided = decide_inside(request, job, Path.cwd(), os.environ) if job else decide(request, Path.cwd(), os.environ)
    with options.progress(dry_run=dry_run) as observe:
        prepared = prepare(decided.plan, decided.resolved, os.environ, decided.each, observe=observe)
    if dry_run:
        options.dry_run(prepared, as_json=as_json)
        return
    if prepared.plan.smoke:
        console.say_behind("", smoke_text(prepared.plan), "quiet")
    options.say_about(prepared.notes, prepared.warnings)

    def harmless_bytes(line: bytes) -> bytes:
        """A nested progress bar moves the cursor to lines that other ranks have written since."""
        return harmless(line.decode("utf-8", "replace")).encode()

    began = time.time()
    stream = sys.stderr if as_json else sys.stdout
    bottom = console.MovingLine(stream)
    outcome = run_here(
        prepared,
        gpu_ids=gpus,
        inside=job,
        # With --json, stdout gets that one value alone.
        output=sys.stderr.buffer if as_json else None,
        show_unfinished=lambda texts: bottom.update(*unfinished_lines(texts)),
        clean=harmless_bytes if console.is_terminal(stream) else bytes,
    )
    if as_json:
        console.out_json(runs=[status(outcome.record).to_json()])
    array = prepared.plan.array
    _print_end(outcome, None if array is None else array.indices[0], began)
    sys.exit(outcome.status)


def _print_end(outcome: Outcome, task: int | None, began: float) -> None:
    """Print how the run ended, and the next steps. `task` is the first task of an array: each task has its own logs."""
    record, run, end = outcome.record, outcome.record.id, outcome.end or End.of({})
    logs = (f"serried logs {run}" if task is None else f"serried logs {run}/{task}", "its output")
    steps: list[tuple[str, str]] = []
    again: list[tuple[str, str]] = []
    console.say()
    took = "" if end.seconds is None else f" after {duration(end.seconds)}"
    if outcome.status == 0:
        if record.summary.smoke:
            console.say(f"smoke test: {smoke_result(record, None)}")
        recovered = "".join(f": {printable(message)}" for message in recoveries(end.conditions))
        console.say(f"{console.style('completed', 'good', sys.stderr)}{took}{recovered}")
        again = _submit_step(click.get_current_context().meta[options.WORDS])
        steps = [logs, (f"serried show {run}", "plan, timeline and files")]
        steps += again if all(len(line) <= _LONGEST for line, _ in again) else []
    elif outcome.status == INTERRUPTED:
        console.say(f"interrupted{took}")
    else:
        known = status(record).verdict  # if every agent was killed before it wrote the end
        message = end.message or known.message or f"it ended with status {outcome.status}"
        state = end.state or (known.state if known.has_ended else names.FAILED)
        console.say(f"{console.style(state.lower(), 'bad', sys.stderr)}{took}: {printable(message)}")
        why = (f"serried why {run}", "what happened, and what to do")
        steps = [why, logs, (f"serried show {run}", "plan, timeline, and where its files are")]
    console.say(f"its files are in {record.where.path}")
    project = Path(record.plan.source.directory)
    # Other programs may have changed some of these files.
    changed = outputs.changed_in_place(project, began, leave_out=record.where.path.parents[1])
    if changed.text_in_place:
        console.say_behind("  ", f"changed in {project} while it ran: {changed.text_in_place}", "quiet")
    for warning in end.warnings if outcome.status == 0 else ():
        console.warning(printable(warning.message))
    console.next_steps(steps)
    if again and again[0] not in steps:
        console.next_steps(again)


def _submit_step(words: Sequence[str]) -> list[tuple[str, str]]:
    """The same command for `serried submit`, and its purpose; nothing if it would mean something else there."""
    typed = shlex.join(words)
    given = words[: words.index("--")] if "--" in words else words
    if any(word.startswith("--gpu-ids") for word in given) or not typed.isprintable():
        return []
    is_local = any(word.startswith("--cluster") for word in given)
    cluster = LOCAL if is_local else catalogue(Path.cwd(), os.environ).here
    purpose = "the same in the background" if cluster == LOCAL else f"the same on `{cluster}`"
    return [(f"serried submit {typed}".rstrip(), purpose)]
