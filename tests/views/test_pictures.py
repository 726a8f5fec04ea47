"""The pictures of a sweep and its importance, by the real Optuna without scikit-learn."""

from __future__ import annotations

import math
import random
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from serried.base.errors import UsageError
from serried.schema.plan import Sweep
from serried.sweeps.results import PRUNED, SweepResults, TrialResult
from serried.views import pictures
from tables import for_each

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


@pytest.fixture(autouse=True)
def _without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)


def drawn(count, seed=0):
    """Trials of which the learning rate decides, and the rest nothing."""
    generator = random.Random(seed)
    trials = [{**three(generator), "constant": 1} for _ in range(count)]
    results = a_sweep([1 - 0.05 * abs(math.log10(each["lr"]) + 2.5) for each in trials], definition=THREE)
    numbered = [replace(trial, parameters=trials[trial.number]) for trial in results.trials]
    return replace(results, trials=tuple(numbered))


def test_a_sweep_becomes_a_study_with_the_ranges_of_its_parameters():
    results = a_sweep([0.5, "FAILED", 0.7, PRUNED, "PENDING", 1e308])
    study = pictures.study_of(results)
    trials = study.get_trials()
    assert [(trial.number, trial.state.name, trial.value) for trial in trials] == [
        (0, "COMPLETE", 0.5),
        (1, "FAIL", None),
        (2, "COMPLETE", 0.7),
        (3, "FAIL", None),
        (4, "FAIL", None),
        (5, "COMPLETE", 1e100),
    ]
    tried = {trial.number: trial.parameters for trial in results.trials}
    assert [trial.params for trial in trials] == [tried[number] for number in range(6)]
    spaces = trials[0].distributions
    numbers = [parameters["lr"] for parameters in tried.values()]
    assert (spaces["lr"].low, spaces["lr"].high, spaces["lr"].log) == (min(numbers), max(numbers), True)
    kinds = {parameters["kind"] for parameters in tried.values()}
    assert spaces["kind"].choices == tuple(kind for kind in ("sgd", "adam", "lion") if kind in kinds)
    assert not spaces["dropout"].log
    assert study.direction.name == "MAXIMIZE"


@for_each("seed", range(3))
def test_the_parameter_that_decides_is_the_most_important(seed):
    shares = pictures.importance_of(drawn(100, seed))
    assert next(iter(shares)) == "lr"
    assert shares["lr"] > 0.7
    assert set(shares) == {"lr", "kind", "dropout"}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-3)


@for_each(
    "results",
    [
        a_sweep([0.1 * place for place in range(pictures.LEAST - 1)]),
        a_sweep([0.5] * 30),
        a_sweep([0.1 * place for place in range(30)], metric=""),
        a_sweep([0.1 * place for place in range(30)], draw=lambda _: {"lr": 1}),
    ],
)
def test_too_little_has_no_importance(results):
    assert pictures.importance_of(results) == {}


def test_without_optuna_there_is_no_importance(monkeypatch):
    monkeypatch.setattr(pictures, "_has", lambda library: library != "optuna")
    assert pictures.importance_of(drawn(50)) == {}


def test_the_pictures_are_written_beside_each_other(tmp_path):
    assert pictures.draw_sweep(drawn(50), tmp_path / "sweep.png") == [
        tmp_path / f"sweep-{name}.png" for name in ("history", "parallel", "importance")
    ]
    assert pictures.draw_sweep(a_sweep([0.5, "FAILED"]), tmp_path / "few.png") == [
        tmp_path / f"few-{name}.png" for name in ("history", "parallel")
    ]
    assert {path.read_bytes()[:4] for path in tmp_path.glob("*.png")} == {b"\x89PNG"}


def test_a_sweep_without_a_value_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no completed trial of sweep `k3f9q2` has a value of `acc`"):
        pictures.draw_sweep(a_sweep(["FAILED", "PENDING"]), tmp_path / "sweep.png")


@pytest.mark.parametrize("suffix", [".svg", ".PDF"])
def test_hostile_names_and_values_are_drawn_as_they_are(suffix, tmp_path):
    def hostile(generator):
        return {f"{name} $_{{^ {'n' * 80}": generator.choice(HOSTILE) for name in ("a", "b\n", "<&", "$x$")}

    results = a_sweep([*range(30), 1e308, -1e308], draw=hostile, metric="$acc_{$\n\x00<&", definition=None)
    written = pictures.draw_sweep(results, tmp_path / f"out{suffix}")
    assert len(written) == 3
    starts = {".svg": b"<?xml", ".PDF": b"%PDF"}
    for path in written:
        assert path.read_bytes().startswith(starts[suffix])
        if suffix == ".svg":
            ET.parse(path)


def test_the_settings_of_the_user_and_of_the_program_stay(tmp_path):
    with mpl.rc_context({"text.usetex": True, "font.size": 30}):
        assert pictures.draw_sweep(a_sweep([0.1, 0.2]), tmp_path / "out.png")
        assert mpl.rcParams["font.size"] == 30
    assert plt.get_fignums() == []
