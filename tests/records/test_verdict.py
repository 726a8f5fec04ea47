"""Every cell of the table, and what the table leaves to the clock."""

from __future__ import annotations

from building import a_failure, an_ending
from serried.base.text import seconds_of
from serried.records.status import ABSENT, TABLE, UNREACHABLE, EndingKind, Observations, Say, Verdict, judge, kind_of
from serried.schedulers.interface import Job
from serried.schema import names
from serried.schema.endings import Condition, End
from tables import for_each

NOW = 1_795_001_000.0
ENDED = NOW - 10

DOCUMENTS = {
    EndingKind.NONE: None,
    EndingKind.REQUEUED: an_ending(state="REQUEUED", cause="limit"),
    EndingKind.FINAL: an_ending(state="FAILED", exit_code=3),
    EndingKind.CANCELLED: an_ending(state="CANCELLED", exit_code=143, cause="cancel"),
    EndingKind.NODE: an_ending(state="FAILED", exit_code=1, cause="node-lost"),
    EndingKind.KILLED: an_ending(state="FAILED", exit_code=137, cause="signal", first_failure=a_failure(signal=9)),
    EndingKind.LAUNCH: an_ending(state="LAUNCH_FAILED", exit_code=70, cause="launch"),
}
WORDS = (
    *(names.PENDING, names.RUNNING, names.REQUEUED, names.COMPLETED, names.FAILED, names.TIMEOUT, names.CANCELLED),
    *(names.PREEMPTED, names.OUT_OF_MEMORY, names.NODE_FAIL, names.LAUNCH_FAILED, names.LOST, names.UNKNOWN),
    *(ABSENT, UNREACHABLE),
)
OPEN = (EndingKind.NONE, EndingKind.REQUEUED, EndingKind.CANCELLED, EndingKind.NODE)
"""What the same job may follow."""
BY_EXIT = {
    EndingKind.FINAL: "FAILED",
    EndingKind.CANCELLED: "CANCELLED",
    EndingKind.NODE: "FAILED",
    EndingKind.KILLED: "FAILED",
    EndingKind.LAUNCH: "LAUNCH_FAILED",
}


def ending(kind):
    document = DOCUMENTS[kind]
    return None if document is None else End.of(document)


def word(state):
    return state if state in (ABSENT, UNREACHABLE) else Job("123", None, state, ended=ENDED)


def judged(state, kind, known=None, now=NOW):
    return judge(word(state), ending(kind), known or Observations(), now)


EXPECTED = {
    **{(state, kind): BY_EXIT[kind] for state in WORDS for kind in BY_EXIT},
    **{(names.PENDING, kind): "PENDING" for kind in OPEN},
    **{(names.RUNNING, kind): "RUNNING" for kind in OPEN},
    **{(names.REQUEUED, kind): "PENDING" for kind in OPEN},
    **{
        (state, kind): "UNKNOWN"
        for state in (names.COMPLETED, names.LOST, names.UNKNOWN, ABSENT, UNREACHABLE)
        for kind in (EndingKind.NONE, EndingKind.REQUEUED)
    },
    **{
        (state, kind): state
        for state in ("FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED", "OUT_OF_MEMORY", "NODE_FAIL", "LAUNCH_FAILED")
        for kind in (EndingKind.NONE, EndingKind.REQUEUED)
    },
    **{(state, EndingKind.CANCELLED): state for state in ("TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY", "NODE_FAIL")},
    **{("OUT_OF_MEMORY", kind): "OUT_OF_MEMORY" for kind in (EndingKind.NODE, EndingKind.KILLED)},
    ("NODE_FAIL", EndingKind.NODE): "NODE_FAIL",
    **{(state, EndingKind.LAUNCH): state for state in ("RUNNING", "CANCELLED", "PREEMPTED", "NODE_FAIL")},
}


def test_the_table_has_every_cell_and_no_other():
    assert set(TABLE) == {(state, kind) for state in WORDS for kind in EndingKind} == set(EXPECTED)


@for_each(("state", "kind"), sorted(TABLE, key=str))
def test_each_cell_gives_the_expected_state(state, kind):
    assert judged(state, kind).state == EXPECTED[state, kind]


@for_each(("state", "kind"), sorted(TABLE, key=str))
def test_no_cell_calls_anything_completed_without_an_exit_json_that_says_so(state, kind):
    verdict = judged(state, kind, now=NOW + 1e6)
    assert verdict.state != "COMPLETED"
    assert verdict.exit_code != 0


@for_each("state", WORDS)
def test_an_exit_json_that_says_completed_is_believed_whatever_the_scheduler_says(state):
    completed = End.of(an_ending())
    stated = (Condition("completed", "all ranks finished"),)
    assert judge(word(state), completed, Observations(), NOW) == Verdict(
        "COMPLETED", 0, None, "all ranks finished", seconds_of(completed.ended), settled=True, conditions=stated
    )


def test_where_both_agree_exit_json_tells_more():
    verdict = judged(names.CANCELLED, EndingKind.CANCELLED)
    assert (verdict.state, verdict.message, verdict.settled) == (
        "CANCELLED",
        DOCUMENTS[EndingKind.CANCELLED]["message"],
        True,
    )


MISSED, AHEAD = Observations(missing_since=ENDED), Job("123", None, names.COMPLETED, ended=NOW + 1e6)
BEGUN = Observations(job=Job("123", None, "PENDING"), at=NOW - 300, claimed=NOW - 100)


@for_each(
    "answer, known, now, state",
    [
        (word(names.COMPLETED), MISSED, ENDED + 90, "UNKNOWN"),
        (word(names.COMPLETED), MISSED, ENDED + 91, "LOST"),
        (ABSENT, MISSED, ENDED + 90, "UNKNOWN"),
        (ABSENT, MISSED, ENDED + 91, "LOST"),
        (word(names.COMPLETED), Observations(), ENDED + 3600, "LOST"),  # a reader that comes an hour later
        (ABSENT, Observations(), NOW + 1e6, "UNKNOWN"),  # timed from the first miss, by our own clock
        (AHEAD, Observations(missing_since=NOW - 91), NOW, "LOST"),  # the scheduler's clock is ahead
        (UNREACHABLE, BEGUN, NOW, "RUNNING"),  # the attempt began after the last answer
        (Job("1", None, "SUSPENDED"), Observations(), NOW, "UNKNOWN"),  # no state of this version
    ],
)
def test_without_an_exit_json_time_and_memory_decide(answer, known, now, state):
    assert judge(answer, None, known, now).state == state


def test_lost_has_no_exit_code_because_nobody_knows_it():
    verdict = judged(ABSENT, EndingKind.NONE, Observations(missing_since=NOW - 100))
    assert verdict == Verdict(
        "LOST",
        cause="lost",
        message="the scheduler does not list it, and it left no exit.json",
        since=NOW - 100,
        missing=True,
    )


@for_each("memory", ["PENDING", "RUNNING"])
def test_without_an_answer_the_last_known_state_stands_and_is_marked_stale(memory):
    verdict = judged(UNREACHABLE, EndingKind.NONE, Observations(job=Job("123", None, memory), at=NOW - 300))
    assert verdict == Verdict(memory, message="the scheduler does not answer", stale=NOW - 300)


def test_an_attempt_is_something_known_even_if_the_scheduler_never_answered():
    assert judged(UNREACHABLE, EndingKind.NONE, Observations(claimed=NOW - 50)) == Verdict(
        "RUNNING", message="the scheduler does not answer", stale=NOW - 50
    )


@for_each("state", [ABSENT, UNREACHABLE])
def test_what_the_scheduler_once_said_about_the_end_is_not_forgotten_with_the_job(state):
    known = Observations(job=Job("123", None, "TIMEOUT", ended=NOW - 400), at=NOW - 390, missing_since=NOW - 390)
    verdict = judged(state, EndingKind.NONE, known)
    assert (verdict.state, verdict.exit_code, verdict.settled) == ("TIMEOUT", 124, True)


def test_the_schedulers_end_may_be_written_down_only_when_exit_json_had_time_to_appear():
    assert not judged(names.TIMEOUT, EndingKind.NONE, now=ENDED + 90).settled
    assert judged(names.TIMEOUT, EndingKind.NONE, now=ENDED + 91).settled


def test_an_ambiguous_end_is_settled_when_the_scheduler_has_spoken_or_had_its_time():
    at_once = seconds_of(ending(EndingKind.KILLED).ended) + 1
    assert not judged(names.RUNNING, EndingKind.KILLED, now=at_once).settled
    assert not judged(UNREACHABLE, EndingKind.KILLED, now=at_once + 1e6).settled
    assert judged(names.FAILED, EndingKind.KILLED, now=at_once).settled
    assert judged(ABSENT, EndingKind.KILLED, now=at_once + 100).settled


@for_each(
    ("job", "code"),
    [
        (Job("1", None, "FAILED", exit_code=3), 3),
        (Job("1", None, "FAILED", exit_code=0), 1),
        (Job("1", None, "FAILED", signal=11), 139),
        (Job("1", None, "TIMEOUT", exit_code=0), 124),
        (Job("1", None, "CANCELLED", signal=15), 143),
        (Job("1", None, "OUT_OF_MEMORY"), 137),
        (Job("1", None, "NODE_FAIL"), 71),
        (Job("1", None, "LAUNCH_FAILED"), 70),
        (Job("1", None, "PREEMPTED"), 143),
    ],
)
def test_a_scheduler_that_ended_it_gives_an_exit_code_that_is_never_0(job, code):
    assert judge(job, None, Observations(), NOW).exit_code == code


@for_each("document", [{}, {"state": None}, {"state": "GREAT"}, {"state": ["FAILED"]}, {"state": 0}])
def test_an_exit_json_without_a_known_state_is_as_good_as_missing(document):
    assert kind_of(End.of(document)) is EndingKind.NONE


def test_the_words_of_the_table_are_whose_word_counts():
    assert {say.value for say in TABLE.values()} == {say.value for say in Say}
