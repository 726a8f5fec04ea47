"""What `make faults` calls a broken rule, without a fault and without a run."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from faults import judging
from faults.__main__ import table
from faults.campaign import plan
from faults.case import Case
from faults.kinds import KINDS

ALL = [(1, rank, 100 + rank) for rank in range(4)]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    made = Case(0, "kill rank", Random(1), tmp_path / "0", None, nodes=2, restarts=0, run="k3f9q2")
    made.proofs.mkdir(parents=True)
    return made


def write(case: Case, what: str, executions: list[tuple[int, int, int]]) -> None:
    for execution in executions:
        (case.proofs / "-".join([what, *map(str, execution)])).touch()


def judged(case: Case, state: str | None) -> list[str]:
    end = {"state": state, "exit_code": 0 if state == "COMPLETED" else 1, "message": "as it was said"}
    return list(judging.broken(case, None if state is None else end))


def test_a_success_is_one_where_every_rank_began_once_and_finished(case):
    write(case, "began", ALL)
    write(case, "ended", ALL)
    assert judged(case, "COMPLETED") == []
    assert not judging.is_hidden(case, {"state": "COMPLETED"})
    assert judging.is_hidden(case, {"state": "FAILED"})


def test_a_success_without_the_last_act_of_a_rank_is_false(case):
    write(case, "began", ALL)
    write(case, "ended", ALL[:3])
    assert judged(case, "COMPLETED") == ["COMPLETED, though ranks [3] of attempt 1 have not finished"]
    assert judged(case, "FAILED") == []


def test_a_success_of_a_rank_that_was_killed_is_false(case):
    write(case, "began", ALL)
    write(case, "ended", ALL)
    case.killed = ALL[2:3]
    assert judged(case, "COMPLETED") == ["COMPLETED, though ranks [2] of attempt 1 were killed"]


def test_a_length_is_neither_negative_nor_longer_than_the_run(case):
    write(case, "began", ALL)
    end = {"state": "FAILED", "exit_code": 1, "message": "as it was said"}
    assert list(judging.broken(case, {**end, "seconds": 0.0})) == []
    for seconds in (-3600.0, 86400.0):
        (found,) = judging.broken(case, {**end, "seconds": seconds})
        assert found.startswith(f"it took {seconds} s")


def test_what_is_executed_twice_or_once_too_often_is_told(case):
    write(case, "began", [*ALL, (1, 0, 200)])
    assert judged(case, "FAILED") == ["executed more than once: (attempt, rank) in [(1, 0)]"]
    write(case, "began", [(2, 0, 300)])
    assert judged(case, "FAILED")[1:] == ["2 attempts, and 1 were allowed"]


def test_what_was_cancelled_neither_succeeds_nor_comes_back(case):
    case.cancelled_in, case.is_cancel_asked, case.restarts = 1, True, 2
    write(case, "began", ALL)
    write(case, "ended", ALL)
    assert judged(case, "CANCELLED") == []
    assert judged(case, "COMPLETED") == ["COMPLETED, though it was cancelled while its ranks worked"]
    write(case, "began", [(2, 0, 300)])
    assert judged(case, "CANCELLED") == ["attempt 2 began, though it was cancelled in attempt 1"]


def test_nobody_is_said_to_have_done_what_nobody_did(case, tmp_path):
    assert judged(case, "CANCELLED") == ["CANCELLED, though nobody cancelled it: as it was said"]
    assert judged(case, "TIMEOUT") == ["TIMEOUT, though there was time left: as it was said"]
    assert judged(case, "PREEMPTED") == ["PREEMPTED, though it was not: as it was said"]
    case.has_short_limit = True
    assert judged(case, "TIMEOUT") == []
    assert list(judging.broken(case, {"state": "FAILED", "exit_code": 0})) == ["FAILED with exit code 0"]
    record = tmp_path / "0/home/state/serried/runs/k3f9q2"
    record.mkdir(parents=True)
    (record / "exit.json").write_text('{"first_failure": {"rank": 2}}')
    assert judged(case, "FAILED") == []
    case.killed = ALL[1:2]
    assert judged(case, "FAILED") == ["rank 2 is blamed, though ranks [1] were killed"]


def test_no_end_is_no_good_end_and_neither_is_a_run_that_nobody_knows(case):
    assert judged(case, None) == ["no final state was reached"]
    case.run = None
    assert judged(case, None) == []
    write(case, "began", ALL)
    assert judged(case, None) == ["a run without a record was executed"]


def test_a_case_follows_from_its_seed_and_number(tmp_path):
    def planned(seed: int) -> list[tuple[str, int, int, bool]]:
        cases = [plan(number, seed, tmp_path, None, list(KINDS)) for number in range(200)]
        return [(case.kind, case.nodes, case.restarts, case.has_short_limit) for case in cases]

    assert planned(7) == planned(7) != planned(8)
    assert {kind for kind, *_ in planned(7)} == set(KINDS)


def test_the_table_counts_what_was_hit_by_fault_and_state():
    base = {"fault": "kill head", "state": "FAILED", "hit": True, "hidden": False, "violations": []}
    late, hidden = {**base, "hit": False, "hidden": True}, {**base, "hidden": True, "violations": ["false"]}
    results = [base, {**base, "state": "COMPLETED"}, {**base, "state": "no run"}, late, hidden]
    assert list(table(results)) == [
        "| fault | injected | `COMPLETED` | `FAILED` | no run | hidden | broken rules | too late |",
        "|---|---|---|---|---|---|---|---|",
        "| kill head | 4 | 1 | 2 | 1 | 1 | 1 | 1 |",
        "| all | 4 | 1 | 2 | 1 | 1 | 1 | 1 |",
    ]
