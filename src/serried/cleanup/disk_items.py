"""Everything that Serried has put somewhere: what it is, when it was last used, and what needs it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried import builds
from serried.cleanup import run_directories
from serried.cleanup.disk_usage import newest_within
from serried.fs import locks
from serried.fs.files import is_ours_alone, read_json
from serried.plan import Plan
from serried.protocol import checkpoints
from serried.protocol.layout import RunDirectory
from serried.protocol.outputs import Tree
from serried.protocol.times import iso, seconds_of
from serried.records import missing_outputs, outputs
from serried.records.record import Record, RecordUnreadable, records_directory
from serried.records.run_status import RunStatus

RUN, RECORD, REMAINS, SOURCE, ENVIRONMENT, IMAGE, ATTEMPT, STAGED, DISK = (
    "run",
    "record",
    "half-removed",
    "source",
    "environment",
    "image",
    "failed build",
    "staged data",
    "local disk",
)
DATA = "data"
"""The folder of what is staged, on a disk."""


@dataclass(frozen=True)
class Thing:
    kind: str
    name: str
    path: Path
    used: float = 0.0
    """When it was last of use, as far as is known; 0 is unknown."""
    state: str = ""
    """Of a run."""
    needed: str = ""
    """Why it must stay; empty for what may go."""
    run: str = ""
    """The id of the run that it is of."""
    has_record: bool = True
    checkpoints: int = 0
    unfetched: int = 0
    """Files among its outputs that no `serried fetch` has copied, where that was counted."""
    note: str = ""
    """What would be lost with it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "run": self.run or None,
            "path": str(self.path),
            "used": iso(self.used) if self.used else None,
            "state": self.state or None,
            "note": self.note or None,
            "checkpoints": self.checkpoints if self.kind == RUN else None,
        }


@dataclass
class Known:
    """What the records say of all runs, asked once."""

    statuses: Sequence[RunStatus]
    plans: dict[str, Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for status in self.statuses:
            plan = _plan(status.record)
            if plan is not None:
                self.plans[status.record.id] = plan

    @property
    def roots(self) -> list[Path]:
        return sorted({Path(plan.site.root) for plan in self.plans.values()})

    @property
    def projects(self) -> list[Path]:
        return sorted({Path(plan.source.directory) for plan in self.plans.values()})

    @property
    def disks(self) -> list[str]:
        """What profiles call a node's own disk, where it is one of this machine or may be."""
        return sorted({os.path.expandvars(plan.site.local_disk or "") for plan in self.plans.values()})

    def unfinished(self) -> Iterator[tuple[str, Plan]]:
        """Of runs that may still do something."""
        for status in self.statuses:
            if not is_over(status) and status.record.id in self.plans:
                yield status.record.id, self.plans[status.record.id]


def is_over(status: RunStatus) -> bool:
    """Whether it has ended and that is written down for good: what is uncertain or lost sight of may go on."""
    return status.has_ended and status.record.end is not None


def _plan(record: Record) -> Plan | None:
    """The record's; where that cannot be read, what its run directory has: something may depend on what it says."""
    with contextlib.suppress(RecordUnreadable):
        return record.plan
    with contextlib.suppress(RecordUnreadable, KeyError, TypeError, ValueError, AttributeError):
        return Plan.from_json(read_json(record.where.plan) or {})
    return None


def runs(known: Known) -> Iterator[Thing]:
    """Run directories that are there: those of the records, then those without."""
    needs = _needs(known)
    for status in known.statuses:
        if status.summary is None:
            continue
        path = status.record.where.path
        if os.path.lexists(path):
            yield _run(status, path, needs)
    for lost in _lost(known):
        needed = "" if lost.state else "no record here knows how it stands"
        needed = needed or _needed_by(lost.path, needs)
        yield Thing(
            RUN,
            lost.path.name,
            lost.path,
            newest_within(lost.path),
            lost.state or "?",
            needed,
            lost.path.name,
            has_record=False,
            checkpoints=count_checkpoints(lost.path),
        )


def _lost(known: Known) -> Iterator[run_directories.Lost]:
    ids = {status.record.id for status in known.statuses}  # also of records that cannot be read
    for root in known.roots:
        yield from run_directories.unknown(root, ids)


def _run(status: RunStatus, path: Path, needs: dict[str, str]) -> Thing:
    needed = "" if is_over(status) else f"it is {status.state}"
    needed += ", but not for certain before some minutes" if needed and status.has_ended else ""
    needed = needed or run_directories.refusal(path, status.record.id) or _needed_by(path, needs)
    summary = status.summary
    name = f"{status.record.id} {summary.name}" if summary else status.record.id
    used = status.verdict.since or status.created
    there = [
        f"{each.what} still on {each.host}" for each in missing_outputs.told(status.record.end) if not each.is_lost
    ]
    count, note = count_checkpoints(path), ", ".join(there)
    return Thing(RUN, name, path, used, status.state, needed, status.record.id, checkpoints=count, note=note)


def _needs(known: Known) -> dict[str, str]:
    """Paths that runs which have not ended depend on, and which run."""
    needs: dict[str, str] = {}
    for run, plan in known.unfinished():
        paths = [one.directory for one in plan.after]
        paths += plan.resume.checkpoints if plan.resume else ()
        paths += [*(item.source for item in plan.data.stage), *plan.data.in_place] if plan.data else ()
        needs |= {os.path.normpath(path): run for path in paths if path}
    return needs


def _needed_by(path: Path, needs: dict[str, str]) -> str:
    for place, run in needs.items():
        if Path(place).is_relative_to(path):
            return f"run {run} needs it"
    return ""


def count_checkpoints(path: Path) -> int:
    """How many there are in a run directory, its elements' included."""
    places = [RunDirectory(path), *(RunDirectory(one) for one in _entries(path / "elements"))]
    return sum(1 for place in places for one in _entries(place.checkpoints) if not checkpoints.is_unfinished(one.name))


def trees(known: Known, thing: Thing) -> list[Tree] | None:
    """The working trees of a run; None where no plan of it can be read."""
    plan = known.plans.get(thing.run)
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        plan = plan or Plan.from_json(read_json(thing.path / "plan.json") or {})
    return outputs.trees(RunDirectory(thing.path), plan) if plan else None


def records(known: Known) -> Iterator[Thing]:
    """Records of runs that have ended, and whose directories are gone, or not to be seen from here."""
    for status in known.statuses:
        if is_over(status) and not os.path.lexists(status.record.where.path):
            plan = known.plans.get(status.record.id)
            away = plan is not None and not os.path.lexists(plan.site.root)
            needed = f"its directory may be there where `{plan.site.root}` is" if plan is not None and away else ""
            used = status.verdict.since or status.created
            path = status.record.directory.path
            yield Thing(RECORD, status.id, path, used, status.state, needed=needed, run=status.record.id)


def remains(known: Known) -> Iterator[Thing]:
    for root in known.roots:
        for path in run_directories.half_removed(root):
            yield Thing(REMAINS, path.name, path, newest_within(path))


def sources(known: Known, going: Iterable[Path] = ()) -> Iterator[Thing]:
    """Archives of code, and of Serried; one that a run names whose directory stays, or that goes on, is needed."""
    gone = set(going)
    moved = {status.record.where.path for status in known.statuses} - gone
    for root in known.roots:
        plans = {path: plan for path, plan in run_directories.plans_below(root) if path not in gone}
        named = {run_directories.archive_of(plan, path) for path, plan in plans.items()}
        named |= run_directories.programs_of([*plans, *moved])
        going_on = [plan for _, plan in known.unfinished() if plan.source.archive]
        named |= {Path(os.path.normpath(Path(plan.directory, plan.source.archive or ""))) for plan in going_on}
        same = run_directories.same_files(named)
        for path in run_directories.archives(root):
            needed = "a run has it" if path in named or same & run_directories.same_files([path]) else ""
            yield Thing(SOURCE, f"{path.parent.parent.name}/{path.name}", path, newest_within(path), needed=needed)


def built(known: Known) -> Iterator[Thing]:
    """Environments and images that Serried has built, and what is left of builds that failed."""
    last: dict[str, float] = {}
    for status in known.statuses:
        plan = known.plans.get(status.record.id)
        if plan is not None:
            moment = max(seconds_of(plan.created) or 0.0, status.verdict.since or 0.0 if status.has_ended else 0.0)
            for place in _uses(plan):
                last[place] = max(last.get(place, 0.0), moment)
    live = {place: run for run, plan in known.unfinished() for place in _uses(plan)}
    live |= {place: lost.path.name for lost in _lost(known) if not lost.state for place in _uses_of(lost.path)}
    folders = [(ENVIRONMENT, project / builds.ENVIRONMENTS) for project in known.projects]
    folders += [(IMAGE, root / builds.IMAGES) for root in known.roots]
    for kind, folder in folders:
        complete = [prefix for prefix, _ in builds.built(folder)]
        for prefix in complete:
            used = max(last.get(str(prefix), 0.0), newest_within(prefix))
            needed = f"run {live[str(prefix)]} has it" if str(prefix) in live else ""
            yield Thing(kind, prefix.name, prefix, used, needed=needed)
        for path in builds.abandoned(folder, complete):
            yield Thing(ATTEMPT, path.name, path, newest_within(path))
    for folder in (project / builds.DATA for project in known.projects):
        for path in builds.abandoned(folder, [prefix for prefix, _ in builds.built(folder)]):
            yield Thing(ATTEMPT, path.name, path, newest_within(path))


def staged(known: Known) -> Iterator[Thing]:
    """What jobs on this machine have let stay on its disk for the next one."""
    for room in _rooms(known.disks):
        for path in locks.things(room / DATA) if is_ours_alone(room / DATA) else ():
            if path.suffix != locks.PART and path.is_dir():
                needed = "a job uses it" if locks.is_used(path) else ""
                name = str((read_json(path / "facts.json") or {}).get("source") or path.name)
                yield Thing(STAGED, name, path, newest_within(path), needed=needed)


def kept(known: Known) -> Iterator[Thing]:
    """What is small and lasts, and what else is on this machine's own disk."""
    yield Thing(RECORD, "all records", records_directory())
    listed = {room / DATA for room in _rooms(known.disks)}
    for room in _rooms([*known.disks, os.environ.get("TMPDIR", ""), "/tmp"]):  # noqa: S108 - as the agents do
        for path in _entries(room):
            if path not in listed:
                yield Thing(DISK, path.name, path, newest_within(path))


def _rooms(bases: Iterable[str]) -> list[Path]:
    """Those of ours that are there, on this machine."""
    rooms = {Path(base).resolve() / f"serried-{os.getuid()}" for base in bases if base.startswith("/")}
    return sorted(filter(is_ours_alone, rooms))


def _uses_of(run: Path) -> list[str]:
    """The same by a run's own plan, as far as that can be read."""
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        return list(_uses(Plan.from_json(read_json(run / "plan.json") or {})))
    return []


def _uses(plan: Plan) -> Iterator[str]:
    """Folders of what was built for a run."""
    yield from filter(None, (plan.environment.venv, plan.environment.conda))
    if plan.container is not None:
        yield os.path.dirname(plan.container.image)  # noqa: PTH120 - it may be no path at all


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []
