"""The definition of a sweep: W&B's files, tables of serried.toml, and the trials that follow from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.base.errors import ConfigError, UsageError
from serried.sweeps import definition
from serried.sweeps.definition import DefinitionError, Metric, SweepDefinition, parameter, read_range, read_values
from tables import for_each


def trials(**described):
    return list(definition.read_table(described).trials())


def of_file(tmp_path, text):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return definition.read_file(path)


def test_a_grid_tries_all_combinations_and_the_last_parameter_changes_first():
    found = trials(parameters={"lr": {"values": [0.1, 0.01]}, "opt": {"values": ["adam", "sgd"]}})
    expected = [(0.1, "adam"), (0.1, "sgd"), (0.01, "adam"), (0.01, "sgd")]
    assert len(trials(parameters={"lr": {"values": [1, 2, 3]}}, run_cap=2)) == 2
    assert [(trial["lr"], trial["opt"]) for trial in found] == expected


def test_seeds_repeat_each_trial_in_turn():
    found = trials(parameters={"lr": {"values": [1, 2]}}, seeds=2, seed=5)
    assert found == [{"lr": 1, "seed": 5}, {"lr": 1, "seed": 6}, {"lr": 2, "seed": 5}, {"lr": 2, "seed": 6}]


def test_nested_parameters_have_dotted_names():
    nested = {"optimizer": {"parameters": {"lr": {"value": 1}, "decay": {"parameters": {"rate": {"value": 2}}}}}}
    assert trials(parameters=nested) == [{"optimizer.lr": 1, "optimizer.decay.rate": 2}]


def test_random_draws_are_the_same_for_the_same_seed_and_more_begin_with_the_same():
    described = {"method": "random", "parameters": {"lr": {"min": 0.0, "max": 1.0}}}
    assert trials(**described, run_cap=9)[:4] == trials(**described, run_cap=4)
    assert trials(**described, run_cap=4) != trials(**described, run_cap=4, seed=1)


def test_draws_beside_a_grid_are_the_same_at_each_of_its_points():
    sweep = SweepDefinition({"lr": read_values("1,2"), "wd": read_range("0.0..1.0")}, run_cap=3)
    found = list(sweep.trials())
    assert sweep.size == len(found) == 6
    assert [trial["wd"] for trial in found[::2]] == [trial["wd"] for trial in found[1::2]]
    assert len({trial["wd"] for trial in found}) == 3


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 3))
def test_the_size_is_the_number_of_trials_and_all_of_them_differ(sizes, seeds):
    parameters = {f"p{at}": parameter({"values": list(range(size))}) for at, size in enumerate(sizes)}
    sweep = SweepDefinition(parameters, seeds=seeds)
    found = [tuple(trial.items()) for trial in sweep.trials()]
    assert len(found) == len(set(found)) == sweep.size


def test_a_billion_trials_are_refused_without_being_listed():
    parameters = {f"p{at}": parameter({"min": 1, "max": 1000}) for at in range(3)}
    with pytest.raises(UsageError, match="1,000,000,000 trials"):
        SweepDefinition(parameters).check()


@for_each(
    ("values", "method", "shown"),
    [(read_range("0.0..1.0"), "grid", "uniform 0..1"), (read_values("1,2"), "random", "2 values")],
)
def test_a_sweep_without_an_end_is_refused(values, method, shown):
    with pytest.raises(UsageError) as refused:
        SweepDefinition({"lr": values}, method=method).check()
    assert refused.value.message == f"`lr` is drawn ({shown}), so the sweep needs a number of draws"


W_AND_B = """\
program: train.py
method: random
project: digits
run_cap: 3
metric: {name: val/acc, goal: maximize}
parameters:
  lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-1}
  batch: {values: [32, 64]}
  optimizer: {parameters: {momentum: {value: 0.9}}}
command:
  - ${env}
  - python3
  - ${program}
  - --who=${envvar:WHO}/${envvar:OTHER}
  - ${args_no_hyphens}
early_terminate: {type: hyperband, min_iter: 3}
controller: {type: local}
"""


def test_a_file_of_w_and_b_is_read_as_it_is(tmp_path):
    sweep = of_file(tmp_path, W_AND_B)
    assert sweep.command == ("python3", "train.py", "--who={env.WHO}/{env.OTHER}", "{args_no_hyphens}")
    assert sweep.metric == Metric("val/acc", "maximize")
    assert [set(trial) for trial in sweep.trials()] == [{"lr", "batch", "optimizer.momentum"}] * 3
    assert [note for note in sweep.notes if "controller" in note]


def test_a_program_alone_gets_the_parameters_as_options(tmp_path):
    sweep = of_file(tmp_path, "program: train.py\nparameters: {lr: {value: 1}}\n")
    assert sweep.command == ("python", "train.py", "{args}")


def test_numbers_with_an_exponent_are_numbers(tmp_path):
    sweep = of_file(tmp_path, "parameters: {lr: {values: [1e-3, 1E4, .5e-1]}}\n")
    assert sweep.parameters["lr"].values == (0.001, 10000.0, 0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parameters: [", "sweep.yaml:1: is not YAML"),
        ("- 1", "is not the definition of a sweep"),
        ("", "is not the definition of a sweep"),
        ("method: grid", "`parameters` must be a table of parameters"),
        ("parameters: {}", "`parameters` must be a table of parameters"),
        ("method: bayse\nparameters: {lr: {value: 1}}", "`method` must be `grid`, `random` or `bayes`"),
        ("parameters: {--lr: {value: 1}}", "`--lr` cannot be the name of a parameter"),
        ("early_terminate: {type: hyperband, eta: 1}\nparameters: {lr: {value: 1}}", "`eta` must be"),
        ("early_terminate: {type: best}\nparameters: {lr: {value: 1}}", "needs the type `hyperband` or `median`"),
        ("early_terminate: {type: median, s: 1}\nparameters: {lr: {value: 1}}", "unknown key `s`"),
        ("early_terminate: {type: hyperband}\nparameters: {lr: {value: 1}}", "`hyperband` needs `min_iter`"),
        ("paramters: {lr: {value: 1}}", "unknown key `paramters`"),
        ("parameters: {opt: {parameters: {lr: {min: 1}}}}", "the parameter `opt.lr` with"),
        ("parameters: !!python/object/apply:os.system ['id']", "is not YAML"),
        ("metric: {name: a, goal: up}\nparameters: {lr: {value: 1}}", "`metric.goal` must be"),
        ("run_cap: 0\nparameters: {lr: {value: 1}}", "`run_cap` must be a whole number from 1"),
        ("parameters: {'a b': {value: 1}}", "cannot be the name of a parameter"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError) as caught:
        of_file(tmp_path, text)
    assert message in str(caught.value.message)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        definition.read_file(tmp_path / "none.yaml")


@for_each(
    ("given", "expected"),
    [
        ({"type": "hyperband", "min_iter": 3}, {"type": "hyperband", "min_resource": 3, "reduction_factor": 3}),
        (
            {"type": "hyperband", "max_iter": 27, "s": 2, "eta": 3},
            {"type": "hyperband", "min_resource": 3, "reduction_factor": 3},
        ),
        ({"type": "median"}, {"type": "median", "n_warmup_steps": 1, "n_startup_trials": 4}),
    ],
)
def test_early_ends_are_those_of_optunas_pruners(given, expected):
    table = {"parameters": {"lr": {"values": [1, 2]}}, "metric": {"name": "loss"}, "early_terminate": given}
    assert definition.read_table(table).pruner == expected


def test_the_trials_of_a_bayesian_search_have_no_parameters_yet():
    table = {
        "method": "bayes",
        "run_cap": 3,
        "metric": {"name": "loss"},
        "parameters": {"lr": {"min": 0.0, "max": 1.0}},
    }
    sweep = definition.read_table(table)
    sweep.check()
    assert (sweep.size, list(sweep.trials())) == (3, [{}, {}, {}])


@for_each(
    ("changes", "message"),
    [
        ({"run_cap": None}, "a Bayesian search needs a number of trials"),
        ({"metric": None}, "a Bayesian search needs a metric"),
        ({"seeds": 2}, "`seeds` and a Bayesian search exclude each other"),
        ({"parameters": {"lr": {"distribution": "normal"}}}, "`lr` has the distribution `normal`"),
        ({"parameters": {"lr": {"values": [1, 2], "probabilities": [0.5, 0.5]}}}, "`lr` has `probabilities`"),
        ({"method": "grid", "metric": None, "early_terminate": {"type": "median"}}, "`early_terminate` needs a metric"),
        (
            {"method": "grid", "seeds": 2, "early_terminate": {"type": "median"}},
            "`seeds` and `early_terminate` exclude each other",
        ),
    ],
)
def test_a_search_that_cannot_be_is_refused(changes, message):
    whole = {"method": "bayes", "run_cap": 3, "metric": {"name": "a"}, "parameters": {"lr": {"min": 0.0, "max": 1.0}}}
    table = {key: value for key, value in {**whole, **changes}.items() if value is not None}
    if changes.get("method") == "grid":
        table["parameters"] = {"lr": {"values": [1, 2]}}
    with pytest.raises(UsageError) as refused:
        definition.read_table(table).check()
    assert message in refused.value.message


def test_a_search_that_only_ends_trials_may_have_any_distribution():
    table = {
        "method": "random",
        "run_cap": 2,
        "metric": {"name": "a"},
        "early_terminate": {"type": "hyperband", "min_iter": 3, "strict": True},
        "parameters": {"lr": {"distribution": "normal"}, "opt": {"values": [1, 2], "probabilities": [0.9, 0.1]}},
    }
    sweep = definition.read_table(table)
    sweep.check()
    assert [set(trial) for trial in sweep.trials()] == [{"lr", "opt"}] * 2
    assert sweep.notes == ("`early_terminate.strict` of the sweep has no effect in Serried",)


def test_seeds_and_a_parameter_seed_exclude_each_other():
    with pytest.raises(DefinitionError, match="exclude each other"):
        definition.read_table({"parameters": {"seed": {"values": [1, 2]}}, "seeds": 2}).check()


def test_a_parameter_may_be_drawn_or_tried_whatever_the_method():
    parameters = {"n": read_range("int:1..8"), "opt": read_values("a,b,c"), "width": read_values("64,128")}
    drawn = SweepDefinition(parameters, drawn={"n": True, "opt": True, "width": False}, run_cap=4)
    assert (drawn.size, [trial["width"] for trial in drawn.trials()]) == (8, [64, 128] * 4)
    assert len({(trial["n"], trial["opt"]) for trial in drawn.trials()}) > 2
    tried = SweepDefinition(parameters, method="random", drawn={"width": False}, run_cap=3)
    assert (tried.size, [trial["width"] for trial in tried.trials()]) == (6, [64, 128] * 3)
    for sweep in (drawn, tried):
        assert list(SweepDefinition.from_json(sweep.to_json()).trials()) == list(sweep.trials())


@for_each(
    ("text", "metric"),
    [
        ("val_acc:max", Metric("val_acc", "maximize")),
        ("val/loss:minimize", Metric("val/loss", "minimize")),
        ("a:b:min", Metric("a:b", "minimize")),
    ],
)
def test_a_metric_of_the_command_line(text, metric):
    assert definition.metric_of(text) == metric


def test_a_metric_needs_its_goal():
    with pytest.raises(UsageError, match="which values are better"):
        definition.metric_of("val_acc")


def test_a_sweep_at_wandb_has_its_definition_there():
    found = definition.read_table({"id": "ada/digits/x1y2z3", "run_cap": 3, "metric": {"name": "acc"}})
    found.check()
    assert (found.size, list(found.trials(1)), str(found)) == (3, [{}, {}], "ada/digits/x1y2z3 at W&B")
    assert definition.SweepDefinition.from_json(found.to_json()).id == found.id
    with pytest.raises(UsageError, match="`id` and `parameters` exclude each other"):
        definition.read_table({"id": "ada/digits/x1y2z3", "parameters": {"lr": {"value": 1}}})
    with pytest.raises(UsageError, match="`id` must be `ENTITY/PROJECT/ID`, not `x1y2z3`"):
        definition.read_table({"id": "x1y2z3"})
    with pytest.raises(UsageError, match="a sweep at W&B needs a number of trials"):
        definition.read_table({"id": "ada/digits/x1y2z3"}).check()


def test_the_id_of_a_sweep_at_wandb_may_have_a_project_with_spaces():
    for word in ("ada/digits/x1y2z3", "ada/my digits/x1y2z3", "a.b/c.d-e/x_1"):
        assert definition.is_id(word), word
    for word in ("--x/a/b", "-x/a/b", "ada/-x/b", "ada/digits", "a b/c/d", "./a/b/c", "ada/ x/b"):
        assert not definition.is_id(word), word


def test_workers_take_the_place_of_parallel():
    parameters = {"lr": {"values": [1, 2]}}
    assert definition.read_table({"parameters": parameters, "workers": 4}).workers == 4
    assert definition.read_table({"id": "ada/digits/x1y2z3", "workers": 4}).workers == 4
    with pytest.raises(DefinitionError, match="`workers` and `parallel` exclude each other"):
        definition.read_table({"parameters": parameters, "workers": 4, "parallel": 2})
