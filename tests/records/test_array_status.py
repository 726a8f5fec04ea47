from __future__ import annotations

from building import CREATED
from serried.records.record import Record
from serried.records.status import task_of
from serried.schedulers.interface import Job
from standing import NOW, OPENS, the


def test_tasks_are_judged_one_by_one_and_the_array_by_all(make, slurm):
    run = make(indices=range(5)).ending(task=0).ending("FAILED", task=1, exit_code=3)
    run.attempt(task=2)
    slurm.tell(Job("123", 2, "RUNNING", nodes=("n4",)))
    slurm.tell(Job("123", 3, "PENDING", reason="JobArrayTaskLimit"))
    slurm.tell(Job("123", 4, "PENDING", reason="JobArrayTaskLimit"))

    status = the(slurm, run)

    assert status.state == "RUNNING"
    assert status.to_json()["tasks"] == {"COMPLETED": "0", "FAILED": "1", "RUNNING": "2", "PENDING": "3-4"}
    assert task_of(status, 1).verdict.exit_code == 3
    assert task_of(status, 2).node_names == ("n4",)
    assert task_of(status, 3).reason == "JobArrayTaskLimit"


def test_the_end_is_failed_if_any_failed_and_names_the_first(make, slurm):
    run = make(indices=[0, 1, 2]).ending(task=0)
    run.ending("FAILED", task=2, exit_code=7).ending("CANCELLED", task=1, cause="user")

    status = the(slurm, run)

    assert (status.state, status.verdict.exit_code) == ("FAILED", 7)
    assert status.verdict.message == "2 of 3 tasks did not complete; the first is 2"
    assert slurm.polls == []
    assert Record.load("k3f9q2").end.tasks == {"COMPLETED": "0", "CANCELLED": "1", "FAILED": "2"}
    run.record.directory.where.write_text("/purged\n")
    again = the(slurm, run)
    assert [task_of(again, index).state for index in range(3)] == ["COMPLETED", "CANCELLED", "FAILED"]


def test_tasks_waiting_behind_finished_ones_keep_the_array_running(make, slurm):
    run, waiting = make(indices=[0, 1]).ending(task=0), make("abcdef", job="124", indices=[0, 1])
    for job, index in (("123", 1), ("124", 0), ("124", 1)):
        slurm.tell(Job(job, index, "PENDING"))
    assert [the(slurm, array).state for array in (run, waiting)] == ["RUNNING", "PENDING"]


def test_a_task_that_vanished_is_lost_on_its_own_clock(make, slurm):
    run = make(indices=[0, 1])
    slurm.tell(Job("123", 0, "RUNNING"))
    assert the(slurm, run).tasks[1].state == "UNKNOWN"
    late = the(slurm, run, NOW + 91)
    assert (late.state, late.tasks[1].state, late.tasks[0].state) == ("RUNNING", "LOST", "RUNNING")


def test_tasks_that_the_queue_may_have_forgotten_are_asked_about_by_themselves(make, slurm):
    run = make(indices=range(100))
    run.attempt(task=7)
    for index_ in range(1, 100):
        slurm.tell(Job("123", index_, "PENDING"))
    the(slurm, run)
    the(slurm, run, NOW + 10)
    assert slurm.polls == [("123", "123_7"), ("123", "123_0", "123_7")]
    assert slurm.since == CREATED + 1


def test_a_big_array_reads_each_finished_task_once_in_its_life(make, slurm):
    run = make(indices=range(1000))
    for index_ in range(100):
        run.ending(task=index_)
    for index_ in range(100, 1000):
        slurm.tell(Job("123", index_, "PENDING"))
    opens = OPENS(run.where.path)
    the(slurm, run)
    first = len(opens.opened), len(opens.listed)
    OPENS(run.where.path)

    status = the(slurm, run)

    OPENS.folder = None
    assert first == (100, 2)
    assert (len(opens.opened), len(opens.listed)) == (0, 2)
    assert status.to_json()["tasks"] == {"COMPLETED": "0-99", "PENDING": "100-999"}


def test_each_task_stands_as_its_own_jobs_do(make, slurm):
    run = make(indices=range(3)).link(2, "130", task=1)
    run.ending("REQUEUED", task=1, cause="limit", final=False)
    for job in (Job("123", 0, "RUNNING"), Job("123", 1, "FAILED"), Job("130", 1, "PENDING"), Job("123", 2, "PENDING")):
        slurm.tell(job)

    status = the(slurm, run)

    assert status.to_json()["tasks"] == {"RUNNING": "0", "PENDING": "1-2"}
    assert (status.jobs[1].id, len(slurm.polls)) == ("130", 1)


def test_a_task_that_began_an_attempt_was_started_whatever_the_scheduler_says(make, slurm):
    run = make(indices=[0, 1])
    run.attempt(task=0)
    for index in (0, 1):
        slurm.tell(Job("123", index, "LAUNCH_FAILED", ended=NOW - 1000))

    status = the(slurm, run)

    assert {index: verdict.state for index, verdict in status.tasks.items()} == {0: "FAILED", 1: "LAUNCH_FAILED"}


def test_a_task_that_began_after_the_last_answer_is_running(make, slurm):
    run = make(indices=[0, 1])
    for index in (0, 1):
        slurm.tell(Job("123", index, "PENDING"))
    the(slurm, run, NOW - 300)
    run.attempt(task=0, started=NOW - 100)
    slurm.answers = False

    status = the(slurm, run)

    assert {index: verdict.state for index, verdict in status.tasks.items()} == {0: "RUNNING", 1: "PENDING"}


def test_a_claim_is_read_only_for_a_task_whose_state_depends_on_it(make, slurm):
    run = make(indices=range(100))
    for index in range(100):
        run.attempt(task=index)
        slurm.tell(Job("123", index, "RUNNING"))
    opens = OPENS(run.where.path)

    the(slurm, run)

    OPENS.folder = None
    assert [path for path in opens.opened if path.endswith("attempt.json")] == []
