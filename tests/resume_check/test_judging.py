"""Two runs' metrics and traces, made by hand: what is said of them."""

from __future__ import annotations

import json
import math

import pytest

from serried.base.errors import SerriedError
from serried.resume_check import judge
from serried.resume_check.check import Prompter, choose_stops
from serried.resume_check.judge import Difference, Lost, check_stopped, check_whole, compare, is_left_out
from serried.schema.layout import RunDirectory
from serried.schema.series import LoggedStep
from tables import for_each


def curve(*losses, first=1, **more):
    return [LoggedStep(1, 5.0, step, {"loss": loss, **more}) for step, loss in enumerate(losses, first)]


# Curves.


def test_equal_curves_have_no_difference_whatever_the_clock_said():
    later = [LoggedStep(2, 9.0, row.step, {**row.values, "serried/step_seconds": 3.0}) for row in curve(0.5, 0.25)]
    found = compare({0: curve(0.5, 0.25), 1: curve(0.5)}, {0: later, 1: curve(0.5)})
    assert (found.ranks, found.steps, found.values, found.differences) == (2, 2, 3, ())


def test_the_last_bit_counts():
    off = math.nextafter(0.1, 1)
    found = compare({0: curve(0.5, 0.1)}, {0: curve(0.5, off)})
    assert found.differences == (Difference(2, 0, "loss", 0.1, off),)
    assert compare({0: curve(0.5, 0.1)}, {0: curve(0.5, off)}, tolerance=1e-6).differences == ()


@for_each(
    ("one", "other", "are_equal"),
    [
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (0.0, -0.0, False),
        ("a", "a", True),
        ("a", "b", False),
        (1, 1.0, True),
        (None, 1.0, False),
    ],
)
def test_values_of_every_kind_are_compared(one, other, are_equal):
    assert (compare({0: curve(one)}, {0: curve(other)}).differences == ()) == are_equal


def test_the_first_difference_is_of_the_first_step_whichever_rank_made_it():
    found = compare({0: curve(1, 2, 3), 1: curve(1, 2, 3)}, {0: curve(1, 2, 4), 1: curve(1, 9, 9)})
    assert [(one.step, one.rank) for one in found.differences] == [(2, 1), (3, 0), (3, 1)]


def test_a_step_that_one_of_the_runs_has_not_logged_is_a_difference():
    found = compare({0: curve(1, 2)}, {0: curve(1)})
    assert found.differences == (Difference(2, 0, "", {"loss": 2}, None),)
    assert len(compare({0: curve(1), 1: curve(1)}, {0: curve(1)}).differences) == 1


@for_each(
    ("name", "is_out"),
    [
        ("loss", False),
        ("images_per_second", True),
        ("step_time", True),
        ("val/wait-seconds", True),
        ("gpu.memory", True),
        ("img/s", True),
        ("timestep", False),
        ("learning_rate", False),
        ("momentum", False),
    ],
)
def test_what_says_how_fast_it_went_is_left_out(name, is_out):
    assert is_left_out(name) == is_out


def test_what_was_left_out_is_told_and_a_pattern_leaves_out_more():
    rows = {0: curve(1, step_time=3, grad_norm=1)}
    others = {0: curve(1, step_time=4, grad_norm=2)}
    assert compare(rows, others, ignore=["grad_*"]).left_out == ("grad_norm", "step_time")
    assert [one.name for one in compare(rows, others).differences] == ["grad_norm"]


# Traces.

STATES = [
    {"name": "model", "kind": "Linear", "role": "given", "digest": "aa"},
    {"name": "torch", "kind": "torch", "role": "random", "digest": "bb"},
    {"name": "schedule", "kind": "StepLR", "role": "torch", "digest": "cc"},
    {"name": "second", "kind": "StepLR", "role": "torch", "digest": "dd"},
]


def changed(*digests):
    return [{**entry, "digest": digest} for entry, digest in zip(STATES, digests, strict=True)]


def write(place, attempt, events, *, rank=0, node=0):
    path = place.attempt(attempt).node(node) / f"rehearsal-{rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"torn')
    place.attempt(attempt).control.touch()


def begin(step=0, states=STATES):
    return {"event": "begin", "step": step, "device": "cpu", "world_size": 1, "states": states}


def made(*steps, batch="b{}"):
    return [{"event": "step", "step": step, "batch": batch.format(step)} for step in steps]


def stop(step, states=STATES):
    return [{"event": "waiting", "step": step}, {"event": "stop", "step": step, "reason": "limit", "states": states}]


def test_a_trace_tells_steps_stops_and_batches_of_all_attempts(tmp_path):
    place = RunDirectory(tmp_path)
    write(place, 1, [begin(), *made(1, 2), *stop(2)])
    write(place, 2, [begin(2), *made(3)])
    (trace,) = judge.read(place)
    assert (trace.steps, trace.stops, trace.batches()) == (3, [2], {1: "b1", 2: "b2", 3: "b3"})
    assert judge.lost([trace]) == []


def test_a_state_that_came_back_as_another_is_lost(tmp_path):
    place = RunDirectory(tmp_path)
    write(place, 1, [begin(), *made(1), *stop(1)])
    write(place, 2, [begin(1, changed("aa", "xx", "cc", "yy")), *made(2), *stop(2)])
    write(place, 3, [begin(2, changed("aa", "xx", "cc", "yy"))])
    write(place, 2, [begin(1), *made(2), *stop(2)], rank=1, node=1)
    expected = [Lost(1, 0, "torch", "torch", "random"), Lost(1, 0, "second", "StepLR", "torch")]
    assert judge.lost(judge.read(place)) == expected


def test_what_the_script_calls_alike_is_told_apart_by_its_number(tmp_path):
    place = RunDirectory(tmp_path)
    before = [{**STATES[2], "name": "a StepLR", "digest": digest} for digest in ("cc", "dd")]
    write(place, 1, [begin(), *stop(1, before)])
    write(place, 2, [begin(1, [before[0], {**before[1], "digest": "yy"}])])
    assert judge.lost(judge.read(place)) == [Lost(1, 0, "a StepLR", "StepLR", "torch")]


def test_what_is_not_there_any_more_or_not_yet_is_not_lost(tmp_path):
    place = RunDirectory(tmp_path)
    write(place, 1, [begin(), *stop(1)])
    write(place, 2, [begin(1, STATES[:1])])
    assert judge.lost(judge.read(place)) == []


def test_the_first_other_batch_is_found(tmp_path):
    one, other = RunDirectory(tmp_path / "one"), RunDirectory(tmp_path / "other")
    write(one, 1, [begin(), *made(1, 2, 3)])
    write(other, 1, [begin(), *made(1), *stop(1)])
    write(other, 2, [begin(1), *made(2, 3, batch="x{}")])
    assert judge.first_other_batch(judge.read(one), judge.read(other)) == (2, 0)


# What cannot be judged.


def trace(*events):
    return [judge.Trace(0, [list(events)])]


@for_each(
    ("curves", "found", "said"),
    [
        ({}, [], "nothing to compare: no rank has logged anything"),
        ({0: [LoggedStep(1, 5.0, 1, {"img/s": 7})]}, [], "nothing to compare: all logged metrics measure speed"),
        ({0: curve(1)}, [], "never checks for a stop notice"),
        ({0: curve(1)}, trace(begin()), "never checks for a stop notice"),
        ({0: curve(1)}, trace(*made(1)), "takes 1 step, too few for 3 stops"),
        ({0: curve(1)}, trace(*made(1, 2, 3)), "takes 3 steps, too few for 3 stops"),
    ],
)
def test_where_there_is_nothing_to_compare_it_says_so(curves, found, said):
    with pytest.raises(SerriedError, match=said):
        check_whole(curves, found, 3)


def test_four_steps_are_enough_for_three_stops():
    assert check_whole({0: curve(1)}, trace(*made(1, 2, 3, 4)), 3) == 4
    assert choose_stops(4, 3, seed=7) == [1, 2, 3]


@for_each(
    ("events", "said"),
    [
        ([*made(1), {"event": "waiting", "step": 2}], "waited for a stop notice after step 2, and did not see it"),
        (stop(2), "stops were planned after steps 2, 5, and took place after 2; it ended COMPLETED"),
        ([], "and took place after none"),
    ],
)
def test_a_training_that_did_not_heed_the_request_is_no_success(events, said):
    with pytest.raises(SerriedError, match=said):
        check_stopped(trace(*events), [2, 5], "COMPLETED")


def test_steps_are_chosen_by_the_seed_and_the_last_is_never_one():
    chosen = [choose_stops(10, 3, seed) for seed in range(50)]
    assert chosen[3] == choose_stops(10, 3, 3) != choose_stops(10, 3, 4)
    assert {step for stops in chosen for step in stops} == set(range(1, 10))
    assert all(len(set(stops)) == 3 and stops == sorted(stops) for stops in chosen)


def verdict(traces_of_stopped, *, stopped=None, device="cpu"):
    both = trace({**begin(), "device": device}, *made(1, 2))
    curves = {0: curve(1.0, 2.0)}
    return judge.judge(curves, stopped or curves, both, traces_of_stopped, tolerance=None, ignore=())


def resumed(states):
    return [judge.Trace(0, [[begin(), *made(1), *stop(1)], [begin(1, states), *made(2)]])]


@for_each(
    ("states", "is_exact"),
    [(STATES, True), (changed("aa", "xx", "cc", "dd"), True), (changed("xx", "bb", "cc", "dd"), False),
     (changed("aa", "bb", "xx", "dd"), False)],
)  # fmt: skip
def test_a_lost_optimizer_is_a_failure_though_no_loss_shows_it_yet(states, is_exact):
    assert verdict(resumed(states)).is_exact == is_exact


def test_an_order_of_adding_up_is_torchs_and_no_lost_state():
    order = {"name": "Net", "kind": "DistributedDataParallel", "role": "order", "digest": "aa"}
    found = [
        judge.Trace(0, [[begin(), *made(1), *stop(1, [order])], [begin(1, [{**order, "digest": "begin"}]), *made(2)]])
    ]
    (lost,) = verdict(found).lost
    assert (verdict(found).is_exact, lost.is_grave) == (True, False)
    assert "torch's rounding, and no state of the script" in judge.explain(lost)


@for_each(
    ("whole", "stopped", "is_rounding"),
    [
        (0.1164475753903389, 0.11644757539033891, True),
        (0.1164475753903389, 0.1164476, True),
        (0.1164475753903389, 0.11417420953512192, False),
        (1.0, None, False),
        ("a", 1.0, False),
    ],
)
def test_a_difference_in_the_last_digits_is_told_from_others(whole, stopped, is_rounding):
    assert judge.is_rounding(Difference(2, 0, "loss", whole, stopped)) == is_rounding


def test_off_the_cpu_a_difference_within_the_tolerance_is_none():
    near = {0: curve(1.0, 2.001)}
    assert not verdict(resumed(STATES), stopped=near).is_exact
    assert verdict(resumed(STATES), stopped=near, device="cuda").is_exact
    assert not verdict(resumed(STATES), stopped={0: curve(1.0, 2.1)}, device="cuda").is_exact


# Asking.


def test_each_attempt_that_waits_is_asked_once(tmp_path):
    place, heard = RunDirectory(tmp_path), []
    prompter = Prompter(place, lambda *what: heard.append(what))
    prompter.tick()
    write(place, 1, [begin(), *made(1)])
    prompter.tick()
    write(place, 1, [begin(), *made(1), {"event": "waiting", "step": 1}])
    path = place.attempt(1).node(0) / "rehearsal-0.jsonl"
    path.write_text(path.read_text().removesuffix('{"torn'))
    prompter.tick()
    prompter.tick()
    (request,) = [json.loads(line) for line in place.attempt(1).control.read_text().splitlines()]
    assert {name: request[name] for name in ("request", "reason", "save")} == {
        "request": "stop", "reason": "limit", "save": True
    }  # fmt: skip
    assert heard == [(1, 1)]
