"""An array in parts whose submission broke off: no job of it stays on hold, and none that began is given up."""

from __future__ import annotations

import contextlib
import time

import pytest

from serried.base import files
from serried.base.errors import MissingProgramError, SchedulerUnreachable, SubmissionUncertain
from serried.records.index import records
from serried.schedulers.local import cluster
from serried.schedulers.survey import ArrayLimits
from serried.submission.deliver import deliver
from serried.submission.reconcile import forget, reconcile


@pytest.fixture
def made(ask, monkeypatch):
    """Ten tasks in three jobs."""
    monkeypatch.setattr(cluster, "array_limits", lambda *_: ArrayLimits(below=4))
    return ask(array="0-9")


@pytest.fixture
def scheduler(scheduler, monkeypatch):
    """Its jobs are 11, 12 and 13."""

    def submit(handover):
        if len(scheduler.jobs) == scheduler.accepted:
            raise SubmissionUncertain("no answer")
        return scheduler.jobs.setdefault(handover.argv[-1], str(11 + len(scheduler.jobs)))

    scheduler.accepted = 3
    monkeypatch.setattr(scheduler, "submit", submit)
    return scheduler


def broken_off(made):
    with pytest.raises(SubmissionUncertain):
        deliver(made)
    (record,) = records()
    return record


def lose_second(made, scheduler):
    """The first job is accepted and known; the second one too is accepted, and nobody heard so."""
    scheduler.accepted = 1
    record = broken_off(made)
    scheduler.jobs[f"{made.plan.run}_4-1"] = "12"
    return record


@pytest.mark.parametrize("problem", [SchedulerUnreachable("not now"), KeyboardInterrupt()])
def test_what_could_not_be_cancelled_when_it_was_given_up_is_cancelled_later(made, scheduler, monkeypatch, problem):
    record = lose_second(made, scheduler)
    now = time.time()
    reconcile(record, now + 100)
    with monkeypatch.context() as patch:

        def cancel(_ids):
            raise problem

        patch.setattr(scheduler, "cancel", cancel)
        with contextlib.suppress(KeyboardInterrupt):
            assert not reconcile(record, now + 200)
    assert record.submissions[0].state == "uncertain"

    assert reconcile(record, now + 300)

    assert (record.submissions[0].state, scheduler.cancelled, scheduler.released) == ("failed", ["11", "12"], [])


def test_forget_cancels_also_the_job_of_which_nobody_heard_that_it_was_accepted(made, scheduler):
    record = lose_second(made, scheduler)
    assert forget(record) is None
    assert (record.submissions[0].state, scheduler.cancelled) == ("failed", ["11", "12"])


def test_forget_ends_no_array_that_was_released_and_has_begun(made, scheduler):
    scheduler.release_raises = SchedulerUnreachable("it timed out, and was done nevertheless")
    record = broken_off(made)
    record.where.claims.mkdir(exist_ok=True)
    files.claim(record.where.claim(f"{made.plan.run}_4-1"), "12")
    assert forget(record) == "11,12,13"
    assert (record.submissions[0].state, scheduler.cancelled) == ("submitted", [])
    assert not record.where.claim(f"{made.plan.run}_0-1").exists()


def test_where_there_is_nothing_to_release_jobs_with_the_record_stays(made, scheduler):
    scheduler.release_raises = MissingProgramError("`scontrol` is not on PATH")
    record = broken_off(made)
    assert (record.submissions[0].state, record.submissions[0].job) == ("uncertain", "11,12,13")
    scheduler.release_raises = None
    assert reconcile(record)
    assert (record.submissions[0].state, scheduler.released) == ("submitted", ["11", "12", "13"])
