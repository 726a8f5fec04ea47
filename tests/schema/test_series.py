"""What ranks have logged in several attempts, as one curve."""

from __future__ import annotations

import json
import math

import pytest

import serried
from building import RunOnDisk
from serried.base.errors import UsageError
from serried.schema.layout import RunDirectory
from serried.schema.series import Entry, Follower, done, last_value, logged_number, number, parse, points, ranks, values
from tables import for_each


def write(place, attempt, entries, *, rank=0, node=0, rest=""):
    path = place.attempt(attempt).metrics(node, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + rest)


def rows(place, rank=0):
    return [point.to_json() for point in points(place, rank)]


def steps(place, rank=0):
    return [(point.step, point.attempt) for point in points(place, rank)]


def test_steps_that_a_later_attempt_made_again_count_once(tmp_path):
    place = RunDirectory(tmp_path)
    write(place, 1, [{"step": step} for step in (1, 2, 3, 4)], rest='{"step": 5, "lo')
    write(place, 2, [])
    write(place, 10, [{"step": step} for step in (3, 4, 5)])
    assert steps(place) == [(1, 1), (2, 1), (3, 10), (4, 10), (5, 10)]


def test_an_attempt_that_began_from_nothing_replaces_all_before_it(tmp_path):
    place = RunDirectory(tmp_path)
    write(place, 1, [{"step": 1}, {"step": 2}, {"step": 3}])
    write(place, 2, [{"step": 1}])
    assert steps(place) == [(1, 2)]


def test_what_an_attempt_adds_to_the_step_that_it_goes_on_from_takes_nothing_away(tmp_path):
    """Stopped after an epoch's last step, before what follows the epoch was logged of it."""
    place = RunDirectory(tmp_path)
    write(place, 1, [{"step": 7, "loss": 2.0}, {"step": 8, "loss": 1.0}, {"step": 9, "loss": 0.5}])
    write(place, 2, [{"t": 5.0, "resumed": 8}])
    write(place, 3, [{"t": 5.0, "resumed": 8}, {"step": 8, "accuracy": 0.5}, {"step": 9, "loss": 0.25}])
    assert rows(place) == [
        {"attempt": 1, "step": 7, "loss": 2.0},
        {"attempt": 3, "step": 8, "loss": 1.0, "accuracy": 0.5},
        {"attempt": 3, "step": 9, "loss": 0.25},
    ]


def test_what_is_logged_of_a_step_at_several_times_is_one_row(tmp_path):
    write(
        RunDirectory(tmp_path),
        1,
        [{"t": 5.0, "step": 1, "loss": 2.0}, {"t": 5.5, "step": 1, "serried/step_seconds": 0.1}, {"t": 6.0, "step": 2}],
    )
    assert rows(RunDirectory(tmp_path)) == [
        {"attempt": 1, "t": 5.5, "step": 1, "loss": 2.0, "serried/step_seconds": 0.1},
        {"attempt": 1, "t": 6.0, "step": 2},
    ]


def test_what_json_has_no_word_for_is_a_number_again(tmp_path):
    write(RunDirectory(tmp_path), 1, [{"step": 1, "a": "nan", "b": "inf", "c": "-inf", "d": "text"}])
    (row,) = rows(RunDirectory(tmp_path))
    assert (math.isnan(row["a"]), row["b"], row["c"], row["d"]) == (True, math.inf, -math.inf, "text")


def test_lines_that_are_no_steps_are_passed_over(tmp_path):
    write(RunDirectory(tmp_path), 1, [{"step": "x"}, {"loss": 1.0}, [1], {"step": 1}])
    assert steps(RunDirectory(tmp_path)) == [(1, 1)]


def test_a_logged_name_changes_no_line_of_the_file(tmp_path):
    """`resumed`, `event` and `attempt` are names that a program may log under."""
    place = RunDirectory(tmp_path)
    write(place, 1, [{"step": 1, "resumed": 0, "event": 3}, {"step": 2, "resumed": 0, "attempt": 7, "total_steps": 9}])
    assert [(point.step, point.values) for point in points(place)] == [
        (1, {"resumed": 0, "event": 3}),
        (2, {"resumed": 0, "attempt": 7, "total_steps": 9}),
    ]


def test_an_attempt_that_resumed_and_logged_nothing_takes_nothing_back(tmp_path):
    place = RunDirectory(tmp_path)
    write(place, 1, [{"step": step} for step in (1, 2, 3, 4, 5)])
    write(place, 2, [{"resumed": 1}])
    write(place, 3, [{"t": 5.0, "total_steps": 9}, {"resumed": 4}, {"step": 5}, {"resumed": 2}, {"step": 3}])
    assert steps(place) == [(1, 1), (2, 1), (3, 3)]


def test_a_follower_reads_each_entry_once_when_its_line_has_ended(tmp_path):
    place = RunDirectory(tmp_path)
    write(place, 1, [{"t": 1, "step": 1}], rest='{"step": 2, "lo')
    follower = Follower(place, 0)
    path = place.attempt(1).metrics(0, 0)
    assert list(follower.look()) == [(path, 1, Entry(1.0, 1, {}))]
    with path.open("a") as file:
        file.write('ss": 0.5}\n[1]\n')
    write(place, 2, [{"resumed": 1}])
    expected = [(path, 1, Entry(None, 2, {"loss": 0.5})), (place.attempt(2).metrics(0, 0), 2, Entry(None, None, {}, 1))]
    assert list(follower.look()) == expected
    path.unlink()
    assert list(follower.look()) == []


def test_the_last_value_is_that_of_all_points(tmp_path):
    place = RunDirectory(tmp_path)
    assert last_value(place, "loss") is None
    losses = [{"t": 1, "step": step, "loss": 1 / step} for step in range(1, 9000)]
    write(place, 1, [{"step": 1, "accuracy": 0.5}, *losses], rest='{"step": 20000, "loss": 7')
    write(place, 2, [{"t": 1, "resumed": 8000}, {"step": 8001, "note": "x", "loss": "x"}])
    for name, value in (("loss", 1 / 8000), ("accuracy", 0.5), ("note", None)):
        assert last_value(place, name) == value
        assert values(points(place), name)[-1:] == ([] if value is None else [value])
    write(place, 3, [{"step": 1, "loss": "inf"}])
    assert last_value(place, "loss") == math.inf


@for_each(
    ("value", "finite", "logged"),
    [
        (2, 2.0, 2.0),
        (-0.5, -0.5, -0.5),
        (True, None, None),
        ("0.5", None, None),
        ("-inf", None, -math.inf),
        (math.inf, None, math.inf),
        (10**400, None, None),
        (1e301, None, 1e301),
        (None, None, None),
        ([1], None, None),
    ],
)
def test_a_number_is_finite_and_a_logged_one_may_be_text_that_json_lacks(value, finite, logged):
    assert (number(value), logged_number(value)) == (finite, logged)


def test_what_is_no_object_is_no_entry():
    assert [parse(line) for line in (b"[1]", b'{"step"', b"", b"\xff")] == [None] * 4
    assert parse(b'{"step": 100000000000000000000, "loss": 1}') == Entry(None, None, {})


def test_ranks_of_all_nodes_are_found(tmp_path):
    place = RunDirectory(tmp_path)
    for rank, node in ((0, 0), (2, 1), (11, 5)):
        write(place, 1, [{"step": rank}], rank=rank, node=node)
    assert ranks(place) == [0, 2, 11]
    assert [steps(place, rank) for rank in (0, 1, 2, 11)] == [[(0, 1)], [], [(2, 1)], [(11, 1)]]


def test_python_reads_them_of_a_run_and_of_a_task(tmp_path):
    alone = RunOnDisk(tmp_path)
    write(alone.where, 1, [{"t": 1.0, "step": 1, "loss": 0.5}], rank=3, node=1)
    assert serried.find("k3f9q2").metrics(rank=3) == [{"attempt": 1, "t": 1.0, "step": 1, "loss": 0.5}]
    assert serried.find("k3f9q2").metrics() == []

    array = RunOnDisk(tmp_path, "a3k9x7", indices=[0, 7])
    write(array.where.task(7), 1, [{"t": 1.0, "step": 1, "loss": 0.25}])
    assert [row["loss"] for row in serried.find("a3k9x7/7").metrics()] == [0.25]
    with pytest.raises(UsageError, match="is an array"):
        serried.find("a3k9x7").metrics()


def test_steps_that_were_done_again_are_known_as_such(tmp_path):
    place = RunDirectory(tmp_path)
    first = [*({"t": 1.0 + step, "step": step} for step in (1, 2, 3, 4)), {"t": 5.5, "step": 4, "lr": 0.1}]
    write(place, 1, [*first, {"t": 6.0, "resumed": 2}, {"t": 9.0, "step": 3}], rest='{"t": 10.0, "step": 4')
    write(place, 2, [{"t": 20.0, "resumed": 3}, {"loss": 0.1, "step": 5, "t": 21.0}, {"t": 22.0, "total_steps": 9}])
    assert [tuple(it) for it in done([(place.attempt(number).metrics(0, 0), number) for number in (1, 2, 3)])] == [
        (1, 2.0, 1, 1, True),
        (1, 3.0, 2, 1, True),
        (1, 4.0, 3, 1, False),
        (1, 5.5, 4, 1, False),
        (1, 9.0, 3, 1, True),
        (2, 21.0, 5, 2, True),
    ]


def test_of_many_steps_one_a_second_is_kept_with_their_number(tmp_path):
    place = RunDirectory(tmp_path)
    write(place, 1, [{"t": 100 + step / 8, "step": step} for step in range(1, 10_041)])
    steps = done([(place.attempt(1).metrics(0, 0), 1)])
    assert (len(steps), sum(it.steps for it in steps), steps[-1].step) == (10_005, 10_040, 10_040)
