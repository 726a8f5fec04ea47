"""`serried shell`: an allocation of one's own with a shell on its first node, or a shell beside the ranks of a run.

It is no run: it has no record, and its directory goes with it unless something was written into that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from serried import inherit, schedulers, script, shell
from serried.errors import SerriedError, UsageError
from serried.fs import files
from serried.fs.files import MODES
from serried.protocol import names
from serried.protocol.layout import RunDirectory
from serried.protocol.names import scrub
from serried.records.run_status import RunStatus
from serried.schedulers.interface import Job, Scheduler
from serried.submission.prepared import Prepared, make_run_directory, plain_errors, probe, remove_empty_above

PAUSES = (2.0, 5.0, 10.0, 20.0, 60.0)
"""After how many seconds the scheduler is asked again, the last one from then on."""
END_SECONDS = 60.0
"""How long a job that has ended may take to say so."""

ENDING = (signal.SIGTERM, signal.SIGHUP)

Say = Callable[[str], None]


def prepared(made: Prepared, words: tuple[str, ...], *, now: bool) -> Prepared:
    """What `open_shell` runs, in place of what would be submitted: `words`, or a shell where there are none.

    Raises UsageError where it cannot be.
    """
    plan = dataclasses.replace(made.plan, command=words)
    handover = schedulers.get(plan.site.scheduler).interactive(
        plan, made.token, made.environment, now=now, has_terminal=_has_terminal()
    )
    if shell.which(handover.argv[0]) is None:
        raise shell.missing_program(handover.argv[0])
    text = script.render_shell(plan, python=sys.executable, command=handover.argv)
    return dataclasses.replace(made, plan=plan, handover=handover, commands=None, script=text)


def open_shell(made: Prepared, *, now: bool, say: Say) -> int:
    """Wait for the allocation and be in it; return the exit status of what ran there. `say` hears why it waits.

    Raises SerriedError where nothing ever ran, and where the job ended around it.
    """
    plan, where = made.plan, RunDirectory(Path(made.plan.directory))
    root = Path(plan.site.root)
    probe(root, 0, MODES[plan.share].directory)
    with plain_errors(root):
        make_run_directory(made, plan)
    watch = _Watch(schedulers.get(plan.site.scheduler), made.token, now=now, say=say)
    handover = made.handover
    try:
        if handover.handover is not None:
            with plain_errors(handover.handover.parent):
                files.make_directory(handover.handover.parent)
                files.write_environment(handover.handover, handover.environment)
        for number in ENDING:
            signal.signal(number, _leave)
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
        _tidy(where, say)


class _Watch:
    """Looks after a job that waits, until it runs."""

    def __init__(self, scheduler: Scheduler, token: str, *, now: bool, say: Say) -> None:
        self.now = now
        self.is_interrupted = False
        self._scheduler = scheduler
        self._token = token
        self._say = say
        self._pauses = iter(PAUSES)
        self._said = ""
        self._id: str | None = None

    def note_interrupt(self) -> None:
        self.is_interrupted = True

    def look(self) -> float | None:
        """Say why it waits, where that is new; return after how long to look again."""
        if schedulers.traits(self._scheduler.name).is_this_machine:
            return None
        pause = next(self._pauses, PAUSES[-1])
        if pause != PAUSES[0]:
            # Whoever waits will not be helped by hearing that the scheduler does not answer.
            with contextlib.suppress(SerriedError):
                job = self.job()
                if job is not None and job.state != names.PENDING:
                    return None
                if job is not None:
                    self._tell(job)
        return pause

    def job(self) -> Job | None:
        """How it stands; None where the scheduler knows of none. Raises SchedulerUnreachable."""
        self._id = self._id or self._scheduler.find(self._token)
        found = self._scheduler.poll([self._id]) if self._id else {}
        return next(iter(found.values()), None)

    def final_state(self) -> str:
        """How the job ended; UNKNOWN where nobody says so in time."""
        state, deadline = names.UNKNOWN, time.monotonic() + END_SECONDS
        while state not in names.ENDED and time.monotonic() < deadline:
            with contextlib.suppress(SerriedError):
                job = self.job()
                state = job.state if job else state
            time.sleep(0.5)
        return state

    def _tell(self, job: Job) -> None:
        if self.now:
            # `qsub` cannot be asked to fail at once; by now PBS has looked at it.
            self._scheduler.cancel([job.id])
        elif job.reason != self._said:
            self._said = job.reason
            self._say(f"job {job.id} waits: {self._scheduler.explain(job.reason)}")


def _leave(number: int, _: object) -> None:
    """Told to end, or without a terminal: give the allocation back, and leave nothing."""
    raise SystemExit(128 + number)


def _outcome(status: int, where: RunDirectory, watch: _Watch) -> int:
    """What the agent wrote counts. It wrote nothing where nothing ran, and no end where the job ended around it."""
    said = files.read_json(where.shell)
    if said is not None and "exit_code" in said:
        return int(said["exit_code"])
    if said is None and watch.is_interrupted:
        return 130
    if said is None and watch.now and status:
        raise SerriedError("nothing that fits is free just now", hint="without `--now` it waits until there is")
    if said is None:  # `qsub -I` tells success also where its job could not begin
        hint = f"what was said about it is above; the job's node must see `{where.path.parent}`"
        raise SerriedError("nothing ran: there was no allocation, or its node has no folder of this run", hint=hint)
    state = watch.final_state()
    if watch.is_interrupted and state in (names.CANCELLED, names.UNKNOWN):  # Ctrl-C without a terminal is for all of it
        return 130
    error = SerriedError(
        f"the job ended around the shell on {said['host']}" + (f": {state}" if state in names.ENDED else ""),
        hint="its time limit is what `--time` says" if state == names.TIMEOUT else None,
    )
    error.exit_code = names.EXIT_CODES.get(state, 1)
    raise error


def _tidy(where: RunDirectory, say: Say) -> None:
    """Leave nothing, but what somebody wrote where results and checkpoints go."""
    kept = [folder for folder in (where.results, where.checkpoints) if folder.is_dir() and any(folder.iterdir())]
    if kept:
        say(f"what was written is in {' and '.join(map(str, kept))}")
        return
    shutil.rmtree(where.path, ignore_errors=True)
    remove_empty_above(where.path)


def join(status: RunStatus, node: int, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """A shell, or `words`, on node `node` of a run that runs; return its exit status. Raises UsageError."""
    argv, environment = joining(status, node, words, environ)
    return shell.foreground(argv, env=environment)


def joining(
    status: RunStatus, node: int, words: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The command that does it, and its environment. Raises UsageError where it cannot be."""
    plan = status.record.plan
    if status.state != names.RUNNING or status.job is None or not status.attempt:
        hint = "`serried shell EXPERIMENT` opens one of its own"
        raise UsageError(f"run `{status.id}` does not run: it is {status.state}", hint=hint)
    if plan.site.inside:
        raise UsageError(
            f"run `{status.id}` runs in a job that Serried did not submit",
            hint=f"in that job: `serried run` again, or {plan.site.inside}'s own way to a node",
        )
    if not 0 <= node < len(status.node_names):
        listed = ", ".join(status.node_names)
        raise UsageError(f"run `{status.id}` has no node {node}", hint=f"from 0 on: {listed}" if listed else None)
    environment = inherit.job_environment(plan.environment, environ)
    text = script.render_join(plan, status.attempt, status.element, python=sys.executable)
    scheduler = schedulers.get(plan.site.scheduler)
    argv = scheduler.join(
        status.record.job_of(status.job, status.element),
        status.node_names[node],
        ("/bin/bash", "-c", text, "serried", *words),
        has_terminal=_has_terminal(),
    )
    return argv, scrub(environment)


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
