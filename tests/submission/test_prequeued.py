"""Further jobs that are submitted with the first: each after the one before, each at most once."""

from __future__ import annotations

import os

import pytest

from serried import api
from serried.base.errors import SerriedWarning, SubmissionRefused, SubmissionUncertain, UsageError
from serried.base.files import read_json
from serried.cli.submit import send
from serried.records.index import Selection
from serried.submission.again import prepare_again
from serried.submission.deliver import deliver


@pytest.fixture
def prequeued(ask):
    return ask(overrides={"limit.restarts": 2, "limit.continue": "prequeued"})


def states(record):
    return [(one.number, one.state, one.job) for one in record.submissions]


def test_each_further_job_comes_after_the_one_before(prequeued, scheduler):
    record = deliver(prequeued)

    assert states(record) == [(1, "submitted", "1"), (2, "submitted", "2"), (3, "submitted", "3")]
    assert [argv[2:-1] for argv in scheduler.asked] == [(), ("--after=1",), ("--after=2",)]


def test_who_interrupts_while_further_jobs_are_queued_is_told_of_the_run_that_is_there(prequeued, scheduler, capsys):
    run = prequeued.plan.run
    scheduler.raises_for[f"{run}-3"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        send(prequeued, dry_run=False, as_json=False, yes=True)
    told = capsys.readouterr()
    assert told.out == f"{run}\n"
    assert f"submitted {run} as job 1 of local, then 2" in told.err
    assert "only 1 later jobs are queued: interrupted" in told.err


def test_who_submits_from_python_gets_the_run_also_where_warnings_are_errors(prequeued, scheduler):
    scheduler.raises_for[f"{prequeued.plan.run}-3"] = SubmissionRefused("no more than two")
    assert api.submit_prepared(prequeued).id == prequeued.plan.run  # as they are in these tests


def test_who_submits_from_python_is_warned_of_further_jobs_that_are_not_queued(prequeued, scheduler):
    scheduler.raises_for[f"{prequeued.plan.run}-3"] = SubmissionRefused("no more than two")
    with pytest.warns(SerriedWarning, match="only 1 later jobs are queued: no more than two"):
        api.submit_prepared(prequeued)


def test_a_slip_in_the_total_time_does_not_fill_the_queue(ask, scheduler):
    many = {"resources.time": "1m", "limit.continue": "prequeued", "limit.total_time": "101m"}
    with pytest.raises(UsageError, match="the run needs 101 jobs in the queue, but 100 is the most"):
        ask(overrides=many)
    assert ask(overrides={**many, "limit.total_time": "100m"}).plan.limit.restarts == 99
    assert ask(overrides={**many, "limit.continue": "successor"}).plan.limit.restarts == 100
    assert scheduler.asked == []


def test_a_rerun_fills_the_queue_no_more_than_a_submit_does(prequeued):
    record = deliver(prequeued)
    plan = record.plan
    assert prepare_again(Selection(record), os.environ).plan.limit.restarts == 2
    record.plan = plan._replace(limit=plan.limit._replace(restarts=100))  # of a version that queued so many
    for changes in ({}, {"new_code": True}):
        with pytest.raises(UsageError, match="the run needs 101 jobs in the queue, but 100 is the most"):
            prepare_again(Selection(record), os.environ, **changes)


def test_the_intent_is_written_before_the_scheduler_is_asked(prequeued, scheduler, root):
    seen = []

    def look():
        [directory] = root.glob(f"*/*/{prequeued.plan.run}")
        seen.append([read_json(path)["state"] for path in sorted((directory / "links").glob("*.json"))])

    scheduler.while_asked = look
    deliver(prequeued)

    assert seen == [[], ["submitting"], ["submitted", "submitting"]]


@pytest.mark.parametrize(
    ("error", "state"),
    [(SubmissionRefused("too many jobs"), "failed"), (SubmissionUncertain("it did not answer"), "uncertain")],
)
def test_where_one_is_not_taken_the_run_has_those_before_it_and_no_other_is_asked_for(
    prequeued, scheduler, error, state
):
    scheduler.raises_for[f"{prequeued.plan.run}-2"] = error

    record = deliver(prequeued)

    assert states(record) == [(1, "submitted", "1"), (2, state, None)]
    assert record.submissions[1].message == error.message


def test_a_job_finds_how_to_submit_the_next_one_where_it_may(ask):
    one = deliver(ask(overrides={"limit.restarts": 1, "limit.continue": "successor"}))
    other = deliver(ask(overrides={"limit.restarts": 1}))

    assert (read_json(one.where.link_commands) or {})["cancel"] == ["false"]
    assert not other.where.link_commands.exists()
    assert states(one) == [(1, "submitted", "1")]
