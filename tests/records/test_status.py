from __future__ import annotations

import json
import os
import socket
import subprocess
from collections import Counter

from building import CREATED, a_failure, an_ending
from serried.base import linux, processes
from serried.records import index, status
from serried.records.record import Record, records_directory
from serried.records.status import statuses
from serried.schedulers.interface import Job
from serried.schema.endings import End
from standing import NOW, OPENS, stand, statuses_by, the


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


def test_finished_runs_cost_one_listing_and_one_file_each_however_many_they_are(make, slurm):
    for number in range(60):
        run = make("a" + "bcdefghjkm"[number // 10] + "bcdefghjkm"[number % 10] + "222")
        run.record.write_end(End.of(an_ending(run.plan.run)))
        if number + 1 not in (15, 60):
            continue
        opens = OPENS(records_directory())

        found = statuses_by(slurm, index.records())

        opens.folder = None
        assert {status.state for status in found} == {"COMPLETED"}
        assert len(opens.listed) == 1
        assert len(opens.opened) == len(set(opens.opened)) == number + 1
        assert slurm.polls == []


def test_a_waiting_run_costs_nine_calls_the_second_time_it_is_seen(make, slurm):
    run = make(job="1")
    slurm.tell(Job("1", None, "PENDING", reason="Priority"))
    the(slurm, run)
    record, place = records_directory() / run.plan.run, run.where.path
    opens = OPENS(os.path.commonpath((record, place)))

    statuses_by(slurm, index.records())

    opens.folder = None
    assert Counter(opens.opened) == {
        f"{record}/exit.json": 1,
        f"{record}/plan.json": 1,
        f"{record}/seen.json": 1,
        f"{record}/where": 1,
        f"{record}/submissions/1.json": 1,
        f"{place}/exit.json": 1,
    }
    assert sorted(opens.listed) == sorted(map(str, (records_directory(), place / "attempts", place / "links")))


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
    run.attempt(2, started=NOW - 30)
    slurm.tell(Job("123", None, "RUNNING"))
    status = the(slurm, run)
    assert (status.state, status.attempt, status.started) == ("RUNNING", 2, NOW - 30)
    other = make("abcdef").ending("FAILED", final=False)
    polls = len(slurm.polls)
    assert the(slurm, other).state == "FAILED"
    assert len(slurm.polls) == polls


def test_a_job_that_the_scheduler_forgot_is_lost_90_seconds_after_it_was_first_missed(make, slurm):
    run, other = make(), make("abcdef", job="124")
    assert the(slurm, run).state == the(slurm, other).state == "UNKNOWN"
    assert the(slurm, run, NOW + 90).state == "UNKNOWN"
    status = the(slurm, run, NOW + 91)
    assert (status.state, status.verdict.exit_code) == ("LOST", None)
    assert not run.record.directory.exit.exists()
    run.ending()  # an exit.json that appears late mends it
    assert the(slurm, run, NOW + 200).state == "COMPLETED"
    assert the(slurm, other, NOW + 90_000).state == "LOST"  # for a day: it is not asked about again
    polls = len(slurm.polls)
    assert the(slurm, other, NOW + 90_001).state == "LOST"
    assert len(slurm.polls) == polls


def test_a_run_directory_that_is_gone_is_said_to_be_gone(make, slurm):
    run = make()
    run.where.path.rmdir()
    assert the(slurm, run).verdict.message == (
        "the scheduler does not list it; waiting for its exit.json; its run directory is gone"
    )


def test_what_the_scheduler_said_survives_its_forgetting(make, slurm):
    run = make()
    slurm.tell(Job("123", None, "NODE_FAIL", ended=NOW - 5))
    assert the(slurm, run).state == "NODE_FAIL"
    slurm.jobs.clear()

    status = the(slurm, run, NOW + 400)

    assert (status.state, status.verdict.exit_code) == ("NODE_FAIL", 71)
    assert Record.load("k3f9q2").end.state == "NODE_FAIL"


def test_an_unreachable_scheduler_leaves_the_last_known_state_with_its_time(make, slurm):
    run = make()
    slurm.tell(Job("123", None, "PENDING", reason="Resources"))
    the(slurm, run)
    slurm.answers = False
    status, unknown = stand(slurm, run, make("abcdef"), now=NOW + 500)
    assert (status.state, status.verdict.stale) == ("PENDING", NOW)
    assert (unknown.state, unknown.verdict.cause) == ("UNKNOWN", "unreachable")


def test_a_scheduler_that_this_machine_lacks_does_not_break_a_listing(make):
    run = make(scheduler="pbs")
    assert statuses([run.record], now=NOW)[0].verdict.cause == "unreachable"


def test_out_of_memory_by_the_scheduler_explains_a_rank_killed_by_signal_9(make, slurm):
    run = make().ending("FAILED", exit_code=137, cause="signal", first_failure=a_failure(exit_code=None, signal=9))
    slurm.tell(Job("123", None, "OUT_OF_MEMORY", ended=NOW))

    status = the(slurm, run)

    assert (status.state, status.verdict.cause) == ("OUT_OF_MEMORY", "out-of-memory")
    end = Record.load("k3f9q2").end
    assert (end.state, end.first_failure.rank) == ("OUT_OF_MEMORY", 3)


def test_a_cancelled_end_becomes_a_timeout_when_the_scheduler_says_so(make, slurm):
    run = make().ending("CANCELLED", exit_code=143, cause="cancel")
    slurm.tell(Job("123", None, "TIMEOUT", ended=NOW))
    assert the(slurm, run).state == "TIMEOUT"


def test_a_submission_in_progress_is_believed_while_its_command_may_live(make, slurm):
    me, here = processes.myself(), socket.gethostname()
    for run, command, state in (
        ("abcdef", {"pid": me.pid, "started": me.started, "host": here}, "SUBMITTING"),
        ("bbcdef", {"pid": me.pid}, "SUBMITTING"),  # it does not say when it started
        ("cbcdef", {"pid": me.pid, "started": "1", "host": here}, "UNCERTAIN"),  # another process has its pid
        ("dbcdef", {"pid": 2**22 + 1}, "UNCERTAIN"),
    ):
        assert (run, the(slurm, make(run, job=None).submit("submitting", **command)).state) == (run, state)
    assert slurm.polls == []
    elsewhere = make(job=None).submit("submitting", pid=me.pid, host="login-9")
    assert the(slurm, elsewhere, CREATED + 100).state == "SUBMITTING"
    assert the(slurm, elsewhere, CREATED + 400).state == "UNCERTAIN"


def test_a_submission_whose_process_is_a_zombie_is_uncertain(make, slurm, wait_until):
    with subprocess.Popen(["sleep", "infinity"]) as process:
        started = processes.identify(process.pid).started
        run = make(job=None).submit("submitting", pid=process.pid, started=started, host=socket.gethostname())
        assert the(slurm, run).state == "SUBMITTING"
        process.kill()
        wait_until(lambda: linux.stat(process.pid)[0] == "Z")
        assert the(slurm, run).state == "UNCERTAIN"


def test_a_command_that_ends_while_one_looks_has_submitted(make, slurm, monkeypatch):
    run = make(job=None).submit("submitting", pid=os.getpid())
    slurm.tell(Job("123", None, "PENDING"))

    def end(*_):
        run.submit("submitted", job="123")
        return False

    monkeypatch.setattr(status, "is_at_work", end)
    assert the(slurm, run).state == "PENDING"


def test_a_refused_submission_is_a_failed_launch_with_the_schedulers_words(make, slurm):
    run = make(job=None).submit("failed", message="invalid partition")
    verdict = the(slurm, run).verdict
    assert (verdict.state, verdict.cause, verdict.message) == ("LAUNCH_FAILED", "submission", "invalid partition")


def test_a_later_submission_that_was_refused_does_not_hide_the_one_that_runs(make, slurm):
    run = make().link(2, None, state="failed")
    slurm.tell(Job("123", None, "RUNNING"))
    assert the(slurm, run).state == "RUNNING"


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
    assert found[1].verdict.message == "plan.json of run `bbcdef` has schema 99; this Serried reads 1"
    assert all(status.to_json() for status in found)


def test_a_torn_exit_json_is_a_missing_one(make, slurm):
    run = make()
    slurm.tell(Job("123", None, "COMPLETED", ended=NOW - 10))
    for torn in ("", "{", '{"state": "COMPLE', "[]", "\x00" * 64):
        run.where.exit.write_text(torn)
        assert (torn, the(slurm, run).state) == (torn, "UNKNOWN")


def test_a_memory_that_makes_no_sense_is_no_memory(make, slurm):
    run = make()
    slurm.tell(Job("123", None, "RUNNING"))
    for garbage in ("", "{", "[]", '{"schema": 1}', '{"schema": 1, "at": 1, "jobs": 3}', '{"schema": 9}'):
        (run.record.directory.path / "seen.json").write_text(garbage)
        assert (garbage, the(slurm, run).state) == (garbage, "RUNNING")


def test_a_read_only_record_still_tells(make, slurm, monkeypatch):
    run = make().ending()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("serried.records.record.write_json", full)
    assert the(slurm, run).state == "COMPLETED"
