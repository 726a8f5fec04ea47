"""Which rank failed first, by the evidence of all nodes."""

from __future__ import annotations

from evidence import STARTED, ended, evidence, exit_of
from serried.agent.outcome import verdict
from serried.agent.outcome.evidence import first_failure
from tables import for_each

STUMBLED = [exit_of(0, 1, seconds=0.5, stumbled=True), exit_of(1, 1, seconds=0.4, stumbled=True)]
COUNTED = {"error": "x", "order": 1}
"""Of a rank that the ranks' common store counted as the first to fail."""
LATER = [exit_of(0, 1, seconds=0.5, error="x", order=2), exit_of(2, 1, seconds=0.4, error="x")]


@for_each(
    ("why", "exits", "rank"),
    [
        ("the earliest on its node's own clock", [exit_of(0, 1, seconds=2.0), exit_of(1, 7, seconds=1.5)], 1),
        ("all lost another rank", STUMBLED, 1),
        ("others only lost it", [*STUMBLED, exit_of(2, 9, seconds=1.5)], 2),
        ("the store counted it first", [*LATER, exit_of(1, 7, seconds=1.5, **COUNTED)], 1),
        ("the other could not count itself", [exit_of(0, 3), exit_of(1, 1, seconds=0.4, stumbled=True, **COUNTED)], 0),
        ("it died before another was counted", [exit_of(0, signal=9, seconds=0.5), exit_of(1, 7, **COUNTED)], 0),
        *(
            ("at once, but not by an exception", [exit_of(0, 1), own, exit_of(2, signal=6)], 1)
            for own in (exit_of(1, signal=9), exit_of(1, signal=11), exit_of(1, 5))
        ),
    ],
)
def test_the_first_failure_is_named(why, exits, rank):  # noqa: ARG001 - it says what the case is
    assert first_failure(evidence([*STARTED, *(ended(at, exit_) for at, exit_ in enumerate(exits))])).exit.rank == rank


@for_each(
    ("others", "end"),
    [
        ([exit_of(1), exit_of(2, signal=15, ours=True)], "; rank 1 had exited with status 0"),
        ([exit_of(2, signal=15, ours=True), exit_of(1, signal=15, ours=True)], "; ranks 1, 2 had not ended"),
        ([exit_of(rank, signal=15, ours=True) for rank in range(1, 6)], ""),
        ([exit_of(1, 1, stumbled=True, seconds=2.0)], ""),
    ],
)
def test_where_all_that_failed_lost_another_rank_that_is_said_and_which_it_may_have_been(others, end):
    known = evidence([*STARTED, ended(0, exit_of(0, 1, stumbled=True), *others)])
    judged = verdict.judge(known, first_failure(known), [])
    assert judged[:4] == ("FAILED", 1, "peer-lost", f"rank 0 on n1 exited with status 1: it lost another rank{end}")


def test_what_a_rank_said_of_its_failure_is_in_exit_json():
    known = evidence([*STARTED, ended(0, exit_of(0, 5, error="SystemExit: 5", order=1))])
    failure = first_failure(known)
    written = verdict.end_of(known, failure, [], verdict.judge(known, failure, [])).to_json()
    assert written["first_failure"]["error"] == "SystemExit: 5"
    assert written["message"] == "rank 0 on n1 exited with status 5"
