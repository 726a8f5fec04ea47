"""`serried run`: a run on this machine, with the plan, run directory and record of a submitted run, and live output.

Commands that need the result of a run see it to its end by `run_to_end`, here or through the cluster's scheduler. One
of them, `serried profile`, stops its run once the ranks have profiled their steps.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from serried.base.errors import RunFailed, UsageError
from serried.records import profiles, stopping
from serried.records.index import Selection
from serried.records.logs import Lines, shared_log
from serried.records.profiles import Wanted
from serried.records.record import Record, read_exit
from serried.records.status import status as stand
from serried.schedulers.survey import Inside
from serried.schema import names
from serried.schema.layout import SHARED_LOG, AttemptDirectory, RunDirectory
from serried.schema.names import CANCELLED, REQUEUE, SubmissionState
from serried.schema.reasons import Reason
from serried.submission.builds import Observe, silent
from serried.submission.deliver import Prepared, establish, remove, see_through
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide

if TYPE_CHECKING:
    from serried.schedulers.local import supervisor


def prepare_profile(request: Request, wanted: Wanted, directory: Path, *, observe: Observe | None = silent) -> Prepared:
    """The run, without a change to anything. Raises UsageError, also if a rank to profile does not exist."""
    asked = dataclasses.replace(request, array="off").with_setting("limit.restarts", value=0)
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


_TAIL = 5


@dataclass(frozen=True)
class FinishedRun:
    record: Record
    end: Mapping[str, Any]
    """Its exit.json; empty without one."""
    is_interrupted: bool
    """From this terminal."""

    @property
    def state(self) -> str:
        return str(self.end.get("state", names.UNKNOWN))

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
        failure = self.end.get("first_failure") or {}
        raise RunFailed(
            f"run {run}{doing and f', {doing},'} ended {self.state}: {self.end.get('message') or 'no reason is known'}",
            hint=f"serried why {run}",
            details="\n".join(failure.get("tail", ())[-_TAIL:]) or None,
        )


def run_to_end(prepared: Prepared, *, here: bool, tick: Callable[[], None] = lambda: None) -> FinishedRun:
    """Run it; call `tick` meanwhile. `here`: in the foreground, without its output, else through the scheduler."""
    if here:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no file of a project
            outcome = run_here(prepared, output=nowhere, tick=tick)
        return FinishedRun(outcome.record, outcome.end or {}, outcome.status == INTERRUPTED)
    status = see_through(prepared, tick)
    end = status.record.end or {"state": status.state, "message": status.verdict.message}
    return FinishedRun(status.record, end, is_interrupted=False)


INTERRUPTED = 130
_CHUNK = 65_536

Unfinished = list[tuple[str, str]]
"""Labels and texts of the lines that have no end yet, such as progress bars."""


@dataclass(frozen=True)
class Outcome:
    record: Record
    status: int
    """The program's exit status; 130 after an interruption from the terminal."""
    end: dict[str, Any] | None
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
    prepared = dataclasses.replace(prepared, plan=prepared.plan._replace(limit=limit), commands=None)
    record, plan = establish(prepared)
    submission = record.submissions[0]
    several = plan.world_size > 1 or plan.array is not None
    to = output or sys.stdout.buffer
    is_script = plan.script is not None
    ranks = plan.allocation.ranks
    live = LiveOutput(record.where, show_unfinished, clean, several=several, is_script=is_script, ranks=ranks, to=to)
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
        record.write_submission(dataclasses.replace(submission, state=SubmissionState.SUBMITTED, job=job))
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
    end = read_exit(record.where.exit)
    return Outcome(record, _status(record, ended, end), end)


def _status(record: Record, ended: supervisor.ForegroundEnd, end: dict[str, Any] | None) -> int:
    if end is None:  # job.sh was killed: by a second Ctrl-C, at the time limit, or for another reason
        verdict = stand(record).verdict
        if ended.was_interrupted or verdict.state == CANCELLED:
            return INTERRUPTED
        return ended.status if verdict.exit_code is None else verdict.exit_code
    # `serried stop` in another terminal has the cause `user`.
    if end.get("state") == CANCELLED and end.get("cause") == Reason.CANCEL:
        return INTERRUPTED
    code = end.get("exit_code")
    return code if isinstance(code, int) else ended.status


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
        self._run = run
        self._show_unfinished = show_unfinished
        self._clean = clean
        self._is_script = is_script
        self._several = several
        self._ranks = ranks
        self._to = to
        self._logs: dict[Path, _Log] = {}

    def pass_on(self) -> None:
        """Write the output since the last call."""
        for path in self._new_logs():
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
        """Write the rest, also an unfinished line."""
        self.pass_on()
        self._show_unfinished([])
        for log in self._logs.values():
            self._to.writelines(log.finish())
        self._to.flush()

    def _new_logs(self) -> Iterator[Path]:
        pattern = "attempts/*/script.log" if self._is_script else "attempts/*/node-*/rank*.log"
        paths = [*self._run.path.glob(pattern)]
        if self._run.tasks.is_dir():
            paths += self._run.tasks.glob(f"*/{pattern}")
        yield from sorted(path for path in paths if path not in self._logs)

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
        """Yield the last lines, if they have no end."""
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
        return self.label + self._clean(_last_state(line)) + b"\n"


def _last_state(line: bytes) -> bytes:
    r"""`a\rb\r` shows as `b`."""
    body = line.rstrip(b"\r")
    return body.rpartition(b"\r")[2] + line[len(body) :]
