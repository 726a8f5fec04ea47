"""Which things may go: what nobody can need, and what the user has named, or calls old."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from serried.cleanup import disk_items, removal
from serried.cleanup.disk_items import Known, Thing
from serried.errors import UsageError
from serried.protocol.outputs import describe
from serried.records import index
from serried.records.status import statuses

Tell = Callable[[str, int], None]
"""Hears of the name of what is looked at, and how many entries of it were."""

TO_FETCH = "`serried fetch {run} --to DIR` copies them; with `--outputs` they are removed too"
SETTLED_SECONDS = 86400.0
"""What is younger may belong to something that is just beginning: a submission, a build."""


@dataclass
class Choice:
    go: list[Thing] = field(default_factory=list)
    stay: list[Thing] = field(default_factory=list)
    """Old, or named, but needed."""

    def add(self, found: Iterable[Thing], before: float) -> None:
        """Those that were last used before that."""
        for thing in found:
            if thing.used < before:
                (self.stay if thing.needed else self.go).append(thing)


def look() -> Known:
    """All runs, and how they stand."""
    return Known(statuses(index.records()))


def of_runs(
    known: Known, ids: Sequence[str], *, records: bool, with_outputs: bool = False, tell: Tell = lambda *_: None
) -> Choice:
    """Those runs and nothing else. Raises UsageError for one that must stay."""
    found = {thing.run: thing for thing in disk_items.runs(known) if thing.has_record}
    gone = {thing.run: thing for thing in disk_items.records(known)}
    choice = Choice()
    for run in dict.fromkeys(ids):
        thing = found.get(run)
        if thing is not None and thing.needed:
            raise UsageError(f"run `{run}` stays: {thing.needed}", hint=f"serried show {run}")
        if thing is None and run not in gone:
            raise UsageError(f"run `{run}` stays: its record does not say that it has ended", hint=f"serried why {run}")
        if thing is not None:
            thing = _with_outputs(known, thing, tell)
            if thing.unfetched and not with_outputs:
                raise UsageError(f"run `{run}` stays: {thing.note}", hint=TO_FETCH.format(run=run))
            choice.go.append(thing)
        if records:
            choice.go.append(gone.get(run) or _record_of(known, run))
    return choice


def of_all(
    known: Known,
    now: float,
    older: float | None,
    *,
    records: bool,
    with_outputs: bool = False,
    tell: Tell = lambda *_: None,
) -> Choice:
    """What nobody can need any more; with a moment also what was last used before it."""
    choice = Choice()
    settled = now - SETTLED_SECONDS
    if older is not None:
        choice.add(disk_items.runs(known), older)
        choice.go = [_with_outputs(known, thing, tell) for thing in choice.go]
        if not with_outputs:
            choice.stay += [dataclasses.replace(thing, needed=thing.note) for thing in choice.go if thing.unfetched]
            choice.go = [thing for thing in choice.go if not thing.unfetched]
    if older is not None and records:
        known_ids = {thing.run for thing in choice.go if thing.has_record}
        choice.go += [_record_of(known, run) for run in known_ids]
        choice.add(disk_items.records(known), older)
    choice.go += disk_items.remains(known)
    sources = disk_items.sources(known, removal.places(choice.go))
    choice.go += [thing for thing in sources if not thing.needed and thing.used < settled]
    built = list(disk_items.built(known))
    choice.go += [thing for thing in built if thing.kind == disk_items.ATTEMPT and thing.used < settled]
    if older is not None:
        whole = [thing for thing in built if thing.kind != disk_items.ATTEMPT]
        choice.add([*whole, *disk_items.staged(known)], min(older, settled))
    return choice


def _with_outputs(known: Known, thing: Thing, tell: Tell) -> Thing:
    """The same, its note saying which of its outputs nobody has fetched."""
    trees = disk_items.trees(known, thing)
    found = describe(trees or [], tell=lambda looked: tell(thing.name, looked))
    unfetched = found.unfetched + found.unread if trees is not None else 1
    if not unfetched:
        return thing
    text = found.text if trees is not None else "its plan cannot be read, which says where they are"
    note = ", ".join(filter(None, (thing.note, f"outputs: {text}")))
    return dataclasses.replace(thing, unfetched=unfetched, note=note)


def _record_of(known: Known, run: str) -> Thing:
    status = next(one for one in known.statuses if one.record.id == run)
    used = status.verdict.since or status.created
    return Thing(disk_items.RECORD, run, status.record.directory.path, used, status.state, run=run)
