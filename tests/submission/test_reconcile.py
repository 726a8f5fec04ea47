import os
import stat
import time

import pytest

from serried.base import files, processes
from serried.base.errors import SchedulerUnreachable, SubmissionUncertain, UsageError
from serried.base.text import seconds_of
from serried.records import status
from serried.records.index import records
from serried.schema.names import WITHDRAWN
from serried.submission import reconcile as reconciling
from serried.submission.deliver import deliver
from serried.submission.reconcile import forget, reconcile

NEVER = 4_194_305
"""No pid is as high."""


@pytest.fixture
def uncertain(ask, scheduler):
    """A run whose submission got no answer; nothing was accepted."""
    scheduler.accepts, scheduler.raises = False, SubmissionUncertain("no answer")
    with pytest.raises(SubmissionUncertain):
        deliver(ask())
    (record,) = records()
    return record


@pytest.fixture
def killed(uncertain):
    """The same, but the command that submitted was killed while it asked."""
    submission = uncertain.submissions[0]._replace(state="submitting", by_pid=NEVER, message=None)
    uncertain.write_submission(submission)
    return uncertain


def stands(record):
    (submission,) = record.submissions
    return submission.state, submission.job


def token(record):
    return record.submissions[0].token


def test_a_job_that_the_scheduler_knows_is_adopted(uncertain, scheduler):
    scheduler.jobs[token(uncertain)] = "17"
    assert reconcile(uncertain)
    assert stands(uncertain) == ("submitted", "17")


def test_a_job_that_has_claimed_its_run_is_adopted_without_asking_anybody(killed, scheduler):
    scheduler.find_raises = AssertionError("asked")
    files.claim(killed.where.claim(token(killed)), "18")
    assert reconcile(killed)
    assert stands(killed) == ("submitted", "18")


def test_a_cluster_of_another_name_cannot_say_that_a_job_is_not_there(uncertain, scheduler, monkeypatch):
    uncertain.write_submission(uncertain.submissions[0]._replace(site="fir", missed=time.time() - 9999))
    monkeypatch.setattr(status, "_site_here", lambda _scheduler: "narval")
    scheduler.find_raises = AssertionError("asked")
    assert not reconcile(uncertain)
    assert (stands(uncertain)[0], uncertain.submissions[0].message) == ("uncertain", "submitted on cluster `fir`")
    assert not uncertain.where.claim(token(uncertain)).exists()


def test_a_command_that_ends_while_one_looks_keeps_its_word(killed, scheduler, monkeypatch):
    scheduler.find_raises = SchedulerUnreachable("not now")

    def end(submission, _):
        killed.write_submission(submission._replace(state="submitted", job="17"))
        return False

    monkeypatch.setattr(reconciling, "is_at_work", end)
    assert reconcile(killed)
    assert stands(killed) == ("submitted", "17")


def test_a_command_still_at_work_is_left_alone(killed, scheduler):
    me = processes.myself()
    killed.write_submission(killed.submissions[0]._replace(by_pid=me.pid, by_started=me.started))
    scheduler.find_raises = AssertionError("asked")
    reconcile(killed)
    assert stands(killed) == ("submitting", None)


def test_a_command_whose_pid_another_process_has_now_can_be_forgotten(killed):
    killed.write_submission(killed.submissions[0]._replace(by_pid=os.getpid(), by_started="1"))
    assert forget(killed) is None
    assert stands(killed) == ("failed", None)


def test_one_look_and_looks_soon_after_each_other_or_the_submission_prove_nothing(killed):
    assert not reconcile(killed, time.time() + 1000)
    assert stands(killed) == ("uncertain", None)
    now = seconds_of(killed.submissions[0].at)
    for looks in ((now + 1000, now + 1001), (now, now + 10)):
        killed.write_submission(killed.submissions[0]._replace(missed=None))
        assert [reconcile(killed, moment) for moment in looks] == [False, False]
    assert not killed.where.claim(token(killed)).exists()


def test_after_two_looks_the_claim_is_taken_and_then_it_has_failed(killed):
    now = time.time()
    assert not reconcile(killed, now + 100)
    assert reconcile(killed, now + 200)
    assert stands(killed) == ("failed", None)
    assert killed.where.claim(token(killed)).read_text() == WITHDRAWN
    assert stat.S_IMODE(killed.where.claim(token(killed)).stat().st_mode) == 0o600


def test_a_job_that_starts_between_the_looks_is_adopted(killed):
    now = time.time()
    assert not reconcile(killed, now + 100)
    files.claim(killed.where.claim(token(killed)), "19")
    assert reconcile(killed, now + 200)
    assert stands(killed) == ("submitted", "19")


def test_a_job_accepted_after_all_finds_the_claim_taken(killed, scheduler):
    now = time.time()
    reconcile(killed, now + 100)
    reconcile(killed, now + 200)
    scheduler.jobs[token(killed)] = "20"
    assert files.claim(killed.where.claim(token(killed)), "20") == WITHDRAWN
    assert reconcile(killed, now + 300)
    assert stands(killed) == ("failed", None)


def test_a_scheduler_that_does_not_answer_decides_nothing(killed, scheduler):
    scheduler.find_raises = SchedulerUnreachable("away")
    for later in (100, 200, 300):
        assert not reconcile(killed, time.time() + later)
    assert stands(killed) == ("uncertain", None)
    assert not killed.where.claim(token(killed)).exists()


def test_a_command_killed_before_it_made_the_run_directory_has_failed(killed):
    killed.where.job_script.unlink()
    now = time.time()
    reconcile(killed, now + 100)
    assert reconcile(killed, now + 200)
    assert stands(killed) == ("failed", None)


def test_a_root_that_is_not_mounted_decides_nothing(killed, root):
    root.rename(root.with_name("elsewhere"))
    now = time.time()
    for later in (100, 200, 300):
        assert not reconcile(killed, now + later)
    assert stands(killed) == ("uncertain", None)


def test_nothing_is_ever_submitted_again(killed, scheduler):
    scheduler.while_asked = lambda: pytest.fail("submitted again")
    for later in range(0, 500, 50):
        reconcile(killed, time.time() + later)


def test_forget_takes_the_claim_at_once(uncertain):
    assert forget(uncertain) is None
    assert uncertain.where.claim(token(uncertain)).read_text() == WITHDRAWN
    assert stands(uncertain) == ("failed", None)


def test_forget_adopts_a_job_that_runs_after_all(uncertain):
    files.claim(uncertain.where.claim(token(uncertain)), "21")
    assert forget(uncertain) == "21"
    assert stands(uncertain) == ("submitted", "21")


def test_forget_is_for_what_is_uncertain(ask):
    record = deliver(ask())
    with pytest.raises(UsageError, match="no submission of run"):
        forget(record)
