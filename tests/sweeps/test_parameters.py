"""The values of a sweep's parameters: every distribution of W&B, and the ranges of the command line."""

import math
import random
import statistics

import pytest

from serried.config.values import BadValue
from serried.sweeps import definition
from tables import for_each

DRAWS = 4000


def draws(description):
    generator = random.Random(7)
    parameter = definition.parameter(description)
    return [parameter.draw(generator) for _ in range(DRAWS)]


def about(value, expected):
    return math.isclose(value, expected, rel_tol=0.1, abs_tol=0.1)


@for_each(
    ("description", "low", "high"),
    [
        ({"min": 1, "max": 4}, 1, 4),
        ({"min": 0.5, "max": 1.5}, 0.5, 1.5),
        ({"distribution": "log_uniform", "min": -2, "max": 1}, math.exp(-2), math.exp(1)),
        ({"distribution": "log_uniform_values", "min": 1e-6, "max": 1e-2}, 1e-6, 1e-2),
        ({"distribution": "inv_log_uniform", "min": -1, "max": 2}, math.exp(-2), math.exp(1)),
        ({"distribution": "inv_log_uniform_values", "min": 0.1, "max": 10}, 0.1, 10),
        ({"distribution": "beta", "a": 2, "b": 3}, 0, 1),
        ({"distribution": "log_normal", "mu": 0, "sigma": 0.1}, 0, math.inf),
    ],
)
def test_draws_stay_between_the_ends(description, low, high):
    assert all(low <= value <= high for value in draws(description))


@for_each(
    ("description", "expected"),
    [
        ({"value": 3}, {"value": 3}),
        ({"values": [1, None, "a"]}, {"choices": [1, None, "a"]}),
        ({"min": 1, "max": 4}, {"low": 1, "high": 4, "int": True}),
        ({"min": 0.5, "max": 1.5}, {"low": 0.5, "high": 1.5}),
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.1}, {"low": 0, "high": 1, "q": 0.1}),
        ({"distribution": "log_uniform_values", "min": 0.1, "max": 1}, {"low": 0.1, "high": 1, "log": True}),
        ({"distribution": "log_uniform", "min": 0, "max": 1}, {"low": 1, "high": math.e, "log": True}),
        ({"distribution": "inv_log_uniform", "min": -1, "max": 0}, {"low": 1, "high": math.e, "log": True}),
    ],
)
def test_the_space_of_a_search_has_the_same_values(description, expected):
    assert definition.parameter(description).search_space == expected


@for_each(
    ("description", "mean"),
    [
        ({"min": 0.0, "max": 2.0}, 1.0),
        ({"min": 1, "max": 5}, 3),
        ({"distribution": "normal", "mu": 3, "sigma": 0.5}, 3),
        ({"distribution": "beta", "a": 2, "b": 3}, 0.4),
    ],
)
def test_draws_have_the_mean_of_their_distribution(description, mean):
    assert about(statistics.fmean(draws(description)), mean)


@for_each(
    ("description", "median"),
    [
        ({"distribution": "log_uniform_values", "min": 1e-4, "max": 1}, 1e-2),
        ({"distribution": "log_uniform", "min": -4, "max": 2}, math.exp(-1)),
        ({"distribution": "log_normal", "mu": 1, "sigma": 1}, math.exp(1)),
    ],
)
def test_half_of_the_draws_are_below_the_middle_of_the_logarithms(description, median):
    below = sum(value < median for value in draws(description))
    assert about(below / DRAWS, 0.5)


@for_each(
    ("distribution", "ends", "step"),
    [
        ("q_uniform", {"min": 0, "max": 1}, 0.1),
        ("q_normal", {"mu": 0, "sigma": 5}, 2),
        ("q_log_uniform_values", {"min": 8, "max": 512}, 8),
        ("q_beta", {"a": 1, "b": 1}, 0.25),
    ],
)
def test_a_quantized_distribution_gives_multiples_of_its_step(distribution, ends, step):
    values = draws({"distribution": distribution, **ends, "q": step})
    assert all(math.isclose(value / step, round(value / step), abs_tol=1e-9) for value in values)


def test_a_step_of_one_gives_integers():
    assert {type(value) for value in draws({"distribution": "q_uniform", "min": 1, "max": 9})} == {int}


def test_probabilities_weigh_the_values():
    values = draws({"values": ["adam", "sgd"], "probabilities": [0.9, 0.1]})
    assert about(values.count("adam") / DRAWS, 0.9)


@for_each(
    ("description", "values"),
    [
        ({"values": [0.1, 0.01]}, [0.1, 0.01]),
        ({"value": None}, [None]),
        ({"min": 1, "max": 3}, [1, 2, 3]),
        ({"distribution": "q_uniform", "min": 0, "max": 0.3, "q": 0.1}, [0, 0.1, 0.2, 0.3]),
    ],
)
def test_a_grid_has_every_value(description, values):
    parameter = definition.parameter(description)
    assert [parameter.at(place) for place in range(parameter.grid_size)] == values


def test_a_range_of_floats_has_no_grid():
    assert definition.parameter({"min": 0.0, "max": 1.0}).grid_size is None


@for_each(
    ("description", "message"),
    [
        (0.1, "must be a table, not `0.1`"),
        ({}, "has no values"),
        ({"vlaues": [1]}, "has the unknown key `vlaues`"),
        ({"distribution": "poisson"}, "has the unknown distribution `poisson`"),
        ({"values": []}, "must have a list of at least one value"),
        ({"min": 2, "max": 1}, "must have a `min` below its `max`"),
        ({"min": 2}, "needs the number `max`"),
        ({"min": "1e-3", "max": 1}, "needs the number `min`"),
        ({"distribution": "log_uniform_values", "min": 0, "max": 1}, "must have a `min` above 0"),
        ({"distribution": "log_uniform", "min": 1, "max": 1000}, "exponents of e"),
        ({"values": [1, 2], "probabilities": [1.0]}, "one probability for each value"),
        ({"distribution": "normal", "mu": 0, "sigma": 0}, "must have a `sigma` above 0"),
        ({"min": math.nan, "max": 1.0}, "needs the number `min`"),
    ],
)
def test_a_wrong_description_is_refused(description, message):
    with pytest.raises(BadValue) as caught:
        definition.parameter(description)
    assert message in str(caught.value)


@for_each(
    ("text", "values"),
    [
        ("1e-3,1e-4", (0.001, 0.0001)),
        ("adam,sgd", ("adam", "sgd")),
        ("true,false", (True, False)),
        ("[64,64],[128]", ([64, 64], [128])),
        ("7", (7,)),
        ("007", ("007",)),
        ("'1','2'", ("1", "2")),
        ("2026-01-01", ("2026-01-01",)),
    ],
)
def test_a_grid_of_the_command_line(text, values):
    assert definition.read_values(text).values == values


@for_each(
    ("text", "distribution", "low", "high"),
    [
        ("log:1e-6..1e-2", "log_uniform_values", 1e-6, 1e-2),
        ("0.1..0.9", "uniform", 0.1, 0.9),
        ("int:1..8", "int_uniform", 1, 8),
        ("-1..8", "int_uniform", -1, 8),
    ],
)
def test_a_range_of_the_command_line(text, distribution, low, high):
    parameter = definition.read_range(text)
    assert (parameter.distribution, parameter.numbers) == (distribution, {"min": low, "max": high})


@for_each(
    ("read", "text"),
    [
        (definition.read_values, "1,,2"),
        (definition.read_values, ""),
        (definition.read_range, "1.."),
        (definition.read_range, "a..b"),
        (definition.read_range, "ln:1..2"),
    ],
)
def test_a_wrong_text_of_the_command_line_is_refused(read, text):
    with pytest.raises(BadValue):
        read(text)
