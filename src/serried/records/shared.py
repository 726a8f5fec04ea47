"""Runs of other users below a shared root, read from their run directories alone.

The owner of a directory can have written anything into its files. So only files of this owner are opened
(`base.files.trust_only`), documents are checked for size and schema, and nothing is written there or to a record.
The user shown is always the owner of the directory, whatever its files say.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from serried import config
from serried.base import NamedTuple, files
from serried.base.errors import RunNotFoundError, UsageError
from serried.base.files import user_name
from serried.records import index
from serried.records.index import Selection
from serried.records.record import Record, RecordUnreadable, Submission, Summary, is_id
from serried.schema import names
from serried.schema.endings import End
from serried.schema.layout import RunDirectory
from serried.schema.names import SubmissionState
from serried.schema.plan import Plan
from serried.schema.successor_commands import token_of

ALL = "all"
_MOST_RANKS = 1_000_000
_MOST_OPEN = 200
"""The most runs without an end that are read: the newest ones."""
_NEWEST = 20
_JOB = re.compile(r"[\w.\[\]-]{1,64}")


class SharedRecord(Record):
    """A run of another user. The run directory takes the place of the private record."""

    def __init__(self, path: Path, uid: int) -> None:
        super().__init__(path)
        self.owner = user_name(uid)
        files.trust_only(path, uid)

    @functools.cached_property
    def where(self) -> RunDirectory:
        return RunDirectory(self.directory.path)

    @functools.cached_property
    def plan(self) -> Plan:
        plan = self.read_plan()
        if plan.run != self.id or plan.allocation.nodes < 1 or not 0 <= plan.world_size <= _MOST_RANKS:
            raise RecordUnreadable(f"the plan of run `{self.id}` is not valid")
        return plan

    @functools.cached_property
    def summary(self) -> Summary:
        return Summary.of(self.plan)._replace(directory=str(self.where.path))

    @property
    def end(self) -> End | None:
        end = End.read_known(self.where.exit)
        return end if end and end.state in names.ENDED else None

    @property
    def first_submissions(self) -> list[Submission]:
        """A submission with the job from the claim, or else with the token, which is in the job's name."""
        token, job = token_of(self.id, None, 1), ""
        with contextlib.suppress(OSError):
            job = files.read_bytes(self.where.claim(token)).decode("ascii", "replace")
        site = self.plan.site
        job = job if _JOB.fullmatch(job) else token
        return [Submission(token, SubmissionState.SUBMITTED, site.name, site.scheduler, self.plan.created, 0, job)]


class _Place(NamedTuple):
    path: Path
    uid: int
    changed: float


def find(word: str) -> Selection | None:
    """The run of another user whose id is `word`, or a task of such a run; None if there is none.

    Raises UsageError if the owner does not share the run.
    """
    run, _, task = word.partition("/")
    places = list(_places(run)) if is_id(run) else []
    if not places:
        return None
    readable = [place for place in places if os.access(place.path / "plan.json", os.R_OK)]
    owners = sorted({user_name(place.uid) for place in readable or places})
    if not readable:
        hint = 'runs that are submitted with `share = "group"` under `[project]` can be read by the group'
        raise UsageError(f"run `{run}` belongs to `{owners[0]}`, who does not share it", hint=hint)
    if len(owners) > 1:  # a member may have taken the id of another's run
        raise UsageError(f"both `{owners[0]}` and `{owners[1]}` have a run `{run}`", hint="serried ps --user NAME")
    record = SharedRecord(readable[0].path, readable[0].uid)
    array = record.plan.array
    if task and not (task.isdecimal() and array and int(task) in array.indices):
        raise RunNotFoundError(f"run `{run}` has no task {task}", hint=f"serried show {run} --tasks")
    return Selection(record, int(task) if task else None)


def records(users: Collection[str], most: int) -> list[SharedRecord]:
    """Readable runs of these users: those that have not ended, and the newest `most` of those that have."""
    open_: list[_Place] = []
    ended: list[_Place] = []
    for place in _places(users=users):
        with contextlib.suppress(OSError):
            if os.access(place.path / "plan.json", os.R_OK):
                (ended if (place.path / "exit.json").exists() else open_).append(place)
    newest = sorted(open_, key=lambda place: -place.changed)[:_MOST_OPEN]
    newest += sorted(ended, key=lambda place: -place.changed)[:most]
    return [SharedRecord(place.path, place.uid) for place in newest]


def _places(run: str = "", users: Collection[str] = (ALL,)) -> Iterator[_Place]:
    """The run directories of other users below all roots; with `run`, only those of this id. Follows no links.

    Each user has a folder below a shared root (`files.own_folder`). Runs of other owners in it are skipped.
    """
    for member in (member for root in sorted(_roots()) for member in _folders(root)):
        uid = member.stat(follow_symlinks=False).st_uid
        if uid == os.getuid() or not {ALL, user_name(uid)}.intersection(users):
            continue
        for experiment in (experiment for project in _folders(member.path) for experiment in _folders(project.path)):
            for name in [run] if run else _names(experiment.path):
                path = Path(experiment.path, name)
                with contextlib.suppress(OSError):
                    state = path.lstat()
                    if stat.S_ISDIR(state.st_mode) and state.st_uid == uid:
                        yield _Place(path, uid, state.st_mtime)


def _roots() -> set[str]:
    """The roots in profiles and of this user's newest runs, which a laptop may have submitted by its own profile."""
    clusters = config.catalogue(Path.cwd(), os.environ).clusters
    elsewhere = index.clusters()
    roots = {os.path.realpath(cluster.root) for cluster in clusters if cluster.root and cluster.name not in elsewhere}
    runs = index.all_runs()
    for record in [*runs.open[-_NEWEST:], *(run.record for run in runs.ended.newest(_NEWEST))]:
        with contextlib.suppress(RecordUnreadable, IndexError):
            root = Path(record.summary.directory).parents[2]
            roots |= {os.path.realpath(root.parent)} if root.name == user_name(os.getuid()) else set()
    return roots


def _folders(path: str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")]
    return []


def _names(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return list(filter(is_id, os.listdir(path)))  # noqa: PTH208 - there may be ten thousand
    return []
