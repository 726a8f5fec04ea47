from __future__ import annotations

import pytest

from serried.cli import run_view
from serried.records import status as standing
from serried.schedulers.interface import Job
from standing import stand, the


def in_jobs(slurm, **states):
    for job, state in states.items():
        slurm.tell(Job(job.removeprefix("job"), None, state))


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({"job123": "RUNNING", "job124": "PENDING"}, ("RUNNING", "123")),
        ({"job123": "FAILED", "job124": "PENDING"}, ("PENDING", "124")),
        ({"job123": "NODE_FAIL", "job124": "RUNNING"}, ("RUNNING", "124")),
        ({"job124": "PENDING"}, ("PENDING", "124")),
        ({"job123": "CANCELLED", "job124": "PENDING"}, ("CANCELLED", "123")),
        ({"job123": "FAILED", "job124": "CANCELLED"}, ("CANCELLED", "124")),
    ],
)
def test_a_run_stands_as_the_first_of_its_jobs_that_has_not_ended_and_one_question_tells(make, slurm, states, expected):
    run = make().link(2, "124").ending("REQUEUED", cause="limit", final=False)
    in_jobs(slurm, **states)

    status = the(slurm, run)

    assert ((status.state, status.job), len(slurm.polls)) == (expected, 1)
    assert status.verdict.message == ("waits for attempt 2" if status.state == "PENDING" else status.verdict.message)


def test_a_job_that_was_left_behind_is_not_asked_about_again(make, slurm):
    run = make().link(2, "124").link(3, "125").ending("REQUEUED", cause="limit", final=False)
    in_jobs(slurm, job123="FAILED", job124="RUNNING", job125="PENDING")
    the(slurm, run)
    the(slurm, run)
    assert slurm.polls == [("123", "124", "125"), ("124", "125")]


def test_another_clusters_job_of_the_same_id_says_nothing_of_a_run(make, slurm):
    """Two clusters that share a home, or one lab after another, give out the same ids."""
    run, array = make(), make("m4d8wz", indices=(4, 6))
    slurm.tell(Job("123", None, "FAILED", name="somebodys-work"))

    found = stand(slurm, run, array)

    assert [(one.state, one.has_ended, one.is_elsewhere) for one in found] == [("UNKNOWN", False, True)] * 2
    assert found[0].to_json()["message"] == (
        "the scheduler that answers here has a job of another name under its id: it was submitted to another cluster"
    )
    assert found[0].verdict.cause == "elsewhere"
    run_view.insist(found[:1])  # the scheduler has answered: readers exit with 0


def test_a_cluster_of_another_name_is_not_asked_for_a_job(make, slurm, monkeypatch):
    """Jobs that it has forgotten would seem lost, as it never had them."""
    run = make()
    (submission,) = run.record.submissions
    run.record.write_submission(submission._replace(site="fir"))
    monkeypatch.setattr(standing, "_site_here", lambda _scheduler: "narval")

    found = the(slurm, run)

    assert (found.state, found.has_ended, found.is_elsewhere, slurm.polls) == ("UNKNOWN", False, True, [])
    assert found.verdict.cause == "elsewhere"
    assert found.verdict.message == "it was submitted to `fir`, and another scheduler answers here"
    monkeypatch.setattr(standing, "_site_here", lambda _scheduler: "fir")
    slurm.tell(Job("123", None, "PENDING", name=f"train-{run.plan.run}-1"))
    assert (the(slurm, run).state, the(slurm, run).is_elsewhere) == ("PENDING", False)


def test_a_run_in_the_foreground_of_another_machine_is_what_it_was_when_it_began(make, slurm, monkeypatch):
    """As `serried run` on a node of a job, seen from the login node: this machine's queue never had it."""
    run = make().journal({"t": 1.0, "event": "claimed"})
    (submission,) = run.record.submissions
    run.record.write_submission(submission._replace(site="n17"))
    monkeypatch.setattr(standing, "_site_here", lambda _scheduler: "login1")

    found = the(slurm, run)

    assert (found.state, found.has_ended, found.verdict.stale is None, slurm.polls) == ("RUNNING", False, False, [])
    run.ending("COMPLETED")
    assert the(slurm, run).state == "COMPLETED"


@pytest.fixture
def meanwhile(slurm, monkeypatch):
    """`meanwhile(act)`: what happens after the files were read and before the scheduler answers."""

    def happen(act):
        poll = slurm.poll

        def act_and_answer(*arguments):
            monkeypatch.setattr(slurm, "poll", poll)
            act()
            return poll(*arguments)

        monkeypatch.setattr(slurm, "poll", act_and_answer)

    return happen


def test_an_end_between_a_look_at_the_files_and_the_schedulers_answer_is_told_by_its_exit_json(make, slurm, meanwhile):
    run = make()

    def end():
        run.ending("FAILED", exit_code=85)
        slurm.tell(Job("123", None, "FAILED", exit_code=1))

    meanwhile(end)
    verdict = the(slurm, run).verdict
    assert (verdict.state, verdict.exit_code, verdict.cause) == ("FAILED", 85, "exit")


def test_a_preempted_run_that_has_completed_meanwhile_is_not_called_cancelled_for_good(make, slurm, meanwhile):
    run = make().ending("CANCELLED", exit_code=143, cause="cancel")

    def complete():
        run.ending(number=2)
        slurm.tell(Job("123", None, "COMPLETED"))

    meanwhile(complete)
    assert [the(slurm, run).state for _ in range(2)] == ["COMPLETED"] * 2


def test_a_run_that_went_on_in_a_further_job_meanwhile_has_not_failed(make, slurm, meanwhile):
    run = make()

    def go_on():
        run.link(2, "124").ending("REQUEUED", cause="limit", final=False)
        in_jobs(slurm, job123="FAILED", job124="RUNNING")

    meanwhile(go_on)
    status = the(slurm, run)
    assert (status.state, status.job, slurm.polls) == ("RUNNING", "124", [("123",), ("123", "124")])


def test_a_task_that_ended_meanwhile_is_told_by_its_exit_json(make, slurm, meanwhile):
    run = make(indices=range(2))
    slurm.tell(Job("123", 0, "RUNNING"))

    def end():
        run.ending("FAILED", task=1, exit_code=85)
        slurm.tell(Job("123", 1, "FAILED", exit_code=1))

    meanwhile(end)
    verdicts = the(slurm, run).tasks
    assert [(verdicts[index].state, verdicts[index].exit_code) for index in (0, 1)] == [
        ("RUNNING", None),
        ("FAILED", 85),
    ]


def test_a_scheduler_that_is_silent_about_a_further_job_leaves_open_how_the_run_stands(make, slurm, meanwhile):
    run = make()

    def go_on():
        run.link(2, "124").ending("REQUEUED", cause="limit", final=False)
        in_jobs(slurm, job123="FAILED", job124="RUNNING")
        meanwhile(lambda: setattr(slurm, "answers", False))

    meanwhile(go_on)
    assert the(slurm, run).has_ended is False
