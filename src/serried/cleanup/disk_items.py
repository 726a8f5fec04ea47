"""Lists the files and folders of Serried on disks: their sizes, when each was last used, and why it must stay.

A file with several names counts once, and holes do not count.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried.base import copy, locks, tree
from serried.base.errors import reason
from serried.base.files import is_ours_alone, read_json
from serried.base.text import iso, seconds_of
from serried.records import index, outputs
from serried.records.record import RecordUnreadable, is_id, records_directory
from serried.records.status import RunStatus, statuses
from serried.schema import checkpoints, names
from serried.schema import outputs as run_outputs
from serried.schema.endings import End
from serried.schema.layout import PROGRAMS, RunDirectory, run_directory
from serried.schema.outputs import Place, Tree
from serried.schema.plan import Plan
from serried.submission import builds

_TELL_EVERY = 1000


@dataclass(frozen=True)
class Size:
    bytes: int = 0
    files: int = 0
    """Including folders and links: each takes an inode of a quota."""
    oldest: float | None = None
    newest: float | None = None
    """Modification times of files."""
    unread: int = 0
    """Folders that could not be read."""

    def __add__(self, other: Size) -> Size:
        return Size(
            self.bytes + other.bytes,
            self.files + other.files,
            min((time for time in (self.oldest, other.oldest) if time is not None), default=None),
            max((time for time in (self.newest, other.newest) if time is not None), default=None),
            self.unread + other.unread,
        )

    def to_json(self) -> dict[str, Any]:
        moments = {"oldest": iso(self.oldest), "newest": iso(self.newest)}
        return {"bytes": self.bytes, "files": self.files, **moments, "unread": self.unread}


def measure(path: Path, tell: Callable[[int], None] = lambda _: None, but: Iterable[Path] = ()) -> Size:
    """The size of a file, or of a folder without the paths in `but`. `tell` receives the count of files so far."""
    counter = _DiskCounter(tell)
    with contextlib.suppress(OSError):
        state = path.lstat()
        counter.add(state)
        if stat.S_ISDIR(state.st_mode):
            for _, state in tree.states(str(path), counter.add_unread, frozenset(map(str, but))):
                counter.add(state)
    return counter.size


def measure_trees(found: Iterable[Tree], tell: Callable[[int], None] = lambda _: None) -> tuple[Size, Size]:
    """The sizes of the outputs in working trees, and of everything else there."""
    outputs, rest = _DiskCounter(tell), _DiskCounter(tell)
    for working_tree in found:
        with contextlib.suppress(FileNotFoundError):
            rest.add(working_tree.path.lstat())
        for _, state, is_output in working_tree.walk(outputs.add_unread):
            (outputs if is_output else rest).add(state)
    return outputs.size, rest.size


class _DiskCounter:
    def __init__(self, tell: Callable[[int], None]) -> None:
        self._bytes = self._files = self._unread = 0
        self._oldest, self._newest = math.inf, -math.inf
        self._tell = tell
        self._counted: set[tuple[int, int]] = set()

    @property
    def size(self) -> Size:
        has_files = self._oldest <= self._newest
        oldest, newest = (self._oldest, self._newest) if has_files else (None, None)
        return Size(self._bytes, self._files, oldest, newest, self._unread)

    def add_unread(self, _: OSError) -> None:
        self._unread += 1

    def add(self, state: os.stat_result) -> None:
        is_folder, file = stat.S_ISDIR(state.st_mode), (state.st_dev, state.st_ino)
        if not is_folder and state.st_nlink > 1:
            if file in self._counted:
                return
            self._counted.add(file)
        self._files += 1
        if self._files % _TELL_EVERY == 0:
            self._tell(self._files)
        if not is_folder:
            self._bytes += copy.held_bytes(state) or state.st_size  # some file systems report no blocks
            self._oldest, self._newest = min(self._oldest, state.st_mtime), max(self._newest, state.st_mtime)


def newest_within(path: Path) -> float:
    """When `path` or one of its direct entries last changed; 0 if it does not exist."""
    times = [0.0]
    with contextlib.suppress(OSError):
        times.append(path.lstat().st_mtime)
        if path.is_dir() and not path.is_symlink():
            times += (state.st_mtime for _, state in tree.states_in(str(path), lambda _: None))
    return max(times)


RUN, RECORD, REMAINS, SOURCE, AGENT = "run", "record", "half-removed", "code", "serried"
ENVIRONMENT, IMAGE, ATTEMPT, STAGED, DISK = "environment", "image", "failed build", "staged data", "local disk"
DATA = "data"
"""The folder of staged data on a disk."""
ASIDE = ".removing-"
"""Begins the name of a run directory that is being deleted. No reader takes such a folder for a run."""
_ASIDE = re.compile(r"\.removing-[a-z0-9]{6}-[0-9a-f]{8}")
_ARCHIVE = re.compile(r"[0-9a-f]{16}\.tar")
_PROGRAM = re.compile(r"\.?(agent-[0-9a-f]{16}\.pyz|library-[0-9a-f]{16}\.zip)(\.[0-9a-f]{8})?")
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)
"""What `Plan.from_json` raises for a plan of another version."""


@dataclass(frozen=True)
class Thing:
    kind: str
    name: str
    path: Path
    used: float = 0.0
    """When it was last used; 0 if unknown."""
    state: str = ""
    """Of a run."""
    needed: str = ""
    """Why it must stay; empty if it may be deleted."""
    run: str = ""
    """The id of its run."""
    has_record: bool = True
    checkpoints: int = 0
    unfetched: int = 0
    """Outputs that no `serried fetch` has copied, if they were counted."""
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
class KnownRuns:
    statuses: Sequence[RunStatus]
    plans: dict[str, Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for record in (status.record for status in self.statuses):
            plan = None
            with contextlib.suppress(RecordUnreadable):
                plan = record.plan
            with contextlib.suppress(RecordUnreadable):
                plan = plan or _plan_in(record.where.path)
            if plan is not None:
                self.plans[record.id] = plan

    @classmethod
    def load(cls) -> KnownRuns:
        return cls(statuses(index.records()))

    def status_of(self, run: str) -> RunStatus:
        return next(status for status in self.statuses if status.record.id == run)

    @property
    def roots(self) -> list[Path]:
        return sorted({Path(plan.site.root) for plan in self.plans.values()})

    @property
    def projects(self) -> list[Path]:
        return sorted({Path(plan.source.directory) for plan in self.plans.values()})

    @property
    def disks(self) -> list[str]:
        """The local disks in profiles: one of them may be of this machine."""
        return sorted({os.path.expandvars(plan.site.local_disk or "") for plan in self.plans.values()})

    def unfinished(self) -> Iterator[tuple[str, Plan]]:
        for status in self.statuses:
            if not is_over(status) and status.record.id in self.plans:
                yield status.record.id, self.plans[status.record.id]


def is_over(status: RunStatus) -> bool:
    """Has the run ended, and does its record say so? A lost or uncertain run may still continue."""
    return status.has_ended and status.record.end is not None


def _plan_in(run: Path) -> Plan | None:
    with contextlib.suppress(*_MALFORMED):
        return Plan.from_json(read_json(run / "plan.json") or {})
    return None


def runs(known: KnownRuns) -> Iterator[Thing]:
    """The run directories that exist: first those of records, then those without a record."""
    needs = _needs(known)
    for status in known.statuses:
        if status.summary is not None and os.path.lexists(status.record.where.path):
            yield _run(status, status.record.where.path, needs)
    for path, state in _without_record(known):
        yield Thing(
            RUN,
            path.name,
            path,
            newest_within(path),
            state or "?",
            _needed_by(path, needs) if state else "its state is not known here",
            path.name,
            has_record=False,
            checkpoints=count_checkpoints(path),
        )


def _run(status: RunStatus, path: Path, needs: dict[str, str]) -> Thing:
    needed = "" if is_over(status) else f"it is {status.state}"
    needed += ", but not for certain before some minutes" if needed and status.has_ended else ""
    needed = needed or refusal(path, status.record.id) or _needed_by(path, needs)
    summary = status.summary
    name = f"{status.record.id} {summary.name}" if summary else status.record.id
    missing = outputs.missing_in(status.record.end) if status.record.end else []
    note = ", ".join(f"{entry.what} still on {entry.host}" for entry in missing if not entry.is_lost)
    used = status.verdict.since or status.created
    count = count_checkpoints(path)
    return Thing(RUN, name, path, used, status.state, needed, status.record.id, checkpoints=count, note=note)


def _needs(known: KnownRuns) -> dict[str, str]:
    """The paths that unfinished runs depend on, with the run."""
    needs: dict[str, str] = {}
    for run, plan in known.unfinished():
        paths = [dependency.directory for dependency in plan.after]
        paths += plan.resume.checkpoints if plan.resume else ()
        paths += [*(item.source for item in plan.data.stage), *plan.data.require] if plan.data else ()
        needs |= {os.path.normpath(path): run for path in paths if path}
    return needs


def _needed_by(path: Path, needs: dict[str, str]) -> str:
    return next((f"run {run} needs it" for place, run in needs.items() if Path(place).is_relative_to(path)), "")


def count_checkpoints(path: Path) -> int:
    """The checkpoints in a run directory, with those of an array's tasks."""
    run = RunDirectory(path)
    places = [run, *map(RunDirectory, _entries(run.tasks))]
    return sum(not checkpoints.is_unfinished(entry.name) for place in places for entry in _entries(place.checkpoints))


def trees(known: KnownRuns, thing: Thing) -> list[Tree] | None:
    """The working trees of a run; None if no plan of the run can be read."""
    plan = known.plans.get(thing.run) or _plan_in(thing.path)
    with contextlib.suppress(*_MALFORMED):
        return run_outputs.trees(RunDirectory(thing.path), plan) if plan else None
    return None


def outputs_of(known: KnownRuns, thing: Thing) -> list[Place] | None:
    """Where the outputs of a run are; None if no plan of the run can be read."""
    found, plan = trees(known, thing), known.plans.get(thing.run) or _plan_in(thing.path)
    return None if found is None or plan is None else outputs.places(RunDirectory(thing.path), plan)


def records(known: KnownRuns) -> Iterator[Thing]:
    """Records of ended runs whose directories do not exist, or are not visible from here."""
    for status in known.statuses:
        if is_over(status) and not os.path.lexists(status.record.where.path):
            plan = known.plans.get(status.record.id)
            needed = ""
            if plan is not None and not os.path.lexists(plan.site.root):
                needed = f"its directory may still exist: `{plan.site.root}` is not visible from this machine"
            yield record_of(status, needed)


def record_of(status: RunStatus, needed: str = "") -> Thing:
    path, used = status.record.directory.path, status.verdict.since or status.created
    return Thing(RECORD, status.record.id, path, used, status.state, needed, status.record.id)


def remains(known: KnownRuns) -> Iterator[Thing]:
    for experiment in (experiment for root in known.roots for experiment in _experiments(root)):
        for path in _ours(experiment, _ASIDE, stat.S_ISDIR):
            yield Thing(REMAINS, path.name, path, newest_within(path))


def sources(known: KnownRuns, deleted: Iterable[Path] = ()) -> Iterator[Thing]:
    """Archives of code and of Serried. An archive is needed by run directories that stay and by unfinished runs."""
    gone = set(deleted)
    moved = {status.record.where.path for status in known.statuses} - gone
    unfinished = [plan for _, plan in known.unfinished() if plan.source.archive]
    for root in known.roots:
        paths = [path for path in _runs_below(root) if path not in gone]
        named = _programs_of([*paths, *moved])
        named |= {Path(os.path.normpath(Path(plan.directory, plan.source.archive or ""))) for plan in unfinished}
        for run in paths:
            source = (read_json(run / "plan.json") or {}).get("source")
            if archive := source.get("archive") if isinstance(source, dict) else None:
                named.add(Path(os.path.normpath(run / str(archive))))
        same = _file_ids(named)
        # Snapshots of code, which a project's runs share, and the programs of Serried, which all runs share.
        archives = [archive for project in _folders(root) for archive in _ours(project / "sources", _ARCHIVE)]
        programs = [*_ours(root / PROGRAMS, _PROGRAM)]
        for path in [*archives, *programs]:
            needed = "a run has it" if path in named or same & _file_ids([path]) else ""
            kind = AGENT if path in programs else SOURCE
            yield Thing(kind, f"{path.parent.parent.name}/{path.name}", path, newest_within(path), needed=needed)


def built(known: KnownRuns) -> Iterator[Thing]:
    """Environments and images that Serried has built, and the remains of failed builds."""
    last: dict[str, float] = {}
    for status in known.statuses:
        plan = known.plans.get(status.record.id)
        ended = status.verdict.since if status.has_ended else None
        for place in _uses(plan) if plan else ():
            used = max(seconds_of(plan.created) or 0.0, ended or 0.0) if plan else 0.0
            last[place] = max(last.get(place, 0.0), used)
    live = {place: run for run, plan in known.unfinished() for place in _uses(plan)}
    for path, state in _without_record(known):
        if not state and (plan := _plan_in(path)):
            live |= dict.fromkeys(_uses(plan), path.name)
    folders = [(ENVIRONMENT, project / builds.ENVIRONMENTS) for project in known.projects]
    folders += [(IMAGE, root / builds.IMAGES) for root in known.roots]
    for kind, folder in folders:
        complete = [prefix for prefix, _ in builds.built(folder)]
        for prefix in complete:
            used = max(last.get(str(prefix), 0.0), newest_within(prefix))
            needed = f"run {live[str(prefix)]} has it" if str(prefix) in live else ""
            yield Thing(kind, prefix.name, prefix, used, needed=needed)
        yield from _failed_builds(folder, complete)
    for folder in (project / builds.DATA for project in known.projects):
        yield from _failed_builds(folder, [prefix for prefix, _ in builds.built(folder)])


def _failed_builds(folder: Path, complete: list[Path]) -> Iterator[Thing]:
    for path in builds.abandoned(folder, complete):
        yield Thing(ATTEMPT, path.name, path, newest_within(path))


def _uses(plan: Plan) -> Iterator[str]:
    yield from filter(None, (plan.environment.venv, plan.environment.conda))
    if plan.container is not None:
        yield os.path.dirname(plan.container.image)  # noqa: PTH120 - may be a name and not a path


def staged(known: KnownRuns) -> Iterator[Thing]:
    """Data that jobs on this machine have left on its disk for later jobs."""
    for room in _rooms(known.disks):
        for path in locks.things(room / DATA) if is_ours_alone(room / DATA) else ():
            if path.suffix != locks.PART and path.is_dir():
                needed = "a job uses it" if locks.is_used(path) else ""
                name = str((read_json(path / "facts.json") or {}).get("source") or path.name)
                yield Thing(STAGED, name, path, newest_within(path), needed=needed)


def kept(known: KnownRuns) -> Iterator[Thing]:
    """The records, which are small and stay, and other folders on this machine's own disk."""
    yield Thing(RECORD, "all records", records_directory())
    listed = {room / DATA for room in _rooms(known.disks)}
    for room in _rooms([*known.disks, os.environ.get("TMPDIR", ""), "/tmp"]):  # noqa: S108 - as the agents do
        for path in _entries(room):
            if path not in listed:
                yield Thing(DISK, path.name, path, newest_within(path))


def everything(known: KnownRuns) -> Iterator[Thing]:
    for listing in (runs, remains, sources, built, staged, kept):
        yield from listing(known)


def _rooms(bases: Iterable[str]) -> list[Path]:
    """The folders of this user's agents that exist on this machine."""
    rooms = {Path(base).resolve() / f"serried-{os.getuid()}" for base in bases if base.startswith("/")}
    return sorted(filter(is_ours_alone, rooms))


def refusal(path: Path, run: str) -> str | None:
    """Why `path` must not be deleted as the directory of `run`; None if it is this user's, and in its place."""
    try:
        if any(not stat.S_ISDIR(place.lstat().st_mode) for place in (path, path.parent, path.parent.parent)):
            return "a link leads there"
        if path.lstat().st_uid != os.getuid():
            return "it belongs to another user"
    except OSError as error:
        return reason(error)
    plan = read_json(path / "plan.json") or {}
    try:
        place = run_directory(plan["site"]["root"], plan["project"], plan["experiment"], plan["run"])
    except (KeyError, TypeError, AttributeError):
        return "it holds no plan of a run"
    if plan["run"] != run or not is_id(run) or os.path.normpath(place) != os.path.normpath(path):
        return "it holds the plan of another run"
    return None


def _without_record(known: KnownRuns) -> Iterator[tuple[Path, str]]:
    """Run directories below known roots without a record here, with the final state if there is one."""
    ids = {status.record.id for status in known.statuses}  # also of unreadable records
    for root in known.roots:
        for path in _runs_below(root):
            if path.name not in ids and refusal(path, path.name) is None:
                end = End.read_known(RunDirectory(path).exit)
                yield path, end.state if end and end.state in names.ENDED else ""


def _runs_below(root: Path) -> Iterator[Path]:
    """Every run directory, also those of other users' records."""
    for experiment in _experiments(root):
        yield from (experiment / name for name in _names(experiment) if is_id(name) and (experiment / name).is_dir())


def _experiments(root: Path) -> Iterator[Path]:
    for project in _folders(root):
        yield from _folders(project)


def _folders(folder: Path) -> Iterator[Path]:
    for name in _names(folder):
        path = folder / name
        if not name.startswith(".") and path.is_dir() and not path.is_symlink():
            yield path


def _programs_of(runs: Iterable[Path]) -> set[Path]:
    programs = set()
    for run in runs:
        for path in (RunDirectory(run).agent, RunDirectory(run).library):
            with contextlib.suppress(OSError):
                programs.add(Path(os.path.normpath(run / path.readlink())))
    return programs


def _file_ids(paths: Iterable[Path]) -> set[tuple[int, int]]:
    """Device and inode: records may spell one root in several ways, by links or with `..`."""
    ids = set()
    for path in paths:
        with contextlib.suppress(OSError):
            state = path.stat()
            ids.add((state.st_dev, state.st_ino))
    return ids


def _ours(folder: Path, pattern: re.Pattern[str], is_kind: Callable[[int], bool] = stat.S_ISREG) -> Iterator[Path]:
    """The entries with such a name that belong to this user."""
    for name in filter(pattern.fullmatch, _names(folder)):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            state = (folder / name).lstat()
            if state.st_uid == os.getuid() and is_kind(state.st_mode):
                yield folder / name


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - a thousand runs
    except OSError:
        return []


def _entries(folder: Path) -> list[Path]:
    return [folder / name for name in _names(folder)]
