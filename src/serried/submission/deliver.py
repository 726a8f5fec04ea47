"""Submit a prepared run at most once, also if this process is killed.

The order of the writes guarantees that. The record says `submitting`, durably, before the scheduler is called.
Afterwards the record says `submitted` or `uncertain`, or is deleted, because the scheduler has no job. If this process
is killed in between, the next command reconciles the record (reconcile.py). No run is submitted twice.

`--dry-run` prints the same `Prepared` that `deliver` submits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from serried import schedulers
from serried.base import NamedTuple, shell
from serried.base.errors import SerriedError, SubmissionRefused, SubmissionUncertain, UsageError, reason
from serried.base.files import (
    MODES,
    PRIVATE_FILE,
    make_directory,
    write_bytes,
    write_json,
    write_text,
)
from serried.base.processes import myself
from serried.base.text import iso, spell
from serried.records.record import Record, RecordUnreadable, Submission, records_directory
from serried.schedulers.interface import SubmitCommand
from serried.schema import SCHEMA
from serried.schema.layout import PROGRAMS, RunDirectory, sent_tree
from serried.schema.names import PREQUEUED, SubmissionState
from serried.schema.plan import Plan
from serried.schema.successor_commands import Commands, token_of
from serried.schema.successor_commands import behind as behind_jobs
from serried.submission import script, snapshot
from serried.submission.snapshot import Archive, Revision, Survey

if TYPE_CHECKING:
    from serried.records.status import RunStatus

NO_REVISION = Revision()
UNTRACKED_LISTED = 1000
TRIES = 10
_UMASK = threading.Lock()
SPARE_BYTES = 10_000_000
"""Space for the run's own files beside the snapshot."""
FIND_OUT = (
    "do not submit it again: the next `serried ps` checks the job; `serried stop --forget {run}` gives the run up"
)


class Observe(Protocol):
    """Receives the current step of a build and the latest line of its output."""

    def __call__(self, step: str, latest: str = "", /) -> None: ...


def silent(_step: str, _latest: str = "", /) -> None:
    """An observer that shows nothing."""


class Prepared(NamedTuple):
    plan: Plan
    """Complete except for the archive's path, which follows from its content."""
    token: str
    environment: Mapping[str, str]
    """The job's variables. Holds the values of secrets: never print more than its names."""
    handover: SubmitCommand
    commands: Commands | None
    """How a job submits the next one; None if all attempts run in one job."""
    script: str
    """job.sh"""
    survey: Survey | None = None
    """None if it runs in place, or with the code of an earlier run."""
    revision: Revision = NO_REVISION
    code_of: Record | None = None
    """The earlier run whose code it uses."""
    user_script: bytes = b""
    """The user's job script, of a plan with one."""
    each: tuple[tuple[str, ...], ...] = ()
    """One command for each task of the array, if they differ."""
    calls: bytes = b""
    """The pickled function of a run, with its arguments for each task."""
    trials: tuple[Mapping[str, Any], ...] = ()
    """The parameters of each task of a sweep."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """Jobs after whose end, good or bad, the scheduler starts it."""

    @property
    def handovers(self) -> Iterator[SubmitCommand]:
        """The request for each job; unknown job ids are `JOB-OF-TOKEN`."""
        yield self.handover
        for part in range(1, len(self.plan.tokens)):
            yield handover_of(self.plan, self.environment, self.jobs, part, f"JOB-OF-{self.plan.tokens[part - 1]}")


def handover_of(
    plan: Plan, environment: Mapping[str, str], jobs: Sequence[str], part: int = 0, before: str = ""
) -> SubmitCommand:
    """The scheduler's request for the job of a run, or for one job of an array in parts.

    These are held until all have been accepted. If the array limits the tasks that run at once, each job starts after
    the job `before` has ended, because the scheduler counts the tasks of each job separately.
    """
    unknown = [f"JOB-OF-{after.run}" for after in plan.after if after.job == ""]
    turn = [before] if part and plan.array and plan.array.parallel else []
    return schedulers.get(plan.site.scheduler).submission(
        plan.part(part),
        plan.tokens[part],
        environment,
        after=behind_jobs([*jobs, *unknown, *turn], plan.site.dialect.awaited),
        held=plan.is_in_parts,
    )


def assemble(
    plan: Plan,
    environment: Mapping[str, str],
    each: Sequence[Sequence[str]] = (),
    warnings: tuple[str, ...] = (),
    jobs: tuple[str, ...] = (),
    *,
    may_lack_command: bool = False,
) -> Prepared:
    """The script and the command of `plan`, whose job gets `environment`. Checks only that the command exists.

    Raises UsageError if the scheduler does not support the plan, or its command is missing. With `may_lack_command`,
    for a dry run, that is a warning.
    """
    token = token_of(plan.run, None, 1)
    scheduler = schedulers.get(plan.site.scheduler)
    handover = handover_of(plan, environment, jobs)
    program = handover.argv[0]
    if "/" not in program and shell.which(program) is None:
        if not may_lack_command:
            raise schedulers.missing_command(plan.site.scheduler, program)
        warnings = (*warnings, f"`{program}` is not installed here: submit on a login node of `{plan.site.name}`")
    if os.pathsep in plan.directory:
        root = plan.site.root
        warning = f"ranks cannot import `serried.train` from `{root}`: PYTHONPATH cannot name a path with a `:`"
        warnings = (*warnings, warning)
    try:
        text = script.render(plan, python=sys.executable, command=handover.argv)
    except ValueError as error:
        hint = "look at `root`, the folder's own path, `resources.comment` and `resources.extra`"
        raise UsageError(f"neither a scheduler nor a script can carry {error}", hint=hint) from error
    needs_commands = plan.has_links or plan.after or plan.may_exclude_nodes
    commands = scheduler.commands(plan, environment) if needs_commands else None
    if plan.limit.resubmit and commands and not commands.exclude:
        message = f"{schedulers.traits(plan.site.scheduler).title} cannot exclude a node from a job"
        raise UsageError(f"`limit.resubmit`: {message}", hint="--set limit.resubmit=off")
    return Prepared(
        plan=plan,
        token=token,
        environment=environment,
        handover=handover,
        commands=commands,
        script=text,
        each=tuple(tuple(command) for command in each),
        warnings=warnings,
        jobs=jobs,
    )


def behind(prepared: Prepared, submitted: Mapping[str, Sequence[str]]) -> Prepared:
    """The same once its dependencies are `submitted`: the jobs of each run, in their order.

    The jobs of an array in parts are one string, with commas.
    """
    known = [after for after in prepared.plan.after if after.job == ""]
    if not known:
        return prepared
    afters = tuple(
        after._replace(job=submitted[after.run][0]) if after in known else after for after in prepared.plan.after
    )
    plan = prepared.plan._replace(after=afters)
    jobs = (*prepared.jobs, *(job for after in known for job in submitted[after.run][-1].split(",")))
    made = assemble(plan, prepared.environment, prepared.each, (), jobs)
    return prepared._replace(plan=plan, jobs=jobs, handover=made.handover, commands=made.commands, script=made.script)


def refuse_in_place(prepared: Prepared) -> None:
    """Raise UsageError for an in-place run in a project tree that a laptop sent: that tree is soon deleted."""
    source = prepared.plan.source
    if not source.snapshot and sent_tree(source.directory):
        hint = "leave out `--in-place` and `project.snapshot = false`, or log in to the cluster and submit there"
        raise UsageError("a run that is submitted from another machine cannot run in place", hint=hint)


def deliver(prepared: Prepared) -> Record:
    """Submit; return the run's record.

    Raises:
        UsageError: the run cannot be written, or the scheduler refused the job; no files remain.
        SchedulerUnreachable: the scheduler has no job; no files remain.
        SubmissionUncertain: a job may exist; the record stays.
    """
    with _umask_of(prepared.plan):
        record, plan = establish(prepared)
    submission, uncertain = record.submissions[0], SubmissionState.UNCERTAIN
    for after in plan.after:  # their agents keep the outcome for jobs that wait for them
        with contextlib.suppress(OSError):
            RunDirectory(Path(after.directory)).followed.touch(mode=PRIVATE_FILE)
    try:
        job = _submit(record, prepared, plan)
    except SubmissionUncertain as error:
        _note(record, record.first_submissions[0], state=uncertain, message=error.message)
        error.hint = FIND_OUT.format(run=record.id)
        raise
    except SerriedError as error:
        remove(record, plan)
        if isinstance(error, SubmissionRefused):
            error.hint = error.hint or plan.site.support
        raise
    except BaseException as error:
        message = f"interrupted during `{prepared.handover.argv[0]}`: the scheduler may have accepted the job"
        _note(record, record.first_submissions[0], state=uncertain, message=message)
        raise SubmissionUncertain(message, hint=FIND_OUT.format(run=record.id)) from error
    _note(record, submission, state=SubmissionState.SUBMITTED, job=job)
    if plan.has_links and plan.limit.continue_by == PREQUEUED:
        with _umask_of(plan):
            _prequeue(record, prepared, plan, job)
    return record


@contextlib.contextmanager
def _umask_of(plan: Plan) -> Iterator[None]:
    """Set the umask of a shared run: the user's own may lock the group out. All threads of a process share it."""
    if plan.share == "user":
        yield
        return
    with _UMASK:
        before = os.umask(MODES[plan.share].umask)
        try:
            yield
        finally:
            os.umask(before)


def _note(record: Record, submission: Submission, **changes: Any) -> None:
    with plain_errors(record.where.path if submission.number > 1 else record.directory.path):
        record.write_submission(submission._replace(**changes))


def _submit(record: Record, prepared: Prepared, plan: Plan) -> str:
    """Submit the job, or the jobs of an array in parts; return the ids, joined by commas.

    Either all jobs of an array in parts start, or none: the scheduler holds them until it has accepted the last. The
    record lists the accepted jobs before the next one is submitted.

    Raises SubmissionUncertain if a job may exist, and any other SerriedError if none does.
    """
    scheduler = schedulers.get(plan.site.scheduler)
    jobs: list[str] = []
    try:
        for part in range(len(plan.tokens)):
            handover = handover_of(plan, prepared.environment, prepared.jobs, part, jobs[-1]) if jobs else None
            jobs.append(scheduler.submit(handover or prepared.handover))
            if plan.is_in_parts:
                # With the time of this job: other login nodes trust a submission only for minutes.
                _note(record, record.first_submissions[0], job=",".join(jobs), at=iso(time.time()))
    except SubmissionUncertain:
        raise
    except SerriedError as error:
        if jobs:
            try:
                scheduler.cancel(jobs)
            except SerriedError as problem:
                message = f"{error.message}, and the held jobs of the array cannot be cancelled now"
                raise SubmissionUncertain(message) from problem
            error.message += f" (job {len(jobs) + 1} of {len(plan.tokens)} of the array)"
        raise
    if plan.is_in_parts:
        try:
            scheduler.release(jobs)
        except SerriedError as error:
            raise SubmissionUncertain(error.message, details=error.details) from error
    return ",".join(jobs)


@shell.exit_on_signals()
def see_through(
    prepared: Prepared, tick: Callable[[], None], submitted: Callable[[Record], None] = lambda _: None
) -> RunStatus:
    """Submit a run and wait for its end; call `submitted` with its record. Ctrl-C, TERM and HUP stop the run."""
    from serried.records import status, stopping
    from serried.records.index import Selection

    try:
        record = deliver(prepared)
        submitted(record)
        return status.wait([Selection(record)], tick=tick)[0]
    except BaseException:
        with contextlib.suppress(RecordUnreadable):  # a run without a job has no record
            current = status.status(Record.load(prepared.plan.run))
            if not current.has_ended:
                stopping.cancel(current, stopping.left(current, ()), now=True)
        raise


def establish(prepared: Prepared) -> tuple[Record, Plan]:
    """Create the record, in state `submitting`, and the run directory; return the record and the complete plan.

    After a failure only the archive remains, which several runs may share.
    """
    plan = prepared.plan
    modes = MODES[plan.share]
    root = Path(plan.site.root)
    probe(root, prepared.survey.bytes if prepared.survey else 0, modes.directory)
    archive: Archive | None = None
    if prepared.survey is not None:
        with plain_errors(root):
            archive = snapshot.store(prepared.survey, sources_directory(plan), modes)
        plan = plan._replace(source=plan.source._replace(archive=str(archive.path)))
    with plain_errors(records_directory()):
        record = Record.create(plan, intent(prepared.token, plan))
    try:
        with plain_errors(record.directory.path):
            _write_source(record, prepared, plan, archive)
        with plain_errors(root):
            make_run_directory(prepared, plan)
    except BaseException:
        remove(record, plan)
        raise
    return record, plan


def sources_directory(plan: Plan) -> Path:
    return Path(plan.directory).parents[1] / "sources"


def intent(token: str, plan: Plan) -> Submission:
    """The submission in the record before the scheduler is called."""
    me = myself()
    return Submission(
        token=token,
        state=SubmissionState.SUBMITTING,
        cluster=plan.site.name,
        scheduler=plan.site.scheduler,
        at=iso(time.time()),
        by_pid=me.pid,
        by_host=os.uname().nodename,
        by_started=me.started,
        site=schedulers.cluster(plan.site.scheduler).own_name(os.environ),
    )


def _prequeue(record: Record, prepared: Prepared, plan: Plan, job: str) -> None:
    """Queue the later jobs of a run, each behind any end of the job before, until the scheduler refuses a job.

    Each job is in the record before the scheduler is called. After an interruption, the submitted jobs stay queued.
    """
    scheduler = schedulers.get(plan.site.scheduler)
    for number in range(2, plan.limit.restarts + 2):
        link = intent(token_of(plan.run, None, number), plan)
        handover = scheduler.submission(plan, link.token, prepared.environment, after=job)
        _note(record, link)
        try:
            job = scheduler.submit(handover)
        except SerriedError as error:
            state = SubmissionState.UNCERTAIN if isinstance(error, SubmissionUncertain) else SubmissionState.FAILED
            _note(record, link, state=state, message=" ".join(filter(None, (error.message, error.details))))
            return
        except KeyboardInterrupt:
            _note(record, link, state=SubmissionState.UNCERTAIN, message="interrupted")
            raise
        _note(record, link, state=SubmissionState.SUBMITTED, job=job)


def unqueued(record: Record) -> list[str]:
    """A message if the scheduler refused a later job of the run."""
    links = [link for link in record.submissions[1:] if not link.is_submitted]
    return [f"only {link.number - 2} later jobs are queued: {link.message}" for link in links]


def make_run_directory(prepared: Prepared, plan: Plan) -> RunDirectory:
    """Write the files that the job reads. Raises OSError."""
    modes = MODES[plan.share]
    where = RunDirectory(Path(plan.directory))
    _make_new(where.path, modes.directory)
    where.claims.mkdir(mode=modes.directory)
    write_json(where.plan, plan.to_json(), modes.file)
    write_text(where.job_script, prepared.script, modes.file)
    if setup := script.render_setup(plan):
        write_text(where.setup, setup, modes.file)
    if plan.script:
        write_bytes(where.script, prepared.user_script, modes.directory)
    if prepared.each:
        write_json(where.commands, [list(command) for command in prepared.each], modes.file)
    if prepared.calls:
        write_bytes(where.calls, prepared.calls, PRIVATE_FILE)
    if prepared.trials:
        write_json(where.trials, prepared.trials, modes.file)
    if prepared.commands:
        where.links.mkdir(mode=modes.directory)
        write_json(where.link_commands, prepared.commands.to_json(), modes.file)
    for content, path in ((script.agent(), where.agent), (script.library(), where.library)):
        if plan.container and plan.container.runtime == "pyxis":  # it mounts only the project's folder
            write_bytes(path, content.read(), modes.file)
        else:
            script.put(content, path, Path(plan.site.root) / PROGRAMS, modes)
    return where


def _make_new(path: Path, mode: int) -> None:
    """Create it and the folders above. The end of another run may remove these at the same moment."""
    for _ in range(TRIES):
        with contextlib.suppress(FileNotFoundError):
            make_directory(path.parent, mode)
            for above in path.parents[:3] if mode & stat.S_IRWXG else ():  # a private run may have created them
                present = stat.S_IMODE(above.stat().st_mode)
                if present | mode != present and above.stat().st_uid == os.getuid():
                    above.chmod(present | mode)  # keeps setgid
            path.mkdir(mode=mode)
            return
    path.mkdir(mode=mode)


def _write_source(record: Record, prepared: Prepared, plan: Plan, archive: Archive | None) -> None:
    """Record commit, diff and snapshot, for the time after the run directory is purged."""
    if prepared.code_of is not None:
        earlier = prepared.code_of.directory
        for path, known in ((record.directory.source, earlier.source), (record.directory.diff, earlier.diff)):
            with contextlib.suppress(FileNotFoundError):
                write_text(path, known.read_text(encoding="utf-8", errors="surrogateescape"))
        return
    survey, revision = prepared.survey, prepared.revision
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "directory": plan.source.directory,
        "origin": sent.origin if (sent := snapshot.sent_project(Path(plan.source.directory))) else None,
        "commit": revision.commit,
        "branch": revision.branch,
        "dirty": revision.is_dirty,
        "untracked": list(survey.untracked[:UNTRACKED_LISTED]) if survey else None,
        "ignored_modules": list(survey.ignored_modules[:UNTRACKED_LISTED]) if survey else None,
        "archive": str(archive.path) if archive else None,
        "sha256": archive.digest if archive else None,
        "files": len(survey.files) if survey else None,
        "bytes": survey.bytes if survey else None,
        "links": list(plan.source.links),
        "python_path": list(plan.source.python_path),
    }
    write_json(record.directory.source, document)
    if revision.diff:
        write_text(record.directory.diff, revision.diff)


def remove(record: Record, plan: Plan) -> None:
    """Remove a run that no scheduler has: its directory, its record, and the folders that are empty then."""
    shutil.rmtree(plan.directory, ignore_errors=True)
    remove_empty_above(Path(plan.directory))
    record.remove()


def remove_empty_above(directory: Path) -> None:
    """Remove the folders of an experiment and a project after the last run in them."""
    with contextlib.suppress(OSError):
        directory.parent.rmdir()
        directory.parent.parent.rmdir()


def probe(root: Path, bytes_needed: int, mode: int) -> None:
    """Create `root`, write to it and check its free space. Raises UsageError."""
    with plain_errors(root):
        make_directory(root, mode)
        test = root / f".probe-{os.urandom(4).hex()}"
        try:
            with os.fdopen(os.open(test, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "wb") as file:
                file.write(b"serried\n")
        finally:
            with contextlib.suppress(OSError):
                test.unlink()
        space = os.statvfs(root)
    free, needed = space.f_bavail * space.f_frsize, bytes_needed + SPARE_BYTES
    if free < needed:
        message = f"`{root}` has only {spell(free)} of free space, but this run needs {spell(needed)}"
        hint = "`serried clean --older-than 30d` removes old runs; or set another `root` in the cluster's profile"
        raise UsageError(message, hint=hint)


@contextlib.contextmanager
def plain_errors(place: Path) -> Iterator[None]:
    """Turn an OSError into a UsageError about `place`, with a hint."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "`serried clean --list` shows the largest files, `serried clean` removes old runs"
            raise UsageError(f"no space is left in `{place}`", hint=hint, details=str(error)) from error
        raise UsageError(
            f"cannot write to `{place}`: {reason(error)}",
            hint="runs go to the `root` of the cluster's profile, records to `$XDG_STATE_HOME/serried`; "
            "both must be folders that you may write to",
        ) from error
