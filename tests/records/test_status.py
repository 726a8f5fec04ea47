from __future__ import annotations

import json
import os
import socket
import sys

import pytest

from building import CREATED, RunOnDisk, a_failure, an_ending
from fake_scheduler import FakeScheduler
from serried.records import index
from serried.records.record import Record, records_directory
from serried.records.status import element_of, statuses
from serried.schedulers.interface import Job

NOW = CREATED + 3600


@pytest.fixture
def make(tmp_path):
    return lambda *arguments, **options: RunOnDisk(tmp_path / "scratch", *arguments, **options)


@pytest.fixture
def slurm():
    return FakeScheduler()


def stand(slurm, *runs, now=NOW):
    return statuses([Record.load(run.plan.run) for run in runs], slurm, now=now)


def the(slurm, run, now=NOW):
    return stand(slurm, run, now=now)[0]


class Opens:
    """Counts opens and listings of files below one folder."""

    def __init__(self):
        self.folder, self.opened, self.listed = None, [], []
        sys.addaudithook(self._hook)

    def _hook(self, event, arguments):
        if self.folder is None or event not in ("open", "os.listdir", "os.scandir"):
            return
        path = os.fspath(arguments[0]) if isinstance(arguments[0], str | os.PathLike) else ""
        if str(path).startswith(self.folder):
            (self.opened if event == "open" else self.listed).append(str(path))

    def __call__(self, folder):
        self.folder, self.opened, self.listed = str(folder), [], []
        return self


OPENS = Opens()


def test_a_finished_run_is_known_from_files_and_the_scheduler_is_not_asked(make, slurm):
    run = make().ending()

    status = the(slurm, run)

    assert (status.state, status.verdict.exit_code, status.seconds) == ("COMPLETED", 0, 600.0)
    assert status.attempt == 1
    assert status.node_names == ("n1", "n2")
    assert slurm.polls == []


def test_the_first_reader_copies_the_end_so_that_a_purge_takes_nothing(make, slurm):
    run = make().ending("FAILED", exit_code=3)
    before = the(slurm, run)
    for path in sorted(run.where.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()

    after = the(slurm, run)

    assert after.to_json() == before.to_json()
    assert json.loads(run.record.directory.exit.read_text())["summary"]["name"] == "train"


def test_a_thousand_finished_runs_cost_one_listing_and_one_file_each(make, slurm):
    for number in range(1000):
        run = make(
            "a" + "bcdefghjkm"[number // 100] + "bcdefghjkm"[number // 10 % 10] + "bcdefghjkm"[number % 10] + "22"
        )
        run.record.write_end(an_ending(run.plan.run))
    opens = OPENS(records_directory())

    found = statuses(index.records(), slurm, now=NOW)

    opens.folder = None
    assert {status.state for status in found} == {"COMPLETED"}
    assert len(opens.listed) == 1
    assert len(opens.opened) == 1000
    assert len(set(opens.opened)) == 1000
    assert slurm.polls == []


def test_all_live_runs_are_asked_about_in_one_question(make, slurm):
    runs = [make("abcdef", job="1"), make("bbcdef", job="2"), make("cbcdef", job="3").ending()]
    slurm.tell(Job("1", None, "RUNNING", nodes=("n1", "n2")))
    slurm.tell(Job("2", None, "PENDING", reason="Priority", starts=NOW + 60))

    found = stand(slurm, *runs)

    assert [status.state for status in found] == ["RUNNING", "PENDING", "COMPLETED"]
    assert slurm.polls == [("1", "2")]
    assert (found[1].reason, found[1].starts) == ("Priority", NOW + 60)
    assert found[0].node_names == ("n1", "n2")


def test_an_attempt_that_was_requeued_waits_or_runs_as_the_scheduler_says(make, slurm):
    run = make().ending("REQUEUED", cause="limit", final=False)
    slurm.tell(Job("123", None, "PENDING", reason="BeginTime"))

    status = the(slurm, run)

    assert (status.state, status.verdict.message, status.attempt) == ("PENDING", "waits for attempt 2", 1)
    slurm.tell(Job("123", None, "RUNNING"))
    assert the(slurm, run).state == "RUNNING"


def test_the_end_of_the_last_attempt_counts_even_if_nobody_wrote_the_runs_own(make, slurm):
    run = make().ending("FAILED", final=False)
    assert the(slurm, run).state == "FAILED"
    assert slurm.polls == []


def test_the_end_of_an_earlier_attempt_does_not_count(make, slurm):
    run = make().ending("FAILED", final=False)
    run.attempt(2, started=NOW - 30)
    slurm.tell(Job("123", None, "RUNNING"))

    status = the(slurm, run)

    assert (status.state, status.attempt, status.started) == ("RUNNING", 2, NOW - 30)


def test_a_job_that_the_scheduler_forgot_is_lost_90_seconds_after_it_was_first_missed(make, slurm):
    run = make()
    assert the(slurm, run).state == "UNKNOWN"
    assert the(slurm, run, NOW + 90).state == "UNKNOWN"

    status = the(slurm, run, NOW + 91)

    assert (status.state, status.verdict.exit_code) == ("LOST", None)
    assert not run.record.directory.exit.exists()


def test_an_exit_json_that_appears_late_mends_a_lost_run(make, slurm):
    run = make()
    the(slurm, run)
    assert the(slurm, run, NOW + 91).state == "LOST"
    run.ending()
    assert the(slurm, run, NOW + 200).state == "COMPLETED"


def test_a_run_that_stays_lost_for_a_day_is_not_asked_about_again(make, slurm):
    run = make()
    the(slurm, run)
    assert the(slurm, run, NOW + 90_000).state == "LOST"
    polls = len(slurm.polls)
    assert the(slurm, run, NOW + 90_001).state == "LOST"
    assert len(slurm.polls) == polls


def test_a_run_directory_that_is_gone_is_said_to_be_gone(make, slurm):
    run = make()
    run.where.path.rmdir()
    assert the(slurm, run).verdict.message == (
        "the scheduler does not know it; waiting for its exit.json; its run directory is gone"
    )


def test_what_the_scheduler_said_survives_its_forgetting(make, slurm):
    run = make()
    slurm.tell(Job("123", None, "NODE_FAIL", ended=NOW - 5))
    assert the(slurm, run).state == "NODE_FAIL"
    slurm.jobs.clear()

    status = the(slurm, run, NOW + 400)

    assert (status.state, status.verdict.exit_code) == ("NODE_FAIL", 71)
    assert Record.load("k3f9q2").end["state"] == "NODE_FAIL"


def test_an_unreachable_scheduler_leaves_the_last_known_state_with_its_time(make, slurm):
    run = make()
    slurm.tell(Job("123", None, "PENDING", reason="Resources"))
    the(slurm, run)
    slurm.answers = False

    status = the(slurm, run, NOW + 500)

    assert (status.state, status.verdict.stale) == ("PENDING", NOW)


def test_an_unreachable_scheduler_and_no_memory_is_unknown_because_of_it(make, slurm):
    slurm.answers = False
    verdict = the(slurm, make()).verdict
    assert (verdict.state, verdict.cause) == ("UNKNOWN", "unreachable")


def test_a_scheduler_that_this_machine_lacks_does_not_break_a_listing(make):
    run = make(scheduler="pbs")
    assert statuses([run.record], now=NOW)[0].verdict.cause == "unreachable"


def test_out_of_memory_by_the_scheduler_explains_a_rank_killed_by_signal_9(make, slurm):
    run = make().ending("FAILED", exit_code=137, cause="signal", first_failure=a_failure(exit_code=None, signal=9))
    slurm.tell(Job("123", None, "OUT_OF_MEMORY", ended=NOW))

    status = the(slurm, run)

    assert (status.state, status.verdict.cause) == ("OUT_OF_MEMORY", "out-of-memory")
    end = Record.load("k3f9q2").end
    assert (end["state"], end["first_failure"]["rank"]) == ("OUT_OF_MEMORY", 3)


def test_a_cancelled_end_becomes_a_timeout_when_the_scheduler_says_so(make, slurm):
    run = make().ending("CANCELLED", exit_code=143, cause="cancel")
    slurm.tell(Job("123", None, "TIMEOUT", ended=NOW))
    assert the(slurm, run).state == "TIMEOUT"


def test_a_submission_in_progress_is_submitting_while_its_process_lives(make, slurm):
    run = make(job=None).submit("submitting", pid=os.getpid(), host=socket.gethostname())
    assert the(slurm, run).state == "SUBMITTING"


def test_a_submission_whose_process_died_is_uncertain(make, slurm):
    run = make(job=None).submit("submitting", pid=2**22 + 1)
    assert the(slurm, run).state == "UNCERTAIN"
    assert slurm.polls == []


def test_a_submission_on_another_login_node_is_believed_for_five_minutes(make, slurm):
    run = make(job=None).submit("submitting", pid=os.getpid(), host="login-9")
    assert the(slurm, run, CREATED + 100).state == "SUBMITTING"
    assert the(slurm, run, CREATED + 400).state == "UNCERTAIN"


def test_a_refused_submission_is_a_failed_launch_with_the_schedulers_words(make, slurm):
    run = make(job=None).submit("failed", message="invalid partition")
    verdict = the(slurm, run).verdict
    assert (verdict.state, verdict.cause, verdict.message) == ("LAUNCH_FAILED", "submission", "invalid partition")


def test_a_later_submission_that_was_refused_does_not_hide_the_one_that_runs(make, slurm):
    run = make().link(2, None, state="failed")
    slurm.tell(Job("123", None, "RUNNING"))
    assert the(slurm, run).state == "RUNNING"


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


def test_a_job_that_was_left_behind_is_not_asked_about_again(make, slurm):
    run = make().link(2, "124").link(3, "125").ending("REQUEUED", cause="limit", final=False)
    in_jobs(slurm, job123="FAILED", job124="RUNNING", job125="PENDING")
    the(slurm, run)

    the(slurm, run)

    assert slurm.polls == [("123", "124", "125"), ("124", "125")]


def test_an_attempt_that_was_interrupted_and_waits_for_the_next_is_pending(make, slurm):
    run = make().link(2, "124").ending("REQUEUED", cause="node-lost", final=False)
    in_jobs(slurm, job123="NODE_FAIL", job124="PENDING")
    assert the(slurm, run).verdict.message == "waits for attempt 2"


def test_each_element_stands_as_its_own_jobs_do(make, slurm):
    run = make(indices=range(3)).link(2, "130", element=1)
    run.ending("REQUEUED", element=1, cause="limit", final=False)
    for job in (Job("123", 0, "RUNNING"), Job("123", 1, "FAILED"), Job("130", 1, "PENDING"), Job("123", 2, "PENDING")):
        slurm.tell(job)

    status = the(slurm, run)

    assert status.to_json()["elements"] == {"RUNNING": "0", "PENDING": "1-2"}
    assert (status.jobs[1].id, len(slurm.polls)) == ("130", 1)


def test_records_that_cannot_be_read_are_shown_as_such_beside_the_others(make, slurm):
    torn, newer, good = make("abcdef"), make("bbcdef"), make("cbcdef").ending()
    torn.record.directory.plan.write_text('{"schema": 1, "na')
    newer.record.directory.plan.write_text('{"schema": 99}')

    found = stand(slurm, torn, newer, good)

    assert [(status.state, status.verdict.cause) for status in found] == [
        ("UNKNOWN", "unreadable"),
        ("UNKNOWN", "unreadable"),
        ("COMPLETED", None),
    ]
    assert found[1].verdict.message == "plan.json of run `bbcdef` has schema 99; this Serried reads up to 1"
    assert all(status.to_json() for status in found)


@pytest.mark.parametrize("torn", ["", "{", '{"state": "COMPLE', "[]", "\x00" * 64])
def test_a_torn_exit_json_is_a_missing_one(make, slurm, torn):
    run = make()
    run.where.exit.write_text(torn)
    slurm.tell(Job("123", None, "COMPLETED", ended=NOW - 10))
    assert the(slurm, run).state == "UNKNOWN"


@pytest.mark.parametrize(
    "garbage", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "at": 1, "jobs": 3}', '{"schema": 9}']
)
def test_a_memory_that_makes_no_sense_is_no_memory(make, slurm, garbage):
    run = make()
    (run.record.directory.path / "seen.json").write_text(garbage)
    slurm.tell(Job("123", None, "RUNNING"))
    assert the(slurm, run).state == "RUNNING"


def test_a_read_only_record_still_tells(make, slurm, monkeypatch):
    run = make().ending()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("serried.records.record.write_json", full)
    assert the(slurm, run).state == "COMPLETED"


class TestArrays:
    def test_elements_are_judged_one_by_one_and_the_array_by_all(self, make, slurm):
        run = make(indices=range(5)).ending(element=0).ending("FAILED", element=1, exit_code=3)
        run.attempt(element=2)
        slurm.tell(Job("123", 2, "RUNNING", nodes=("n4",)))
        slurm.tell(Job("123", 3, "PENDING", reason="JobArrayTaskLimit"))
        slurm.tell(Job("123", 4, "PENDING", reason="JobArrayTaskLimit"))

        status = the(slurm, run)

        assert status.state == "RUNNING"
        assert status.to_json()["elements"] == {"COMPLETED": "0", "FAILED": "1", "RUNNING": "2", "PENDING": "3-4"}
        assert element_of(status, 1).verdict.exit_code == 3
        assert element_of(status, 2).node_names == ("n4",)
        assert element_of(status, 3).reason == "JobArrayTaskLimit"

    def test_the_end_is_failed_if_any_failed_and_names_the_first(self, make, slurm):
        run = make(indices=[0, 1, 2]).ending(element=0)
        run.ending("FAILED", element=2, exit_code=7).ending("CANCELLED", element=1, cause="user")

        status = the(slurm, run)

        assert (status.state, status.verdict.exit_code) == ("FAILED", 7)
        assert status.verdict.message == "2 of 3 elements did not complete; the first is 2"
        assert slurm.polls == []
        assert Record.load("k3f9q2").end["elements"] == {"COMPLETED": "0", "CANCELLED": "1", "FAILED": "2"}

    def test_an_ended_array_answers_for_its_elements_after_a_purge(self, make, slurm):
        run = make(indices=[0, 1]).ending(element=0).ending("FAILED", element=1)
        the(slurm, run)
        run.record.directory.where.write_text("/purged\n")
        again = the(slurm, run)
        assert [element_of(again, index).state for index in (0, 1)] == ["COMPLETED", "FAILED"]

    def test_elements_waiting_behind_finished_ones_keep_the_array_running(self, make, slurm):
        run = make(indices=[0, 1]).ending(element=0)
        slurm.tell(Job("123", 1, "PENDING"))
        assert the(slurm, run).state == "RUNNING"

    def test_an_array_of_which_nothing_began_is_pending(self, make, slurm):
        run = make(indices=[0, 1])
        for index_ in (0, 1):
            slurm.tell(Job("123", index_, "PENDING"))
        assert the(slurm, run).state == "PENDING"

    def test_an_element_that_vanished_is_lost_on_its_own_clock(self, make, slurm):
        run = make(indices=[0, 1])
        slurm.tell(Job("123", 0, "RUNNING"))
        assert the(slurm, run).elements[1].state == "UNKNOWN"
        late = the(slurm, run, NOW + 91)
        assert (late.state, late.elements[1].state, late.elements[0].state) == ("RUNNING", "LOST", "RUNNING")

    def test_elements_that_the_queue_may_have_forgotten_are_asked_about_by_themselves(self, make, slurm):
        run = make(indices=range(100))
        run.attempt(element=7)
        for index_ in range(1, 100):
            slurm.tell(Job("123", index_, "PENDING"))
        the(slurm, run)
        the(slurm, run, NOW + 10)
        assert slurm.polls == [("123", "123_7"), ("123", "123_0", "123_7")]
        assert slurm.since == CREATED + 1

    def test_a_big_array_reads_each_finished_element_once_in_its_life(self, make, slurm):
        run = make(indices=range(1000))
        for index_ in range(100):
            run.ending(element=index_)
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
        assert status.to_json()["elements"] == {"COMPLETED": "0-99", "PENDING": "100-999"}


def test_another_clusters_job_of_the_same_id_says_nothing_of_a_run(make, slurm):
    """Two clusters that share a home, or one lab after another, give out the same ids."""
    run, array = make(), make("m4d8wz", indices=(4, 6))
    slurm.tell(Job("123", None, "FAILED", name="somebodys-work"))

    found = stand(slurm, run, array)

    assert [(one.state, one.has_ended, one.is_elsewhere) for one in found] == [("UNKNOWN", False, True)] * 2
    assert found[0].to_json()["message"] == (
        "the scheduler that answers here has a job of another name under its id: it was submitted to another cluster"
    )


def test_a_job_by_a_name_of_the_run_is_its_own(make, slurm):
    run = make()
    slurm.tell(Job("123", None, "PENDING", name=f"train-{run.plan.run}-1"))

    assert (the(slurm, run).state, the(slurm, run).is_elsewhere) == ("PENDING", False)
