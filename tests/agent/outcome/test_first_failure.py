"""Which rank failed first, by the evidence of all nodes."""

from __future__ import annotations

from evidence import STARTED, ended, evidence, exit_of
from serried.agent.outcome import verdict
from serried.agent.outcome.evidence import first_failure
from tables import for_each


def test_the_first_failure_is_the_earliest_on_its_nodes_own_clock():
    known = evidence([*STARTED, ended(0, exit_of(0, 1, seconds=2.0)), ended(1, exit_of(1, 7, seconds=1.5))])

    assert first_failure(known).exit.rank == 1


def test_a_rank_that_stumbled_over_another_failed_first_only_where_all_did():
    stumbled = [exit_of(0, 1, seconds=0.5, stumbled=True), exit_of(1, 1, seconds=0.4, stumbled=True)]
    assert first_failure(evidence([*STARTED, ended(0, *stumbled)])).exit.rank == 1
    known = evidence([*STARTED, ended(0, *stumbled), ended(1, exit_of(2, 9, seconds=1.5))])
    assert first_failure(known).exit.rank == 2


def test_which_rank_failed_first_is_counted_by_the_ranks_store_where_it_could_be():
    later = [exit_of(0, 1, seconds=0.5, error="x", order=2), exit_of(2, 1, seconds=0.4, error="x")]
    known = evidence([*STARTED, ended(0, *later), ended(1, exit_of(1, 7, seconds=1.5, error="x", order=1))])
    assert first_failure(known).exit.rank == 1
    lost = exit_of(1, 1, seconds=0.4, error="x", order=1, stumbled=True)  # of one that could not count itself
    assert first_failure(evidence([*STARTED, ended(0, exit_of(0, 3)), ended(1, lost)])).exit.rank == 0


def test_a_rank_that_died_before_another_said_that_it_failed_was_the_first():
    later = exit_of(1, 7, seconds=0.6, error="x", order=1)
    known = evidence([*STARTED, ended(0, exit_of(0, signal=9, seconds=0.5), later)])
    assert first_failure(known).exit.rank == 0


@for_each("own", [exit_of(1, signal=9), exit_of(1, signal=11), exit_of(1, 5)])
def test_of_ranks_that_ended_at_once_the_one_is_named_that_did_not_end_by_an_exception(own):
    assert first_failure(evidence([*STARTED, ended(0, exit_of(0, 1), own, exit_of(2, signal=6))])).exit.rank == 1


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
