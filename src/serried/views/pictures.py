"""Optuna's pictures of a sweep, and its importance of the parameters.

A sweep that Optuna did not search becomes a study in memory. Importance is PED-ANOVA, which needs no scikit-learn.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried.base.errors import UsageError, install_hint, reason
from serried.schema.command_lines import as_argument
from serried.sweeps.definition import DefinitionError, Parameter, SweepDefinition
from serried.sweeps.results import SweepResults
from serried.views.text import fit, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from optuna.distributions import BaseDistribution
    from optuna.study import Study

FORMATS = (".png", ".svg", ".pdf")
LEAST = 24
"""Of fewer trials, a parameter without any effect often comes first."""
MOST_PARAMETERS = 15
"""In parallel coordinates; the most important ones are shown."""
_MANY_TIMES = 100
"""Numbers above zero whose ends differ by more than this factor have a logarithmic scale."""
_LARGEST = 1e100
"""Of numbers that have a place on an axis."""
_LONGEST = 26
_INCHES = 1.2
"""For a parameter in parallel coordinates."""


def check(path: Path, *libraries: str) -> None:
    """Raises UsageError if no picture can be drawn by matplotlib and the `libraries`, or none written there."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"`--plot {path}` must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not path.parent.is_dir():
        raise UsageError(f"`{path}` cannot be written: `{path.parent}` is not a directory")
    if path.is_dir():
        raise UsageError(f"`{path}` cannot be written: it is a directory")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"`{path}` cannot be written: permission denied")
    for library in ("matplotlib", *libraries):
        if not _has(library):
            raise UsageError(f"`--plot` needs {library}, which is not installed", hint=install_hint("sweeps"))


def draw_sweep(results: SweepResults, path: Path) -> list[Path]:
    """Write each picture beside `path`, with its name: `sweep-history.png`. Returns their paths.

    Raises UsageError for a sweep without a metric or a value, and if a picture cannot be written.
    """
    sweep = results.sweep
    if not sweep.metric:
        hint = f"serried sweep show {sweep.first} --metric NAME:max --plot {path}"
        raise UsageError(f"sweep `{sweep.first}` has no metric, so `--plot` has no values", hint=hint)
    if not any(trial.counts for trial in results.trials):
        raise UsageError(f"no completed trial of sweep `{sweep.first}` has a value of `{sweep.metric}`")
    written = []
    with drawing():
        for name, draw in _pictures(results).items():
            own = path.with_name(f"{path.stem}-{name}{path.suffix}")
            save(draw().figure, own)
            written.append(own)
    return written


@contextmanager
def drawing() -> Iterator[None]:
    """Draw without a display, a font's warnings or the user's own matplotlibrc, which may need LaTeX."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mpl.rcdefaults()
        mpl.rcParams.update({"pdf.fonttype": 42, "savefig.dpi": 150})
        plt.switch_backend("Agg")
        try:
            yield
        finally:
            plt.close("all")


def save(figure: Figure, path: Path) -> None:
    """Raises UsageError if the figure cannot be written."""
    try:
        figure.savefig(path, bbox_inches="tight")
    except OSError as error:
        raise UsageError(f"`{path}` cannot be written: {reason(error)}") from None


def _pictures(results: SweepResults) -> dict[str, Callable[[], Any]]:
    """The functions that draw, by the name of the picture. Importance needs enough trials."""
    from optuna.visualization import matplotlib as drawn

    study, name = study_of(results), _label(results.sweep.metric)
    shares = importance_of(results)
    shown = list(map(_shown, shares))[:MOST_PARAMETERS]

    def parallel() -> Any:
        varied = shown or [parameter for parameter, space in _spaces(study).items() if not space.single()]
        axes = drawn.plot_parallel_coordinate(study, varied[:MOST_PARAMETERS], target_name=name)
        figure: Any = axes.figure
        figure.set_size_inches(max(8.0, _INCHES * len(varied)), 5.0)
        return axes

    pictures = {"history": lambda: drawn.plot_optimization_history(study, target_name=name), "parallel": parallel}
    if shares:
        pictures["importance"] = lambda: drawn.plot_param_importances(study, _evaluator(), shown, target_name=name)
    return pictures


def importance_of(results: SweepResults) -> dict[str, float]:
    """The share of each parameter with several values, the largest first; empty without Optuna or enough trials."""
    values = [trial.value for trial in results.trials if trial.counts]
    if not results.sweep.metric or len(values) < LEAST or len(set(values)) < 2 or not _has("optuna"):
        return {}
    from optuna.importance import get_param_importances

    study = study_of(results)
    varied = [name for name, space in _spaces(study).items() if not space.single()]
    if not varied:
        return {}
    names = {_shown(name): name for trial in results.trials for name in trial.parameters}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = get_param_importances(study, evaluator=_evaluator(), params=varied)
    return {names[name]: round(share, 4) for name, share in shares.items()}


def _evaluator() -> Any:
    from optuna.importance import PedAnovaImportanceEvaluator

    return PedAnovaImportanceEvaluator()


def study_of(results: SweepResults) -> Study:
    """The trials, in the order of their numbers. Those without a value that counts have failed."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    trials = sorted(results.trials, key=lambda trial: trial.number)
    try:
        defined = SweepDefinition.from_json(results.sweep.definition).parameters
    except DefinitionError:
        defined = {}
    spaces = {}
    for name in dict.fromkeys([*defined, *(name for trial in trials for name in trial.parameters)]):
        values = [trial.parameters[name] for trial in trials if name in trial.parameters]
        if values:
            spaces[name] = _space(values, defined.get(name))
    study = optuna.create_study(direction=optuna.study.StudyDirection[results.sweep.goal.upper()])
    for trial in trials:
        params = {name: _entry(spaces[name], trial.parameters[name]) for name in spaces if name in trial.parameters}
        entered = optuna.trial.create_trial(
            state=optuna.trial.TrialState.COMPLETE if trial.counts else optuna.trial.TrialState.FAIL,
            value=min(max(trial.value or 0.0, -_LARGEST), _LARGEST) if trial.counts else None,
            params={_shown(name): value for name, value in params.items()},
            distributions={_shown(name): spaces[name] for name in params},
        )
        study.add_trial(entered)
    return study


def _spaces(study: Study) -> dict[str, BaseDistribution]:
    """Of the trials with a value."""
    found: dict[str, BaseDistribution] = {}
    for trial in study.get_trials(deepcopy=False):
        found |= trial.distributions if trial.values else {}
    return found


def _space(values: Sequence[Any], defined: Parameter | None) -> BaseDistribution:
    """The range of a parameter's numbers; other values are categories, in the order of the definition."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values) or not all(
        -_LARGEST < value < _LARGEST for value in values
    ):
        listed = [value for value in defined.values if value in values] if defined else []
        return CategoricalDistribution(list(dict.fromkeys(map(_label, [*listed, *values]))))
    low, high = min(values), max(values)
    is_log = "log" in defined.distribution if defined and not defined.values else high > _MANY_TIMES * low
    is_whole = all(isinstance(value, int) for value in values) and high - low < 1 << 31
    kind = IntDistribution if is_whole else FloatDistribution
    return kind(low, high, log=is_log and low > 0)


def _entry(space: BaseDistribution, value: Any) -> Any:
    from optuna.distributions import CategoricalDistribution

    return _label(value) if isinstance(space, CategoricalDistribution) else value


def _label(value: Any) -> str:
    return _shown(fit(printable(as_argument(value)), _LONGEST))


def _shown(text: str) -> str:
    """As matplotlib shows it: `$` begins no formula."""
    return printable(text).replace("$", r"\$")


def _has(library: str) -> bool:
    return importlib.util.find_spec(library) is not None
