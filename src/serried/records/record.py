"""The record of a run: small, lasting, on the submitting side. It is readable after the run directory was purged."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import shutil
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from serried import schedulers
from serried.base import NamedTuple, files
from serried.base.errors import SerriedError, UsageError
from serried.base.files import MODES, PRIVATE_DIRECTORY, make_directory, read_json, write_json
from serried.schema import SCHEMA, codec, names
from serried.schema.layout import RecordDirectory, RunDirectory, project_folder, state_directory
from serried.schema.names import SubmissionState
from serried.schema.plan import Plan
from serried.schema.successor_commands import job_of, number_of, offset_of, task_of, tokens_of

if TYPE_CHECKING:
    from serried.schema.endings import End

_FIRST = "abcdefghjkmnpqrstuvwxyz"
_REST = _FIRST + "23456789"
_ID_LENGTH = 6

_LONGEST_PATH = 4096

Entry = TypeVar("Entry")
Document = TypeVar("Document", "Summary", "Submission")

MOST_NAMED = 5
"""The most jobs of one submission that are listed one by one."""


class RecordUnreadable(SerriedError):  # noqa: N818 - reads as what happened
    """A record that is incomplete, or that a later Serried wrote."""


class Summary(NamedTuple):
    """The facts of a plan that a listing shows. The record's exit.json includes it, so that one file suffices."""

    name: str
    project: str
    experiment: str
    cluster: str
    scheduler: str
    created: str
    """UTC, ISO 8601."""
    nodes: int
    ranks: int
    """Per node."""
    gpus: int
    """Per node."""
    time_seconds: Optional[int]
    directory: str
    tasks: Optional[int] = None
    """The number of tasks; None for a run without an array."""
    resumed_from: Optional[str] = None
    """The run, task or path of the checkpoint that it resumed from."""
    rerun_of: Optional[str] = None
    """The run, or the task, with the same plan."""
    smoke: bool = False
    rehearsal: bool = False
    """A run of `serried check-resume`, which may end after a few steps too."""
    after: tuple[str, ...] = ()
    """Its dependencies: `k3f9q2`, `k3f9q2/17:any`."""
    stages: bool = False
    """Whether its ranks wait for data."""
    sweep: Optional[str] = None
    """The sweep that it belongs to: the id of the sweep's first run."""
    script: bool = False
    """It runs a job script of the user in place of ranks."""
    metric: str = ""
    """The metric that matters most; empty if the plan names none."""
    shares_logs: bool = False
    """The ranks of a node share a log, except rank 0."""
    source: str = ""
    spare_nodes: int = 0

    @property
    def size(self) -> str:
        """`2x4 gpu`, `2+1x4 gpu` with a spare node, `2x1/4 gpu` if ranks and GPUs differ, `2x2 cpu`."""
        nodes = f"{self.nodes}+{self.spare_nodes}" if self.spare_nodes else f"{self.nodes}"
        if not self.gpus:
            return f"{nodes}x{self.ranks} cpu"
        per_node = f"{self.gpus}" if self.ranks == self.gpus else f"{self.ranks}/{self.gpus}"
        return f"{nodes}x{per_node} gpu"

    @property
    def job_nodes(self) -> int:
        return self.nodes + self.spare_nodes

    @classmethod
    def of(cls, plan: Plan) -> Summary:
        is_rehearsal = names.REHEARSAL in plan.environment.env
        metric = plan.metric.name if plan.metric else ""
        return cls(
            name=plan.name,
            project=plan.project,
            experiment=plan.experiment,
            cluster=plan.site.name,
            scheduler=plan.site.scheduler,
            created=plan.created,
            nodes=plan.allocation.nodes,
            spare_nodes=plan.allocation.spare_nodes,
            ranks=plan.allocation.ranks,
            gpus=plan.allocation.gpus,
            time_seconds=plan.allocation.time_seconds,
            directory=plan.directory,
            tasks=len(plan.array.indices) if plan.array else None,
            resumed_from=(plan.resume.run or plan.resume.checkpoints[0]) if plan.resume else None,
            rerun_of=plan.rerun_of,
            smoke=bool(plan.smoke) and not is_rehearsal,
            rehearsal=is_rehearsal,
            after=tuple(map(str, plan.after)),
            stages=bool(plan.staged_items),
            sweep=plan.sweep.first if plan.sweep else None,
            script=plan.script is not None,
            shares_logs=plan.shares_logs,
            source=str(project_folder(Path(plan.source.directory))),
            metric=metric or (plan.sweep.metric if plan.sweep else ""),
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Summary:
        return _built(cls, value, "its exit.json")


class Submission(NamedTuple):
    """One job at the scheduler, or on its way there: `submissions/S.json`."""

    token: str
    state: str
    """Of SubmissionState."""
    cluster: str
    scheduler: str
    at: str
    """UTC, ISO 8601."""
    by_pid: int
    job: Optional[str] = None
    """Its id; for an array in parts the ids of all jobs that were accepted so far, with commas."""
    message: Optional[str] = None
    by_host: str = ""
    """The host of `by_pid`."""
    by_started: str = ""
    """The start time of that process, as the machine counts: a later process may have its pid."""
    site: str = ""
    """The scheduler's own name, which makes job ids unique: Slurm's ClusterName."""
    moved: bool = False
    """The first attempt is here, because the job before it was too early for a run with dependencies."""
    missed: Optional[float] = None
    """When the scheduler first did not list it; seconds since the epoch."""
    schema: int = SCHEMA

    @property
    def is_submitted(self) -> bool:
        return self.state == SubmissionState.SUBMITTED

    @property
    def is_open(self) -> bool:
        return self.state in (SubmissionState.SUBMITTING, SubmissionState.UNCERTAIN)

    @property
    def number(self) -> int:
        return number_of(self.token)

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self.job.split(",")) if self.job else ()

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Submission:
        return _built(cls, value, "one of its submissions")


def jobs_text(jobs: Sequence[str]) -> str:
    """`job 12`; of an array in parts `jobs 12, 13, 14`, or `120 jobs, 12 to 131`."""
    if len(jobs) > MOST_NAMED:
        return f"{len(jobs)} jobs, {jobs[0]} to {jobs[-1]}"
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"


def _built(kind: type[Document], value: Mapping[str, Any], whose: str) -> Document:
    try:
        return codec.from_json(kind, value)
    except ValueError as error:
        raise RecordUnreadable(f"{whose} is not valid ({error})") from error


def records_directory() -> Path:
    """The folder of all records of this user: `$XDG_STATE_HOME/serried/runs`."""
    return state_directory(os.environ) / "runs"


def new_id() -> str:
    """A run id that no record has: a letter and five letters or digits, without similar-looking ones."""
    while True:
        number = int.from_bytes(os.urandom(8), "big")
        run = ""
        for letters in (_FIRST, *[_REST] * (_ID_LENGTH - 1)):
            number, letter = divmod(number, len(letters))
            run += letters[letter]
        if not (records_directory() / run).exists():
            return run


def is_id(text: str) -> bool:
    """Whether `text` could be a run id, and so the name of a record's folder."""
    return len(text) == _ID_LENGTH and text[0] in _FIRST and set(text) <= set(_REST)


def _aside(path: Path) -> Path:
    """A temporary folder beside the record; its name is never a valid run id."""
    return path.with_name(f".{path.name}")


class Record:
    """One run's record. Its files are read on demand; a missing or torn file raises RecordUnreadable."""

    owner = ""
    """The other user who owns the run; empty for our own. Another user's run must not be written to."""

    def __init__(self, path: Path) -> None:
        self.id = path.name
        self.directory = RecordDirectory(path)
        self._entries: dict[Path, dict[int, Any]] = {}

    @classmethod
    def create(cls, plan: Plan, first: Submission | None = None) -> Record:
        """Write the record of a new run, with the intent to submit it. Raises FileExistsError if the id is taken.

        The folder is written under another name and renamed: no reader sees half a record, even after a kill.
        """
        record = cls(records_directory() / plan.run)
        make_directory(records_directory())
        if record.directory.path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(record.directory.path))
        aside = cls(_aside(record.directory.path))
        aside.directory.path.mkdir(mode=PRIVATE_DIRECTORY)
        try:
            aside.directory.submissions.mkdir(mode=PRIVATE_DIRECTORY)
            # Not durable: readers of an empty file take the plan's folder.
            files.write_unsynced(aside.directory.where, f"{plan.directory}\n".encode("utf-8", "surrogateescape"))
            write_json(aside.directory.plan, plan.to_json())
            if first is not None:
                aside.write_submission(first)
            aside.directory.path.rename(record.directory.path)
        except BaseException:  # a full disk, say
            shutil.rmtree(aside.directory.path, ignore_errors=True)
            raise
        return record

    def remove(self) -> None:
        """Delete the record, at once for all who list records meanwhile."""
        with contextlib.suppress(OSError):
            self.directory.path.rename(_aside(self.directory.path))
            shutil.rmtree(_aside(self.directory.path), ignore_errors=True)

    @classmethod
    def load(cls, run: str) -> Record:
        """The record of an id. Raises RecordUnreadable if it does not exist."""
        record = cls(records_directory() / run)
        if not record.directory.plan.exists() and not record.directory.exit.exists():
            raise RecordUnreadable(f"run `{run}` has no record")
        return record

    def check_directory(self, what: str) -> None:
        """Raises UsageError if the run directory, and `what` lies in it, has been removed."""
        if not self.where.path.is_dir():
            hint = f"it was `{self.where.path}`; a site purges old files"
            raise UsageError(f"the run directory of `{self.id}` was removed together with its {what}", hint=hint)

    @functools.cached_property
    def plan(self) -> Plan:
        return self.read_plan()

    def read_plan(self) -> Plan:
        try:
            return Plan.from_json(self._read_document(self.directory.plan))
        except FileNotFoundError as error:
            raise RecordUnreadable(f"run `{self.id}` lacks {self.directory.plan.name} in its record") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordUnreadable(f"the plan of run `{self.id}` is not valid ({error})") from error

    def plan_of(self, task: int | None) -> Plan:
        """The plan of one task, with the task's own command and settings; None is the run."""
        array = self.plan.array
        if task is None or array is None:
            return self.plan
        if self.plan.sweep:
            from serried.schema import command_lines  # listings load no more than they need

            own = self.parameters_of(task)
            command = command_lines.with_arguments(
                self.plan.command, own, "parameters.json", is_shell=self.plan.shell, is_template=False
            )
            return self.plan._replace(command=tuple(command), config={**self.plan.config, **own})
        return self.plan._replace(command=self.command_of(task)) if array.each else self.plan

    def parameters_of(self, task: int) -> dict[str, Any]:
        """The parameters of one trial of a sweep, by dotted name; empty before a search has drawn them."""
        if self.plan.sweep and (self.plan.sweep.search or self.plan.sweep.service):
            drawn = read_json(self.where.task(task).trial)
            if drawn:
                return dict(drawn["parameters"])
        return self._of_task(self.where.trials, dict, task)

    def command_of(self, task: int) -> tuple[str, ...]:
        return self._of_task(self.where.commands, tuple, task)

    def _of_task(self, path: Path, kind: Callable[[Any], Entry], task: int) -> Entry:
        """The entry of a task in a file that has one for each. It is read once."""
        array = self.plan.array
        try:
            if path not in self._entries:
                found = json.loads(files.read_bytes(path))
                indices = array.indices if array else ()
                self._entries[path] = {index: kind(found[place]) for place, index in enumerate(indices)}
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise RecordUnreadable(f"`{path.name}` of run `{self.id}` cannot be read: {path}") from error
        if task not in self._entries[path]:
            raise RecordUnreadable(f"run `{self.id}` has no task {task}")
        entry: Entry = self._entries[path][task]
        return entry

    @property
    def offsets(self) -> tuple[int, ...]:
        """For an array in several jobs, the number that each adds to the scheduler's indices; else empty."""
        return self.plan.array.offsets if self.plan.array else ()

    def job_of(self, job: str, task: int | None) -> str:
        """The id of a task of an array job, as its scheduler writes it; `job` itself if `task` is None."""
        if task is None:
            return job
        spelling = schedulers.traits(self.plan.site.scheduler).dialect.task
        worker = self.worker_of(task)
        return job_of(job, worker - offset_of(self.offsets, worker), spelling)

    def worker_of(self, task: int) -> int:
        """The task whose job runs this one: another, if jobs draw trials."""
        if not self.plan.draws:
            return task
        from serried.schema import layout  # only where jobs draw trials

        return layout.worker_of(self.where, task)

    def scheduler_log(self, task: int | None) -> Path:
        return self.where.scheduler_log(None if task is None else self.worker_of(task))

    def tokens_of(self, submission: Submission) -> list[str]:
        return tokens_of(submission.token, self.offsets if submission.number == 1 else ())

    @functools.cached_property
    def summary(self) -> Summary:
        """From exit.json if that has been read, else from the plan, or else from exit.json, which repeats it."""
        if self._end is None:
            with contextlib.suppress(RecordUnreadable):
                return Summary.of(self.plan)
        if self.end is not None and isinstance(self._summary, dict):
            return Summary.from_json(self._summary)
        return Summary.of(self.plan)

    @property
    def end(self) -> End | None:
        """The end of the run, by the first reader that saw it; None before that."""
        if self._end is None:
            with contextlib.suppress(FileNotFoundError):
                document = self._read_document(self.directory.exit)
                from serried.schema.endings import End  # only for runs that have ended

                end = End.of(document)
                if end.state not in names.ENDED:
                    raise RecordUnreadable(f"exit.json of run `{self.id}` does not state an end")
                self._end, self._summary = end, document.get("summary")
        return self._end

    _end: End | None = None
    _summary: object = None
    """In the same file."""

    def write_end(self, end: End) -> None:
        self._check_own()
        end, summary = end._replace(run=self.id), self.summary._asdict()
        write_json(self.directory.exit, {**end.to_json(), "summary": summary})
        self._end, self._summary = end, summary
        with contextlib.suppress(OSError):
            self.directory.seen.unlink()  # for runs that have not ended
        with contextlib.suppress(RecordUnreadable):
            files.forget_environment(self.plan.private, self.id)

    @functools.cached_property
    def where(self) -> RunDirectory:
        """The run directory, from the plan if `where` is damaged. The site may have purged it."""
        with contextlib.suppress(OSError):
            text = files.read_bytes(self.directory.where).decode("utf-8", "surrogateescape").removesuffix("\n")
            if text.startswith("/") and "\0" not in text and len(text) < _LONGEST_PATH:
                return RunDirectory(Path(text))
        return RunDirectory(Path(self.summary.directory))

    @property
    def submissions(self) -> list[Submission]:
        """The run's first submission, and its further jobs in their order, without those of single tasks."""
        return [*self.first_submissions, *self.links().get(None, ())]

    def submissions_of(self, task: int | None) -> list[Submission]:
        """The jobs that the run, or one task, has or may have, the first one first."""
        own = self.links().get(task, ()) if task is not None else ()
        return [*self.submissions, *own]

    def all_submissions(self) -> list[Submission]:
        return [*self.first_submissions, *(link for links in self.links().values() for link in links)]

    @property
    def first_submissions(self) -> list[Submission]:
        """The run's first submission; at most one."""
        try:
            return [Submission.from_json(self._read_document(self.directory.submission(1)))]
        except FileNotFoundError:
            return []

    def links(self, but: Container[int | None] = ()) -> dict[int | None, tuple[Submission, ...]]:
        """Further jobs, by task (None: the run's), in their order; those of tasks in `but` are not read.

        They are in the run directory, because a job that submits the next one may not see the record. Missing and
        torn files are skipped.
        """
        links: dict[int | None, list[Submission]] = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(self.where.links):  # noqa: PTH208 - a thousand, perhaps
                token = name.removesuffix(".json")
                task = task_of(token)
                document = read_json(self.where.link(token)) if task not in but and token != name else None
                if document is not None:
                    with contextlib.suppress(RecordUnreadable):
                        links.setdefault(task, []).append(Submission.from_json(document))
        return {task: tuple(sorted(each, key=lambda link: link.number)) for task, each in links.items()}

    def write_submission(self, submission: Submission) -> None:
        """Write the outcome of a submission: the first into the record, a further one into the run directory."""
        self._check_own()
        if submission.number == 1:
            write_json(self.directory.submission(1), submission.to_json())
        else:
            write_json(self.where.link(submission.token), submission.to_json(), MODES[self.plan.share].file)

    def _check_own(self) -> None:
        if self.owner:
            raise PermissionError(errno.EPERM, f"run {self.id} belongs to {self.owner}")

    def _read_document(self, path: Path) -> dict[str, Any]:
        try:
            value = json.loads(files.read_bytes(path))
        except FileNotFoundError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            why = (error.strerror or "error") if isinstance(error, OSError) else "torn or not JSON"
            raise RecordUnreadable(f"{path.name} of run `{self.id}` cannot be read ({why})") from error
        if not isinstance(value, dict):
            raise RecordUnreadable(f"{path.name} of run `{self.id}` is not a JSON object")
        schema = value.get("schema")
        if not isinstance(schema, int) or schema != SCHEMA:
            message = f"{path.name} of run `{self.id}` has schema {schema}; this Serried reads {SCHEMA}"
            raise RecordUnreadable(message, hint="use the version of Serried that wrote it")
        return value
