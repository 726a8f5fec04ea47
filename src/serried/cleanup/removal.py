"""Remove what was chosen: looked at once more, renamed first, so that what is half gone looks like nothing."""

from __future__ import annotations

import os
from pathlib import Path

from serried import builds
from serried.cleanup import disk_items, disk_usage, run_directories
from serried.cleanup.disk_items import Thing
from serried.errors import reason
from serried.fs import locks, removal
from serried.records.record import Record, records_directory
from serried.records.status import status
from serried.submission.prepared import remove_empty_above


def remove(thing: Thing) -> str | None:
    """Why it was not removed; None where it is gone, by us or by somebody else meanwhile."""
    if not os.path.lexists(thing.path):
        return None
    try:
        return _WAYS.get(thing.kind, _folder)(thing)
    except FileNotFoundError:
        return None
    except OSError as error:
        return reason(error)


def _run(thing: Thing) -> str | None:
    """Its directory. Of one with a record it is looked once more whether it has ended."""
    if thing.has_record and not disk_items.is_over(status(Record.load(thing.run))):
        return "it goes on again"
    why = run_directories.refusal(thing.path, thing.run)
    if why is not None:
        return why
    aside = thing.path.with_name(f"{run_directories.ASIDE}{thing.run}-{os.urandom(4).hex()}")
    thing.path.rename(aside)
    if not removal.remove(aside) and aside.exists():
        return f"what is left of it is in {aside}"
    remove_empty_above(thing.path)
    return None


def _folder(thing: Thing) -> str | None:
    if thing.path.is_dir() and not thing.path.is_symlink():
        if not removal.remove(thing.path) and thing.path.exists():
            return "some of it cannot be removed"
        return None
    thing.path.unlink()
    return None


def _record(thing: Thing) -> str | None:
    if thing.path.parent != records_directory() or not disk_items.is_over(status(Record(thing.path))):
        return "it goes on again"
    if os.path.lexists(Record(thing.path).where.path):
        return "its run directory is still there"
    Record(thing.path).remove()
    return None


def _source(thing: Thing) -> str | None:
    """Not what a submission has found to be its own meanwhile: it is young again then.

    Renamed first: a submission that looks for it then stores it anew.
    """
    if disk_usage.newest_within(thing.path) > thing.used:
        return "it is needed by now"
    aside = thing.path.with_name(f".{thing.path.name}.{os.urandom(4).hex()}")
    thing.path.rename(aside)
    if disk_usage.newest_within(aside) > thing.used:
        aside.replace(thing.path)
        return "it is needed by now"
    aside.unlink()
    return None


def _built(thing: Thing) -> str | None:
    builds.remove(thing.path)
    return None


def _staged(thing: Thing) -> str | None:
    """As the jobs do that share it: not while one uses it, and under the name of what is half done."""

    def remove(path: Path) -> None:
        aside = path.with_name(f"{path.name}{locks.PART}")
        removal.remove(aside)
        path.rename(aside)
        removal.remove(aside)

    return None if locks.remove_unused(thing.path, remove) else "a job uses it, or it cannot be removed"


_WAYS = {
    disk_items.STAGED: _staged,
    disk_items.RUN: _run,
    disk_items.RECORD: _record,
    disk_items.SOURCE: _source,
    disk_items.ENVIRONMENT: _built,
    disk_items.IMAGE: _built,
}


def places(found: list[Thing]) -> list[Path]:
    """Where the runs among them are."""
    return [thing.path for thing in found if thing.kind == disk_items.RUN]
