"""Curves that are kept between looks: complete, small, and read from where the last look ended."""

from __future__ import annotations

import json
import random

import pytest

from building import CREATED
from serried.base.files import make_directory
from serried.schema import series
from serried.views.run_files import MOST, MOST_NAMES, Curve, RankCurves
from serried.views.web.runs import KeptCurves


def write(made, *lines, rank=0, number=1):
    path = made.attempt(number).metrics(0, rank)
    make_directory(path.parent)
    with path.open("a") as file:
        file.write("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def steps(*numbers, **values):
    return [{"t": 1, "step": step, **(values or {"loss": 1 / step})} for step in numbers]


def shown(curves):
    return curves.look()["curves"]


@pytest.fixture
def made(make):
    return make("k3f9q2").ending()


def test_attempts_are_one_curve_and_what_is_not_a_number_is_left_out(made):
    write(
        made,
        *steps(1, 2, 3, 4),
        {"t": 1, "step": 5, "loss": "nan", "note": "x", "flag": True, "big": 10**400},
        *steps(10**20),
    )
    made.ending(number=2)
    write(made, {"t": 2, "resumed": 2}, *steps(3, 4, loss=0.5), number=2)
    assert shown(RankCurves(made.where, 0)) == {"loss": {"steps": [1, 2, 3, 4], "values": [1.0, 0.5, 0.5, 0.5]}}


def test_an_attempt_that_does_not_resume_replaces_the_steps_that_it_repeats(made):
    write(made, *steps(1, 2, 3, 4))
    made.ending(number=2)
    write(made, *steps(2, loss=9), number=2)
    assert shown(RankCurves(made.where, 0))["loss"] == {"steps": [1, 2], "values": [1.0, 9.0]}


def test_the_loss_comes_first_and_the_names_of_the_library_last(made):
    write(made, *steps(1, **{"serried/steps_per_second": 1, "lr": 1, "train/loss": 1, "accuracy": 1}))
    curves = RankCurves(made.where, 0)
    assert curves.look()["names"] == ["train/loss", "lr", "accuracy", "serried/steps_per_second"]
    assert curves.look(metric="accuracy")["names"][0] == "accuracy"


def test_attempts_begin_after_the_step_from_which_they_resumed(made):
    write(made, *steps(1, 2, 3, 4))
    for number, resumed in ((2, 4), (3, 2), (4, 3)):
        made.ending(number=number)
        write(made, {"t": 2, "resumed": resumed}, *steps(resumed + 1, resumed + 2), number=number)
    assert RankCurves(made.where, 0).look()["begins"] == [[3, 2], [4, 3]]


def test_a_look_reads_what_was_added_and_waits_for_the_end_of_a_line(made, monkeypatch):
    path = write(made, *steps(1, 2))
    kept = KeptCurves()
    assert kept.look(made.where, 0)["curves"]["loss"]["steps"] == [1, 2]
    write(made, *steps(3), '{"t": 1, "step": 4, "lo')
    assert kept.look(made.where, 0)["curves"]["loss"]["steps"] == [1, 2, 3]
    write(made, 'ss": 0.25}\n')
    size, read = path.stat().st_size, []
    original = series.parse

    def counted(line):
        read.append(len(line))
        return original(line)

    monkeypatch.setattr(series, "parse", counted)
    assert kept.look(made.where, 0)["curves"]["loss"]["steps"] == [1, 2, 3, 4]
    assert sum(read) < size / 2
    path.unlink()  # the run is deleted
    assert kept.look(made.where, 0)["curves"]["loss"]["steps"] == [1, 2, 3, 4]


def test_only_some_curves_are_kept(make):
    kept = KeptCurves(most=2)
    for run in ("aaaaaa", "bbbbbb", "cccccc"):
        kept.look(make(run).ending().where, 0)
    assert len(kept._kept) == 2


def test_many_names_need_limited_memory(made):
    write(made, *({"t": 1, "step": 1, f"name-{at}": 1.0} for at in range(2 * MOST_NAMES)))
    assert len(shown(RankCurves(made.where, 0))) == MOST_NAMES


def test_a_long_curve_has_few_points_true_means_and_all_spikes():
    curve, numbers = Curve(), random.Random(1)
    values = [numbers.random() for _ in range(100_000)]
    values[54_321] = 9.0
    for step, value in enumerate(values):
        curve.add(step, value)
    found = curve.to_json()

    assert MOST / 2 <= len(found["steps"]) <= MOST
    assert (found["steps"][-1], max(found["high"]), min(found["low"])) == (99_999, 9.0, min(values))
    size = found["steps"][0] + 1
    assert found["values"][0] == pytest.approx(sum(values[:size]) / size)
    assert found["steps"] == sorted(set(found["steps"]))


def test_a_step_out_of_order_takes_its_place():
    curve = Curve()
    for step, value in ((1, 1.0), (5, 5.0), (3, 3.0), (5, 6.0)):
        curve.add(step, value)
    assert curve.to_json() == {"steps": [1, 3, 5], "values": [1.0, 3.0, 6.0]}


def test_metrics_that_the_agent_found_in_the_output_are_curves_too(made):
    path = made.attempt().samples(0)
    make_directory(path.parent)
    about = {"t": CREATED, "host": "n0", "interval": 5.0, "node": {}, "gpus": {}}
    ranks = [{"0": {"step": step, "metrics": {"loss": 1 / step}}} for step in (1, 2)]
    lines = [
        {"t": CREATED + 30 * at, "seconds": 30.0, "node": {}, "gpus": {}, "ranks": rank}
        for at, rank in enumerate(ranks, 1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [about, *lines]))
    assert shown(RankCurves(made.where, 0)) == {"loss": {"steps": [1, 2], "values": [1.0, 0.5]}}
