"""Runs on this terminal: `serried run`, `serried shell`, and commands that need the result of a run.

`run_here` has the plan, run directory and record of a submitted run, and live output. `run_to_end` sees a run to its
end, here or through the cluster's scheduler; `serried profile` stops its run once the ranks have profiled their steps.

`open_shell` is a new allocation with a shell on its first node. It has no record, and its directory is deleted at the
end, unless it holds results or checkpoints. `join_command` and `attach_command` start a shell beside a run's ranks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from serried import schedulers
from serried.base import files, shell
from serried.base.errors import RunFailed, SerriedError, UsageError
from serried.base.files import MODES, read_journal
from serried.records import profiles, stopping
from serried.records.index import Selection
from serried.records.logs import Lines, shared_log
from serried.records.profiles import Wanted
from serried.records.record import Record
from serried.records.status import RunStatus, latest_attempt
from serried.records.status import status as stand
from serried.records.timeline import RankProcess
from serried.schedulers.interface import Job, Scheduler
from serried.schedulers.survey import Inside
from serried.schema import names
from serried.schema.endings import End
from serried.schema.events import JournalEvent
from serried.schema.layout import SHARED_LOG, AttemptDirectory, RunDirectory
from serried.schema.names import CANCELLED, REQUEUE, SubmissionState
from serried.schema.reasons import Reason
from serried.submission import environments, script
from serried.submission.deliver import (
    Observe,
    Prepared,
    establish,
    make_run_directory,
    plain_errors,
    probe,
    remove,
    remove_empty_above,
    see_through,
    silent,
)
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide

if TYPE_CHECKING:
    from serried.schedulers.local import supervisor


INTERRUPTED = 130
_CHUNK = 65_536
_TAIL = 5
PAUSES = (2.0, 5.0, 10.0, 20.0, 60.0)
"""Seconds between two queries of the scheduler; the last value repeats."""
END_SECONDS = 60.0
"""Limit for the scheduler to report the end of a job."""
Say = Callable[[str], None]
Unfinished = list[tuple[str, str]]
"""Labels and texts of the lines that have no end yet, such as progress bars."""


@dataclass(frozen=True)
class Outcome:
    record: Record
    status: int
    """The program's exit status; 130 after an interruption from the terminal."""
    end: End | None
    """The run's exit.json, if there is one."""


def run_here(
    prepared: Prepared,
    *,
    gpu_ids: Sequence[str] = (),
    inside: Inside | None = None,
    output: BinaryIO | None = None,
    tick: Callable[[], None] = lambda: None,
    show_unfinished: Callable[[Unfinished], None] = lambda _: None,
    clean: Callable[[bytes], bytes] = bytes,
) -> Outcome:
    """Run it to its end, here or on the nodes of the job `inside` which we run.

    The ranks' output goes to `output` (stdout) as they write it; `tick` is called meanwhile. With several ranks
    `show_unfinished` gets the lines that have no end yet, and none before whole lines are written, and `clean` returns
    what is written of a line.

    Raises UsageError, and leaves no files, if this machine lacks what the plan requests.
    """
    from serried.schedulers.local import supervisor

    # Later attempts run here, too, without another wait in the queue.
    limit = prepared.plan.limit._replace(continue_by=REQUEUE)
    prepared = prepared._replace(plan=prepared.plan._replace(limit=limit), commands=None)
    record, plan = establish(prepared)
    submission = record.submissions[0]
    to = output or sys.stdout.buffer
    live = LiveOutput(
        record.where,
        show_unfinished,
        clean,
        several=plan.world_size > 1 or plan.array is not None,
        is_script=plan.script is not None,
        ranks=plan.allocation.ranks,
        to=to,
    )
    started: list[str] = []

    def pass_on() -> None:
        tick()
        try:
            live.pass_on()
        except BrokenPipeError:
            # `serried run … | head` ends the run, as it would end a program. The rest of the output is dropped.
            os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())
            signal.raise_signal(signal.SIGTERM)

    def note_start(job: str) -> None:
        record.write_submission(submission._replace(state=SubmissionState.SUBMITTED, job=job))
        started.append(job)

    try:
        ended = supervisor.run_here(
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
            remove(record, plan)
        raise
    live.finish()
    end = End.read_known(record.where.exit)
    return Outcome(record, _status(record, ended, end), end)


def _status(record: Record, ended: supervisor.ForegroundEnd, end: End | None) -> int:
    if end is None:  # job.sh was killed: by a second Ctrl-C, at the time limit, or for another reason
        verdict = stand(record).verdict
        if ended.was_interrupted or verdict.state == CANCELLED:
            return INTERRUPTED
        return ended.status if verdict.exit_code is None else verdict.exit_code
    # `serried stop` in another terminal has the cause `user`.
    if end.state == CANCELLED and end.cause == Reason.CANCEL:
        return INTERRUPTED
    return ended.status if end.exit_code is None else end.exit_code


class LiveOutput:
    """The logs of all ranks of a run as one stream; with several ranks, whole lines behind the rank."""

    def __init__(
        self,
        run: RunDirectory,
        show_unfinished: Callable[[Unfinished], None],
        clean: Callable[[bytes], bytes],
        *,
        several: bool,
        is_script: bool,
        ranks: int,
        to: BinaryIO,
    ) -> None:
        """`ranks`: on each node."""
        self._run, self._to = run, to
        self._show_unfinished, self._clean = show_unfinished, clean
        self._several, self._is_script, self._ranks = several, is_script, ranks
        self._logs: dict[Path, _Log] = {}

    def pass_on(self) -> None:
        pattern = "attempts/*/script.log" if self._is_script else "attempts/*/node-*/rank*.log"
        paths = [*self._run.path.glob(pattern)]
        if self._run.tasks.is_dir():
            paths += self._run.tasks.glob(f"*/{pattern}")
        for path in sorted(set(paths) - self._logs.keys()):
            self._logs[path] = _Log(path, self._label(path), self._clean)
        wrote = False
        for log in self._logs.values():
            for part in log.parts() if self._several else log.chunks():
                if not wrote:
                    self._show_unfinished([])
                self._to.write(part)
                wrote = True
        if wrote:
            self._to.flush()
        # Of several attempts, the newest.
        rests = {log.label: log.rest for log in self._logs.values()}
        self._show_unfinished([(label.decode(), rest.decode("utf-8", "replace")) for label, rest in rests.items()])

    def finish(self) -> None:
        self.pass_on()
        self._show_unfinished([])
        for log in self._logs.values():
            self._to.writelines(log.finish())
        self._to.flush()

    def _label(self, path: Path) -> bytes:
        rank = path.stem.removeprefix("rank-")
        if path.name == SHARED_LOG:
            attempt = AttemptDirectory(path.parent.parent)
            rank = shared_log(attempt, int(path.parent.name.removeprefix("node-")), self._ranks).name
        inside = path.relative_to(self._run.path).parts
        task = f"{inside[1]}/" if inside[0] == self._run.tasks.name else ""
        return f"[{inside[1] if self._is_script else f'{task}{rank}'}] ".encode()


class _Log:
    def __init__(self, path: Path, label: bytes, clean: Callable[[bytes], bytes]) -> None:
        self.label = label
        self._clean = clean
        self._lines = Lines()
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def rest(self) -> bytes:
        return self._lines.rest

    def finish(self) -> Iterator[bytes]:
        os.close(self._descriptor)
        yield from map(self._labelled, self._lines.finish())

    def chunks(self) -> Iterator[bytes]:
        while chunk := os.read(self._descriptor, _CHUNK):
            yield chunk

    def parts(self) -> Iterator[bytes]:
        """Whole lines with labels. Of a line that a progress bar overwrote, its last state."""
        for chunk in self.chunks():
            yield from map(self._labelled, self._lines.feed(chunk))

    def _labelled(self, line: bytes) -> bytes:
        body = line.rstrip(b"\r")
        last_state = body.rpartition(b"\r")[2] + line[len(body) :]  # of a progress bar
        return self.label + self._clean(last_state) + b"\n"


@dataclass(frozen=True)
class FinishedRun:
    record: Record
    end: End
    is_interrupted: bool
    """From this terminal."""

    @property
    def state(self) -> str:
        return self.end.state or names.UNKNOWN

    @property
    def place(self) -> RunDirectory:
        return self.record.where

    def check(self, doing: str = "") -> None:
        """Raises RunFailed unless the run completed, and KeyboardInterrupt after an interruption."""
        if self.is_interrupted:
            raise KeyboardInterrupt
        if self.state == names.COMPLETED:
            return
        run = self.record.id
        failure = self.end.first_failure
        message = f"run {run}{doing and f', {doing},'} ended {self.state}: {self.end.message or 'no reason is known'}"
        hint = f"serried why {run}"
        raise RunFailed(message, hint=hint, details="\n".join(failure.tail[-_TAIL:] if failure else ()) or None)


def run_to_end(prepared: Prepared, *, here: bool, tick: Callable[[], None] = lambda: None) -> FinishedRun:
    """Run it; call `tick` meanwhile. `here`: in the foreground, without its output, else through the scheduler."""
    if here:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no file of a project
            outcome = run_here(prepared, output=nowhere, tick=tick)
        return FinishedRun(outcome.record, outcome.end or End.of({}), outcome.status == INTERRUPTED)
    status = see_through(prepared, tick)
    end = status.record.end or End.of({"state": status.state, "message": status.verdict.message})
    return FinishedRun(status.record, end, is_interrupted=False)


def prepare_profile(request: Request, wanted: Wanted, directory: Path, *, observe: Observe | None = silent) -> Prepared:
    """The run, without a change to anything. Raises UsageError, also if a rank to profile does not exist."""
    asked = request._replace(array="off").with_setting("limit.restarts", value=0)
    decided = decide(asked, directory, os.environ)
    plan = decided.plan
    missing = [rank for rank in wanted.ranks if rank >= plan.world_size and plan.script is None]
    if missing:
        ranks = "only rank 0" if plan.world_size == 1 else f"ranks 0 to {plan.world_size - 1}"
        raise UsageError(f"rank {missing[0]} does not exist: the run has {ranks}", hint="--rank 0")
    environment = plan.environment._replace(env={**plan.environment.env, names.PROFILE: wanted.to_text()})
    plan = plan._replace(name=f"{plan.name}.profile", notify=None, environment=environment)
    return prepare(plan, decided.resolved, os.environ, observe=observe)


class Stopper:
    """Ends the run once each chosen rank has its profile, or its profiler has failed."""

    def __init__(self, run: str, directory: str, wanted: Wanted) -> None:
        self._run = run
        self._place = RunDirectory(Path(directory))
        self._wanted = wanted
        self.has_stopped = False

    def tick(self) -> None:
        if self.has_stopped or not self._place.profiles.is_dir():
            return
        if all(
            one.state in (profiles.WRITTEN, profiles.FAILED) for one in profiles.read(self._place, self._wanted.ranks)
        ):
            self.has_stopped = True
            stopping.send_request(Selection(Record.load(self._run)), save=False, reason=Reason.PROFILED)


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
    return prepared._replace(plan=plan, handover=handover, commands=None, script=text)


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
    def __init__(self, scheduler: Scheduler, token: str, *, now: bool, say: Say) -> None:
        self.now, self.is_interrupted = now, False
        self._scheduler, self._token, self._say = scheduler, token, say
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
                if job is not None and self.now:
                    # `qsub` has no option to fail at once; by now PBS has tried to start the job.
                    self._scheduler.cancel([job.id])
                elif job is not None and job.reason != self._reported:
                    self._reported = job.reason
                    self._say(f"job {job.id} waits: {self._scheduler.explain(job.reason)}")
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


def _outcome(status: int, where: RunDirectory, watch: _Watch) -> int:
    """The exit status in the agent's file. Without a file nothing ran; without a status the job ended first."""
    report = files.read_json(where.shell)
    if report is None:  # `qsub -I` exits with 0 even if its job could not start
        if watch.is_interrupted:
            return INTERRUPTED
        if watch.now and status:
            raise SerriedError("no nodes that fit are free now", hint="without `--now`, the command waits for nodes")
        hint = f"see the scheduler's messages above; the job's node must see `{where.path.parent}`"
        raise SerriedError("nothing ran: no allocation, or its node cannot see the run directory", hint=hint)
    if "exit_code" in report:
        return int(report["exit_code"])
    state = watch.final_state()
    if watch.is_interrupted and state in (names.CANCELLED, names.UNKNOWN):  # Ctrl-C without a terminal ends the job
        return INTERRUPTED
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
    host, plan = joinable(status, node), status.record.plan
    text = script.render_join(plan, status.attempt or 1, status.task, python=sys.executable)
    environment = environments.job_environment(plan.environment, environ)
    return joining(status, host, text, words, has_terminal=_has_terminal()), schedulers.scrub(environment)


def attach_command(
    status: RunStatus, process: RankProcess, words: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The same with the environment of a rank that runs there."""
    host = joinable(status, process.node)
    task = () if status.task is None else ("--task", str(status.task))
    which = (str(status.attempt), str(process.rank), str(process.pid), *task)
    text = script.render_attach(status.record.plan, which, python=sys.executable)
    return joining(status, host, text, words, has_terminal=_has_terminal()), schedulers.scrub(environ)


def joinable(status: RunStatus, node: int = 0) -> str:
    """The name of that node. Raises UsageError if no process can be started there in the run's job."""
    plan = status.record.plan
    if status.state != names.RUNNING or status.job is None or not status.attempt:
        hint = "`serried shell EXPERIMENT` requests a new allocation"
        raise UsageError(f"run `{status.id}` is not running: it is {status.state}", hint=hint)
    if plan.site.inside:
        hint = f"in that job, use `serried run` again, or the commands of {plan.site.inside}"
        raise UsageError(f"run `{status.id}` runs in a job that Serried did not submit", hint=hint)
    hosts = dict(enumerate(status.node_names))
    if len(hosts) < plan.allocation.job_nodes and (attempt := latest_attempt(status.record.where.task(status.task))):
        # Slurm does not list a lost node any more; the journal has the numbers of the others.
        connected = [entry for entry in read_journal(attempt.events) if entry.get("event") == JournalEvent.CONNECTED]
        known = {entry["node"]: entry["host"] for entry in connected if entry["host"] in status.node_names}
        hosts = known or hosts
    if node not in hosts:
        listed = ", ".join(f"{number} ({host})" for number, host in sorted(hosts.items()))
        raise UsageError(f"run `{status.id}` has no node {node}", hint=f"it has {listed}" if listed else None)
    return hosts[node]


def joining(status: RunStatus, host: str, text: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:
    """The command that runs the script `text` on a node, in the run's job, and on our terminal if there is one."""
    plan, job = status.record.plan, status.job or ""
    scheduler = schedulers.get(plan.site.scheduler)
    return scheduler.join(
        status.record.job_of(job, status.task),
        host,
        ("/bin/bash", "-c", text, "serried", *words),
        has_terminal=has_terminal,
    )


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
