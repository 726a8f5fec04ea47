"""`serried shell`: a new allocation with a shell on its first node, or a shell beside the ranks of a run.

A new allocation has no record. Its directory is deleted at the end, unless it holds results or checkpoints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from serried import schedulers
from serried.base import files, shell
from serried.base.errors import SerriedError, UsageError
from serried.base.files import MODES
from serried.records.status import RunStatus
from serried.records.timeline import RankProcess
from serried.schedulers.interface import Job, Scheduler
from serried.schema import names
from serried.schema.layout import RunDirectory
from serried.submission import environments, script
from serried.submission.deliver import Prepared, make_run_directory, plain_errors, probe, remove_empty_above

PAUSES = (2.0, 5.0, 10.0, 20.0, 60.0)
"""Seconds between two queries of the scheduler; the last value repeats."""
END_SECONDS = 60.0
"""Limit for the scheduler to report the end of a job."""

Say = Callable[[str], None]


def with_shell(prepared: Prepared, words: tuple[str, ...], *, now: bool) -> Prepared:
    """The same for `open_shell`: an interactive job that runs `words`, or a shell without words.

    Raises UsageError if the scheduler has no interactive jobs, or its command is not installed.
    """
    plan = prepared.plan._replace(command=words)
    handover = schedulers.get(plan.site.scheduler).interactive(
        plan, prepared.token, prepared.environment, now=now, has_terminal=_has_terminal()
    )
    if shell.which(handover.argv[0]) is None:
        raise schedulers.missing_command(plan.site.scheduler, handover.argv[0])
    text = script.render_shell(plan, python=sys.executable, command=handover.argv)
    return dataclasses.replace(prepared, plan=plan, handover=handover, commands=None, script=text)


@shell.exit_on_signals()
def open_shell(prepared: Prepared, *, now: bool, say: Say) -> int:
    """Wait for the allocation and run the command there; return its exit status. `say` gets the reasons for the wait.

    Raises SerriedError if the command did not start, or if the job ended before the command.
    """
    plan, where = prepared.plan, RunDirectory(Path(prepared.plan.directory))
    root = Path(plan.site.root)
    probe(root, 0, MODES[plan.share].directory)
    with plain_errors(root):
        make_run_directory(prepared, plan)
    watch = _Watch(schedulers.get(plan.site.scheduler), prepared.token, now=now, say=say)
    handover = prepared.handover
    try:
        if handover.handover is not None:
            with plain_errors(handover.handover.parent):
                files.make_directory(handover.handover.parent)
                files.write_environment(handover.handover, handover.environment)
        status = shell.foreground(
            handover.argv,
            env=handover.environment,
            umask=handover.umask,
            tick=watch.look,
            on_interrupt=watch.note_interrupt,
        )
        return _outcome(status, where, watch)
    finally:
        files.forget_environment(plan.private, plan.run)
        _clean_up(where, say)


class _Watch:
    """Follows a job until it starts."""

    def __init__(self, scheduler: Scheduler, token: str, *, now: bool, say: Say) -> None:
        self.now = now
        self.is_interrupted = False
        self._scheduler = scheduler
        self._token = token
        self._say = say
        self._pauses = iter(PAUSES)
        self._reported = ""
        self._id: str | None = None

    def note_interrupt(self) -> None:
        self.is_interrupted = True

    def look(self) -> float | None:
        """Report a new reason for the wait; return the seconds until the next look, or None."""
        if schedulers.traits(self._scheduler.name).is_this_machine:
            return None
        pause = next(self._pauses, PAUSES[-1])
        if pause != PAUSES[0]:
            # An error of the scheduler does not help a user who waits for the job.
            with contextlib.suppress(SerriedError):
                job = self.job()
                if job is not None and job.state != names.PENDING:
                    return None
                if job is not None:
                    self._report(job)
        return pause

    def job(self) -> Job | None:
        """The job, or None if the scheduler does not list it. Raises SchedulerUnreachable."""
        self._id = self._id or self._scheduler.find(self._token)
        jobs = self._scheduler.poll([self._id]) if self._id else {}
        return next(iter(jobs.values()), None)

    def final_state(self) -> str:
        """The final state of the job; UNKNOWN if the scheduler does not report it in time."""
        state, deadline = names.UNKNOWN, time.monotonic() + END_SECONDS
        while state not in names.ENDED and time.monotonic() < deadline:
            with contextlib.suppress(SerriedError):
                job = self.job()
                state = job.state if job else state
            time.sleep(0.5)
        return state

    def _report(self, job: Job) -> None:
        if self.now:
            # `qsub` has no option to fail at once; by now PBS has tried to start the job.
            self._scheduler.cancel([job.id])
        elif job.reason != self._reported:
            self._reported = job.reason
            self._say(f"job {job.id} waits: {self._scheduler.explain(job.reason)}")


def _outcome(status: int, where: RunDirectory, watch: _Watch) -> int:
    """The exit status in the agent's file. Without a file nothing ran; without a status the job ended first."""
    report = files.read_json(where.shell)
    if report is not None and "exit_code" in report:
        return int(report["exit_code"])
    if report is None and watch.is_interrupted:
        return 130
    if report is None and watch.now and status:
        raise SerriedError("no nodes that fit are free now", hint="without `--now`, the command waits for nodes")
    if report is None:  # `qsub -I` exits with 0 even if its job could not start
        hint = f"see the scheduler's messages above; the job's node must see `{where.path.parent}`"
        raise SerriedError("nothing ran: no allocation, or its node cannot see the run directory", hint=hint)
    state = watch.final_state()
    if watch.is_interrupted and state in (names.CANCELLED, names.UNKNOWN):  # Ctrl-C without a terminal ends the job
        return 130
    error = SerriedError(
        f"the job ended before the shell on {report['host']}" + (f": {state}" if state in names.ENDED else ""),
        hint="`--time` sets its time limit" if state == names.TIMEOUT else None,
    )
    error.exit_code = names.EXIT_CODES.get(state, 1)
    raise error


def _clean_up(where: RunDirectory, say: Say) -> None:
    """Delete the run directory, unless it holds results or checkpoints."""
    kept = [folder for folder in (where.results, where.checkpoints) if folder.is_dir() and any(folder.iterdir())]
    if kept:
        say(f"results and checkpoints are in {' and '.join(map(str, kept))}")
        return
    shutil.rmtree(where.path, ignore_errors=True)
    remove_empty_above(where.path)


def join_command(
    status: RunStatus, node: int, words: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The command for a shell, or `words`, on a node of a running run, and its environment. Raises UsageError."""
    check_joinable(status, node)
    plan = status.record.plan
    text = script.render_join(plan, status.attempt or 1, status.task, python=sys.executable)
    environment = environments.job_environment(plan.environment, environ)
    return _joining(status, node, text, words), schedulers.scrub(environment)


def attach_command(
    status: RunStatus, process: RankProcess, words: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The same with the environment of a rank that runs there."""
    check_joinable(status, process.node)
    task = () if status.task is None else ("--task", str(status.task))
    which = (str(status.attempt), str(process.rank), str(process.pid), *task)
    text = script.render_attach(status.record.plan, which, python=sys.executable)
    return _joining(status, process.node, text, words), schedulers.scrub(environ)


def check_joinable(status: RunStatus, node: int = 0) -> None:
    """Raise UsageError if no process can be started on that node in the run's job."""
    plan = status.record.plan
    if status.state != names.RUNNING or status.job is None or not status.attempt:
        hint = "`serried shell EXPERIMENT` requests a new allocation"
        raise UsageError(f"run `{status.id}` is not running: it is {status.state}", hint=hint)
    if plan.site.inside:
        raise UsageError(
            f"run `{status.id}` runs in a job that Serried did not submit",
            hint=f"in that job, use `serried run` again, or the commands of {plan.site.inside}",
        )
    if not 0 <= node < len(status.node_names):
        listed = ", ".join(status.node_names)
        raise UsageError(f"run `{status.id}` has no node {node}", hint=f"from 0: {listed}" if listed else None)


def _joining(status: RunStatus, node: int, text: str, words: Sequence[str]) -> tuple[str, ...]:
    """The command that runs the lines `text` on that node, in the run's job and on our terminal."""
    plan, job = status.record.plan, status.job or ""
    scheduler = schedulers.get(plan.site.scheduler)
    return scheduler.join(
        status.record.job_of(job, status.task),
        status.node_names[node],
        ("/bin/bash", "-c", text, "serried", *words),
        has_terminal=_has_terminal(),
    )


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
