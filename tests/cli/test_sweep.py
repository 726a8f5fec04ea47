"""`serried sweep show`: the trials of a sweep, ranked, over all its runs."""

from __future__ import annotations

import json
import math

import pytest

from building import a_failure
from house import ROOT
from serried.fs.files import make_directory, write_json
from serried.plan import Sweep

SWEEP = Sweep("k3f9q2", ("lr", "seed"), metric="val_acc", goal="maximize", seeds=3)
VALUES = {0: 0.9799, 1: 0.9812, 3: 0.9571, 4: 0.9568, 5: 0.9542}


def a_trial(run, task, value, *, seconds=361, state="COMPLETED", **changes):
    log = run.where.task(task).attempt(1).metrics(0, 0)
    make_directory(log.parent)
    values = [] if value is None else [value / 2, value]
    rows = [
        {"t": 1.0, "step": step, "val_acc": _spelled(each), "loss": _spelled(1 - each)}
        for step, each in enumerate(values)
    ]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    run.ending(state, task=task, seconds=seconds, **changes)


def _spelled(value):
    """As `run.log` writes numbers that JSON lacks."""
    return value if math.isfinite(value) else str(value)


@pytest.fixture
def a_sweep(make):
    """A sweep of two learning rates and three seeds; trial 2 failed."""
    run = make(name="train", indices=range(6), sweep=SWEEP)
    write_json(run.where.trials, [{"lr": lr, "seed": seed} for lr in (0.1, 0.01) for seed in range(3)])
    for task, value in VALUES.items():
        a_trial(run, task, value, seconds=361 + task)
    failure = a_failure(tail=("RuntimeError",))
    a_trial(
        run,
        2,
        None,
        seconds=31,
        state="FAILED",
        exit_code=1,
        first_failure=failure,
        message="rank 0 on cn12 exited with status 1",
    )
    return run


@pytest.mark.usefixtures("a_sweep")
def test_the_table_is_that_of_the_page(serried):
    done = serried("sweep", "show", "k3f9q2")
    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    shown = page.partition("$ serried sweep show k3f9q2\n")[2].partition("\n    $ ")[0]
    lines = [line.removeprefix("    ") for line in shown.splitlines()]
    assert done.err.splitlines()[0] == lines[0]
    assert done.out.splitlines() == lines[1:]


@pytest.mark.usefixtures("a_sweep")
def test_the_best_parameters_have_the_best_mean_and_no_seed(serried):
    assert serried("sweep", "show", "k3f9q2", "--best").out == "--lr=0.1\n"
    assert json.loads(serried("sweep", "show", "k3f9q2", "--best", "--json").out) == {"lr": 0.1}


@pytest.mark.usefixtures("a_sweep")
def test_another_metric_reorders_the_trials(serried):
    shown = json.loads(serried("sweep", "show", "k3f9q2", "--metric", "loss:max", "--json").out)
    assert [trial["trial"] for trial in shown["trials"]] == [5, 4, 3, 0, 1, 2]
    shown = json.loads(serried("sweep", "show", "k3f9q2", "--metric", "loss:min", "--json").out)
    assert [trial["trial"] for trial in shown["trials"]] == [1, 0, 3, 4, 5, 2]
    assert serried("sweep", "show", "k3f9q2", "--metric", "val_acc").code == 0
    refused = serried("sweep", "show", "k3f9q2", "--metric", "loss")
    assert (refused.code, "`--metric loss` does not say which values are better" in refused.err) == (2, True)


@pytest.mark.usefixtures("a_sweep")
def test_one_trial_is_no_sweep(serried):
    hints = {
        ("stop", "-y"): "serried stop k3f9q2/2",
        ("retry",): "serried rerun k3f9q2/2",
        ("add", "--count", "1"): "serried rerun k3f9q2/2",
    }
    for (command, *options), hint in hints.items():
        done = serried("sweep", command, "k3f9q2/2", *options)
        assert (done.code, done.err) == (2, f"error: `k3f9q2/2` is one trial of a sweep\n\nhint: {hint}\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--grid", "lr=1,2", "--grid", "lr=3"), "error: `lr` is given twice\n\nhint: list all its values in one"),
        (("--grid", "seed=7,8", "--seeds", "3"), "error: `seeds` and the parameter `seed` exclude each other"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(options, message, serried):
    done = serried("sweep", *options, "--", "true")
    assert done.code == 2
    assert done.err.startswith(message)


def test_without_a_value_no_best_parameters_are_suggested(make, serried):
    run = make(name="train", indices=range(1), sweep=SWEEP)
    write_json(run.where.trials, [{"lr": 0.1, "seed": 0}])
    a_trial(run, 0, 0.9, state="FAILED")
    assert "--best" not in serried("sweep", "show", "k3f9q2").err


def test_a_metric_that_no_trial_reports_is_named(make, serried):
    for number, source, place in ((2, "", "the logged values"), (3, "stdout:acc=(.*)", "`stdout:acc=(.*)`")):
        run = make(f"k3f9q{number}", indices=range(1), sweep=SWEEP._replace(first=f"k3f9q{number}", source=source))
        write_json(run.where.trials, [{"lr": 0.1, "seed": 0}])
        a_trial(run, 0, None)
        done = serried("sweep", "show", f"k3f9q{number}")
        assert f"no trial has reported `val_acc` in {place}" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--metric-from", "stdout:a(.)"), "`--metric-from` needs the name of the metric"),
        (("--metric", "a:max", "--metric-from", "a(.)"), "must be `stdout:REGEX` or `file:PATH:KEY`"),
        (("--metric", "a:max", "--metric-from", "stdout:("), "is not a regular expression"),
    ],
)
def test_a_wrong_place_of_the_metric_is_refused(options, message, serried):
    done = serried("sweep", "--grid", "lr=1", *options, "--", "true")
    assert done.code == 2
    assert message in done.err


@pytest.mark.usefixtures("a_sweep")
def test_csv_has_a_line_for_each_trial(serried):
    lines = serried("sweep", "show", "k3f9q2", "--csv").out.splitlines()
    assert lines[:2] == ["trial,state,val_acc,seconds,lr,seed", "1,COMPLETED,0.9812,362,0.1,1"]
    assert len(lines) == 7


def test_a_value_that_is_not_a_number_counts_as_missing(a_sweep, serried):
    a_trial(a_sweep, 1, math.nan)
    shown = json.loads(serried("sweep", "show", "k3f9q2", "--json").out)
    assert [trial["trial"] for trial in shown["trials"]] == [0, 3, 4, 5, 1, 2]
    assert shown["trials"][4]["value"] == "nan"
    assert shown["groups"][0]["mean"] == 0.9799


def test_a_later_run_of_the_sweep_replaces_the_trials_that_it_repeats(a_sweep, make, serried):
    again = make("p4m7wd", name="train", indices=[2], sweep=SWEEP)
    write_json(again.where.trials, [{"lr": 0.1, "seed": 2}])
    a_trial(again, 2, 0.99)
    shown = json.loads(serried("sweep", "show", "p4m7wd", "--json").out)
    assert shown["runs"] == [a_sweep.plan.run, "p4m7wd"]
    assert shown["trials"][0]["id"] == "p4m7wd/2"
    assert len(shown["trials"]) == 6


def test_a_sweep_without_a_completed_trial_has_no_best(make, serried):
    run = make(indices=range(1), sweep=SWEEP)
    write_json(run.where.trials, [{"lr": 0.1, "seed": 0}])
    a_trial(run, 0, 0.5, state="FAILED", exit_code=1)
    done = serried("sweep", "show", "k3f9q2", "--best")
    assert (done.code, done.out) == (2, "")
    assert "no completed trial of sweep `k3f9q2` has logged `val_acc`" in done.err


def test_a_sweep_without_a_metric_has_no_best(make, serried):
    run = make(indices=range(1), sweep=SWEEP._replace(metric=""))
    write_json(run.where.trials, [{"lr": 0.1, "seed": 0}])
    a_trial(run, 0, 0.5)
    assert serried("sweep", "show", "k3f9q2", "--best").code == 2
    assert serried("sweep", "show", "k3f9q2").out.splitlines()[0].split() == [
        "TRIAL",
        "LR",
        "SEED",
        "STATE",
        "TIME",
        "NOTE",
    ]


def test_other_runs_and_lost_parameters_are_errors(make, serried):
    make()
    done = serried("sweep", "show", "k3f9q2")
    assert (done.code, "is not a sweep" in done.err) == (2, True)
    make("p4m7wd", indices=range(2), sweep=SWEEP._replace(first="p4m7wd"))
    done = serried("sweep", "show", "p4m7wd")
    assert (done.code, "`trials.json` of run `p4m7wd` cannot be read" in done.err) == (1, True)


def test_a_trial_that_has_not_drawn_its_parameters_is_no_place_to_take_them_from(make, serried):
    run = make(indices=range(2), sweep=SWEEP._replace(seeds=1))
    write_json(run.where.trials, [{"lr": 0.1}, {}])
    done = serried("submit", "--from-sweep", "k3f9q2/1", "--dry-run", "--", "true")
    assert (done.code, done.err.splitlines()[0]) == (2, "error: trial 1 of sweep `k3f9q2` has no parameters yet")
