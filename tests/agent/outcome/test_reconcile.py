"""What job.sh and the scheduler may still change in a verdict."""

from __future__ import annotations

from serried.agent.attempts import continuing
from serried.agent.outcome import reconcile
from serried.agent.outcome.evidence import Obstacle
from serried.schema.endings import Condition, End
from serried.schema.reasons import Reason
from tables import for_each


def an_end(state, cause):
    return End("k3f9q2", None, 1, "123", state, 1, cause, (Condition(cause, "it ended"),), nodes=("n1",))


@for_each(
    ("state", "code", "reason", "expected"),
    [
        ("REQUEUED", 85, "cancel", ("CANCELLED", "fail 143")),
        ("REQUEUED", 85, "limit", ("TIMEOUT", "fail 124")),
        ("REQUEUED", 85, "", ("REQUEUED", "requeue")),
        ("REQUEUED", 85, "preempt", ("REQUEUED", "requeue")),
        ("LAUNCH_FAILED", 70, "cancel", ("CANCELLED", "fail 143")),
        ("FAILED", 3, "cancel", ("FAILED", "fail 3")),
        ("COMPLETED", 0, "cancel", ("COMPLETED", "done")),
    ],
)
def test_job_sh_has_the_last_word_only_on_what_it_alone_knows(state, code, reason, expected):
    result = reconcile.finalise(an_end(state, None)._replace(exit_code=code), reason)

    assert (result.state, reconcile.word(result, "requeue")) == expected


@for_each("reason", ["cancel", "limit", ""])
def test_a_job_that_the_scheduler_has_back_already_is_not_asked_for_again(reason):
    end = an_end("REQUEUED", "requeue")

    assert reconcile.finalise(end, reason) == end
    assert reconcile.word(end, "requeue") == "next"


CANCELLED = an_end("CANCELLED", "cancel")
SAVED_END = an_end("REQUEUED", "limit")
KILLED = an_end("FAILED", "agent-killed")
COMPLETED = an_end("COMPLETED", None)


@for_each(
    ("end", "word", "is_unrecorded", "expected"),
    [
        (CANCELLED, "CANCELLED", False, ("CANCELLED", "cancel")),
        (CANCELLED, "PREEMPTED", False, ("PREEMPTED", "preempt")),
        (CANCELLED, "", False, ("CANCELLED", "cancel")),
        (SAVED_END, "CANCELLED", False, ("CANCELLED", "cancel")),
        (SAVED_END, "PREEMPTED", False, ("REQUEUED", "limit")),
        (SAVED_END, "FAILED", False, ("REQUEUED", "limit")),
        (SAVED_END, "", False, ("REQUEUED", "limit")),
        (SAVED_END, None, False, ("REQUEUED", "limit")),
        (KILLED, "CANCELLED", True, ("CANCELLED", "cancel")),
        (KILLED, "PREEMPTED", True, ("PREEMPTED", "preempt")),
        (KILLED, "NODE_FAIL", True, ("NODE_FAIL", "node-lost")),
        (KILLED, "FAILED", True, ("FAILED", "agent-killed")),
        (KILLED, "", True, ("LOST", "lost")),
        (KILLED, None, True, ("LOST", "lost")),
        (COMPLETED, "", True, ("COMPLETED", None)),
        (CANCELLED, "", True, ("CANCELLED", "cancel")),
    ],
)
def test_the_scheduler_has_its_word_on_what_it_did(end, word, is_unrecorded, expected):
    told = reconcile.by_the_scheduler(end, word, is_unrecorded=is_unrecorded)

    assert (told.state, told.cause) == expected
    assert (told.exit_code is None) == (told.state == "LOST")


@for_each(
    ("cause", "form", "expected"),
    [
        ("node-lost", "requeue", True),
        ("preempt", "successor", True),
        ("agent-killed", "prequeued", True),
        ("job-script-killed", "successor", True),
        ("job-script-killed", "requeue", False),
        ("exit", "successor", False),
        ("cancel", "successor", False),
        ("user", "prequeued", False),
        ("limit", "successor", False),
        ("no-progress", "successor", False),
    ],
)
def test_only_what_was_interrupted_goes_on_unasked(cause, form, expected):
    assert continuing.may_continue(an_end("FAILED", cause), form) is expected


def test_an_interrupted_end_says_that_another_attempt_goes_on_or_why_none_does():
    end = an_end("NODE_FAIL", "node-lost")

    further = continuing.continued(end, None)
    assert (further.state, further.exit_code, further.cause) == ("REQUEUED", 85, "node-lost")
    assert further.conditions == (*end.conditions, ("continues", "another attempt continues", ()))
    assert further.message == "it ended; another attempt continues"
    hindered = continuing.continued(end, Obstacle(Reason.NO_PROGRESS, "it stands still"))
    stated = (*end.conditions, ("no-progress", "it stands still", ()))
    assert hindered == end._replace(cause="no-progress", conditions=stated)
    assert continuing.continued(hindered, Obstacle(Reason.NO_PROGRESS, "in other words")) == hindered


def test_the_last_lines_of_a_rank_may_have_a_nul():
    end = End.from_json({**an_end("FAILED", "exit").to_json(), "cause": "a\0b"})
    assert End.from_json(end.to_json()) == end
