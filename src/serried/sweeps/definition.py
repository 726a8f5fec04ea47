"""The definition of a sweep, from a W&B sweep file, from `[sweeps.NAME]` in serried.toml, or from the command line.

The keys, distributions and formulas are those of W&B's sweep configuration:
https://docs.wandb.ai/guides/sweeps/sweep-config-keys.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from serried.base.errors import ConfigError, UsageError, did_you_mean, install_hint
from serried.config.values import MOST_TASKS, BadValue, guess
from serried.schema import command_lines, printed_metric
from serried.schema.plan import ReportedMetric

Trial = dict[str, Any]
"""The parameters of one training, by dotted name."""

GRID, RANDOM, BAYES = "grid", "random", "bayes"
METHODS = (GRID, RANDOM, BAYES)
HYPERBAND, MEDIAN = "hyperband", "median"
MAXIMIZE, MINIMIZE = "maximize", "minimize"
SEED = "seed"
"""The parameter of `seeds`."""
_KEYS = ("experiment", "seeds", "parallel", "workers", "seed", "id")
"""Keys of Serried, in a table of serried.toml and in a file."""
_KEYS_OF_WANDB = ("name", "program", "command", "method", "metric", "parameters", "run_cap", "early_terminate")
_OF_THE_SERVICE = ("description", "project", "entity", "controller", "impute", "imputewhilerunning", "kind")
"""Keys of W&B without an effect here."""
_AT_THE_SERVICE = ("program", "command", "method", "parameters", "early_terminate", "seeds", "seed")
"""Keys that the service has, for a sweep there."""
_ID = re.compile(r"[\w.][\w.-]*/[\w.][\w. -]*/[\w-]+")
"""A project's name may have spaces."""


@dataclass(frozen=True)
class Parameter:
    distribution: str
    values: tuple[Any, ...] = ()
    """Of `constant` and `categorical`."""
    weights: tuple[float, ...] = ()
    """The probabilities of `values`; empty if all are equal."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Of other distributions: `min`, `max`, `mu`, `sigma`, `a`, `b` and `q`."""

    def draw(self, generator: random.Random) -> Any:
        if self.values:
            return generator.choices(self.values, self.weights or None)[0]
        value = _DRAW[self.distribution.removeprefix("q_")](generator, self.numbers)
        return _quantized(value, self.numbers.get("q", 1)) if self.distribution.startswith("q_") else value

    @property
    def grid_size(self) -> int | None:
        """The number of values in a grid; None for a distribution without a last value."""
        if self.values:
            return len(self.values)
        if self.distribution not in ("int_uniform", "q_uniform"):
            return None
        return int((self.numbers["max"] - self.numbers["min"]) / self.numbers.get("q", 1) + 1e-9) + 1

    def at(self, place: int) -> Any:
        """The value at a place of the grid, from 0 to `grid_size` - 1."""
        if self.values:
            return self.values[place]
        step = self.numbers.get("q", 1)
        return _quantized(self.numbers["min"] + place * step, step)

    @property
    def search_space(self) -> dict[str, Any]:
        """As Optuna's distributions need it: see `plan.Search`. Raises BadValue."""
        if len(self.values) == 1:
            return {"value": self.values[0]}
        if self.values:
            if self.weights:
                raise BadValue("has `probabilities`, which a Bayesian search learns by itself", "leave them out")
            return {"choices": list(self.values)}
        base, numbers = self.distribution.removeprefix("q_"), self.numbers
        if "min" not in numbers:
            message = f"has the distribution `{self.distribution}`, which this search cannot draw from"
            raise BadValue(message, "`min` and `max`")
        low, high = numbers["min"], numbers["max"]
        if base == "log_uniform":
            low, high = math.exp(low), math.exp(high)
        elif base == "inv_log_uniform":
            low, high = math.exp(-high), math.exp(-low)
        step = {"q": numbers["q"]} if "q" in numbers else {}
        kind = {"int": True} if base == "int_uniform" else {"log": True} if "log" in base else {}
        return {"low": low, "high": high, **kind, **step}

    def to_json(self) -> dict[str, Any]:
        if self.distribution == "constant":
            return {"value": self.values[0]}
        if not self.values:
            return {"distribution": self.distribution, **self.numbers}
        return {"values": list(self.values), **({"probabilities": list(self.weights)} if self.weights else {})}

    def __str__(self) -> str:
        if len(self.values) == 1:
            return str(self.values[0])
        if self.values:
            return f"{len(self.values)} values"
        ends = [f"{self.numbers[name]:g}" for name in _ENDS if name in self.numbers]
        return f"{self.distribution} {'..'.join(ends) or ', '.join(f'{k} {v:g}' for k, v in self.numbers.items())}"


@dataclass(frozen=True)
class Metric:
    name: str
    goal: str = MINIMIZE
    source: str = ""
    """Where a program reports it that does not log it: see `schema.printed_metric`."""


@dataclass(frozen=True)
class SweepDefinition:
    parameters: Mapping[str, Parameter]
    """By dotted name, in the order of the file."""
    method: str = GRID
    name: str | None = None
    metric: Metric | None = None
    run_cap: int | None = None
    """The number of draws of a search, and the most trials of a grid; None for all of a grid."""
    seeds: int | None = None
    """The number of trials with the same parameters, and other seeds."""
    seed: int = 0
    """Of the random draws."""
    command: tuple[str, ...] = ()
    """The file's own; empty for that of an experiment."""
    pruner: Mapping[str, Any] | None = None
    """Of `early_terminate`: `type`, and the arguments of Optuna's pruner; None if no trial ends early."""
    experiment: str | None = None
    parallel: int | None = None
    id: str = ""
    """`ENTITY/PROJECT/ID` of a sweep at W&B's service, which gives the trials their parameters."""
    workers: int | None = None
    """The number of jobs that run at once, each a trial after another; None if each job runs one trial."""
    drawn: Mapping[str, bool] = field(default_factory=dict)
    """By parameter: whether its values are drawn, or all tried; of others the method decides."""
    notes: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        parameters = {name: parameter.to_json() for name, parameter in self.parameters.items()}
        numbers = {"run_cap": self.run_cap, "seeds": self.seeds, "seed": self.seed}
        numbers = {key: value for key, value in numbers.items() if value is not None}
        drawn = {"drawn": dict(self.drawn)} if self.drawn else {}
        metric = {"metric": {"name": self.metric.name, "goal": self.metric.goal}} if self.metric else {}
        if self.id:
            return {"id": self.id, **metric, "run_cap": self.run_cap}
        return {"method": self.method, "parameters": parameters, **metric, **numbers, **drawn}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SweepDefinition:
        """Raises DefinitionError."""
        table = {key: value for key, value in document.items() if key != "drawn"}
        return replace(read_table(table), drawn=document.get("drawn") or {})

    def with_source(self, reported: ReportedMetric) -> SweepDefinition:
        """The sweep with the source of the experiment's metric, unless it has its own, or the source has another."""
        if self.metric is None or self.metric.source:
            return self
        return replace(self, metric=replace(self.metric, source=reported.source_of(self.metric.name)))

    @property
    def space(self) -> dict[str, dict[str, Any]]:
        """The parameters as Optuna searches them. Raises UsageError for a distribution that it does not have."""
        found = {}
        for name, parameter in self.parameters.items():
            try:
                found[name] = parameter.search_space
            except BadValue as error:
                raise UsageError(f"`{name}` {error}", hint=error.hint) from None
        return found

    @property
    def size(self) -> int:
        return self.distinct * (self.seeds or 1)

    @property
    def distinct(self) -> int:
        if self.id:
            return self.run_cap or 0
        if not self.random_parameters:
            return min(self._combinations, self.run_cap or self._combinations)
        return self._combinations * (self.run_cap or 1)

    def __str__(self) -> str:
        """`lr (2 values) x wd (log_uniform_values 1e-06..0.01)`, or `ada/digits/x1y2z3 at W&B`."""
        if self.id:
            return f"{self.id} at W&B"
        parts = [f"{name} ({parameter})" for name, parameter in self.parameters.items()]
        text = " x ".join([*parts, *([f"{self.seeds} seeds"] if self.seeds else [])])
        is_part = self.distinct < self._combinations
        return f"{text}, {self.distinct} of {self._combinations} combinations" if is_part else text

    @property
    def _combinations(self) -> int:
        return math.prod(parameter.grid_size or 1 for parameter in self._grid.values())

    @property
    def _grid(self) -> dict[str, Parameter]:
        if self.method == BAYES:
            return {}
        return {
            name: parameter
            for name, parameter in self.parameters.items()
            if parameter.grid_size is not None and not self.drawn.get(name, self.method != GRID)
        }

    @property
    def random_parameters(self) -> dict[str, Parameter]:
        return {name: parameter for name, parameter in self.parameters.items() if name not in self._grid}

    def trials(self, first: int = 0) -> Iterator[Trial]:
        """All trials from number `first` on. The trials with the same parameters and other seeds follow each other.

        Those of a Bayesian search and of a sweep at W&B are empty: a trial gets its parameters when it starts.
        """
        seeds = self.seeds or 1
        for number in range(first, self.size):
            if self.method == BAYES or self.id:
                yield {}
                continue
            trial = self._distinct_trial(number // seeds)
            yield {**trial, SEED: self.seed + number % seeds} if self.seeds else trial

    def _distinct_trial(self, number: int) -> Trial:
        """In a grid the last parameter changes first. Drawn values are those of all points of the grid alike."""
        draw, point = divmod(number, self._combinations)
        generator = random.Random(f"{self.seed}/{draw}")  # noqa: S311 - a search keeps no secret
        drawn = {name: parameter.draw(generator) for name, parameter in self.random_parameters.items()}
        placed: Trial = {}
        for name, parameter in reversed(self._grid.items()):
            point, place = divmod(point, parameter.grid_size or 1)
            placed[name] = parameter.at(place)
        return {name: placed[name] if name in placed else drawn[name] for name in self.parameters}

    def check(self) -> None:
        """Raises UsageError for a sweep without an end, and for one that no scheduler could hold."""
        if self.seeds and SEED in self.parameters:
            raise DefinitionError(["seeds"], "`seeds` and the parameter `seed` exclude each other", "keep one of them")
        if self.id and self.run_cap is None:
            hint = "`--count 20`, or `run_cap = 20` in the file"
            raise UsageError("a sweep at W&B needs a number of trials", hint=hint)
        if self.method == BAYES and self.run_cap is None:
            hint = "`--count 20`, or `run_cap = 20` in a file"
            raise UsageError("a Bayesian search needs a number of trials", hint=hint)
        drawn = next(iter(self.random_parameters), None)
        if drawn is not None and self.run_cap is None:
            message = f"`{drawn}` is drawn ({self.parameters[drawn]}), so the sweep needs a number of draws"
            hint = f"`--count 20`, `run_cap = 20` in a file, or all of some values: `--grid {drawn}=…`"
            raise UsageError(message, hint=hint)
        if self.method == BAYES and self.seeds:
            raise UsageError("`seeds` and a Bayesian search exclude each other", hint="keep one of them")
        if self.pruner and self.seeds:
            hint = "means over seeds need whole trials: keep one of them"
            raise UsageError("`seeds` and `early_terminate` exclude each other", hint=hint)
        if (self.method == BAYES or self.pruner) and self.metric is None:
            what = "a Bayesian search" if self.method == BAYES else "`early_terminate`"
            raise UsageError(f"{what} needs a metric", hint="`--metric val_acc:max`")
        if self.method == BAYES:
            _ = self.space
        if self.size > MOST_TASKS:
            hint = 'fewer values, or `method = "random"` with a `run_cap`'
            raise UsageError(f"the sweep has {self.size:,} trials, and {MOST_TASKS:,} is the most", hint=hint)


def read_file(path: Path) -> SweepDefinition:
    """A W&B sweep file: YAML or JSON. Raises ConfigError."""
    shown = os.path.relpath(path) if not str(path).startswith("/") else str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {(error.strerror or str(error)).lower()}", path=shown) from None
    tables = _of_json(content, shown) if path.suffix == ".json" else _of_yaml(content, shown)
    if not isinstance(tables, dict):
        raise ConfigError("is not the definition of a sweep", path=shown, hint="it needs `method` and `parameters`")
    try:
        return read_table(tables)
    except DefinitionError as wrong:
        raise ConfigError(wrong.message, path=shown, hint=wrong.hint) from None


def _of_json(content: bytes, shown: str) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise ConfigError(f"is not JSON: {error.msg.lower()}", path=shown, line=error.lineno) from None
    except ValueError:
        raise ConfigError("is not JSON: not UTF-8", path=shown) from None


def _of_yaml(content: bytes, shown: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError("reading YAML needs PyYAML, which is not installed", hint=install_hint("sweeps")) from None
    loader: Any = type("_Loader", (yaml.SafeLoader,), {})
    # YAML 1.1 reads `1e-3` as text, and users of sweeps mean the number.
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _WITH_EXPONENT, list("-+.0123456789"))
    try:
        return yaml.load(content, Loader=loader)  # noqa: S506 - a safe one
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "not valid"
        raise ConfigError(f"is not YAML: {problem}", path=shown, line=mark.line + 1 if mark else None) from None


_WITH_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


class DefinitionError(UsageError):
    """A wrong value in a definition; `keys` is its place."""

    def __init__(self, keys: Sequence[str], message: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.keys = tuple(keys)


def read_table(table: Mapping[str, Any]) -> SweepDefinition:
    """The table `[sweeps.NAME]` of serried.toml, or the content of a file. Raises DefinitionError."""
    known = (*_KEYS, *_KEYS_OF_WANDB)
    for key in table:
        if key not in known and key not in _OF_THE_SERVICE:
            hint = did_you_mean(str(key), known) or f"known here: {', '.join(f'`{name}`' for name in known)}"
            raise DefinitionError([str(key)], f"unknown key `{key}` in the definition of a sweep", hint)
    if "parallel" in table and "workers" in table:
        raise DefinitionError(["workers"], "`workers` and `parallel` exclude each other", "keep one of them")
    if "id" in table:
        return _at_the_service(table)
    method = table.get("method", GRID)
    if method not in METHODS:
        raise DefinitionError(["method"], f"`method` must be `grid`, `random` or `bayes`, not `{method}`")
    return SweepDefinition(
        parameters=dict(_parameters(table.get("parameters"))),
        method=method,
        name=_text(table, "name"),
        metric=_metric(table.get("metric")),
        pruner=_pruner(table.get("early_terminate")),
        run_cap=_count(table, "run_cap"),
        seeds=_count(table, "seeds"),
        seed=_count(table, "seed", least=0) or 0,
        command=tuple(_command(table)),
        experiment=_text(table, "experiment"),
        parallel=_count(table, "parallel"),
        workers=_count(table, "workers"),
        notes=_notes(table),
    )


def is_id(word: str) -> bool:
    """Whether the word names a sweep at W&B's service: `ENTITY/PROJECT/ID`."""
    return _ID.fullmatch(word) is not None


def _notes(table: Mapping[str, Any]) -> tuple[str, ...]:
    without_effect = [key for key in _OF_THE_SERVICE if key in table]
    if isinstance(table.get("early_terminate"), Mapping) and table["early_terminate"].get("strict"):
        without_effect.append("early_terminate.strict")
    return tuple(f"`{key}` of the sweep has no effect in Serried" for key in without_effect)


def _at_the_service(table: Mapping[str, Any]) -> SweepDefinition:
    """A sweep at W&B's service. Raises DefinitionError for keys that its definition there has."""
    id_ = table["id"]
    if not isinstance(id_, str) or not is_id(id_):
        raise DefinitionError(["id"], f"`id` must be `ENTITY/PROJECT/ID`, not `{id_}`", "`wandb sweep` prints it")
    for key in _AT_THE_SERVICE:
        if key in table:
            hint = "the definition of the sweep is at W&B; remove the key, or remove `id`"
            raise DefinitionError([key], f"`id` and `{key}` exclude each other", hint)
    return SweepDefinition(
        parameters={},
        name=_text(table, "name"),
        metric=_metric(table.get("metric")),
        run_cap=_count(table, "run_cap"),
        id=id_,
        experiment=_text(table, "experiment"),
        parallel=_count(table, "parallel"),
        workers=_count(table, "workers"),
        notes=_notes(table),
    )


def _parameters(table: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Parameter]]:
    """The parameters by dotted name: W&B nests them as `parameters` within a parameter."""
    if not isinstance(table, Mapping) or not table:
        message = f"`{'.'.join(('parameters', *above))}` must be a table of parameters"
        raise DefinitionError(["parameters", *above], message, "`lr.values = [0.1, 0.01]`")
    for name, description in table.items():
        if not isinstance(name, str) or not name or any(mark in name for mark in "{}=") or name.split() != [name]:
            raise DefinitionError(["parameters", *above], f"`{name}` cannot be the name of a parameter")
        if name.startswith("-"):
            hint = f"`{name.lstrip('-')}`: Serried adds the hyphens of an argument"
            raise DefinitionError(["parameters", *above], f"`{name}` cannot be the name of a parameter", hint)
        if isinstance(description, Mapping) and set(description) <= {"parameters"} and description:
            yield from _parameters(description["parameters"], (*above, name))
            continue
        place = (*above, name)
        try:
            yield ".".join(place), parameter(description)
        except BadValue as error:
            message = f"the parameter `{'.'.join(place)}` {error}"
            raise DefinitionError(["parameters", *place], message, error.hint) from None


def _metric(table: Any) -> Metric | None:
    if table is None:
        return None
    if isinstance(table, str):
        return metric_of(table)
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str) or not table["name"]:
        hint = '`metric = { name = "loss", goal = "minimize" }`'
        raise DefinitionError(["metric"], "`metric` must have a `name`", hint)
    goal = table.get("goal", MINIMIZE)
    if goal not in (MAXIMIZE, MINIMIZE):
        raise DefinitionError(["metric", "goal"], f"`metric.goal` must be `minimize` or `maximize`, not `{goal}`")
    source = table.get("from", "")
    try:
        if source:
            printed_metric.check(str(source))
    except ValueError as error:
        raise DefinitionError(["metric", "from"], f"`metric.from` {error}", _FROM_HINT) from None
    return Metric(table["name"], goal, str(source))


_FROM_HINT = f'`from = "{printed_metric.EXAMPLE}"`, or `from = "file:metrics.json:val_acc"`'


def metric_of(text: str) -> Metric:
    """`val_acc:max` of the command line. Raises UsageError."""
    name, colon, goal = text.rpartition(":")
    goals = {"max": MAXIMIZE, MAXIMIZE: MAXIMIZE, "min": MINIMIZE, MINIMIZE: MINIMIZE}
    if colon and goal in goals and name:
        return Metric(name, goals[goal])
    raise UsageError(f"`--metric {text}` does not say which values are better", hint=f"`{text}:max` or `{text}:min`")


_OF_PRUNER = {HYPERBAND: ("min_iter", "max_iter", "s", "eta"), MEDIAN: ("min_iter", "min_trials")}


def _pruner(table: Any) -> dict[str, Any] | None:
    """`early_terminate` as Optuna's pruners take it. A trial's iterations are the values that it has reported."""
    if table is None:
        return None
    kind = table.get("type") if isinstance(table, Mapping) else None
    if kind not in _OF_PRUNER:
        hint = '`early_terminate = { type = "hyperband", min_iter = 3 }`'
        raise DefinitionError(["early_terminate"], "`early_terminate` needs the type `hyperband` or `median`", hint)
    for key in table:
        if key not in ("type", "strict", *_OF_PRUNER[kind]):
            hint = f"known here: {', '.join(f'`{name}`' for name in _OF_PRUNER[kind])}"
            raise DefinitionError(["early_terminate", key], f"unknown key `{key}` of `early_terminate`", hint)
    numbers = {key: _count(table, key, least=2 if key == "eta" else 1) for key in _OF_PRUNER[kind]}
    if kind == MEDIAN:
        steps, trials = numbers["min_iter"] or 1, numbers["min_trials"] or 4
        return {"type": MEDIAN, "n_warmup_steps": steps, "n_startup_trials": trials}
    eta = numbers["eta"] or 3
    if numbers["min_iter"]:
        first = numbers["min_iter"]
    elif numbers["max_iter"] and numbers["s"]:
        first = max(1, numbers["max_iter"] // eta ** numbers["s"])
    else:
        raise DefinitionError(["early_terminate"], "`hyperband` needs `min_iter`, or `max_iter` and `s`")
    return {"type": HYPERBAND, "min_resource": first, "reduction_factor": eta}


def _count(table: Mapping[str, Any], key: str, *, least: int = 1) -> int | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise DefinitionError([key], f"`{key}` must be a whole number from {least}, not `{value}`")
    return value


def _text(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise DefinitionError([key], f"`{key}` must be text, not `{value}`")
    return value


_VARIABLE = re.compile(r"\$\{envvar:([A-Za-z_][A-Za-z0-9_]*)\}")
_MACROS = {"${env}": (), "${interpreter}": ("python",)}


def _command(table: Mapping[str, Any]) -> Iterator[str]:
    """The file's `command`, or `python PROGRAM {args}`, with Serried's placeholders in place of W&B's macros."""
    program, command = table.get("program"), table.get("command")
    if command is None and program is None:
        return
    words = ["${interpreter}", "${program}", "${args}"] if command is None else command
    if not isinstance(words, list) or not all(isinstance(word, (str, int, float)) for word in words):
        hint = '`command = ["python", "train.py", "${args}"]`'
        raise DefinitionError(["command"], "`command` must be a list of words", hint)
    for word in map(str, words):
        if word == "${program}" and not isinstance(program, str):
            raise DefinitionError(["command"], "`command` has `${program}`, and `program` is not set")
        if word in _MACROS:
            yield from _MACROS[word]
            continue
        filled = word.replace("${program}", str(program))
        for name in (*command_lines.ARGUMENTS, *command_lines.DOCUMENTS):
            filled = filled.replace(f"${{{name}}}", f"{{{name}}}")
        yield _VARIABLE.sub(rf"{{{command_lines.OF_ENVIRONMENT}\1}}", filled)


def _quantized(value: float, step: float) -> float | int:
    """The multiple of `step` next to `value`; an integer if `step` is one."""
    multiple = round(value / step)
    return multiple * int(step) if float(step).is_integer() else float(f"{multiple * step:.12g}")


def _between(generator: random.Random, numbers: Mapping[str, float]) -> float:
    return generator.uniform(numbers["min"], numbers["max"])


def _between_logarithms(generator: random.Random, numbers: Mapping[str, float], sign: int = 1) -> float:
    """With `sign` -1 uniform in log(1/x): the same set of values, drawn from its other end."""
    low, high = numbers["min"], numbers["max"]
    ends = sorted((sign * math.log(low), sign * math.log(high)))
    return min(max(math.exp(sign * generator.uniform(*ends)), low), high)


_DRAW: Mapping[str, Callable[[random.Random, Mapping[str, float]], float]] = {
    "int_uniform": lambda generator, numbers: generator.randint(int(numbers["min"]), int(numbers["max"])),
    "uniform": _between,
    "log_uniform": lambda generator, numbers: math.exp(_between(generator, numbers)),
    "log_uniform_values": _between_logarithms,
    "inv_log_uniform": lambda generator, numbers: math.exp(-_between(generator, numbers)),
    "inv_log_uniform_values": lambda generator, numbers: _between_logarithms(generator, numbers, -1),
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
_PARAMETER_KEYS = ("distribution", "value", "values", "probabilities", "min", "max", "mu", "sigma", "a", "b", "q")


def parameter(description: Any) -> Parameter:
    """A parameter of a sweep as W&B's schema writes it: `{"values": [1, 2]}`, `{"min": 0.0, "max": 1.0}`.

    Raises BadValue.
    """
    if not isinstance(description, Mapping):
        raise BadValue(f"must be a table, not `{description}`", f"`values = [{description}]`, or `min` and `max`")
    unknown = next((name for name in description if name not in _PARAMETER_KEYS), None)
    if unknown is not None:
        hint = did_you_mean(str(unknown), _PARAMETER_KEYS) or "values, or min and max"
        raise BadValue(f"has the unknown key `{unknown}`", hint)
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
    if not isinstance(weights, (list, tuple)) or not all(_is_number(weight) and weight >= 0 for weight in weights):
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
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


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
    return value if isinstance(value, (bool, int, float, list)) else word.strip("\"'")
