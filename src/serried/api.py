"""The Python API: `serried.submit`, `serried.runs`, `serried.find`, and `Run`. It does what the commands do."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried.contract.layout import ElementDirectory
from serried.contract.names import COMPLETED
from serried.errors import RunFailed, SerriedWarning, UsageError
from serried.records import index, logs, metrics, stopping, waiting
from serried.records.documents import RecordUnreadable
from serried.records.evidence import attempt_numbers
from serried.records.index import Selection
from serried.records.record import Record
from serried.records.run_status import RunStatus
from serried.submission.reconcile import find_out

if TYPE_CHECKING:
    from serried.submission.prepared import Prepared


def submit(
    command: str | Sequence[str] | None = None,
    *,
    experiment: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    gpu_type: str | None = None,
    ranks: int | None = None,
    cpus: int | None = None,
    mem: str | None = None,
    time: str | None = None,
    account: str | None = None,
    partition: str | None = None,
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
) -> Run:
    """Send a command, or an experiment of `serried.toml`, to a cluster; return at once.

    What the command line warns of is a `SerriedWarning`, before anything is submitted: an error where filters say so.

    Args:
        command: a list of words taken verbatim, or a string split as a shell would; None is the experiment's own.
        experiment: a table of `serried.toml`; None is the only one, or none where there is a command.
        nodes: how many nodes.
        gpus: GPUs on each node.
        gpu_type: which, as the cluster calls them.
        ranks: ranks on each node; one for each GPU unless said.
        cpus: CPUs for each GPU (each rank without GPUs).
        mem: memory for each GPU (each rank without GPUs): `"10G"`, `"all"`.
        time: the time limit: `"2h"`, `"90m"`, `"2-00:00:00"`.
        account: who pays.
        partition: where it queues.
        cluster: where it runs; None recognises the cluster.
        name: what the run is called.
        array: indices of the elements, `"0-99"` or numbers.
        parallel: how many elements may run at once.
        repeat: run it so many times, as an array: `{seed}` and `{repeat}` tell the elements apart.
        config: what the training is told, by dotted name: `{"lr": 0.1, "model.width": 64}`.
        settings: anything else, by dotted key: `{"limit.grace": "60s"}`.
        resume: a run, or what `find` would know it by, or a path: begin from its newest whole checkpoint.
        smoke: a smoke test: with `serried.train` a few steps, saved and loaded, and out.
        after: a run, or several, that it comes after: a `Run` or what `find` would know it by, `"k3f9q2:any"` however
            it ends, `"k3f9q2:notok"` only if it does not complete; None is what the experiment's `after` says.
        directory: the project's folder, or one within.

    Raises:
        TypeError: the command is a function.
        UsageError: it cannot be, and nothing was submitted.
        SchedulerUnreachable: the scheduler did not answer, and nothing was submitted.
        SubmissionUncertain: it may have been submitted; asking a run's state finds out.
    """
    from serried.config.schema import dotted
    from serried.config.words import given
    from serried.submission.prepare import prepare
    from serried.submission.request import Request, decide

    if callable(command):
        name_ = getattr(command, "__name__", "it")
        raise TypeError(
            f"serried.submit takes a command, not the function `{name_}`: put the call into a script, and submit "
            'serried.submit(["python", "script.py"])'
        )
    resources = {
        "nodes": nodes,
        "gpus": gpus,
        "gpu_type": gpu_type,
        "ranks": ranks,
        "cpus": cpus,
        "mem": mem,
        "time": time,
        "account": account,
        "partition": partition,
    }
    request = Request(
        experiment=experiment,
        command=None if command is None else given(command),
        overrides={
            **(settings or {}),
            **{dotted(("config", *name.split("."))): value for name, value in (config or {}).items()},
            **{f"resources.{key}": it for key, it in resources.items() if it is not None},
        },
        cluster=cluster,
        name=name,
        array=array if array is None or isinstance(array, str) else ",".join(map(str, array)),
        parallel=parallel,
        repeat=repeat,
        resume=None if resume is None else resume.id if isinstance(resume, Run) else os.fspath(resume),
        smoke=smoke,
        after=None if after is None else [str(one.id if isinstance(one, Run) else one) for one in _several(after)],
    )
    decided = decide(request, Path(directory), os.environ)
    return delivered(prepare(decided.plan, decided.resolved, os.environ, decided.each, decided.jobs))


def runs() -> list[Run]:
    """All runs that have a record, the newest first."""
    found = []
    for record in index.records():
        with contextlib.suppress(RecordUnreadable):
            found.append((record.summary.created, Run(record)))
    return [run for _, run in sorted(found, key=lambda pair: pair[0], reverse=True)]


def find(run: str) -> Run:
    """The run that an id, a unique prefix of one, a name or `last` means; `RUN/17` is element 17 of an array.

    Raises RunNotFoundError.
    """
    selection = index.find(run)
    return Run(selection.record, selection.element)


class Run:
    """A run, or one element of an array. Each question is answered anew, from its files and its scheduler."""

    def __init__(self, record: Record, element: int | None = None) -> None:
        self._selection = Selection(record, element)

    def __repr__(self) -> str:
        return f"<serried.Run {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """`k3f9q2`; `k3f9q2/17` for an element."""
        return str(self._selection)

    @property
    def name(self) -> str:
        """What its user calls it."""
        return self._selection.record.summary.name

    @property
    def directory(self) -> Path:
        """The run directory (the element's), with `checkpoints/`, `results/` and `attempts/`."""
        return self._selection.place.path

    @property
    def state(self) -> str:
        """`PENDING`, `RUNNING`, `COMPLETED`, `FAILED`, `TIMEOUT`, `CANCELLED`, …."""
        return self._status().state

    @property
    def exit_code(self) -> int | None:
        """The program's own exit status; None until it has ended."""
        status = self._status()
        return status.verdict.exit_code if status.has_ended else None

    @property
    def job(self) -> str | None:
        """The scheduler's id of its job: of the one that it is in now, where it goes on in further ones."""
        return self._status().job

    @property
    def elements(self) -> list[Run]:
        """An array's elements; empty for any other run."""
        elements = self._selection.elements if self._selection.is_array else ()
        return [Run(self._selection.record, index) for index in elements]

    def to_json(self) -> dict[str, Any]:
        """What `serried ps --json` prints of it."""
        return self._status().to_json()

    def wait(self, timeout: float | None = None, *, check: bool = False) -> str:
        """Wait for the end; return the state then.

        Raises TimeoutError after `timeout` seconds (the run goes on), with `check` RunFailed unless it COMPLETED, and
        always RunFailed where it can never start.
        """
        find_out(self._selection.record)
        status = waiting.wait([self._selection], timeout=timeout)[0]
        if waiting.never_starts(status):
            raise RunFailed(f"run {self.id} never starts: {waiting.why_never(status)}")
        if not waiting.is_over(status):
            raise TimeoutError(f"run {self.id} did not end within {timeout:g} s")
        if check and status.state != COMPLETED:
            raise RunFailed(f"run {self.id} ended {status.state}: {status.verdict.message or 'no reason is known'}")
        return status.state

    def logs(self, rank: int = 0, attempt: int | None = None) -> str:
        """What a rank has written so far, in the latest attempt unless told; empty before it writes.

        Raises UsageError for a rank or attempt that there is not, and for an array as a whole.
        """
        directory = self._place()
        numbers = attempt_numbers(directory)
        if attempt is not None and attempt not in numbers:
            raise UsageError(f"run {self.id} has no attempt {attempt}")
        if not numbers:
            return ""
        found = logs.rank_logs(directory.attempt(attempt or numbers[-1]), self._selection.record.summary)
        if not 0 <= rank < len(found):
            raise UsageError(f"run {self.id} has no rank {rank}", hint=f"its ranks are 0 to {len(found) - 1}")
        try:
            return found[rank].path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def metrics(self, rank: int = 0) -> list[dict[str, Any]]:
        """What a rank has logged so far (`run.log`), a row for each step, as the last attempt that made it did it.

        A row has `attempt`, `step`, `t` (seconds since the epoch), and what was logged by its name. Empty where
        nothing was. Raises UsageError for an array as a whole.
        """
        return metrics.metrics(self._place(), rank)

    def rerun(self, *, fresh: bool = False, new_code: bool = False, name: str | None = None) -> Run:
        """Submit its plan again, with the code that it ran, from its newest whole checkpoint if it has one.

        Args:
            fresh: begin where it began.
            new_code: the project's code as it is now.
            name: what to call the new run; as this one unless said.

        Raises as `submit`.
        """
        from serried.submission.again import prepare_again

        return delivered(prepare_again(self._selection, os.environ, fresh=fresh, new_code=new_code, name=name))

    def stop(self, *, save: bool = False, now: bool = False) -> None:
        """End its ranks, by TERM and after `limit.grace` by KILL, and take what waits out of the queue; return at once.

        With `save` they are asked first, and have `limit.lead` to save and leave; with `now` it is cancelled. A run
        that has ended is no error. Raises ValueError for both.
        """
        if save and now:
            raise ValueError("a run cannot be given time to save and none")
        status = self._status()
        if status.has_ended:
            return
        asked = [] if now else stopping.request(status, save=save)
        if why := stopping.cancel(status, stopping.left(status, asked), now=now):
            warnings.warn(f"{why}; its job ends itself when it starts", SerriedWarning, stacklevel=2)

    def _place(self) -> ElementDirectory:
        if self._selection.is_array:
            raise UsageError(f"run {self.id} is an array", hint="ask one of its `elements`")
        return self._selection.place

    def _status(self) -> RunStatus:
        find_out(self._selection.record)
        return waiting.statuses_of([self._selection])[0]


def delivered(prepared: Prepared) -> Run:
    """Submit for who has called `submit` or `rerun`, and is warned beforehand."""
    from serried.submission.deliver import deliver, unqueued

    for text in prepared.warnings:
        warnings.warn(text, SerriedWarning, stacklevel=3)
    record = deliver(prepared)
    with contextlib.suppress(SerriedWarning):  # a filter that makes it an error would keep the run from its caller
        for text in unqueued(record):
            warnings.warn(text, SerriedWarning, stacklevel=3)
    return Run(record)


def _several(after: Run | str | Iterable[Run | str]) -> Iterable[Run | str]:
    return [after] if isinstance(after, Run | str) else after
