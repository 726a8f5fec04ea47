"""What PBS prints. `qstat.txt` was recorded from OpenPBS 23.06.06, some of its attributes left out."""

from __future__ import annotations

from pathlib import Path

from serried.schedulers.pbs import parse
from serried.schedulers.pbs.commands import Pbs
from serried.schema import names, successor_commands
from tables import for_each

RECORDED = (Path(__file__).parent / "qstat.txt").read_text(encoding="utf-8")


def shown(text):
    return {(job.id, job.task): (job.state, job.exit_code, job.signal, job.reason) for job in parse.jobs(text)}


def test_a_recorded_answer_is_read_as_it_stands():
    never = "Can Never Run: Insufficient amount of resource: ncpus (R: 9 A: 8 T: 8)"
    assert shown(RECORDED) == {
        ("85.pbshead", None): (names.COMPLETED, 0, None, ""),
        ("86.pbshead", None): (names.FAILED, 3, None, ""),
        ("87.pbshead", None): (names.FAILED, None, 9, ""),
        ("88.pbshead", None): (names.CANCELLED, None, None, ""),
        ("89.pbshead", None): (names.TIMEOUT, None, None, ""),
        ("90.pbshead", None): (
            names.CANCELLED,
            None,
            None,
            "it never ran: what it depended on did not go as it was to",
        ),
        ("91.pbshead", None): (names.CANCELLED, None, 15, ""),
        ("92[].pbshead", 0): (names.COMPLETED, 0, None, ""),
        ("92[].pbshead", 1): (names.FAILED, 1, None, ""),
        ("92[].pbshead", 2): (names.FAILED, 2, None, ""),
        ("92[].pbshead", 3): (names.FAILED, 3, None, ""),
        ("93.pbshead", None): (names.PENDING, None, None, "held (u)"),
        ("94.pbshead", 5): (names.RUNNING, None, None, ""),
        ("95.pbshead", None): (names.PENDING, None, None, never),
        ("96.pbshead", None): (names.PENDING, None, None, "dependency"),
        ("97[].pbshead", 2): (names.RUNNING, None, None, ""),
        ("97[].pbshead", 4): (names.RUNNING, None, None, ""),
        ("97[].pbshead", 6): (names.CANCELLED, None, None, ""),
    }


def test_it_says_where_and_when():
    jobs = {job.id: job for job in parse.jobs(RECORDED) if job.task in (None, 5)}
    assert (jobs["94.pbshead"].nodes, jobs["94.pbshead"].restarts) == (("pbsn1", "pbsn2"), 0)
    assert (jobs["94.pbshead"].name, jobs["85.pbshead"].name) == ("runs", "ok")
    assert jobs["85.pbshead"].ended == 1795275131.0


@for_each("status", ["-4", "-14", "-20"])
def test_an_exit_status_counts_only_when_the_job_has_finished(status):
    """A job whose node was lost queues again with the status of the time before (seen)."""
    text = f"Job Id: 7.head\n    job_state = Q\n    substate = 10\n    Exit_status = {status}\n    run_count = 1\n"
    assert shown(text) == {("7.head", None): (names.PENDING, None, None, "")}
    over = text.replace("= Q", "= F").replace("= 10", "= 93")
    assert shown(over) == {("7.head", None): (names.NODE_FAIL, None, None, "")}


def test_a_job_that_was_deleted_is_cancelled_whatever_its_script_said():
    text = "Job Id: 7.head\n    job_state = F\n    substate = 91\n    Exit_status = 143\n    run_count = 1\n"
    assert shown(text) == {("7.head", None): (names.CANCELLED, 143, None, "")}


def test_a_word_that_we_do_not_know_is_unknown():
    assert shown("Job Id: 7.head\n    job_state = %\n") == {("7.head", None): (names.UNKNOWN, None, None, "")}


def test_wrapped_lines_are_joined():
    """As `qstat -f` prints them where it has no -w."""
    text = (
        "Job Id: 7.head\n    Job_Name = train-k3f9q2-1\n    job_state = Q\n"
        "    comment = Not Running: Insufficient amount of resource: ngpus (R: 1 A:\n\t 0 T: 4)\n\n"
    )
    (job,) = parse.jobs(text)
    assert job.reason == "Not Running: Insufficient amount of resource: ngpus (R: 1 A: 0 T: 4)"
    assert parse.named(text) == [("7.head", "train-k3f9q2-1")]


@for_each(
    ("job", "parts"),
    [("12.head", ("12.head", None)), ("13[4].head", ("13[].head", 4)), ("13[].head", ("13[].head", None))],
)
def test_a_task_is_one_of_its_array(job, parts):
    assert parse.split(job) == parts


@for_each(
    ("stdout", "job"),
    [
        ("12.pbshead\n", "12.pbshead"),
        ("Welcome!\n13[].head.site.org\n", "13[].head.site.org"),
        ("qsub: would submit\n", None),
        ("", None),
    ],
)
def test_the_id_is_found_in_what_qsub_prints(stdout, job):
    assert successor_commands.new_id(stdout, Pbs.id_pattern) == job


@for_each(
    ("comment", "sentence"),
    [
        ("", "PBS has not looked at it yet"),
        ("held (u)", "it is held; `qrls` lets it start"),
        ("dependency", "it waits for another job to end"),
        (
            "Not Running: Insufficient amount of resource: ngpus (R: 1 A: 0 T: 4)",
            "what it requests is in use: ngpus (R: 1 A: 0 T: 4)",
        ),
        (
            "Can Never Run: Insufficient amount of resource: ncpus (R: 9 A: 8 T: 8)",
            "no node can ever give what it requests: ncpus (R: 9 A: 8 T: 8)",
        ),
        (
            "Job Array Began at Sat Nov 21 at 01:07",
            "other tasks of its array come first: as many run as may, or nothing more is free",
        ),
        (
            "job held, too many failed attempts to run",
            (
                "PBS fails to start it and holds it for good: its nodes may not see the profile's `root`;"
                " `serried stop` ends it"
            ),
        ),
        ("Not Running: [odd] words", "PBS reports `[odd] words`"),
    ],
)
def test_a_comment_becomes_a_sentence(comment, sentence):
    assert Pbs().explain(comment) == sentence


WAITING = """Job Id: 88.pbshead
    Job_Name = b-k3f9q2-2
    job_state = H
    depend = afterany:87.pbshead@pbshead:86[].pbshead@pbshead,beforeok:89.pbshead@pbshead
    Hold_Types = s
    substate = 22
"""
DELETED = "Job Id: 87.pbshead\n    job_state = F\n    depend = beforeany:88.pbshead@pbshead\n    substate = 91\n"
QUEUED = "Job Id: 87.pbshead\n    job_state = Q\n"
ARRAY = "Job Id: 86[].pbshead\n    job_state = B\n"
ENDED = "Job Id: 87.pbshead\n    job_state = F\n    Exit_status = 1\n"


@for_each(
    ("more", "reason"),
    [
        (QUEUED + ARRAY, "dependency"),
        (ENDED + ARRAY, "dependency"),  # PBS lets it go in a moment
        (DELETED + ARRAY, "DependencyNeverSatisfied"),
        (ARRAY, "DependencyNeverSatisfied"),
    ],
)
def test_who_waits_for_what_never_began_waits_for_ever(more, reason):
    assert parse.awaited(WAITING) == {"87.pbshead", "86[].pbshead"}
    assert parse.awaited(WAITING + more) == ({"87.pbshead"} if more == ARRAY else set())
    assert {job.id: job.reason for job in parse.jobs(WAITING + more)}["88.pbshead"] == reason
