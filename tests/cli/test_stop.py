from __future__ import annotations

import io
import json

import pytest

from building import CREATED, as_json
from serried.base.files import claim, make_directory, read_journal
from serried.records import stopping
from serried.schedulers.interface import Job
from serried.schema.successor_commands import Commands
from serried.views import console

NOW = CREATED + 3600


@pytest.fixture(autouse=True)
def _ada(monkeypatch):
    monkeypatch.setattr(stopping, "who", lambda: "ada@login1")


def running(make, slurm, **plan):
    run = make(**plan)
    slurm.tell(Job("123", None, "RUNNING"))
    run.attempt()
    make_directory(run.where.claims)
    claim(run.where.claim("k3f9q2-1"), "123")
    return run


def test_a_running_run_is_asked_through_its_control_file_and_the_scheduler_is_left_alone(serried, make, slurm, clock):
    run = running(make, slurm)
    clock.then = [lambda: run.ending("CANCELLED", exit_code=143, cause="user", message="stopped by ada@login1")]

    done = serried("stop", "-y", "last")

    assert read_journal(run.attempt().control) == [{"t": NOW, "request": "stop", "reason": "user", "by": "ada@login1"}]
    assert done.err == "k3f9q2 train CANCELLED after 10m00s with exit code 143: stopped by ada@login1\n"
    assert (done.code, done.out, slurm.cancelled) == (0, "", [])


def test_save_asks_to_save_first_and_waits_for_the_lead_and_the_grace(serried, make, slurm, clock):
    run = running(make, slurm)

    done = serried("stop", "-y", "--save", "last")

    expected = [{"t": NOW, "request": "stop", "reason": "user", "by": "ada@login1", "save": True}]
    assert read_journal(run.attempt().control) == expected
    assert "warning: k3f9q2 did not end within 105 s; cancelling job 123\n" in done.err
    assert 105 <= clock.passed < 107


def test_one_that_does_not_end_in_time_is_cancelled(serried, make, slurm, clock):
    running(make, slurm)
    done = serried("stop", "-y", "last")
    assert slurm.cancelled == ["123"]
    assert "warning: k3f9q2 did not end within 45 s; cancelling job 123\n" in done.err
    assert 45 <= clock.passed < 47


def test_now_cancels_at_once(serried, make, slurm, clock):
    run = running(make, slurm)
    done = serried("stop", "-y", "--now", "last")
    assert (done.code, slurm.cancelled, clock.passed) == (0, ["123"], 0)
    assert done.err == "cancelled k3f9q2\n"
    assert read_journal(run.attempt().control) == []


def test_what_waits_is_withdrawn_so_that_it_can_never_start(serried, make, slurm):
    run = make()
    slurm.tell(Job("123", None, "PENDING"))

    done = serried("stop", "-y", "last")

    assert slurm.cancelled == ["123"]
    assert run.where.claim("k3f9q2-1").read_text() == "withdrawn"
    assert done.err == "k3f9q2 train CANCELLED with exit code 143: stopped by ada@login1 before it began\n"
    slurm.jobs.clear()
    [shown] = as_json(serried("ps", "--json").out)["runs"]
    assert (shown["state"], shown["cause"]) == ("CANCELLED", "user")


def test_one_that_queued_again_behind_another_run_is_withdrawn_there(serried, make, slurm):
    """The job that was too early has left, and its claim is still its own."""
    run = make().link(2, "124", moved=True)
    make_directory(run.where.claims)
    claim(run.where.claim("k3f9q2-1"), "123")
    slurm.tell(Job("123", None, "COMPLETED"))
    slurm.tell(Job("124", None, "PENDING", reason="Dependency"))

    done = serried("stop", "-y", "last")

    assert run.where.claim("k3f9q2-2").read_text() == "withdrawn"
    assert slurm.cancelled == ["124"]
    assert done.err == "k3f9q2 train CANCELLED with exit code 143: stopped by ada@login1 before it began\n"


@pytest.mark.parametrize(
    ("strands", "words", "deleted", "said"),
    [
        (True, ["train"], [], "warning: m2n3p4 waits for it, and would never start if it were deleted; the job stays"),
        (True, ["train", "later"], ["123", "124"], ""),
        (True, ["--now", "train"], ["123"], ""),
        (False, ["train"], ["123"], ""),
    ],
)
def test_a_job_that_another_run_waits_for_is_not_deleted_where_that_would_strand_it(  # noqa: PLR0917 - fixtures
    serried, make, slurm, monkeypatch, strands, words, deleted, said
):
    run, later = make(), make("m2n3p4", job="124", name="later")
    plan = json.loads(later.record.directory.plan.read_text())
    after = {"run": "k3f9q2", "name": "train", "directory": str(run.where.path), "condition": "ok", "job": "123"}
    later.record.directory.plan.write_text(json.dumps({**plan, "after": [after]}))
    run.where.followed.touch()
    for job in ("123", "124"):
        slurm.tell(Job(job, None, "PENDING"))
    monkeypatch.setattr(slurm, "commands", lambda plan, environment: Commands((), (), (), {}, strands))  # noqa: ARG005

    done = serried("stop", "-y", *words)

    assert sorted(slurm.cancelled) == deleted
    assert run.where.claim("k3f9q2-1").read_text() == "withdrawn"
    assert (said in done.err, "warning" in done.err) == (True, bool(said))


def test_what_waits_is_stopped_even_while_the_scheduler_does_not_answer(serried, make, slurm):
    run = make()
    slurm.tell(Job("123", None, "PENDING"))
    serried("ps")
    slurm.answers = False
    done = serried("stop", "-y", "last")
    assert done.code == 0
    assert run.where.claim("k3f9q2-1").read_text() == "withdrawn"
    assert "the job stays in its queue, and ends itself when it starts" in done.err


def test_a_job_that_waits_for_its_next_attempt_is_cancelled_and_remembered(serried, make, slurm):
    run = running(make, slurm).ending("REQUEUED", final=False)
    slurm.tell(Job("123", None, "PENDING", reason="BeginTime"))
    serried("stop", "-y", "last")
    slurm.jobs.clear()
    assert slurm.cancelled == ["123"]
    assert as_json(serried("ps", "--json").out)["runs"][0]["state"] == "CANCELLED"
    assert run.attempt().exit.exists()


def test_one_task_is_asked_and_the_others_are_not(serried, make, slurm, clock):
    run = make(indices=range(3))
    for task in range(3):
        slurm.tell(Job("123", task, "RUNNING"))
        run.attempt(task=task)
    clock.then = [lambda: run.ending("CANCELLED", task=1, cause="user", exit_code=143)]
    done = serried("stop", "-y", "last/1")
    assert done.err.startswith("k3f9q2/1 train CANCELLED")
    assert [len(read_journal(run.attempt(task=task).control)) for task in range(3)] == [0, 1, 0]
    assert slurm.cancelled == []


def test_an_array_has_its_running_tasks_asked_and_its_waiting_ones_cancelled(serried, make, slurm, clock):
    run = make(indices=range(4)).ending(task=0)
    run.attempt(task=1)
    make_directory(run.where.claims)
    claim(run.where.claim("k3f9q2-1"), "123")
    slurm.tell(Job("123", 1, "RUNNING"))
    for task in (2, 3):
        slurm.tell(Job("123", task, "PENDING"))
    clock.then = [lambda: run.ending("CANCELLED", task=1, cause="user", exit_code=143)]

    done = serried("stop", "-y", "last")

    assert slurm.cancelled == ["123_2", "123_3"]
    assert "k3f9q2 train CANCELLED with exit code 143: 3 of 4 tasks did not complete; the first is 1" in done.err


def test_a_request_that_is_refused_stops_nothing(serried, make, slurm):
    run, both = running(make, slurm), "`--save` and `--now` are mutually exclusive"
    for words, message, hint in (
        ("last", "refusing to stop k3f9q2 (train, RUNNING) without confirmation", "pass `--yes`"),
        ("-y --save --now last", both, "--save gives ranks time, --now gives them none"),
        ("-y k3f9q2 nope", "unknown run: `nope`", "serried ps --all lists them"),
    ):
        done = serried("stop", *words.split())
        assert (done.code, done.err) == (2, f"error: {message}\n\nhint: {hint}\n")
    assert slurm.cancelled == []
    assert read_journal(run.attempt().control) == []


@pytest.mark.parametrize("answer", ["y\n", "yes\n", "\n", "", "no\n", "yesterday\n"])
def test_on_a_terminal_only_yes_is_yes(serried, make, slurm, monkeypatch, answer):
    make()
    slurm.tell(Job("123", None, "PENDING"))
    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    done = serried("stop", "last")
    assert done.err.startswith("stop k3f9q2 (train, PENDING)? [y/N] ")
    assert slurm.cancelled == (["123"] if answer.strip() in {"y", "yes"} else [])


def test_one_that_has_ended_is_no_error(serried, make, slurm):
    make().ending()
    done = serried("stop", "last")
    assert (done.code, done.err, slurm.cancelled) == (0, "k3f9q2 train COMPLETED after 10m00s\n", [])


def test_an_uncertain_run_is_for_forget_and_that_needs_a_terminal_or_yes(serried, make, slurm):
    make(job=None).submit("uncertain")
    uncertain = serried("stop", "-y", "last")
    assert (uncertain.code, "serried stop --forget k3f9q2 gives it up" in uncertain.err, slurm.cancelled) == (
        3,
        True,
        [],
    )
    refused, forgotten = serried("stop", "--forget", "last"), serried("stop", "--forget", "-y", "last")
    refusal = "error: refusing to forget the submission of k3f9q2 without confirmation\n\nhint: pass `--yes`\n"
    assert (refused.code, refused.err) == (2, refusal)
    assert (forgotten.code, forgotten.err) == (0, "forgot k3f9q2: if its job starts after all, it ends itself\n")


def test_no_submission_is_given_up_if_one_of_the_runs_has_none(serried, make):
    uncertain = make("aaaaaa", job=None).submit("uncertain")
    make("bbbbbb")
    done = serried("stop", "--forget", "-y", "aaaaaa", "bbbbbb")
    assert (done.code, done.err.partition("\n")[0]) == (2, "error: no submission of run `bbbbbb` is uncertain")
    assert uncertain.record.submissions[0].state == "uncertain"


def test_a_step_of_a_job_is_read_as_its_run_and_never_stopped(serried, make, slurm):
    make(job="4711", indices=range(3)).attempt(task=2)
    refusal = "error: `4711_2.0` is only a step of `k3f9q2/2`\n\nhint: `k3f9q2/2` is the whole run\n"
    assert (serried("stop", "-y", "4711_2.0").err, slurm.cancelled) == (refusal, [])
    assert serried("show", "4711_2.0").out.startswith("k3f9q2/2 train ")


def test_now_takes_the_claims_of_further_jobs_and_cancels_them_too(serried, make, slurm):
    run = running(make, slurm).link(2, "124").link(3, "125")
    done = serried("stop", "-y", "--now", "last")
    assert (done.code, slurm.cancelled) == (0, ["123", "124", "125"])
    assert [run.where.claim(f"k3f9q2-{number}").read_text() for number in (2, 3)] == ["withdrawn", "withdrawn"]


def test_a_run_that_waits_for_its_next_job_is_cancelled_there(serried, make, slurm):
    run = running(make, slurm).link(2, "124").ending("REQUEUED", cause="limit", final=False)
    slurm.tell(Job("123", None, "FAILED"))
    slurm.tell(Job("124", None, "PENDING", reason="Resources"))
    serried("stop", "-y", "last")
    slurm.jobs.clear()
    assert slurm.cancelled == ["124"]
    assert run.where.claim("k3f9q2-2").read_text() == "withdrawn"
    assert as_json(serried("ps", "--json").out)["runs"][0]["state"] == "CANCELLED"


def test_one_task_is_cancelled_in_the_job_that_it_is_in_and_the_others_keep_theirs(serried, make, slurm):
    run = make(indices=range(2)).link(2, "130", task=1).link(2, "140", task=0)
    make_directory(run.where.claims)
    claim(run.where.claim("k3f9q2-1"), "123")
    for task, job in ((0, "140"), (1, "130")):
        run.ending("REQUEUED", task=task, cause="limit", final=False)
        slurm.tell(Job("123", task, "FAILED"))
        slurm.tell(Job(job, task, "PENDING"))
    serried("stop", "-y", "last/1")
    assert slurm.cancelled == ["130_1"]
    assert run.where.claim("k3f9q2.1-2").read_text() == "withdrawn"
    assert not run.where.claim("k3f9q2.0-2").exists()


def test_a_job_for_all_tasks_keeps_its_claim_when_one_of_them_is_stopped(serried, make, slurm):
    run = make(indices=range(2)).link(2, "130")
    make_directory(run.where.claims)
    claim(run.where.claim("k3f9q2-1"), "123")
    for task in range(2):
        slurm.tell(Job("123", task, "PENDING"))
        slurm.tell(Job("130", task, "PENDING"))
    serried("stop", "-y", "last/1")
    assert slurm.cancelled == ["123_1", "130_1"]
    assert not run.where.claim("k3f9q2-2").exists()


def test_another_clusters_job_of_the_same_id_is_never_cancelled(serried, make, slurm):
    run = running(make, slurm)
    slurm.tell(Job("123", None, "RUNNING", name="somebodys-work"))

    done = serried("stop", "-y", "--now", run.plan.run)

    assert (done.code, slurm.cancelled) == (3, [])
    assert done.err == (
        "error: the scheduler that answers here does not have job 123; nothing was cancelled\n\n"
        "hint: run `k3f9q2` was submitted to another cluster: stop it from there\n"
    )
