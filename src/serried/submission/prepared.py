"""All parts of a submission before it happens, as `--dry-run` prints them, and the files that they become.

The run directory and the record's account of the source are written before the scheduler is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import schedulers, script, shell
from serried.errors import UsageError, reason
from serried.fs.files import MODES, PRIVATE_FILE, make_directory, write_bytes, write_json, write_text
from serried.plan import Plan
from serried.protocol import SCHEMA
from serried.protocol.layout import PROGRAMS, RunDirectory
from serried.protocol.sizes import spell
from serried.protocol.successor_commands import Commands, token_of
from serried.protocol.successor_commands import behind as behind_jobs
from serried.records.record import Record
from serried.schedulers.interface import SubmitCommand
from serried.snapshot import Archive, Revision, Survey

NO_REVISION = Revision()
UNTRACKED_LISTED = 1000
TRIES = 10
SPARE_BYTES = 10_000_000
"""Space for the run's own files beside the snapshot."""


@dataclass(frozen=True)
class Prepared:
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
    each: tuple[tuple[str, ...], ...] = ()
    """One command for each task of the array, if they differ."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """Jobs after whose end, good or bad, the scheduler starts it."""

    @property
    def handovers(self) -> Iterator[SubmitCommand]:
        """The request for each job; unknown job ids are `JOB-OF-TOKEN`."""
        yield self.handover
        for part in range(1, len(self.plan.tokens)):
            before = f"JOB-OF-{self.plan.tokens[part - 1]}"
            yield handover_of(self.plan, self.environment, self.jobs, part, before)


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
) -> Prepared:
    """The script and the command of `plan`, whose job gets `environment`. Checks only that the command exists.

    Raises UsageError if the scheduler does not support the plan, or its command is missing.
    """
    token = token_of(plan.run, None, 1)
    scheduler = schedulers.get(plan.site.scheduler)
    handover = handover_of(plan, environment, jobs)
    program = handover.argv[0]
    if "/" not in program and shell.which(program) is None:
        raise shell.missing_program(program)
    return Prepared(
        plan=plan,
        token=token,
        environment=environment,
        handover=handover,
        commands=scheduler.commands(plan, environment) if plan.has_links or plan.after else None,
        script=_script(plan, handover),
        each=tuple(tuple(command) for command in each),
        warnings=(*warnings, *_unreachable_library(plan)),
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
    plan = dataclasses.replace(prepared.plan, after=afters)
    jobs = (*prepared.jobs, *(job for after in known for job in submitted[after.run][-1].split(",")))
    made = assemble(plan, prepared.environment, prepared.each, (), jobs)
    return dataclasses.replace(
        prepared, plan=plan, jobs=jobs, handover=made.handover, commands=made.commands, script=made.script
    )


def _script(plan: Plan, handover: SubmitCommand) -> str:
    try:
        return script.render(plan, python=sys.executable, command=handover.argv)
    except ValueError as error:
        raise UsageError(
            f"neither a scheduler nor a script can carry {error}",
            hint="look at `root`, the folder's own path, `resources.comment` and `resources.extra`",
        ) from error


def _unreachable_library(plan: Plan) -> tuple[str, ...]:
    if os.pathsep not in plan.directory:
        return ()
    return (f"ranks cannot import `serried.train` from `{plan.site.root}`: PYTHONPATH cannot name a path with a `:`",)


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
    if prepared.each:
        write_json(where.commands, [list(command) for command in prepared.each], modes.file)
    if prepared.commands:
        where.links.mkdir(mode=modes.directory)
        write_json(where.link_commands, prepared.commands.to_json(), modes.file)
    for content, path in ((script.agent(), where.agent), (script.library(), where.library)):
        if plan.container and plan.container.runtime == "pyxis":  # it mounts only the project's folder
            write_bytes(path, content, modes.file)
        else:
            script.put(content, path, Path(plan.site.root) / PROGRAMS, modes)
    return where


def _make_new(path: Path, mode: int) -> None:
    """Create it and the folders above. The end of another run may remove these at the same moment."""
    for _ in range(TRIES):
        with contextlib.suppress(FileNotFoundError):
            make_directory(path.parent, mode)
            path.mkdir(mode=mode)
            return
    path.mkdir(mode=mode)


def write_source(record: Record, prepared: Prepared, plan: Plan, archive: Archive | None) -> None:
    """Record commit, diff and snapshot, for the time after the run directory is purged."""
    if prepared.code_of is not None:
        for name in (record.directory.source.name, record.directory.diff.name):
            with contextlib.suppress(FileNotFoundError):
                known = (prepared.code_of.directory.path / name).read_text(encoding="utf-8", errors="surrogateescape")
                write_text(record.directory.path / name, known)
        return
    survey, revision = prepared.survey, prepared.revision
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "directory": plan.source.directory,
        "commit": revision.commit,
        "branch": revision.branch,
        "dirty": revision.is_dirty,
        "untracked": list(survey.untracked[:UNTRACKED_LISTED]) if survey else None,
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
            descriptor = os.open(test, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            try:
                os.write(descriptor, b"serried\n")
            finally:
                os.close(descriptor)
        finally:
            with contextlib.suppress(OSError):
                test.unlink()
        space = os.statvfs(root)
    free = space.f_bavail * space.f_frsize
    if free < bytes_needed + SPARE_BYTES:
        raise UsageError(
            f"`{root}` has only {spell(free)} of free space, but this run needs {spell(bytes_needed + SPARE_BYTES)}",
            hint="`serried clean --older-than 30d` removes old runs; or set another `root` in the cluster's profile",
        )


@contextlib.contextmanager
def plain_errors(place: Path) -> Iterator[None]:
    """Turn an OSError into a UsageError about `place`, with a hint."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UsageError(
                f"no space is left in `{place}`",
                hint="`serried du` shows the largest files, `serried clean` removes old runs",
                details=str(error),
            ) from error
        raise UsageError(
            f"cannot write to `{place}`: {reason(error)}",
            hint="runs go to the `root` of the cluster's profile, records to `$XDG_STATE_HOME/serried`; "
            "both must be folders that you may write to",
        ) from error
