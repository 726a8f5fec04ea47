"""The run directory and the record's account of the source, written before the scheduler is asked."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from serried import script
from serried.fs.files import MODES, make_directory, write_bytes, write_json, write_text
from serried.plan import Plan
from serried.protocol import SCHEMA
from serried.protocol.layout import PROGRAMS, RunDirectory
from serried.records.record import Record
from serried.snapshot import Archive
from serried.submission.prepared import Prepared

UNTRACKED_LISTED = 1000
TRIES = 10


def make_run_directory(prepared: Prepared, plan: Plan) -> RunDirectory:
    """Write what the job reads. Raises OSError."""
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
        if plan.container and plan.container.runtime == "pyxis":  # which mounts the project's folder alone
            write_bytes(path, content, modes.file)
        else:
            script.put(content, path, Path(plan.site.root) / PROGRAMS, modes)
    return where


def _make_new(path: Path, mode: int) -> None:
    """Make it with the folders above it, which go with the last run in them: perhaps just now."""
    for _ in range(TRIES):
        with contextlib.suppress(FileNotFoundError):
            make_directory(path.parent, mode)
            path.mkdir(mode=mode)
            return
    path.mkdir(mode=mode)


def write_source(record: Record, prepared: Prepared, plan: Plan, archive: Archive | None) -> None:
    """What ran, for when the run directory is purged: commit, diff, and what the snapshot holds."""
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
    """Take back a run that no scheduler knows: its directory, its record, and folders that are empty then."""
    shutil.rmtree(plan.directory, ignore_errors=True)
    remove_empty_above(Path(plan.directory))
    record.remove()


def remove_empty_above(directory: Path) -> None:
    """Of a run directory that is gone: the folders of its experiment and project, where they hold nothing else."""
    with contextlib.suppress(OSError):
        directory.parent.rmdir()
        directory.parent.parent.rmdir()
