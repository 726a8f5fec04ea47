"""Arrays in parts before anything is submitted: what cannot be is refused, the rest is shown."""

from __future__ import annotations

import pytest

from serried.base.errors import UsageError
from serried.schedulers.local import cluster
from serried.schedulers.survey import ArrayLimits
from serried.submission.again import run_after
from serried.submission.deliver import deliver


@pytest.fixture
def limits(monkeypatch):
    def be(**said):
        monkeypatch.setattr(cluster, "array_limits", lambda *_: ArrayLimits(**said))

    return be


def divided(prepared):
    return prepared.plan.array.offsets


def test_an_array_is_divided_only_where_one_job_cannot_have_it(ask, limits):
    limits(below=4)
    assert divided(ask(array="0-3")) == ()
    assert divided(ask(array="0-9")) == (0, 4, 8)
    assert divided(ask(array="5000")) == (5000,)
    limits(tasks=4)
    assert divided(ask(array="5000-5003")) == ()
    assert divided(ask(array="5000-5004")) == (5000, 5004)
    limits()
    assert divided(ask(array="0-5004")) == ()


def test_an_array_is_divided_where_a_scheduler_has_ranges_only(ask, limits):
    limits(tasks=4, in_ranges=True)
    assert divided(ask(array="0-6:2")) == ()
    assert divided(ask(array="7")) == ()
    assert divided(ask(array="0,1,7")) == (0, 7)
    assert divided(ask(array="0-4")) == (0, 4)
    chain = {"limit.restarts": 2, "limit.continue": "prequeued"}
    with pytest.raises(
        UsageError, match=r"`local` accepts only arrays whose indices are a range, such as .*, and the later jobs"
    ):
        ask(array="0,1,7", overrides=chain)


def test_one_job_whose_indices_are_moved_is_not_held(ask, limits):
    limits(below=4)
    made = ask(array="5000")
    assert [each.argv[-1] for each in made.handovers] == [f"{made.plan.run}_5000-1"]
    assert "--hold" not in made.handover.argv


def test_with_a_limit_on_tasks_at_once_each_job_comes_after_the_one_before(ask, limits):
    limits(below=4)
    made = ask(array="0-9", parallel=2)
    run = made.plan.run
    assert [[word for word in each.argv if word.startswith("--after")] for each in made.handovers] == [
        [],
        [f"--after=JOB-OF-{run}_0-1"],
        [f"--after=JOB-OF-{run}_4-1"],
    ]


def test_an_array_larger_than_a_whole_scheduler_holds_is_refused(ask, limits):
    limits(below=1000, jobs=10_000)
    with pytest.raises(UsageError, match="the array has 10,000 tasks, but `local` keeps fewer than 10,000 jobs"):
        ask(array="0-9999")


def test_further_jobs_of_all_parts_cannot_be_queued_at_once(ask, limits):
    limits(below=4)
    chain = {"limit.restarts": 2, "limit.continue": "prequeued"}
    with pytest.raises(UsageError, match="`local` accepts arrays of up to 4 tasks, and the later jobs of any other"):
        ask(array="0-9", overrides=chain)
    assert ask(array="0-3", overrides=chain).plan.limit.restarts == 2


def test_a_run_comes_after_all_jobs_of_an_array(ask, limits):
    limits(below=4)
    record = deliver(ask(array="0-99"))
    jobs = record.submissions[0].jobs
    assert len(jobs) == 25
    assert run_after(record.id, ask().plan).jobs == jobs
