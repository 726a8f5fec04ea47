"""Where the time of a run went, second by second."""

from __future__ import annotations

import json

from serried.records.timeline import AttemptTimes, TimeSpent, time_spent
from serried.schema.series import DoneStep
from tables import for_each

FAILED = {"reason": "failure", "because": "rank 1 on n2"}


def at(t, event, **facts):
    return {"t": float(t), "event": event, **facts}


def steps(first, began, *, every=10, attempt=1, lost=()):
    """Five steps from step `first` on."""
    return [DoneStep(attempt, began + every * (n + 1), first + n, 1, first + n not in lost) for n in range(5)]


def a_failure(t):
    return [at(t, "rank-failed", node=1, exit={}), at(t, "stopping", **FAILED)]


WHOLE = AttemptTimes(100, 200, [at(120, "go"), at(185, "all-over")], steps(1, 130))
CHECKED = [at(105, "staged"), at(109, "checked", part="nodes", seconds=8), at(119, "checked", part="pairs", seconds=10)]
RECOVERED = [at(120, "go"), *a_failure(184), at(190, "round", round=2), at(191, "go"), at(250, "all-over")]
TWO_ROUNDS = [*steps(1, 130, lost=(4, 5)), *steps(4, 195)]
SILENT = [at(120, "go"), at(780, "stopping", reason="silence")]
LOST = [at(120, "go"), at(210, "node-lost", node=1), at(210, "stopping", reason="lost")]
HUNG = [at(120, "go"), *a_failure(1180)]
NOTICED = [at(120, "go"), at(182, "stopping", reason="limit", save=True)]
AGAIN = AttemptTimes(500, 600, [at(510, "go"), at(590, "all-over")], steps(6, 520, attempt=2))


@for_each(
    ("attempts", "end", "spent"),
    [
        ([], 50, TimeSpent(queue=50)),
        ([WHOLE], 200, TimeSpent(steps=55, queue=100, start=30, stop=15)),
        (
            [WHOLE._replace(events=[*CHECKED, *WHOLE.events])],
            200,
            TimeSpent(steps=55, queue=100, start=16, check=14, stop=15),
        ),
        (
            [AttemptTimes(100, 260, RECOVERED, TWO_ROUNDS)],
            260,
            TimeSpent(steps=30 + 55, queue=100, start=30 + 4, repeated=24, stop=7 + 10),
        ),
        (
            [AttemptTimes(100, 790, SILENT, steps(1, 130))],
            790,
            TimeSpent(steps=50, queue=100, start=30, hang=600, stop=10),
        ),
        ([AttemptTimes(100, 215, LOST, steps(1, 130))], 215, TimeSpent(steps=50, queue=100, start=30, hang=30, stop=5)),
        (
            [AttemptTimes(100, 190, NOTICED, steps(1, 130)), AGAIN],
            600,
            TimeSpent(steps=52 + 70, queue=100 + 310, start=30 + 20, stop=8 + 10),
        ),
        (
            [AttemptTimes(100, 1190, HUNG, steps(1, 130)), AttemptTimes(1200, None, [at(1205, "go")])],
            1210,
            TimeSpent(steps=50, queue=110, start=40, hang=1000, stop=10),
        ),
        ([AttemptTimes(100, 130, [at(120, "launch-failed")])], 130, TimeSpent(queue=100, start=30)),
        (
            [AttemptTimes(100, 130, [at(120, "go"), at(128, "all-over")])],
            130,
            TimeSpent(queue=100, start=20, stop=2, unknown=8),
        ),
        ([AttemptTimes(100, 130, [])], 130, TimeSpent(queue=100, unknown=30)),
        ([AttemptTimes(100, None, [at(120, "go")], steps(1, 130))], 200, TimeSpent(steps=70, queue=100, start=30)),
        ([AttemptTimes(100, None, [at(99, "go")], steps(1, 60))], 105, TimeSpent(steps=5, queue=100)),
    ],
)
def test_each_second_has_one_cause_and_all_add_up_to_the_time_since_the_submission(attempts, end, spent):
    found = time_spent(
        0.0, float(end), attempts, has_ended=all(it.ended is not None for it in attempts) and bool(attempts)
    )
    assert (found, found.total) == (spent, end)


def test_goodput_is_the_share_of_kept_steps_with_and_without_the_queue():
    spent = TimeSpent(steps=60, queue=20, start=10, stop=10)
    assert (spent.goodput, spent.goodput_without_queue, spent.lost) == (
        0.6,
        0.75,
        {"queue": 20, "start": 10, "stop": 10},
    )
    assert TimeSpent.from_json(json.loads(json.dumps(spent.to_json()))) == spent
    assert (TimeSpent(steps=60, unknown=1).goodput, TimeSpent.from_json({"steps_seconds": 3})) == (None, None)
