"""When ranks are warned and ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

from building import a_plan
from serried.agent.attempt import Attempt
from serried.agent.attempts import deadline, finalize
from serried.agent.attempts.deadline import Deadline
from serried.agent.node_disk.folder import boot
from serried.base.files import make_directory, write_json
from serried.schema.layout import RunDirectory
from tables import for_each


@for_each(
    ("limit", "told", "expected"),
    [
        (None, 0, None),
        (3600, 0, Deadline(at=4600, warning=4540, end=4585, grace=10)),
        (100, 0, Deadline(at=1100, warning=1075, end=1095, grace=10 / 3)),
        (3600, 2000, Deadline(at=2000, warning=1940, end=1985, grace=10)),
    ],
)
def test_ranks_are_warned_and_ended_before_the_scheduler_would(limit, told, expected):
    assert deadline.decide_deadline(1000, limit, told, lead=60, grace=30) == expected


def test_the_time_that_a_job_took_to_reach_its_agents_counts(monkeypatch):
    monkeypatch.setattr(deadline.time, "time", lambda: 1030)
    work = Attempt(RunDirectory(Path("/run")), a_plan(time_seconds=3600), None, 1)
    assert deadline.deadline_of(work, scheduler_end=0, age=30) == deadline.decide_deadline(
        1000, 3600, 0, lead=60, grace=30
    )


def test_the_length_of_an_attempt_is_that_of_the_monotonic_clock_of_its_machine(tmp_path, monkeypatch):
    attempt = Attempt(RunDirectory(tmp_path), a_plan(), None, 1)
    make_directory(attempt.files.path)
    monkeypatch.setattr(time, "monotonic", lambda: 107.5)

    def seconds(**claim):
        write_json(attempt.files.claim, claim)
        return finalize.gather(attempt).seconds

    claim = {"host": os.uname().nodename, "boot": boot(), "monotonic": 100.0}
    assert seconds(**claim) == 7.5
    assert [seconds(**{**claim, **other}) for other in ({"host": "n9"}, {"boot": "x"})] == [None, None]
    assert seconds() is None
