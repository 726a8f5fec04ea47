"""The definition of a sweep from the words and options of `serried sweep submit`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from serried import config
from serried.config.values import BadValue
from serried.errors import UsageError, did_you_mean
from serried.protocol import printed_metric
from serried.submission.request import Request
from serried.sweeps import definition, space
from serried.sweeps.definition import GRID, RANDOM, DefinitionError, Metric, SweepDefinition
from serried.sweeps.space import Parameter

TO_CREATE = "ENTITY/PROJECT/ID"
"""The id of a sweep that W&B does not have yet."""
_FILES = (".yaml", ".yml", ".json")


def check_method(method: str | None, sweep: SweepDefinition) -> None:
    """Raises UsageError for a `--method` that the parameters of the command line contradict."""
    ranges = [name for name, is_drawn in sweep.drawn.items() if is_drawn]
    if method == GRID and ranges:
        raise UsageError(f"`--random {ranges[0]}` and `--method grid` exclude each other", hint="leave out `--method`")
    if method == RANDOM and not sweep.random_parameters:
        name = next(iter(sweep.parameters), "NAME")
        hint = f"`--random {name}=…` draws its values"
        raise UsageError("`--method random` draws nothing: `--grid` tries all of its values", hint=hint)


def to_create(word: str | None) -> SweepDefinition:
    """A sweep that W&B does not have yet. Raises UsageError without a file."""
    if word is None or Path(word).suffix not in _FILES:
        raise UsageError("`--wandb` needs a W&B sweep file", hint="`serried sweep sweep.yaml --wandb --count 20`")
    own = definition.read_file(Path(word))
    is_finite = own.run_cap is not None or own.method == GRID
    return SweepDefinition(
        {},
        id=TO_CREATE,
        name=own.name,
        metric=own.metric,
        run_cap=own.distinct if is_finite else None,
        experiment=own.experiment,
        parallel=own.parallel,
        workers=own.workers,
    )


def metric_of(metric: str | None, source: str | None, defined: SweepDefinition) -> Metric | None:
    own = definition.metric_of(metric) if metric else defined.metric
    if source is None:
        return own
    if own is None:
        raise UsageError("`--metric-from` needs the name of the metric", hint="`--metric val_acc:max`")
    try:
        printed_metric.check(source)
    except ValueError as error:
        hint = f"`--metric-from '{printed_metric.EXAMPLE}'`"
        raise UsageError(f"`--metric-from {source}` {error}", hint=hint) from None
    return dataclasses.replace(own, source=source)


def parameter_of(flag: str, text: str) -> tuple[str, Parameter]:
    """`lr=1e-3,1e-4` of `--grid` or `--random`."""
    name, equals, values = text.partition("=")
    example = "lr=1e-3,1e-4" if flag == "--grid" else "lr=log:1e-5..1e-1"
    if not equals or not name or name.split() != [name] or any(mark in name for mark in "{}"):
        raise UsageError(f"`{flag} {text}` is not `NAME=VALUES`", hint=f"for example `{flag} {example}`")
    try:
        return name, space.read_values(values) if flag == "--grid" else space.read_range(values)
    except BadValue as error:
        raise UsageError(f"`{flag} {name}` {error}", hint=error.hint) from None


def with_experiment(request: Request, sweep: SweepDefinition) -> tuple[Request, SweepDefinition]:
    """The request with the command of the sweep and the experiment whose settings hold, and the sweep with warnings.

    A sweep with its own command, here or at W&B, replaces the command of the experiment that it names, or else of the
    project's only one.
    """
    if request.command is not None or not (sweep.command or sweep.id):
        return request, sweep
    request = dataclasses.replace(request, command=sweep.command or None)
    known = () if request.experiment else config.catalogue(Path.cwd(), os.environ).experiments
    if len(known) == 1:
        return dataclasses.replace(request, experiment=known[0]), sweep
    if not known:
        return request, sweep
    listed = ", ".join(f"`{name}`" for name in known)
    key = "`experiment` beside `id`, in a table `[sweeps.NAME]`," if sweep.id else "the key `experiment`"
    warning = f"the sweep has a command and names no experiment, so none of {listed} applies: {key} selects one"
    return request, dataclasses.replace(sweep, warnings=(*sweep.warnings, warning))


def defined(
    word: str | None, *, is_complete: bool, meant: Callable[[str], str | None]
) -> tuple[SweepDefinition, str | None]:
    """The sweep that the word names, and the experiment.

    `is_complete`: the command line has parameters. `meant` returns a hint for a word that resembles a subcommand.
    """
    known = config.catalogue(Path.cwd(), os.environ)
    if word is not None and definition.is_id(word) and word not in known.sweeps and not Path(word).exists():
        return SweepDefinition({}, id=word), None
    if word is None and not is_complete and len(known.sweeps) == 1:
        word = next(iter(known.sweeps))
    if word in known.sweeps:
        document = known.sweeps[str(word)]
        try:
            sweep = definition.read_table(document.tables["sweeps"][word])
        except DefinitionError as wrong:
            raise document.error(wrong.message, ("sweeps", str(word), *wrong.keys), wrong.hint) from None
        return sweep, sweep.experiment
    if word is not None and word not in known.experiments and Path(word).suffix in _FILES:
        sweep = definition.read_file(Path(word))
        return sweep, sweep.experiment
    if not is_complete:
        names_ = ", ".join(f"`{name}`" for name in known.sweeps)
        hint = "`--grid lr=1e-3,1e-4`, `--random lr=log:1e-5..1e-1 --count 20`, or a W&B sweep file"
        if word is not None and word not in known.experiments:
            hint = did_you_mean(word, known.sweeps) or meant(word) or (f"sweeps here: {names_}" if names_ else hint)
            raise UsageError(f"`{word}` is neither a sweep nor a file", hint=hint)
        raise UsageError("the sweep has no parameters", hint=hint)
    return SweepDefinition({}), word
