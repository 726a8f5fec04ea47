"""`Run`: a run as a value, with methods to query and control it."""

from __future__ import annotations

import contextlib
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried.errors import RunFailed, SerriedWarning, UsageError
from serried.protocol.layout import TaskDirectory
from serried.protocol.names import COMPLETED
from serried.protocol.outputs import listed
from serried.records import logs, status, stopping
from serried.records.evidence import attempt_numbers
from serried.records.index import Selection
from serried.records.outputs import trees
from serried.records.record import Record
from serried.records.run_status import RunStatus
from serried.submission.reconcile import find_out

if TYPE_CHECKING:
    from serried.submission.prepared import Prepared


@dataclass(frozen=True)
class Output:
    """A file that a run has written in its working tree."""

    path: Path
    """From the project's folder; of an array as a whole, below the task's number."""
    file: Path
    """Where it is."""
    bytes: int
    changed: float
    """Seconds since the epoch."""
    is_fetched: bool
    """Whether `serried fetch` has copied it as it is now."""


class Run:
    """A run, or one task of an array. Each call reads the run's files and queries its scheduler."""

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
        """The run directory (the task's), with `checkpoints/`, `results/` and `attempts/`."""
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
        """The scheduler's id of the current job; all ids, with commas, for an array in several jobs."""
        return self._status().job

    @property
    def tasks(self) -> list[Run]:
        """An array's tasks; empty for any other run."""
        indices = self._selection.tasks if self._selection.is_array else ()
        return [Run(self._selection.record, index) for index in indices]

    @property
    def elements(self) -> list[Run]:
        """The former name of `tasks`."""
        warnings.warn("`Run.elements` is now `Run.tasks`", DeprecationWarning, stacklevel=2)
        return self.tasks

    def to_json(self) -> dict[str, Any]:
        """The run as `serried ps --json` prints it."""
        return self._status().to_json()

    def wait(self, timeout: float | None = None, *, check: bool = False) -> str:
        """Wait for the end; return the state then.

        Raises TimeoutError after `timeout` seconds (the run continues), with `check` RunFailed unless it COMPLETED, and
        always RunFailed where it can never start.
        """
        find_out(self._selection.record)
        found = status.wait([self._selection], timeout=timeout)[0]
        if status.never_starts(found):
            raise RunFailed(f"run {self.id} never starts: {status.why_never(found)}")
        if not status.is_over(found):
            raise TimeoutError(f"run {self.id} did not end within {timeout:g} s")
        if check and found.state != COMPLETED:
            raise RunFailed(f"run {self.id} ended {found.state}: {found.verdict.message or 'no reason is known'}")
        return found.state

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
        return logs.metrics(self._place(), rank)

    def outputs(self) -> list[Output]:
        """What it has written by relative paths so far, the newest first; of an array, what all its tasks have.

        Empty for a run that starts in the project itself (`snapshot = false`): its files are where it put them.
        Folders that cannot be read are named in a SerriedWarning.
        """
        problems: list[OSError] = []
        record = self._selection.record
        entries = listed(trees(record.where, record.plan, self._selection.task), problems.append)
        found = [
            Output(Path(tree.below + it.path), tree.path / it.path, it.bytes, it.changed / 1e9, tree.ledger.has(it))
            for it, tree in filter(None, entries)
        ]
        for error in problems:
            text = f"outputs of run {self.id} may be missing here: `{error.filename}`: {error.strerror}"
            warnings.warn(text, SerriedWarning, stacklevel=2)
        return sorted(found, key=lambda it: (-it.changed, it.path))

    def rerun(self, *, fresh: bool = False, new_code: bool = False, name: str | None = None) -> Run:
        """Submit its plan again, with the code that it ran, from its newest whole checkpoint if it has one.

        Args:
            fresh: begin where it began.
            new_code: the project's code as it is now.
            name: what to call the new run; as this one unless said.

        Raises as `submit`.
        """
        from serried.submission.resume import prepare_again

        return delivered(prepare_again(self._selection, os.environ, fresh=fresh, new_code=new_code, name=name))

    def stop(self, *, save: bool = False, now: bool = False) -> None:
        """End the ranks with TERM, then KILL after `limit.grace`; remove waiting jobs from the queue. Return at once.

        With `save`, ranks receive the stop notice first and have `limit.warn_before` to save and leave. With `now`, the
        scheduler cancels the jobs. A run that has ended is left alone.

        Raises ValueError for both.
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
        find_out(self._selection.record)
        return status.statuses_of([self._selection])[0]


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
