"""`seen.json` in the record: the last answers of a scheduler that forgets jobs, and when a file was first missing.

Several readers may write it. The last one wins, which costs at most a longer wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serried.fs.files import read_json, write_json
from serried.protocol import SCHEMA, names
from serried.records.record import Record
from serried.schedulers.indices import compress, expand
from serried.schedulers.interface import Job

Answer = Mapping[tuple[str, int | None], Job]
"""The result of a poll."""

_REFRESH_SECONDS = 60.0
"""How often the time stamp alone is worth a write."""

_OLD_ANSWER_SECONDS = 120.0


@dataclass(frozen=True)
class Seen:
    at: float | None = None
    """When the scheduler last answered."""
    jobs: tuple[Job, ...] = ()
    missing: Mapping[int | None, float] = field(default_factory=dict)
    """Since when exit.json is missing, by task (None: the run itself)."""
    ended: Mapping[int, str] = field(default_factory=dict)
    """Tasks whose end is certain; their files are not read again."""

    def job(self, task: int | None) -> Job | None:
        return self._by_task.get(task)

    @functools.cached_property
    def _by_task(self) -> Mapping[int | None, Job]:
        return {job.task: job for job in self.jobs}


def current(chain: Sequence[str], task: int | None, answer: Answer, remembered: Job | None, now: float) -> Job | None:
    """Of the jobs of a run or task, in their order, the job that decides its state now.

    Each job begins when the job before it has ended: the first that has not ended is the current one. After a
    cancelled job the later ones refuse to run.
    """
    found: Job | None = None
    for job in chain:
        last = remembered if remembered is not None and remembered.id == job else None
        reported = answer.get((job, task))
        if last is not None and last.state in names.ENDED:
            # Its cache still says PENDING for a while after a cancellation.
            was_cancelled = last.state == names.CANCELLED and now - (last.ended or 0.0) < _OLD_ANSWER_SECONDS
            if reported is None or (reported.state == names.PENDING and was_cancelled):
                reported = last
        found = reported or found
        if reported is not None and (reported.state not in names.ENDED or reported.state == names.CANCELLED):
            break
    return found


def read(record: Record) -> Seen:
    """Empty if the file is missing or not valid: it is only a memory."""
    document = read_json(record.directory.seen) or {}
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        if document.get("schema") == SCHEMA:
            return Seen(
                at=document["at"],
                jobs=tuple(_ungroup(document["jobs"])),
                missing={int(key) if key else None: float(since) for key, since in document["missing"].items()},
                ended={index: state for state, text in document["ended"].items() for index in expand(text)},
            )
    return Seen()


def write(record: Record, before: Seen, after: Seen) -> None:
    """Write `after`, if it says more than `before`. A listing must work with a full or read-only home."""
    same = dataclasses.replace(before, at=after.at) == after
    if same and (after.at is None or (before.at is not None and after.at - before.at < _REFRESH_SECONDS)):
        return
    by_state: dict[str, list[int]] = {}
    for index, state in after.ended.items():
        by_state.setdefault(state, []).append(index)
    with contextlib.suppress(OSError):
        write_json(
            record.directory.seen,
            {
                "schema": SCHEMA,
                "at": after.at,
                "jobs": _group(after.jobs),
                "missing": {"" if key is None else str(key): since for key, since in after.missing.items()},
                "ended": {state: compress(indices) for state, indices in by_state.items()},
            },
        )


def _group(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Tasks that differ only in their index share an entry: most of a thousand do."""
    groups: dict[Job, list[int]] = {}
    for job in jobs:
        indices = groups.setdefault(dataclasses.replace(job, task=None), [])
        if job.task is not None:
            indices.append(job.task)
    return [
        {**dataclasses.asdict(job), "task": compress(indices) if indices else None} for job, indices in groups.items()
    ]


def _ungroup(lines: Iterable[dict[str, Any]]) -> Iterable[Job]:
    for line in lines:
        indices = line.pop("element", None) or line.get("task")  # the former name
        for task in [None] if indices is None else expand(indices):
            yield Job(**{**line, "task": task, "nodes": tuple(line["nodes"])})
