"""The Python API: `serried.submit`, `serried.runs`, `serried.find` and `Run`. It does what the commands do.

For runs on a cluster behind a login node, `elsewhere` has a subclass of `Run`, which calls `Run` over there.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import itertools
import os
import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from serried.base.errors import (
    Elsewhere,
    NotConnected,
    Risk,
    RunFailed,
    RunNotFoundError,
    SchedulerUnreachable,
    SerriedWarning,
    UsageError,
    install_hint,
)
from serried.base.text import duration, seconds_of
from serried.records import index, logs, status, stopping
from serried.records.index import Selection
from serried.records.outputs import places
from serried.records.record import Record, RecordUnreadable
from serried.records.status import RunStatus, State, attempt_numbers
from serried.schema import names, series
from serried.schema.layout import AttemptDirectory, TaskDirectory
from serried.schema.names import COMPLETED
from serried.schema.outputs import listed
from serried.schema.plan import Plan
from serried.submission.reconcile import find_out

if TYPE_CHECKING:
    from serried.config.resource_options import ResourceOptions, Unpack
    from serried.submission.deliver import Prepared


Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments."""

FUNCTION_PROGRAM = "serried.train.function_call"
"""The program of the ranks."""


@dataclass(frozen=True)
class Calls:
    """A function and the arguments of each of its calls."""

    function: Callable[..., Any]
    each: Sequence[Call]

    @property
    def name(self) -> str:
        """`fit` of the module `project.train` is `project.train.fit`."""
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        module = getattr(self.function, "__module__", None)
        return name if module in (None, "__main__") else f"{module}.{name}"

    @property
    def short_name(self) -> str:
        """The function's own name: `fit`, `lambda`."""
        return self.name.rpartition(".")[2].strip("<>")

    @property
    def words(self) -> list[str]:
        """The command of a rank. The program does not read the function's name."""
        return ["python", "-m", FUNCTION_PROGRAM, self.name]

    def settle(self, plan: Plan) -> Plan:
        """The plan with the function's name, and with this Python unless the ranks have an environment of their own."""
        plan = named(plan, self.short_name)
        return plan if has_own_python(plan) else plan._replace(command=(sys.executable, *plan.command[1:]))

    def pickled(self, project: Path) -> bytes:
        """The content of `calls.pickle`. Raises UsageError if the function or an argument cannot be pickled.

        A function of a module that ranks can import is stored by its name, any other one by cloudpickle.
        """
        try:
            library = importlib.import_module("cloudpickle")
        except ImportError:
            if "<" in self.name or "." not in self.name or getattr(self.function, "__module__", None) == "__main__":
                message = f"the function `{self.name}` is not in a module that ranks can import"
                hint = f"move it into a module of the project, or {install_hint('functions')}"
                raise UsageError(message, hint=hint) from None
            library = pickle
        folders = [Path(spell(folder)) for folder in sys.path for spell in (os.path.abspath, os.path.realpath)]
        own = [folder for folder in folders if folder.is_dir() and folder.is_relative_to(project)]
        payload = {
            "path": list(dict.fromkeys(os.path.relpath(folder, project) for folder in own)),
            "function": _dumped(library, self.function, f"the function `{self.name}`"),
            "calls": [_dumped(library, call, f"an argument of call {number}") for number, call in enumerate(self.each)],
        }
        return pickle.dumps(payload)


def named(plan: Plan, function: str) -> Plan:
    """The plan of a function. Its experiment has the function's name unless another is named."""
    return plan._replace(experiment=function) if plan.experiment == FUNCTION_PROGRAM else plan


def has_own_python(plan: Plan) -> bool:
    environment = plan.environment
    return bool(environment.venv or environment.conda or environment.build or plan.container)


def _dumped(library: ModuleType, value: Any, what: str) -> bytes:
    try:
        return bytes(library.dumps(value))
    except Exception as error:  # pickle raises what the value's class raises
        raise UsageError(f"{what} cannot be pickled: {error}") from error


def loaded(content: bytes, run: str) -> Any:
    """The value that the function returned. Raises its exception, with the traceback of the rank as a note.

    Raises RunFailed if the value or the exception cannot be loaded here.
    """
    try:
        found: dict[str, Any] = pickle.loads(content)  # noqa: S301 - the user's own
        if "value" in found:
            return pickle.loads(found["value"])  # noqa: S301
    except Exception as unknown:  # its class decides
        what = f"the value that the function of run {run} returned cannot be loaded here: {unknown}"
        raise RunFailed(what, details=traceback.format_exc()) from unknown
    text = found["traceback"]
    failure = RunFailed(f"the function of run {run} raised an exception", details=text)
    if found["error"] is None:
        raise failure
    try:
        error = pickle.loads(found["error"])  # noqa: S301
        error.add_note(f"in rank 0 of run {run}:\n{text}")
    except Exception as unknown:  # its class decides
        raise failure from unknown
    raise error


def _elsewhere() -> Any:
    """The module of runs on other clusters, which imports this one. Most machines are the login node themselves."""
    return importlib.import_module("serried.api.elsewhere")


__all__ = ["Output", "Run", "RunList", "State", "find", "map", "runs", "submit"]


def submit(
    command: str | Sequence[str] | Callable[..., Any] | Calls | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    script: str | os.PathLike[str] | None = None,
    arguments: str | Sequence[str] = (),
    experiment: str | None = None,
    cluster: str | None = None,
    name: str | None = None,
    array: str | Iterable[int] | None = None,
    parallel: int | None = None,
    repeat: int | None = None,
    config: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | os.PathLike[str] | Run | None = None,
    smoke: bool = False,
    after: Run | str | Iterable[Run | str] | None = None,
    directory: str | os.PathLike[str] = ".",
    yes: bool = False,
    **resources: Unpack[ResourceOptions],
) -> Run:
    """Submit a command, a function, a job script, or an experiment of `serried.toml`, and return at once.

    Each warning of the command line is a `SerriedWarning`, before anything is submitted. A filter can turn it into an
    error. Where the command line asks for confirmation, a UsageError with a `code` is raised, unless `yes` is true.

    Args:
        command: a list of arguments, or a string that is split like a shell command; None for the experiment's. A
            Python function is called in each rank, and `Run.result` returns what it returned in rank 0.
        args: the function's arguments.
        kwargs: its keyword arguments.
        script: a job script for `sbatch` or `qsub`, below `directory`, where it starts; it runs unmodified.
        arguments: the arguments of the script, in the form of a command.
        experiment: a table of `serried.toml`; None for the only one, or for a command without an experiment.
        cluster: the cluster's name; None recognises it.
        name: the name of the run.
        array: indices of the tasks, `"0-99"` or numbers.
        parallel: the most tasks that run at once.
        repeat: the number of repeats, as an array; `{seed}` and `{repeat}` differ.
        config: settings of the training, by dotted name: `{"lr": 0.1, "model.width": 64}`.
        settings: any other setting, by dotted key: `{"limit.grace": "60s"}`.
        resume: a `Run`, a word for `find`, or a path: start from its newest complete checkpoint.
        smoke: a smoke test: train a few steps, save, load and exit.
        after: a `Run` or a word for `find`, or several: start after they complete. `"k3f9q2:any"` accepts any end,
            `"k3f9q2:notok"` any end but COMPLETED. None for the experiment's `after`.
        directory: the project's folder, or a folder in it.
        yes: submit also where the command line would ask, for example if a program is not here.
        resources: keys of the table `resources`, as in serried.toml: `nodes=2, gpus=4, mem="10G", time="2h"`. None is
            as good as no value.

    Raises:
        TypeError: an argument that is none of these.
        ValueError: a script with a command or an experiment, or arguments without a script or a function.
        UsageError: the request is impossible, and nothing was submitted.
        NotConnected: there is no connection to the cluster's login node, and nothing was submitted.
        SchedulerUnreachable: the scheduler did not answer, and nothing was submitted.
        SubmissionUncertain: a job may exist; the next query of the run's state checks.
    """
    from serried.config.definitions import Resources, keys
    from serried.config.shell_words import given
    from serried.config.toml import dotted
    from serried.submission.prepare import prepare
    from serried.submission.request import Request, decide

    if unknown := resources.keys() - keys(Resources):
        raise TypeError(f"submit() got an unexpected keyword argument '{min(unknown)}'")
    calls = command if isinstance(command, Calls) else None
    if callable(command):
        if array is not None or repeat is not None:
            raise ValueError("`array` and `repeat` are for commands: `serried.map` calls a function several times")
        calls = Calls(command, [(tuple(args), kwargs or {})])
    elif args or kwargs:
        raise ValueError("`args` and `kwargs` are those of a function")
    if script is not None and (command, experiment) != (None, None):
        raise ValueError("`script` cannot be combined with `command` or `experiment`")
    if script is None and arguments:
        raise ValueError("`arguments` are those of a `script`")
    words: Sequence[str] | None
    if calls:
        words, name = calls.words, name or calls.short_name
    else:
        words = None if command is None else given(cast("str | Sequence[str]", command))
    afters = [after] if isinstance(after, (Run, str)) else after
    request = Request(
        experiment=experiment,
        command=words if script is None else [os.fspath(word) for word in (script, *given(arguments))],
        is_script=script is not None,
        overrides={
            **(settings or {}),
            **{dotted(("config", *name.split("."))): value for name, value in (config or {}).items()},
            **{f"resources.{key}": value for key, value in resources.items() if value is not None},
        },
        cluster=cluster,
        name=name,
        array=array if array is None or isinstance(array, str) else ",".join(str(index) for index in array),
        parallel=parallel,
        repeat=repeat,
        resume=None if resume is None else resume.id if isinstance(resume, Run) else os.fspath(resume),
        smoke=smoke,
        is_sent=True,
        after=None if afters is None else [one.id if isinstance(one, Run) else one for one in afters],
    )
    try:
        decided = decide(request, Path(directory), os.environ)
    except Elsewhere as error:
        if not error.names_cluster:
            hint = f'`cluster="{error.cluster}"` submits where that run is'
            raise UsageError(error.message, hint=hint) from None
        return cast("Run", _elsewhere().submit(error, {"request": request._asdict()}, Path(directory), calls, yes=yes))
    plan = calls.settle(decided.plan) if calls else decided.plan
    payload = calls.pickled(Path(plan.source.directory)) if calls else b""
    prepared = prepare(plan, decided.resolved, os.environ, decided.each, decided.jobs)
    return submit_prepared(prepared._replace(calls=payload), yes=yes)


def map(function: Callable[..., Any], *iterables: Iterable[Any], **options: Any) -> Run:  # noqa: A001 - as Python's own
    """Call a function with the values of the iterables, each call a task of one array, and return at once.

    `options` are those of `submit`, for example `gpus=1` and `parallel=8`; `Run.results` has what the calls returned.

    Raises ValueError for iterables without values or of different lengths, and as `submit`.
    """
    calls: list[Call] = []
    missing = object()
    for values in itertools.zip_longest(*iterables, fillvalue=missing):
        if any(value is missing for value in values):
            raise ValueError("the iterables of `serried.map` have different lengths")
        calls.append((values, {}))
    if not calls:
        raise ValueError("`serried.map` needs at least one value")
    taken = {"array", "repeat", "args", "kwargs", "script", "arguments"} & set(options)
    if taken:
        raise ValueError(f"`{min(taken)}` does not apply to `serried.map`")
    return submit(Calls(function, calls), array=range(len(calls)), **options)


def runs() -> RunList:
    """All runs that have a record, also on clusters that `serried login` has connected to, the newest first.

    A SerriedWarning names a cluster that does not answer within two seconds; its runs are as it listed them last.
    """
    found = []
    for record in index.records():
        with contextlib.suppress(RecordUnreadable):
            found.append((seconds_of(record.summary.created) or 0.0, Run(record)))
    if clusters := index.clusters():
        found += _elsewhere().runs(clusters)
    return RunList(run for _, run in sorted(found, key=lambda pair: pair[0], reverse=True))


def find(run: str) -> Run:
    """The run of an id, a unique prefix of an id, a name, `last` or the scheduler's job id; `RUN/17` is task 17.

    Raises RunNotFoundError, and NotConnected if the run is on a cluster that is not connected.
    """
    try:
        selection = index.find(run)
    except (Elsewhere, RunNotFoundError) as error:
        if not index.clusters():
            raise
        return cast("Run", _elsewhere().find(run, error))
    return Run(selection.record, selection.task)


@dataclass(frozen=True)
class Output:
    """A file that a run has written in its working tree."""

    path: Path
    """Relative to the project's folder; for a whole array, below the task's number."""
    file: Path
    """The full path; a `PurePosixPath` for a file on another cluster."""
    bytes: int
    changed: float
    """Seconds since the epoch."""
    is_fetched: bool
    """`serried fetch` has copied its present content."""


class Run:
    """A run, or one task of an array. Each call reads the run's files and queries its scheduler."""

    _cluster: str | None = None
    """The cluster of the run, if it is behind a login node; None if the run's files are here."""

    def __init__(self, record: Record, task: int | None = None) -> None:
        self._selection = Selection(record, task)

    def __repr__(self) -> str:
        return f"<serried.Run {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """`k3f9q2`; `k3f9q2/17` for a task."""
        return str(self._selection)

    @property
    def name(self) -> str:
        """The name that the user gave the run."""
        return self._selection.record.summary.name

    @property
    def directory(self) -> Path:
        """The run directory (the task's), with `checkpoints/`, `results/` and `attempts/`.

        For a run on another cluster, it is a `PurePosixPath`: the folder there.
        """
        return self._selection.place.path

    @property
    def state(self) -> State:
        """`PENDING`, `RUNNING`, `COMPLETED`, `FAILED`, `TIMEOUT`, `CANCELLED`, …, as it is now."""
        return State(self._status().state)

    @property
    def done(self) -> bool:
        """Whether the run has ended for good."""
        found = self._status()
        return found.has_ended and found.verdict.stale is None

    @property
    def exit_code(self) -> int | None:
        """The program's own exit status; None until it has ended."""
        status = self._status()
        return status.verdict.exit_code if status.has_ended else None

    @property
    def progress(self) -> dict[str, Any] | None:
        """What a running run does now: `step`, `total_steps`, `metrics`, `seconds_left` and others; else None.

        The object `progress` of `serried ps --json`, read from one file.
        """
        found: dict[str, Any] | None = self.to_json()["progress"]
        return found

    @property
    def job(self) -> str | None:
        """The scheduler's id of the current job; all ids, with commas, for an array in several jobs."""
        return self._status().job

    @property
    def tasks(self) -> RunList:
        """An array's tasks; empty for any other run."""
        indices = self._selection.tasks if self._selection.is_array else ()
        return RunList(Run(self._selection.record, index) for index in indices)

    def to_json(self) -> dict[str, Any]:
        """The run as `serried ps --json` prints it."""
        return self._status().to_json()

    def wait(self, timeout: float | None = None, *, check: bool = False) -> State:
        """Wait for the end; return the state then.

        Raises TimeoutError after `timeout` seconds (the run continues), RunFailed if the run can never start, and with
        `check` RunFailed unless the run COMPLETED.
        """
        find_out(self._selection.record)
        found = status.wait([self._selection], timeout=timeout)[0]
        if status.never_starts(found):
            raise RunFailed(f"run {self.id} never starts: {status.why_never(found)}")
        if not status.is_over(found):
            raise TimeoutError(f"run {self.id} did not end within {timeout:g} s")
        if check and found.state != COMPLETED:
            raise RunFailed(f"run {self.id} ended {found.state}: {found.verdict.message or 'no reason is known'}")
        return State(found.state)

    def logs(self, rank: int | None = None, attempt: int | None = None, *, launch: str | int | None = None) -> str:
        """The output of a rank so far, by default in the latest attempt; empty before its first line.

        Without `rank`, that of rank 0, or of a job script. With it, that of a rank that the script has launched, in
        launch `launch` or else in the newest launch with this rank. Of more than 4,096 ranks, those of a node share
        a log.

        Raises UsageError if the rank, launch or attempt does not exist, and for a whole array.
        """
        directory = self._place()
        numbers = attempt_numbers(directory)
        if attempt is not None and attempt not in numbers:
            raise UsageError(f"run {self.id} has no attempt {attempt}")
        if not numbers:
            return ""
        path = self._log(directory.attempt(attempt or numbers[-1]), rank, launch)
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def _log(self, attempt: AttemptDirectory, rank: int | None, launch: str | int | None) -> Path:
        summary = self._selection.record.summary
        if launch is not None and not summary.script:
            raise UsageError(f"run {self.id} is not a job script, so it has no launches")
        if summary.script and (rank, launch) != (None, None):
            which = None if launch is None else str(launch)
            return logs.logs_of_launch(attempt, self.id, launch=which, rank=rank or 0)[0].path
        found = logs.rank_logs(attempt, summary)
        if summary.script:
            return found[0].path
        chosen = [log for log in found if log.is_of(rank or 0)]
        if not chosen:
            last = found[-1].rank + found[-1].ranks - 1
            raise UsageError(f"run {self.id} has no rank {rank}", hint=f"its ranks are 0 to {last}")
        return chosen[0].path

    def result(self, timeout: float | None = None) -> Any:
        """Wait, and return what the function has returned in rank 0.

        Raises the function's exception, with the traceback in the rank as a note; RunFailed if the run ended before
        the function; TimeoutError after `timeout` seconds; UsageError for a whole array, which has `results`.

        The value is unpickled, even if it comes from another cluster. This can run code of anyone who can write to the
        run directory: your own account there, and the administrators.
        """
        return loaded(self._returned(timeout), self.id)

    def _returned(self, timeout: float | None) -> bytes:
        directory = self._place()
        if not self._selection.record.where.calls.exists():
            raise UsageError(f"run {self.id} runs a command, not a function", hint="its output is in `logs()`")
        self.wait(timeout)
        try:
            return (directory.results / names.RETURNED_FILE).read_bytes()
        except FileNotFoundError:
            message = f"the function of run {self.id} has not returned"
            raise RunFailed(message, hint=f"serried why {self.id}") from None

    def results(self, timeout: float | None = None, *, return_exceptions: bool = False) -> list[Any]:
        """Wait, and return what the calls of `serried.map` have returned, in their order.

        The first call that failed raises its exception as in `result`; with `return_exceptions`, exceptions are in the
        list instead. Raises TimeoutError after `timeout` seconds, and NotConnected if the connection breaks.
        """
        self.wait(timeout)
        found = []
        for task in self.tasks or [self]:
            try:
                found.append(task.result(0))
            except Exception as error:
                if not return_exceptions or isinstance(error, (NotConnected, SchedulerUnreachable, TimeoutError)):
                    raise
                found.append(error)
        return found

    def metrics(self, rank: int = 0) -> list[dict[str, Any]]:
        """The values that a rank has logged so far with `run.log`, a row for each step, in the order of steps.

        A row has `attempt`, `step`, `t` (seconds since the epoch) and the values by name. A step that several attempts
        have logged is the row of the last attempt. Raises UsageError for a whole array.
        """
        return [point.to_json() for point in series.points(self._place(), rank)]

    def outputs(self) -> list[Output]:
        """The files that the run has written by relative paths so far, the newest first; for an array, of all tasks.

        Models that it left in its folder of checkpoints are among them.

        Empty for a run without a snapshot, whose files are in the project itself. Folders that cannot be read are
        named in a SerriedWarning.
        """
        problems: list[OSError] = []
        record = self._selection.record
        entries = listed(places(record.where, record.plan, self._selection.task), problems.append)
        found = [
            Output(Path(tree.below + it.path), tree.path / it.path, it.bytes, it.changed / 1e9, tree.has_fetched(it))
            for it, tree in filter(None, entries)
        ]
        for error in problems:
            text = f"outputs of run {self.id} may be missing here: `{error.filename}`: {error.strerror}"
            warnings.warn(text, SerriedWarning, stacklevel=2)
        return sorted(found, key=lambda it: (-it.changed, it.path))

    def rerun(
        self,
        *,
        failed: bool | None = None,
        fresh: bool = False,
        new_code: bool = False,
        name: str | None = None,
        yes: bool = False,
    ) -> Run:
        """Submit the plan again, with the same code, from the newest complete checkpoint if there is one.

        Args:
            failed: of an array, which requires it: True for the tasks that ended without COMPLETED, False for all.
            fresh: start where this run started.
            new_code: use the present code of the project.
            name: the name of the new run; None for the name of this run.
            yes: as for `submit`.

        Raises as `submit`, and UsageError with `failed` if no task has failed.
        """
        from serried.submission.again import prepare_again

        find_out(self._selection.record)
        return submit_prepared(
            prepare_again(self._selection, os.environ, failed=failed, fresh=fresh, new_code=new_code, name=name),
            yes=yes,
        )

    def stop(self, *, save: bool = False, now: bool = False) -> None:
        """End the ranks with TERM, then KILL after `limit.grace`; remove waiting jobs from the queue. Return at once.

        With `save`, ranks receive the stop notice first and have `limit.warn_before` to save and exit. With `now`, the
        scheduler cancels the jobs. A run that has ended does not change.

        Raises ValueError for both together.
        """
        if save and now:
            raise ValueError("`save` and `now` are mutually exclusive")
        status = self._status()
        if status.has_ended:
            return
        asked = [] if now else stopping.request(status, save=save)
        if why := stopping.cancel(status, stopping.left(status, asked), now=now):
            warnings.warn(f"{why}; its job ends itself when it starts", SerriedWarning, stacklevel=2)

    def _place(self) -> TaskDirectory:
        if self._selection.is_array:
            raise UsageError(f"run {self.id} is an array", hint="use one of its `tasks`")
        return self._selection.place

    def _status(self) -> RunStatus:
        return RunList([self])._statuses()[0]  # noqa: SLF001 - of this module


class RunList(list[Run]):
    """A list of runs, and a table in a notebook."""

    def to_json(self) -> list[dict[str, Any]]:
        """The runs as `serried ps --json` prints them: one query for all that are here, and one for each cluster."""
        return [document for document, _ in self.described()]

    def _repr_html_(self) -> str:
        rows = [["ID", "NAME", "STATE", "TIME", "ENDED", "NOTE"], *(row for _, row in self.described())]
        cells = (f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table>{''.join(cells)}</table>"

    def described(self) -> list[tuple[dict[str, Any], list[str]]]:
        """Each run as JSON and as a row of the table."""
        from serried.views.run_lines import ended, note_of, total_seconds

        now, rows = time.time(), {}
        for found in RunList(run for run in self if run._cluster is None)._statuses():  # noqa: SLF001 - of this module
            name = found.summary.name if found.summary else "?"
            times = duration(total_seconds(found, now)), ended(found, now)
            rows[found.id] = found.to_json(), [found.id, name, found.state, *times, note_of(found, now).texts[0]]
        if len(rows) < len({run.id for run in self}):
            rows |= _elsewhere().described(self)
        return [rows[run.id] for run in self]

    def _statuses(self) -> list[RunStatus]:
        selections = [run._selection for run in self]  # noqa: SLF001 - of this module
        for record in {each.record.id: each.record for each in selections}.values():
            find_out(record)
        return status.statuses_of(selections)


CONSENT_HINT = "correct it, or pass `yes=True` to submit it as it is"


def submit_prepared(prepared: Prepared, *, yes: bool = False) -> Run:
    """Submit for the caller of `submit` or `rerun`, after the warnings."""
    from serried.submission.deliver import deliver, unqueued

    for text in prepared.warnings:
        if isinstance(text, Risk) and not yes:
            raise UsageError(text, hint=CONSENT_HINT, code=text.code)
        warnings.warn(text, SerriedWarning, stacklevel=3)
    record = deliver(prepared)
    with contextlib.suppress(SerriedWarning):  # the run is submitted, and an error would lose it for the caller
        for text in unqueued(record):
            warnings.warn(text, SerriedWarning, stacklevel=3)
    return Run(record)
