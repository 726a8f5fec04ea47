"""A sweep as a picture, drawn by the real matplotlib."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest
from matplotlib.collections import LineCollection

from serried.plan import Sweep
from serried.sweeps.results import PRUNED, SweepResults, TrialResult
from serried.ui import sweep_picture

THREE = {
    "lr": {"distribution": "log_uniform_values", "min": 1e-5, "max": 0.1},
    "kind": {"values": ["sgd", "adam", "lion"]},
    "dropout": {"min": 0.0, "max": 0.5},
}
HOSTILE = ["$x^2", r"$\frac{$", "x" * 500, "日本語\x00\ud800", "two\nlines", None, True, [1, 2], {"a": 1}, 10**400, ""]


def three(generator):
    lr = 10 ** generator.uniform(-5, -1)
    return {"lr": lr, "kind": generator.choice(THREE["kind"]["values"]), "dropout": generator.uniform(0, 0.5)}


def a_sweep(values, draw=three, goal="maximize", metric="acc", definition=THREE):
    """A sweep of trials with these values, or states in place of values."""
    generator = random.Random(0)
    trials = []
    for number, value in enumerate(values):
        state = value if isinstance(value, str) else "COMPLETED"
        number_of = {"FAILED": None, "PENDING": None, PRUNED: 0.5}.get(state, value)
        has_failed = state == "FAILED"
        trials.append(TrialResult(number, "k3f9q2", draw(generator), state, number_of, 1.0, has_failed))
    sign = -1 if goal == "maximize" else 1
    trials.sort(key=lambda trial: (not trial.counts, sign * (trial.value or 0) if trial.counts else 0))
    described = {"parameters": definition} if definition else {}
    return SweepResults(Sweep("k3f9q2", (), metric, goal, definition=described), (), tuple(trials))


def panels(results):
    """History, importance, parallel coordinates."""
    with mpl.rc_context(sweep_picture._STYLE):
        return sweep_picture.figure(results).axes[:3]


def lines_of(panel):
    return [line for each in panel.collections if isinstance(each, LineCollection) for line in each.get_segments()]


def texts_of(panel):
    return [text.get_text() for text in panel.texts]


def written(results, path):
    sweep_picture.write(results, path)
    return path.read_bytes()


def test_history_has_the_values_in_order_and_the_best_so_far():
    history = panels(a_sweep([0.5, "FAILED", 0.7, 0.6, PRUNED, 0.9, "PENDING"]))[0]
    shown = {each.get_label(): each.get_offsets().tolist() for each in history.collections}
    assert shown["completed"] == [[0, 0.5], [2, 0.7], [3, 0.6], [5, 0.9]]
    assert [number for number, _ in shown["failed"]] == [1]
    assert shown["ended early"] == [[4, 0.5]]
    (best,) = history.get_lines()
    assert list(best.get_ydata()) == [0.5, 0.7, 0.7, 0.9, 0.9]
    assert (history.get_xlabel(), history.get_ylabel()) == ("trial", "acc")


def test_the_best_of_a_loss_is_the_least():
    (best,) = panels(a_sweep([0.5, 0.7, 0.2], goal="minimize"))[0].get_lines()
    assert list(best.get_ydata()) == [0.5, 0.5, 0.2, 0.2]


def test_parallel_coordinates_have_an_axis_for_each_parameter_and_a_line_for_each_trial_with_a_value():
    results = a_sweep([0.1 * place for place in range(10)] + ["FAILED", "FAILED", PRUNED, "PENDING"])
    panel = panels(results)[2]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["lr", "kind", "dropout", "acc"]
    assert panel.get_title(loc="left") == (
        "parallel coordinates: 10 of 14 trials (2 failed, 1 ended early, 1 not ended)"
    )
    lines = lines_of(panel)
    assert len(lines) == 10
    best = next(trial for trial in results.trials if trial.counts)
    lr, kind, _, value = lines[-1]
    tried = [trial.parameters["lr"] for trial in results.trials]
    low, high = math.log(min(tried)), math.log(max(tried))
    assert lr[1] == pytest.approx((math.log(best.parameters["lr"]) - low) / (high - low))
    assert kind[1] == THREE["kind"]["values"].index(best.parameters["kind"]) / 2
    assert value[1] == 1


def test_a_list_of_numbers_has_places_in_order():
    panel = panels(a_sweep([0.1, 0.2, 0.3], draw=lambda generator: {"lr": generator.random()}, definition=None))[2]
    assert sorted({line[0][1] for line in lines_of(panel)}) == [0, 0.5, 1]


def test_importance_has_a_bar_for_each_parameter():
    panel = panels(a_sweep([0.1 * place for place in range(20)]))[1]
    assert {label.get_text() for label in panel.get_yticklabels()} == {"lr", "kind", "dropout"}
    assert len(panel.patches) == 3


def test_a_sweep_of_one_parameter_has_two_axes():
    panel = panels(a_sweep([0.1, 0.2, 0.3], draw=lambda generator: {"lr": generator.random()}, definition=None))[2]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["lr", "acc"]


def test_empty_panels_say_why():
    history, importance, coordinates = panels(a_sweep(["FAILED", "PENDING"]))
    assert texts_of(history) == texts_of(coordinates) == ["no completed trial has a value of acc"]
    assert texts_of(importance) == ["importance needs 16 completed trials with a value, and 0 have one"]
    same = panels(a_sweep([0.1, 0.2], draw=lambda _: {"lr": 1}, definition=None))
    assert texts_of(same[2]) == ["no parameter has two values"]


def test_values_far_worse_than_the_others_are_at_the_edge():
    history, _, coordinates = panels(a_sweep([1.0, 1.1, 1.2, 1.3, 1.4, 1e308], goal="minimize"))[:3]
    assert history.get_title(loc="left") == "history (1 far worse, drawn at the edge)"
    assert history.get_ylim()[1] < 2
    assert [line[-1][1] for line in lines_of(coordinates)][:2] == [1, 1]


def test_values_that_differ_from_many_equal_ones_are_in_their_place():
    history = panels(a_sweep([0.99] * 12 + [0.985, 0.97]))[0]
    assert history.get_title(loc="left") == "history"
    assert {value for _, value in history.collections[0].get_offsets().tolist()} == {0.99, 0.985, 0.97}


def test_of_many_parameters_the_most_important_are_shown():
    def forty(generator):
        return {"lr": generator.choice([1, 2]), **{f"p{number}": generator.random() for number in range(39)}}

    results = a_sweep([place % 7 for place in range(100)], draw=forty, definition=None)
    _, importance, coordinates = panels(results)
    assert len(coordinates.get_xticklabels()) == sweep_picture.MOST_AXES + 1
    assert coordinates.get_title(loc="left").endswith("; 15 of 40 parameters")
    assert importance.get_title(loc="left") == "importance (15 of 40 parameters)"


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PDF"])
def test_hostile_names_and_values_are_drawn_as_they_are(suffix, tmp_path):
    def hostile(generator):
        return {f"{name} $_{{^ {'n' * 80}": generator.choice(HOSTILE) for name in ("a", "b\n", "<&", "$x$")}

    results = a_sweep([*range(30), 1e308, -1e308], draw=hostile, metric="$acc_{$\n\x00<&", definition=None)
    texts = [text.get_text() for panel in panels(results) for text in panel.get_xticklabels() + panel.texts]
    assert any(text.startswith("a $_{^ nnn") for text in texts)
    assert "$x^2" in texts
    content = written(results, tmp_path / f"out{suffix}")
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".PDF": b"%PDF"}
    assert content.startswith(starts[suffix])
    if suffix == ".svg":
        ET.fromstring(content)


def test_a_thousand_trials_are_drawn(tmp_path):
    generator = random.Random(0)
    results = a_sweep([generator.random() for _ in range(1000)])
    assert len(lines_of(panels(results)[2])) == 1000
    assert written(results, tmp_path / "out.png").startswith(b"\x89PNG")


def test_the_settings_of_the_user_and_of_the_program_stay(tmp_path):
    with mpl.rc_context({"text.usetex": True, "font.size": 30}):
        assert written(a_sweep([0.1, 0.2]), tmp_path / "out.png").startswith(b"\x89PNG")
        assert mpl.rcParams["font.size"] == 30
