"""The values that a parameter of a sweep can have: a list, or a distribution, with the names and formulas of W&B.

Source: https://docs.wandb.ai/guides/sweeps/sweep-config-keys ("distribution options for random and Bayesian search").
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serried.config.values import BadValue, guess
from serried.errors import did_you_mean


@dataclass(frozen=True)
class Parameter:
    distribution: str
    values: tuple[Any, ...] = ()
    """Of `constant` and `categorical`."""
    weights: tuple[float, ...] = ()
    """The probabilities of `values`; empty if all are equal."""
    numbers: Mapping[str, float] | None = None
    """Of other distributions: `min`, `max`, `mu`, `sigma`, `a`, `b` and `q`."""

    def draw(self, generator: random.Random) -> Any:
        """A random value."""
        if self.values:
            return generator.choices(self.values, self.weights or None)[0]
        numbers = self.numbers or {}
        is_quantized = self.distribution.startswith("q_")
        value = _DRAW[self.distribution.removeprefix("q_")](generator, numbers)
        return _quantized(value, numbers.get("q", 1)) if is_quantized else value

    @property
    def grid_size(self) -> int | None:
        """The number of values in a grid; None for a distribution without a last value."""
        if self.values:
            return len(self.values)
        numbers = self.numbers or {}
        if self.distribution not in ("int_uniform", "q_uniform"):
            return None
        return int((numbers["max"] - numbers["min"]) / numbers.get("q", 1) + 1e-9) + 1

    def at(self, place: int) -> Any:
        """The value at a place of the grid, from 0 to `grid_size` - 1."""
        if self.values:
            return self.values[place]
        numbers = self.numbers or {}
        step = numbers.get("q", 1)
        return _quantized(numbers["min"] + place * step, step)

    @property
    def search_space(self) -> dict[str, Any]:
        """As Optuna's distributions need it: see `plan.Search`. Raises BadValue."""
        if len(self.values) == 1:
            return {"value": self.values[0]}
        if self.values:
            if self.weights:
                raise BadValue("has `probabilities`, which a Bayesian search learns by itself", "leave them out")
            return {"choices": list(self.values)}
        base, numbers = self.distribution.removeprefix("q_"), self.numbers or {}
        if "min" not in numbers:
            raise BadValue(
                f"has the distribution `{self.distribution}`, which this search cannot draw from", "`min` and `max`"
            )
        low, high = numbers["min"], numbers["max"]
        if base == "log_uniform":
            low, high = math.exp(low), math.exp(high)
        elif base == "inv_log_uniform":
            low, high = math.exp(-high), math.exp(-low)
        step = {"q": numbers["q"]} if "q" in numbers else {}
        kind = {"int": True} if base == "int_uniform" else {"log": True} if "log" in base else {}
        return {"low": low, "high": high, **kind, **step}

    def to_json(self) -> dict[str, Any]:
        """The keys that `parameter` reads."""
        if self.distribution == "constant":
            return {"value": self.values[0]}
        weights = {"probabilities": list(self.weights)} if self.weights else {}
        return (
            {"values": list(self.values), **weights}
            if self.values
            else {"distribution": self.distribution, **(self.numbers or {})}
        )

    def __str__(self) -> str:
        if len(self.values) == 1:
            return str(self.values[0])
        if self.values:
            return f"{len(self.values)} values"
        numbers = self.numbers or {}
        ends = [f"{numbers[name]:g}" for name in ("min", "max") if name in numbers]
        return f"{self.distribution} {'..'.join(ends) or ', '.join(f'{k} {v:g}' for k, v in numbers.items())}"


def _quantized(value: float, step: float) -> float | int:
    """The multiple of `step` next to `value`; an integer if `step` is one."""
    multiple = round(value / step)
    return multiple * int(step) if float(step).is_integer() else float(f"{multiple * step:.12g}")


def _between(generator: random.Random, numbers: Mapping[str, float]) -> float:
    return generator.uniform(numbers["min"], numbers["max"])


def _between_logarithms(generator: random.Random, numbers: Mapping[str, float]) -> float:
    low, high = numbers["min"], numbers["max"]
    return min(max(math.exp(generator.uniform(math.log(low), math.log(high))), low), high)


def _between_inverse_logarithms(generator: random.Random, numbers: Mapping[str, float]) -> float:
    """Uniform in log(1/x): the same set of values as `log_uniform_values`, drawn from its other end."""
    low, high = numbers["min"], numbers["max"]
    return min(max(math.exp(-generator.uniform(-math.log(high), -math.log(low))), low), high)


_DRAW: Mapping[str, Callable[[random.Random, Mapping[str, float]], float]] = {
    "int_uniform": lambda generator, numbers: generator.randint(int(numbers["min"]), int(numbers["max"])),
    "uniform": _between,
    "log_uniform": lambda generator, numbers: math.exp(_between(generator, numbers)),
    "log_uniform_values": _between_logarithms,
    "inv_log_uniform": lambda generator, numbers: math.exp(-_between(generator, numbers)),
    "inv_log_uniform_values": _between_inverse_logarithms,
    "normal": lambda generator, numbers: generator.gauss(numbers["mu"], numbers["sigma"]),
    "log_normal": lambda generator, numbers: math.exp(generator.gauss(numbers["mu"], numbers["sigma"])),
    "beta": lambda generator, numbers: generator.betavariate(numbers["a"], numbers["b"]),
}
_QUANTIZED = ("uniform", "log_uniform", "log_uniform_values", "normal", "log_normal", "beta")
_ENDS, _SHAPE, _BETA = ("min", "max"), ("mu", "sigma"), ("a", "b")
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_DRAW, _ENDS),
    "normal": _SHAPE,
    "log_normal": _SHAPE,
    "beta": _BETA,
}
_USUAL = {"mu": 0.0, "sigma": 1.0, "q": 1.0}
_CHOICES = ("constant", "categorical", "categorical_w_probabilities")
DISTRIBUTIONS = (*_CHOICES, *_DRAW, *(f"q_{name}" for name in _QUANTIZED))
_KEYS = ("distribution", "value", "values", "probabilities", "min", "max", "mu", "sigma", "a", "b", "q")


def parameter(description: Any) -> Parameter:
    """A parameter of a sweep as W&B's schema writes it: `{"values": [1, 2]}`, `{"min": 0.0, "max": 1.0}`.

    Raises BadValue.
    """
    if not isinstance(description, Mapping):
        raise BadValue(f"must be a table, not `{description}`", f"`values = [{description}]`, or `min` and `max`")
    unknown = next((name for name in description if name not in _KEYS), None)
    if unknown is not None:
        raise BadValue(
            f"has the unknown key `{unknown}`", did_you_mean(str(unknown), _KEYS) or "values, or min and max"
        )
    name = description.get("distribution") or _usual(description)
    if name not in DISTRIBUTIONS:
        raise BadValue(f"has the unknown distribution `{name}`", did_you_mean(str(name), DISTRIBUTIONS))
    return _choice(name, description) if name in _CHOICES else _continuous(name, description)


def _usual(description: Mapping[str, Any]) -> str:
    """The distribution of a parameter that names none."""
    if "value" in description:
        return "constant"
    if "values" in description:
        return "categorical"
    if "min" in description or "max" in description:
        ends = [description.get(name) for name in _ENDS]
        return "int_uniform" if all(isinstance(end, int) for end in ends) else "uniform"
    raise BadValue("has no values", "`values = [1, 2]`, or `min` and `max`")


def _choice(name: str, description: Mapping[str, Any]) -> Parameter:
    if name == "constant":
        if "value" not in description:
            raise BadValue("has the distribution `constant` and no `value`")
        return Parameter(name, (description["value"],))
    values, weights = description.get("values"), description.get("probabilities") or ()
    if not isinstance(values, list) or not values:
        raise BadValue("must have a list of at least one value in `values`")
    if not isinstance(weights, list | tuple) or not all(_is_number(weight) and weight >= 0 for weight in weights):
        raise BadValue("must have a list of numbers from 0 in `probabilities`")
    if weights and (len(weights) != len(values) or not math.isclose(sum(weights), 1, abs_tol=1e-6)):
        raise BadValue("must have one probability for each value, and 1 as their sum")
    return Parameter("categorical", tuple(values), tuple(weights))


def _continuous(name: str, description: Mapping[str, Any]) -> Parameter:
    base = name.removeprefix("q_")
    numbers: dict[str, float] = {}
    for key in (*_NUMBERS[base], *(("q",) if name.startswith("q_") else ())):
        number = description.get(key, _USUAL.get(key))
        if not _is_number(number):
            raise BadValue(f"with the distribution `{name}` needs the number `{key}`")
        numbers[key] = number
    _check(name, base, numbers)
    return Parameter(name, numbers=numbers)


def _check(name: str, base: str, numbers: Mapping[str, float]) -> None:
    if "min" in numbers and numbers["min"] >= numbers["max"]:
        raise BadValue(f"must have a `min` below its `max`, not {numbers['min']:g} and {numbers['max']:g}")
    if base.endswith("_values") and numbers["min"] <= 0:
        raise BadValue(f"with the distribution `{name}` must have a `min` above 0, not {numbers['min']:g}")
    if "log" in base and not base.endswith("_values") and max(map(abs, numbers.values())) > 700:
        raise BadValue(
            f"with the distribution `{name}` has ends that are exponents of e, and these are too large",
            f"`{name}_values` takes the values themselves" if "min" in numbers else None,
        )
    if base == "int_uniform" and not all(float(number).is_integer() for number in numbers.values()):
        raise BadValue("with the distribution `int_uniform` must have whole numbers as `min` and `max`")
    for key in ("sigma", "a", "b", "q"):
        if key in numbers and numbers[key] <= 0:
            raise BadValue(f"must have a `{key}` above 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_RANGE = re.compile(r"(?:(?P<scale>log|uniform|int):)?(?P<low>[^.,][^,]*?)\.\.(?P<high>[^,]+)")
_WORD = re.compile(r"\[[^\]]*\]|'[^']*'|\"[^\"]*\"|[^,]+")
_SCALES = {"log": "log_uniform_values", "uniform": "uniform", "int": "int_uniform"}


def read_values(text: str) -> Parameter:
    """The values of `--grid NAME=1,2,3`; text that is no number or boolean stays text. Raises BadValue."""
    words = _WORD.findall(text)
    if not text or ",".join(words) != text:
        raise BadValue(f"must be values with commas between them, not `{text}`", "for example `1e-3,1e-4`")
    return Parameter("categorical", tuple(map(_value, words)))


def read_range(text: str) -> Parameter:
    """The distribution of `--random NAME=log:1e-6..1e-2`, `0.1..0.9`, `int:1..8` or `a,b,c`. Raises BadValue."""
    found = _RANGE.fullmatch(text)
    if found is None:
        if ".." in text:
            raise BadValue(f"must be a range, not `{text}`", "`log:1e-6..1e-2`, `uniform:0..1`, `int:1..8` or `a,b,c`")
        return read_values(text)
    ends = {"min": _value(found["low"]), "max": _value(found["high"])}
    for end in ends.values():
        if not _is_number(end):
            raise BadValue(f"must have numbers at its ends, not `{end}`")
    scale = {"distribution": _SCALES[found["scale"]]} if found["scale"] else {}
    return parameter({**scale, **ends})


def _value(word: str) -> Any:
    """A word of the command line as a number, a boolean or a list if it spells one."""
    value = guess(word)
    return value if isinstance(value, bool | int | float | list) else word.strip("\"'")
