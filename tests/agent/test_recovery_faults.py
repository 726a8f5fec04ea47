"""Faults in recovery itself, of each kind that `benchmarks/recovery.py` injects by the hundred, and their judge."""

from __future__ import annotations

import pytest

from recovery_faults import Case, Fault, Seen, attempt, verdict
from serried import schedulers

KILLED = ("rank killed", "step", 4, 1, 0.0)
LOST = ("agent killed", "step", 4, 0, 0.0)
PAIRS = (
    (KILLED, ("rank exits 137", "step", 5, 0, 0.0), "COMPLETED"),
    (KILLED, ("checkpoint torn", "change", 0.0, 0, 0.0), "COMPLETED"),
    (LOST, ("rank crashed", "step", 5, 0, 0.0), "COMPLETED"),
    (KILLED, ("agent killed", "change", 0.0, 0, 0.0), "COMPLETED"),
    (KILLED, ("spare killed", "change", 0.0, 0, 0.0), "COMPLETED"),
    (KILLED, ("rank exits 1", "step", 5, 0, 0.0), "FAILED"),
    (LOST, ("stopped by the user", "change", 0.0, 0, 0.0), "CANCELLED or FAILED"),
    (KILLED, ("cancelled", "round", 0.0, 0, 0.0), "CANCELLED"),
    (LOST, ("head killed", "round", 0.0, 0, 0.0), "FAILED"),
    (KILLED, ("job.sh killed", "change", 0.0, 0, 0.0), "FAILED"),
)


@pytest.mark.runs
@pytest.mark.parametrize(("first", "second", "state"), PAIRS, ids=[pair[1][0] for pair in PAIRS])
def test_a_second_fault_in_the_middle_of_a_recovery_gets_a_true_verdict(tmp_path, monkeypatch, first, second, state):
    monkeypatch.setattr(schedulers, "NAMES", schedulers.NAMES)  # an attempt registers one
    case = Case(0, (2, 1, 1), (Fault(*first), Fault(*second)))

    seen = attempt(case, tmp_path)

    assert verdict(case, seen) == []
    assert [it.fault.kind for it in seen.injected] == [first[0], second[0]]
    assert seen.end["state"] in state.split(" or ")


def mark(what, t, rank=0, round_=1, pid=7, **facts):
    return {"what": what, "t": t, "rank": rank, "round": round_, "pid": pid, "node": 0, **facts}


BEGUN = {"event": "round", "t": 3.0, "round": 2, "code": "signal", "message": "", "rank": 0, "host": "fake1"}


def test_the_judge_sees_a_rank_of_an_earlier_round_that_runs_on(tmp_path):
    marks = [mark("begin", 1.0), mark("begin", 2.0, round_=2, pid=8), mark("step", 3.0, step=1)]
    end = {"state": "FAILED", "message": ""}
    seen = Seen([], [], marks, end, 9.0, [], tmp_path, [])

    expected = ["false failure: ", "ran twice: rank 0 in rounds 1 and 2"]
    assert verdict(Case(0, (1, 1, 0), ()), seen) == expected


def test_the_judge_sees_a_success_without_all_ranks_and_an_older_checkpoint(tmp_path):
    marks = [mark("saved", 1.0, step=3), mark("saved", 2.0, step=6), mark("end", 4.0, round_=2)]
    end = {"state": "COMPLETED", "message": "recovered once", "rounds": 1}
    events = [{**BEGUN, "resume": "checkpoints/step-3"}]
    seen = Seen([], events, marks, end, 9.0, [], tmp_path, ["rank-0.txt"])

    wrong = [text.partition(":")[0] for text in verdict(Case(0, (2, 1, 0), ()), seen)]
    assert wrong == ["false success", "false success", "false blame", "older checkpoint"]
