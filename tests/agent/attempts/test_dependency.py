"""Whether a run that comes after another may begin: the other's files, then the scheduler's word for its newest job."""

from __future__ import annotations

from pathlib import Path

import pytest

from building import a_plan, an_ending
from serried.agent.attempt import Attempt
from serried.agent.attempts import claims, dependency, successor_jobs
from serried.base.files import make_directory, read_json, write_json
from serried.schema import names
from serried.schema.layout import RunDirectory
from serried.schema.plan import After, Limit
from serried.schema.successor_commands import JOB, TOKEN, Commands

GONE = ""
BEGINS = None


class Other:
    """The run `k3f9q2`, whose first job is 10, as its writers would have left it."""

    def __init__(self, root: Path, indices: tuple[int, ...] | None) -> None:
        self.plan = a_plan("k3f9q2", root=root, indices=indices)
        self.where = RunDirectory(Path(self.plan.directory))
        make_directory(self.where.links)
        make_directory(self.where.claims)
        write_json(self.where.plan, self.plan.to_json())

    def ended(self, state="COMPLETED", task=None, **changes):
        make_directory(self.where.task(task).path)
        write_json(self.where.task(task).exit, an_ending(state=state, task=task, **changes))

    def link(self, job, number=2, task=None, state="submitted"):
        token = f"k3f9q2-{number}" if task is None else f"k3f9q2.{task}-{number}"
        write_json(self.where.link(token), {"state": state, "job": job})


@pytest.fixture
def other(tmp_path):
    return Other(tmp_path / "runs", None)


@pytest.fixture
def work(tmp_path):
    """`make(condition)` is a run `m2n3p4` that comes after the other; the scheduler's words are in `words`."""

    def make(condition="ok", task=None, job="10", **limit):
        other = a_plan("k3f9q2", root=tmp_path / "runs")
        after = After("k3f9q2", "other", other.directory, condition, task, job)
        plan = a_plan("m2n3p4", root=tmp_path / "runs", limit=Limit(**limit))._replace(after=(after,))
        made = Attempt(RunDirectory(Path(plan.directory)), plan, None, 0)
        make_directory(made.run.claims)
        notes, ask = tmp_path / "notes", f'cat "{tmp_path}/words-$1" 2>/dev/null || true'
        submit = (
            f'[ -e {tmp_path}/refuses ] && echo "no more jobs" >&2 && exit 1; echo "$1 after $2" >>{notes}; echo 99'
        )
        commands = Commands(("bash", "-c", submit, "x", TOKEN, JOB), ("true",), ("bash", "-c", ask, "x", JOB), {})
        write_json(made.run.link_commands, commands.to_json())
        return made

    return make


@pytest.fixture
def says(tmp_path, monkeypatch):
    monkeypatch.setattr(dependency, "MISSING_SECONDS", 0.0)
    monkeypatch.setattr(dependency, "BETWEEN_SECONDS", 0.01)

    def say(**words: str):
        for job, word in words.items():
            (tmp_path / f"words-{job.removeprefix('job_')}").write_text(word)

    return say


def notes(tmp_path):
    path = tmp_path / "notes"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("state", "condition", "told"),
    [
        ("COMPLETED", "ok", BEGINS),
        ("COMPLETED", "any", BEGINS),
        ("COMPLETED", "notok", "run k3f9q2 has completed; this run requires its failure"),
        ("FAILED", "ok", "run k3f9q2 ended FAILED; this run requires its success"),
        ("FAILED", "any", BEGINS),
        ("FAILED", "notok", BEGINS),
        ("TIMEOUT", "ok", "run k3f9q2 ended TIMEOUT; this run requires its success"),
    ],
)
def test_exit_json_says_how_the_other_ended(other, work, says, state, condition, told):  # noqa: PLR0917 - fixtures
    says()
    other.ended(state)
    run = work(condition)
    assert dependency.refusal(run, "m2n3p4-1") == told
    end = read_json(run.run.exit)
    if told is BEGINS:
        assert end is None
    else:
        assert (end["state"], end["exit_code"], end["cause"], end["message"]) == ("CANCELLED", 143, "after", told)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("CANCELLED", "CANCELLED"),
        ("FAILED", "FAILED"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("COMPLETED", "LOST"),
        (GONE, "LOST"),
    ],
)
def test_without_one_a_job_that_is_over_is_no_success(other, work, says, word, state):
    says(job_10=word)
    told = f"run {other.plan.run} ended {state}; this run requires its success"
    assert dependency.refusal(work(), "m2n3p4-1") == told
    assert dependency.refusal(work("any"), "m2n3p4-1") is BEGINS


def test_what_was_stopped_before_it_began_is_cancelled_at_once(other, work, says, monkeypatch):
    says(job_10=GONE)
    monkeypatch.setattr(dependency, "MISSING_SECONDS", 1000.0)
    other.where.claim("k3f9q2-1").write_text(names.WITHDRAWN)
    assert "run k3f9q2 ended CANCELLED" in dependency.refusal(work(), "m2n3p4-1")


def test_where_the_other_goes_on_it_queues_again_behind_the_newest_job_and_once(other, work, says, tmp_path):
    says(job_10="COMPLETED", job_11="RUNNING", job_12="PENDING")
    other.link("11")
    other.link("12", number=3)
    run = work()

    told = dependency.refusal(run, "m2n3p4-1")

    assert told == "the run before it continues in job 12, so this run is queued again"
    assert notes(tmp_path) == ["m2n3p4-2 after 12"]
    link = read_json(run.run.link("m2n3p4-2"))
    assert (link["state"], link["job"], link["moved"]) == ("submitted", "99", True)
    assert not run.run.exit.exists()
    # The scheduler may start the first job again; the second may begin where the first may not.
    assert dependency.refusal(run, "m2n3p4-1") == "this run is queued again"
    assert dependency.was_moved(run, "m2n3p4-2")
    assert notes(tmp_path) == ["m2n3p4-2 after 12"]


def test_an_end_that_the_scheduler_may_have_undone_is_asked_about(other, work, says):
    other.ended("CANCELLED", cause="cancel")
    says(job_10="PENDING")
    assert "continues in job 10" in dependency.refusal(work(), "m2n3p4-1")


def test_of_an_array_all_tasks_count_and_one_can_be_named(tmp_path, work, says):
    other = Other(tmp_path / "runs", (3, 4))
    other.ended(task=3)
    other.link("11", task=4)
    says(job_11_4="RUNNING", job_10_4="COMPLETED")
    assert dependency.refusal(work(task=3), "m2n3p4-1") is BEGINS
    assert "continues in job 11_4" in dependency.refusal(work(), "m2n3p4-1")


def test_a_trial_that_another_job_of_its_sweep_has_drawn_ends_with_that_job(tmp_path, work, says):
    other = Other(tmp_path / "runs", (3, 4))
    other.ended(task=3)
    make_directory(other.where.task(4).path)
    other.where.task(4).worker.write_text("3")
    says(job_10_3="NODE_FAIL", job_10_4="PENDING")
    assert "ended NODE_FAIL" in dependency.refusal(work(), "m2n3p4-1")


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ({}, "no more jobs"),
        ({"continue_by": "prequeued", "restarts": 1}, "this run already has further jobs in the queue"),
    ],
)
def test_where_it_cannot_queue_again_that_is_its_end(  # noqa: PLR0917 - fixtures
    other, work, says, tmp_path, limit, why
):
    assert not other.where.exit.exists()
    says(job_10="RUNNING")
    (tmp_path / "refuses").touch()
    run = work(**limit)
    told = f"the run before it continues in job 10, and this run cannot be queued again: {why}"
    assert dependency.refusal(run, "m2n3p4-1") == told
    assert read_json(run.run.exit)["message"] == told


def test_what_had_ended_before_it_was_submitted_is_not_looked_at(work, says):
    says()
    run = work(job=None)
    assert dependency.refusal(run, "m2n3p4-1") is BEGINS


def test_what_is_over_before_its_turn_came_is_not_queued_again(other, work, says, tmp_path):
    """Its job was cancelled while it looked: `finish` writes that down, and nothing else happens."""
    says(job_10="RUNNING")
    assert not other.where.exit.exists()
    run = work()
    begun = claims.begin(run, "m2n3p4-1", "20", is_over=True)
    assert (begun.number, notes(tmp_path)) == (1, [])
    with pytest.raises(claims.Refused, match="belongs to job 20"):
        claims.begin(run, "m2n3p4-1", "21")


@pytest.mark.parametrize(("strands", "cancelled"), [(True, []), (False, ["12"])])
def test_jobs_left_over_are_not_deleted_where_that_would_strand_what_waits_for_them(
    other, work, tmp_path, strands, cancelled
):
    """PBS never starts a job behind one that was deleted before it began."""
    run = work(continue_by="prequeued", restarts=1)
    commands = Commands((), ("bash", "-c", f"echo $1 >>{tmp_path}/notes", "x", JOB), (), {}, strands)
    write_json(other.where.link_commands, commands.to_json())
    other.where.followed.touch()
    other.link("12")
    finished = Attempt(other.where, other.plan._replace(limit=run.plan.limit), None, 1)

    successor_jobs.withdraw(finished, "k3f9q2-1")

    assert notes(tmp_path) == cancelled
    assert other.where.claim("k3f9q2-2").read_text() == names.WITHDRAWN
