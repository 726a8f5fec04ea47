"""What readers saw and must not forget: schedulers forget jobs, and a missing file is timed from its first miss.

`seen.json` in the record. Several readers may write it; the last one wins, and nothing but patience is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serried.fs.files import read_json, write_json
from serried.protocol import SCHEMA, names
from serried.records.record import Record
from serried.schedulers.indices import compress, expand
from serried.schedulers.interface import Job

Answer = Mapping[tuple[str, int | None], Job]
"""What poll returned."""

_REFRESH_SECONDS = 60.0
"""The time stamp alone is worth a write this often."""

_OLD_WORD_SECONDS = 120.0


@dataclass(frozen=True)
class Seen:
    at: float | None = None
    """When the scheduler last answered."""
    jobs: tuple[Job, ...] = ()
    missing: Mapping[int | None, float] = field(default_factory=dict)
    """Since when exit.json is missed, by element (None: the run itself)."""
    ended: Mapping[int, str] = field(default_factory=dict)
    """Elements whose end is certain: not read again."""

    def job(self, element: int | None) -> Job | None:
        return next((job for job in self.jobs if job.element == element), None)


def heard(said: Job | None, remembered: Job | None, now: float) -> Job | None:
    """The scheduler's word, unless it is an old one: after we cancelled a job its cache goes on saying PENDING."""
    if said is None or remembered is None or said.state != names.PENDING or remembered.state != names.CANCELLED:
        return said
    return remembered if now - (remembered.ended or 0.0) < _OLD_WORD_SECONDS else said


def current(
    chain: Sequence[str], element: int | None, answer: Answer, remembered: Job | None, now: float
) -> Job | None:
    """Of the jobs of a run or element, in their order, the one that it stands and falls with now.

    Each begins when the one before it has ended: the first that has not is the current one. After one that was
    cancelled the others refuse to run.
    """
    found: Job | None = None
    for job in chain:
        mine = remembered if remembered is not None and remembered.id == job else None
        said = heard(answer.get((job, element)), mine, now)
        if said is None and mine is not None and mine.state in names.ENDED:
            said = mine
        found = said or found
        if said is not None and (said.state not in names.ENDED or said.state == names.CANCELLED):
            break
    return found


def read(record: Record) -> Seen:
    """What was seen; nothing where the file is missing or makes no sense: it is only a memory."""
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
    """Remember `after`, if it says more than `before`. A full or read-only home is no reason to fail a listing."""
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
    """Elements that differ in their index alone share a line: most of a thousand do."""
    groups: dict[Job, list[int]] = {}
    for job in jobs:
        indices = groups.setdefault(dataclasses.replace(job, element=None), [])
        if job.element is not None:
            indices.append(job.element)
    return [
        {**dataclasses.asdict(job), "element": compress(indices) if indices else None}
        for job, indices in groups.items()
    ]


def _ungroup(lines: Iterable[dict[str, Any]]) -> Iterable[Job]:
    for line in lines:
        elements = [None] if line["element"] is None else expand(line["element"])
        for element in elements:
            yield Job(**{**line, "element": element, "nodes": tuple(line["nodes"])})
