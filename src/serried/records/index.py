"""The list of runs, and the run that a word on the command line means.

The runs that have ended are in one file, `ended.jsonl`: a listing of ten of them costs the same among ten thousand. The
file only repeats what records say, and is made again when it is missing or damaged. Its first line has a checksum of
the others, so that those can be decoded when they are needed. An entry counts if the folder of its record is the one
that was read: it has the same inode, or no record has come or gone since.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.base import NamedTuple
from serried.base.errors import Elsewhere, RunNotFoundError, SerriedError, UsageError
from serried.base.files import make_directory, read_bytes, read_json, write_bytes, write_json
from serried.base.text import seconds_of
from serried.records.record import Record, RecordUnreadable, Submission, is_id, records_directory
from serried.schema import SCHEMA, names
from serried.schema.layout import TaskDirectory, project_folder, sent_key, state_directory
from serried.schema.successor_commands import task_of

LAST = names.LAST_RUN
_SHOWN = 5
_VERSION = 4
_TICKS_NS = 2_000_000_000
"""A folder that changed less than this before the file was written may change again at the same time stamp."""
_JOB = re.compile(r"(\d+)(?:_(\d+)|\[(\d*)\])?(?:\.([\w.-]+))?")
"""A job's id as schedulers write it: `4711`, `4711_7`, `4711_7.batch`, `4711[7].server`."""


@dataclass(frozen=True)
class Selection:
    record: Record
    task: int | None = None
    note: str | None = None
    """A note for the user about the choice."""

    def __str__(self) -> str:
        return self.record.id if self.task is None else f"{self.record.id}/{self.task}"

    @property
    def is_array(self) -> bool:
        """Whether it is a whole array, which has no attempts, logs and results itself: its tasks have them."""
        return self.task is None and self.record.summary.tasks is not None

    @property
    def is_sweep(self) -> bool:
        return self.is_array and self.record.plan.sweep is not None

    @property
    def place(self) -> TaskDirectory:
        return self.record.where.task(self.task)

    @property
    def tasks(self) -> tuple[int | None, ...]:
        """Where attempts are: an array's tasks, or the run itself (None)."""
        array = self.record.plan.array
        return (self.task,) if array is None or self.task is not None else array.indices


class EndedRun(NamedTuple):
    """What listings and searches need to know of a run before they read its record."""

    id: str
    inode: int
    """Of the record's folder."""
    planned: int
    """When its plan was written, in nanoseconds."""
    name: str
    experiment: str
    project: str
    state: str
    created: float
    ended: float | None
    """Seconds since the epoch."""
    jobs: Sequence[str]
    """The scheduler's ids of all its jobs."""
    source: str

    @property
    def record(self) -> Record:
        return Record(records_directory() / self.id)


class AllRuns(NamedTuple):
    open: list[Record]
    """Those whose end no record has yet, and those whose record cannot be read."""
    ended: EndedRuns


class EndedRuns:
    """Runs whose end is known, the newest end first. Each is decoded when it is needed."""

    def __init__(self, lines: Sequence[bytes], latest: tuple[int, str]) -> None:
        self.lines = lines
        self.latest = latest
        """When the plan of the run that was submitted last was written, and its id; 0 without runs."""

    @classmethod
    def of(cls, runs: Iterable[EndedRun]) -> EndedRuns:
        ordered = sorted(runs, key=lambda run: (-(run.ended or run.created), run.id))
        lines = [json.dumps(run, separators=(",", ":")).encode() for run in ordered]
        return cls(lines, max(((run.planned, run.id) for run in ordered), default=(0, "")))

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[EndedRun]:
        return iter(self.newest(len(self.lines)))

    def newest(self, number: int) -> list[EndedRun]:
        return _decoded(self.lines[:number])

    def where(self, fact: str, value: str) -> list[EndedRun]:
        return [run for run in self._with(json.dumps(value)) if getattr(run, fact) == value]

    def beginning_with(self, prefix: str) -> list[EndedRun]:
        """Those whose id begins so."""
        return [run for run in self._with(json.dumps(prefix)[:-1]) if run.id.startswith(prefix)]

    def with_job(self, number: str) -> list[EndedRun]:
        """Those that may have a job with this number."""
        return self._with(f'"{number}')

    def _with(self, text: str) -> list[EndedRun]:
        return _decoded([line for line in self.lines if text.encode() in line])


def _decoded(lines: Sequence[bytes]) -> list[EndedRun]:
    return [*map(EndedRun._make, json.loads(b"[" + b",".join(lines) + b"]"))]


def records() -> list[Record]:
    """All records, by one listing, in no order."""
    return _records(_inodes())


def all_runs() -> AllRuns:
    """All runs, and update the file if it lacks an end."""
    try:
        changed = records_directory().stat().st_mtime_ns
    except OSError:
        return AllRuns([], EndedRuns.of(()))
    kept_at, others, ended = _kept()
    if changed != kept_at:
        inodes = _inodes()
        there = [run for run in ended if inodes.get(run.id) == run.inode]
        ended = ended if len(there) == len(ended) else EndedRuns.of(there)
        others = inodes.keys() - {run.id for run in there}
    unknown = _records(others)
    just_ended = {record.id: run for record in unknown if (run := _ended(record)) is not None}
    if just_ended:
        ended = EndedRuns.of([*ended, *just_ended.values()])
    found = AllRuns([record for record in unknown if record.id not in just_ended], ended)
    if just_ended or changed != kept_at:
        _keep(changed, found)
    return found


def planned_at(record: Record) -> int:
    """When the plan was written: it never changes, so its time stamp suffices. 0 if it is gone."""
    try:
        return record.directory.plan.stat().st_mtime_ns
    except OSError:
        return 0


def find(selector: str, *, own: Path | None = None) -> Selection:
    """The run that an id, `last`, a name, a unique prefix of an id or the scheduler's id of a job means.

    `RUN/17` is its task 17, as `4711_17` is if the scheduler writes so. A name of several runs means the newest of
    them, with a note. A job id that several runs have had is refused: schedulers reuse ids. `last` is the newest run
    of the current folder's project, or else of all projects. With `own` it is a run of the project in that folder.
    """
    if selection := _find_run(selector, own=own):
        return selection
    run, slash, task = selector.rpartition("/")
    selection = _find_run(run, own=own) if slash and task.isdecimal() else None
    if selection is None:
        _check_elsewhere(selector)
        raise _not_found(selector)
    return _task(selection, int(task))


def _task(selection: Selection, index: int) -> Selection:
    array = selection.record.plan.array
    if array is None:
        hint = f"serried show {selection.record.id}"
        raise RunNotFoundError(f"run `{selection.record.id}` is not an array, so it has no task {index}", hint=hint)
    if index not in array.indices:
        first, last = min(array.indices), max(array.indices)
        raise RunNotFoundError(
            f"run `{selection.record.id}` has no task {index}", hint=f"its tasks are {first} to {last}"
        )
    return Selection(selection.record, index, selection.note)


def _find_run(selector: str, *, own: Path | None) -> Selection | None:
    if not selector:
        return None
    if is_id(selector):
        with contextlib.suppress(RecordUnreadable):
            return Selection(Record.load(selector))
    runs = all_runs()
    if selector == LAST:
        return _last(runs, own=own)
    named = [(planned_at(record), record.id) for record in runs.open if _name(record) == selector]
    named += [(run.planned, run.id) for run in runs.ended.where("name", selector)]
    if newest := _newest(named):
        note = f"{len(named)} runs are named `{selector}`; this is the newest" if len(named) > 1 else None
        return Selection(newest.record, note=note)
    return _by_prefix(selector, runs) or _by_job(selector, runs, own=own)


def _last(runs: AllRuns, *, own: Path | None) -> Selection | None:
    """The newest run of a project; without its file, of the nearest folder from here upwards that has runs."""
    if meant := os.environ.get(names.MEANT):
        return _find_run(meant, own=own)
    known = [(planned_at(record), record.id, "", _name(record, "source")) for record in runs.open]
    elsewhere = [(cluster, run) for cluster, run in _elsewhere() if not run.status.get("user")]
    known += [(int(run.created * 1e9), run.id, cluster, run.source) for cluster, run in elsewhere]
    folder = Path(own or "")
    with contextlib.suppress(OSError):  # the current folder may have been deleted
        folder = Path(os.path.abspath(folder))  # noqa: PTH100 - links stay, as in the plan
    around = (folder, *folder.parents)
    roots = _with_file(around)[:1] or around
    for root in roots:
        source = str(project_folder(root))
        here = [(run.planned, run.id, "") for run in runs.ended.where("source", source)]
        here += [each[:3] for each in known if each[3] == source or (each[2] and _is_sent(root, each[3]))]
        if here:
            return _of_newest(*max(here))
    newest = max([(*runs.ended.latest, ""), *(each[:3] for each in known)])
    if own is None or not newest[0] or names.AT in os.environ:
        return _of_newest(*newest)
    hint = f"name a run by its id; the newest of all is `{newest[1]}`"
    raise RunNotFoundError(f"the project in `{roots[0]}` has no runs", hint=hint)


def _of_newest(planned: int, run: str, cluster: str) -> Selection | None:
    if cluster:
        raise Elsewhere(cluster, f"run `{run}` is on cluster `{cluster}`", run=run)
    return _newest([(planned, run)])


def _is_sent(root: Path, source: str) -> bool:
    """Whether `source`, the folder of a run elsewhere, is that of the project in `root` there."""
    return source.endswith("/" + sent_key(f"{os.uname().nodename}:{os.path.realpath(root)}"))


def _by_prefix(selector: str, runs: AllRuns) -> Selection | None:
    records = [record for record in runs.open if record.id.startswith(selector)]
    records += [run.record for run in runs.ended.beginning_with(selector)]
    if len(records) > 1:
        records.sort(key=lambda record: record.id)
        raise RunNotFoundError(f"`{selector}` matches the ids of {len(records)} runs", hint=_listed(records))
    return Selection(records[0]) if records else None


def _by_job(selector: str, runs: AllRuns, *, own: Path | None) -> Selection | None:
    """Reads the submissions of all open runs, so it comes last. Raises RunNotFoundError for the job of several runs."""
    match = _JOB.fullmatch(selector)
    if match is None:
        return None
    number, task, index, server = match.groups()
    jobs: dict[str, tuple[Record, Submission, int]] = {}
    for record in [*runs.open, *(run.record for run in runs.ended.with_job(number))]:
        with contextlib.suppress(RecordUnreadable):
            for submission in record.all_submissions():
                for at, job in enumerate(submission.jobs):
                    if _is_same_job(job, number, server or ""):
                        jobs[record.id] = record, submission, at
    if len(jobs) > 1:
        records = sorted((record for record, _, _ in jobs.values()), key=planned_at, reverse=True)
        raise RunNotFoundError(f"{len(records)} runs have had a job `{selector}`", hint=_listed(records))
    for record, submission, at in jobs.values():
        found = _of_job(record, submission, at, task or index)
        if own is not None and server and "." not in submission.jobs[at]:  # `stop` must not end all steps for one
            raise RunNotFoundError(f"`{selector}` is only a step of `{found}`", hint=f"`{found}` is the whole run")
        return found
    return None


def _is_same_job(job: str, number: str, server: str) -> bool:
    """PBS commands shorten the server's name after the dot. Slurm writes the name of a step there."""
    own = _JOB.fullmatch(job)
    if own is None or own[1] != number:
        return False
    return not (server and own[4]) or server.startswith(own[4]) or own[4].startswith(server)


def _of_job(record: Record, submission: Submission, at: int, index: str | None) -> Selection:
    """The run of a job, or the task that the job, or one index of an array job, is for."""
    task = task_of(submission.token)
    is_in_parts = bool(record.offsets) and submission.number == 1
    if task is None and is_in_parts and not index:  # `stop` must not end the other jobs
        hint = f"`{record.id}` is the run, and `{record.id}/N` a task"
        raise RunNotFoundError(f"job `{submission.jobs[at]}` has a part of the array `{record.id}`", hint=hint)
    if task is None and index:
        if record.plan.draws:  # `stop` must not end the whole sweep for one of its jobs
            hint = f"serried sweep show {record.id} lists them; `{record.id}/N` is trial N"
            raise RunNotFoundError(f"each job of the sweep `{record.id}` runs several trials", hint=hint)
        task = int(index) + (record.offsets[at] if is_in_parts else 0)
    return Selection(record) if task is None else _task(Selection(record), task)


def _listed(records: Sequence[Record]) -> str:
    shown = ", ".join(f"{record.id} ({_name(record)})" for record in records[:_SHOWN])
    return shown + (f" and {len(records) - _SHOWN} more" if len(records) > _SHOWN else "")


def _newest(known: Iterable[tuple[int, str]]) -> Selection | None:
    """Of runs with the time of their plan, which is 0 for one without a plan."""
    planned, run = max(known, default=(0, ""))
    return Selection(Record(records_directory() / run)) if planned else None


def _name(record: Record, fact: str = "name") -> str:
    """Its name, or its `source`; `?` if that cannot be read."""
    try:
        return str(getattr(record.summary, fact))
    except RecordUnreadable:
        return "?"


def _not_found(selector: str) -> RunNotFoundError:
    import difflib

    runs = all_runs()
    if not (runs.open or runs.ended or any(_elsewhere())):
        unknown = f"unknown run: `{selector}`; " if selector != LAST else ""  # readers take `last` by default
        return RunNotFoundError(f"{unknown}you have no runs yet", hint=first_step())
    words = {name for record in runs.open for name in (record.id, _name(record))}
    words |= {name for run in runs.ended for name in (run.id, run.name)}
    close = difflib.get_close_matches(selector, sorted(words), n=1)
    hint = f"did you mean `{close[0]}`? (serried ps --all lists them)" if close else "serried ps --all lists them"
    if selector.isdecimal() and not close:
        hint += "\nno record has the own number of an array task: write ARRAY_TASK, as in `4711_7`"
    if cluster := os.environ.get(names.AT):
        hint = "`serried ps --all` lists the runs of all clusters"
        return RunNotFoundError(f"no run on cluster `{cluster}` is `{selector}`", hint=hint)
    return RunNotFoundError(f"unknown run: `{selector}`", hint=hint)


def first_step() -> str:
    here = Path.cwd()
    if _with_file((here, *here.parents)):
        return "serried submit"
    return "serried submit -- python train.py" if (here / "train.py").exists() else "serried init"


class RunElsewhere(NamedTuple):
    id: str
    name: str
    experiment: str
    project: str
    created: float
    """Seconds since the epoch, by the clock over there."""
    ended: float | None
    jobs: Sequence[str]
    status: Mapping[str, Any]
    """As `ps --json` prints it."""
    line: Sequence[Any]
    """As `ps` prints it: a `Line` of `views.run_lines`."""
    source: str = ""


def runs_elsewhere(rows: Iterable[Mapping[str, Any]]) -> list[RunElsewhere]:
    """The runs in an answer of a login node. Raises LookupError, TypeError or ValueError if they are not runs."""
    found = [RunElsewhere(**row) for row in rows]
    for run in found:
        texts = (run.id, run.name, run.experiment, run.project, run.source, *run.jobs)
        is_sound = isinstance(run.created, (int, float)) and isinstance(run.status, dict)
        if not (is_sound and all(isinstance(text, str) for text in texts) and is_id(run.id)):
            raise ValueError(f"not a run: {run!a}")
    return found


class ClusterRuns(NamedTuple):
    cluster: str
    asked: float
    """Seconds since the epoch."""
    runs: Sequence[RunElsewhere]
    problem: SerriedError | None = None
    """Why it is not an answer of now."""


def folder_of(cluster: str = "") -> Path:
    """Where this machine stores what it knows about a cluster. Raises UsageError for an invalid name."""
    if "/" in cluster or cluster.startswith("."):
        raise UsageError(f"`{cluster}` is not the name of a cluster", hint="a name is a word without `/`")
    return state_directory(os.environ) / "remote" / cluster


def clusters() -> list[str]:
    """The clusters that the user has logged in to from here."""
    with contextlib.suppress(OSError), os.scandir(folder_of()) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    return []


def remember(answer: ClusterRuns) -> None:
    """Keep a cluster's answer, in place of its last one."""
    make_directory(folder_of(answer.cluster))
    runs = [run._asdict() for run in answer.runs]
    write_json(folder_of(answer.cluster) / "runs.json", {"schema": SCHEMA, "asked": answer.asked, "runs": runs})


def last_answer(cluster: str) -> ClusterRuns:
    """The newest answer that was kept; without runs if there is none or its file is damaged."""
    with contextlib.suppress(LookupError, TypeError, ValueError):
        kept = read_json(folder_of(cluster) / "runs.json") or {}
        return ClusterRuns(cluster, float(kept["asked"]), runs_elsewhere(kept["runs"]))
    return ClusterRuns(cluster, 0.0, [])


def each_once(answers: Sequence[ClusterRuns]) -> list[tuple[ClusterRuns, list[RunElsewhere]]]:
    """Each answer with its runs. Two profiles may have one login node: a run is that of the newest answer with it."""
    known: dict[str, RunElsewhere] = {}
    found = []
    for answer in sorted(answers, key=lambda answer: (answer.problem is not None, -answer.asked)):
        found.append((answer, [run for run in answer.runs if run.id not in known]))
        known.update((run.id, run) for run in answer.runs)
    return found


def _elsewhere() -> Iterator[tuple[str, RunElsewhere]]:
    for answer, runs in each_once([*map(last_answer, clusters())]):
        for run in runs:
            yield answer.cluster, run


def _check_elsewhere(selector: str) -> None:
    """Raise Elsewhere if `selector` means a run on another cluster: its id or name, a prefix, or its job's id.

    Raises RunNotFoundError if it means several.
    """
    word = selector.partition("/")[0]
    known = [*_elsewhere()] if word else []
    found = [(cluster, run) for cluster, run in known if run.id == word]
    if not found:
        named = [(run.created, cluster, run) for cluster, run in known if run.name == word]
        found = [max(named, key=lambda one: one[0])[1:]] if named else []
    number = word.partition("_")[0].partition("[")[0].partition(".")[0]
    found = found or [(cluster, run) for cluster, run in known if run.id.startswith(word)]
    found = found or [
        (cluster, run)
        for cluster, run in known
        if number in [job.partition(".")[0].partition("[")[0] for job in run.jobs]
    ]
    if len(found) > 1:
        hint = ", ".join(f"{run.id} ({run.name}) on {cluster}" for cluster, run in found[:_SHOWN])
        raise RunNotFoundError(f"`{selector}` means {len(found)} runs", hint=hint)
    for cluster, run in found:
        raise Elsewhere(cluster, f"run `{run.id}` is on cluster `{cluster}`")


def _with_file(folders: Iterable[Path]) -> list[Path]:
    return [each for each in folders if (each / "serried.toml").exists() or _is_named(each / "pyproject.toml")]


def _is_named(file: Path) -> bool:
    with contextlib.suppress(OSError):
        return b"tool.serried" in file.read_bytes()
    return False


def _path() -> Path:
    return records_directory().with_name("ended.jsonl")


def _records(runs: Iterable[str]) -> list[Record]:
    folder = records_directory()
    return [Record(folder / run) for run in runs]


def _inodes() -> dict[str, int]:
    """The inode of each record's folder, by one listing."""
    try:
        with os.scandir(records_directory()) as entries:
            return {entry.name: entry.inode() for entry in entries if is_id(entry.name) and entry.is_dir()}
    except FileNotFoundError:
        return {}


def _ended(record: Record) -> EndedRun | None:
    try:
        end = record.end
        if end is None:
            return None
        summary = record.summary
        return EndedRun(
            id=record.id,
            inode=record.directory.path.stat().st_ino,
            planned=planned_at(record),
            name=summary.name,
            experiment=summary.experiment,
            project=summary.project,
            state=end.state,
            created=seconds_of(summary.created) or 0.0,
            ended=seconds_of(end.ended),
            jobs=[job for submission in record.all_submissions() for job in submission.jobs],
            source=summary.source,
        )
    except (RecordUnreadable, OSError):
        return None


def _kept() -> tuple[int | None, Collection[str], EndedRuns]:
    """The file's runs, and when their folder had changed last; None if that is unknown or too recent."""
    try:
        begin, _, rest = read_bytes(_path()).partition(b"\n")
        head = json.loads(begin)
        if head["version"] != _VERSION or head["crc"] != binascii.crc32(rest):
            return None, (), EndedRuns.of(())
        changed = int(head["changed"])
        is_sure = _path().stat().st_mtime_ns - changed > _TICKS_NS
        others = [run for run in head["open"] if is_id(run)]
        planned, run = head["latest"]
        return (changed if is_sure else None), others, EndedRuns(rest.splitlines(), (int(planned), str(run)))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None, (), EndedRuns.of(())


def _keep(changed: int, runs: AllRuns) -> None:
    rest = b"\n".join(runs.ended.lines)
    head = {
        "version": _VERSION,
        "changed": changed,
        "open": [record.id for record in runs.open],
        "latest": runs.ended.latest,
        "crc": binascii.crc32(rest),
    }
    with contextlib.suppress(OSError):  # a full home: the next reader reads the records again
        write_bytes(_path(), json.dumps(head, separators=(",", ":")).encode() + b"\n" + rest, durable=False)
