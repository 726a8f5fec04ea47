"""Chooses what `serried clean` deletes, and deletes it.

Before it deletes a file or folder, it checks again whether a run needs that, and renames it: what is half deleted has
a name that no reader takes for a run.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serried.base import locks, tree
from serried.base.errors import SerriedError, UsageError, reason
from serried.cleanup import disk_items
from serried.cleanup.disk_items import KnownRuns, Thing
from serried.records.record import Record, records_directory
from serried.records.status import status
from serried.schema.outputs import describe
from serried.submission import builds, fetch
from serried.submission.deliver import remove_empty_above
from serried.submission.fetch import Errand

Tell = Callable[[str, int], None]
"""Receives a run's name and how many of its files were looked at."""

TO_FETCH = "`serried fetch {run} --to DIR` copies them; with `--outputs` they are removed too"
NEEDED_AGAIN = "it is needed by now"
SETTLED_SECONDS = 86400.0
"""Younger files may belong to a submission or a build that has just begun."""


@dataclass
class RemovalChoice:
    go: list[Thing] = field(default_factory=list)
    stay: list[Thing] = field(default_factory=list)
    """Old or named, but needed."""

    def add(self, things: Iterable[Thing], before: float) -> None:
        """Add those that were last used before that time."""
        for thing in things:
            if thing.used < before:
                (self.stay if thing.needed else self.go).append(thing)


def choose_runs(
    known: KnownRuns, ids: Sequence[str], *, records: bool, with_outputs: bool = False, tell: Tell = lambda *_: None
) -> RemovalChoice:
    """Those runs and nothing else. Raises UsageError if one of them must stay."""
    directories = {thing.run: thing for thing in disk_items.runs(known) if thing.has_record}
    without_directory = {thing.run: thing for thing in disk_items.records(known)}
    choice = RemovalChoice()
    for run in dict.fromkeys(ids):
        thing = directories.get(run)
        if thing is not None and not os.path.lexists(thing.path):  # another `serried clean` was faster
            thing = None
        if thing is not None and thing.needed:
            raise UsageError(f"run `{run}` stays: {thing.needed}", hint=f"serried show {run}")
        if thing is None and run not in without_directory:
            raise UsageError(f"run `{run}` stays: its record does not have an end", hint=f"serried why {run}")
        if thing is not None:
            thing = _with_outputs(known, thing, tell)
            if thing.unfetched and not with_outputs:
                raise UsageError(f"run `{run}` stays: {thing.note}", hint=TO_FETCH.format(run=run))
            choice.go.append(thing)
        if records:
            choice.go.append(without_directory.get(run) or disk_items.record_of(known.status_of(run)))
    return choice


def choose_all(
    known: KnownRuns,
    now: float,
    older: float | None,
    *,
    records: bool,
    with_outputs: bool = False,
    tell: Tell = lambda *_: None,
) -> RemovalChoice:
    """Everything that cannot be needed; with the time `older` also what was last used before then."""
    choice = RemovalChoice()
    settled = now - SETTLED_SECONDS
    if older is not None:
        choice.add(disk_items.runs(known), older)
        choice.go = [_with_outputs(known, thing, tell) for thing in choice.go]
        if not with_outputs:
            choice.stay += [dataclasses.replace(thing, needed=thing.note) for thing in choice.go if thing.unfetched]
            choice.go = [thing for thing in choice.go if not thing.unfetched]
    if older is not None and records:
        ids = {thing.run for thing in choice.go if thing.has_record}
        choice.go += [disk_items.record_of(status) for status in known.statuses if status.record.id in ids]
        choice.add(disk_items.records(known), older)
    choice.go += disk_items.remains(known)
    sources = disk_items.sources(known, [thing.path for thing in choice.go if thing.kind == disk_items.RUN])
    choice.go += [thing for thing in sources if not thing.needed and thing.used < settled]
    built = list(disk_items.built(known))
    choice.go += [thing for thing in built if thing.kind == disk_items.ATTEMPT and thing.used < settled]
    if older is not None:
        complete = [thing for thing in built if thing.kind != disk_items.ATTEMPT]
        choice.add([*complete, *disk_items.staged(known)], min(older, settled))
    return choice


def _with_outputs(known: KnownRuns, thing: Thing, tell: Tell) -> Thing:
    """Add the outputs that were not fetched to the thing's note."""
    places = disk_items.outputs_of(known, thing)
    outputs = describe(places or [], tell=lambda looked: tell(thing.name, looked))
    unfetched = outputs.unfetched + outputs.unread if places is not None else 1
    if not unfetched:
        return thing
    text = outputs.text if places is not None else "unknown, because the run's plan cannot be read"
    note = ", ".join(filter(None, (thing.note, f"outputs: {text}")))
    return dataclasses.replace(thing, unfetched=unfetched, note=note)


def remove(thing: Thing) -> str | None:
    """Delete a thing. Returns why it stays, and None if it does not exist any more."""
    if not os.path.lexists(thing.path):
        return None
    try:
        return _WAYS.get(thing.kind, _remove_path)(thing)
    except FileNotFoundError:
        return None
    except OSError as error:
        return reason(error)


def _remove_run(thing: Thing) -> str | None:
    if thing.has_record and not disk_items.is_over(status(Record.load(thing.run))):
        return "the run continues"
    if refusal := disk_items.refusal(thing.path, thing.run):
        return refusal
    aside = thing.path.with_name(f"{disk_items.ASIDE}{thing.run}-{os.urandom(4).hex()}")
    thing.path.rename(aside)
    if not tree.remove(aside) and aside.exists():
        return f"its remaining files are in {aside}"
    remove_empty_above(thing.path)
    return None


def _remove_path(thing: Thing) -> str | None:
    return None if tree.remove(thing.path) or not os.path.lexists(thing.path) else "some of its files cannot be deleted"


def _remove_record(thing: Thing) -> str | None:
    if thing.path.parent != records_directory() or not disk_items.is_over(status(Record(thing.path))):
        return "the run continues"
    if os.path.lexists(Record(thing.path).where.path):
        return "its run directory still exists"
    Record(thing.path).remove()
    return None


def _remove_source(thing: Thing) -> str | None:
    """Keep an archive that a submission has just chosen to use again: its time is newer then.

    After the rename, a submission that looks for the archive stores it again.
    """
    if disk_items.newest_within(thing.path) > thing.used:
        return NEEDED_AGAIN
    aside = thing.path.with_name(f".{thing.path.name}.{os.urandom(4).hex()}")
    thing.path.rename(aside)
    if disk_items.newest_within(aside) > thing.used:
        aside.replace(thing.path)
        return NEEDED_AGAIN
    aside.unlink()
    return None


def _remove_built(thing: Thing) -> str | None:
    builds.remove(thing.path)
    return None


def _remove_staged(thing: Thing) -> str | None:
    """Delete by the rules of the jobs that share the data: not while a job uses it, and under an unfinished name."""

    def remove_aside(path: Path) -> None:
        aside = path.with_name(f"{path.name}{locks.PART}")
        tree.remove(aside)
        path.rename(aside)
        tree.remove(aside)

    return None if locks.remove_unused(thing.path, remove_aside) else "a job uses it, or it cannot be deleted"


_WAYS = {
    disk_items.STAGED: _remove_staged,
    disk_items.RUN: _remove_run,
    disk_items.RECORD: _remove_record,
    disk_items.SOURCE: _remove_source,
    disk_items.AGENT: _remove_source,
    disk_items.ENVIRONMENT: _remove_built,
    disk_items.IMAGE: _remove_built,
}


@dataclass(frozen=True)
class Left:
    """A folder of a dead job on a node's disk."""

    host: str
    name: str
    stays: str
    """Why the folder stays; empty for one that was, or would be, deleted."""


def sweep_nodes(
    known: KnownRuns,
    hosts: Sequence[str],
    on_result: Callable[[str, list[Left] | SerriedError], None],
    observe: fetch.Observe,
    *,
    dry: bool,
) -> None:
    """Delete the folders of dead jobs by a small job on each host, with the queue and account of your newest run there.

    `on_result` receives the folders of each host, or why its job could not run. Raises UsageError for a host without
    runs, before any job is submitted.
    """
    errands = []
    for host in hosts:
        there = [status for status in known.statuses if host in status.node_names and status.record.id in known.plans]
        there = [status for status in there if status.record.where.agent.exists()]  # which can start there
        if not there:
            hint = "`serried show RUN` has the nodes of a run; your next job there deletes the folders of dead jobs"
            raise UsageError(f"none of your runs that still have a directory was on `{host}`", hint=hint)
        status = max(there, key=lambda status: status.created)
        journal = status.record.where.path / f"tidying-{os.urandom(4).hex()}" / "tidy.jsonl"
        role = ("tidy", str(journal), *(["--dry-run"] if dry else []))
        errands.append(Errand(known.plans[status.record.id], host, role, journal))

    def settle(number: int, answer: fetch.Answer) -> None:
        host = hosts[number]
        if isinstance(answer, SerriedError):
            on_result(host, answer)
        else:
            on_result(host, [Left(host, str(name), str(stays)) for name, stays in answer["found"]])

    try:
        fetch.send_all(errands, settle, observe)
    finally:
        for errand in errands:
            shutil.rmtree(errand.journal.parent, ignore_errors=True)
