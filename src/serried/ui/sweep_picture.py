"""A sweep as a picture: the history of its metric, the importance of its parameters, and parallel coordinates."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import math
import os
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried.errors import UsageError, install_hint, reason
from serried.protocol.settings import as_argument
from serried.sweeps.definition import MAXIMIZE, DefinitionError, SweepDefinition
from serried.sweeps.importance import importance_of, is_number
from serried.sweeps.results import PRUNED, SweepResults, TrialResult
from serried.sweeps.space import Parameter
from serried.ui.text import fit, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
MOST_AXES = 15
"""Of parallel coordinates, and of bars of importance; the most important parameters are shown."""
_MOST_PLACES = 12
"""A list of more numbers than this has an axis with a scale."""
_MANY_TIMES = 100
"""A list of numbers above zero whose ends differ by more than this factor has a logarithmic scale."""
_MOST_TICKS = 7
_NAME, _VALUE = 26, 11
"""The most characters of a name and of a value."""
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#767676"
_STYLE: Any = {
    "text.parse_math": False,  # a name may contain `$`
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.formatter.use_mathtext": False,
    "pdf.fonttype": 42,
    "savefig.dpi": 150,
}


def check(path: Path) -> None:
    """Raises UsageError if no picture can be drawn, or none written there."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"`--plot {path}` must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not path.parent.is_dir():
        raise UsageError(f"`{path}` cannot be written: `{path.parent}` is not a directory")
    if path.is_dir():
        raise UsageError(f"`{path}` cannot be written: it is a directory")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"`{path}` cannot be written: permission denied")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("`--plot` needs matplotlib, which is not installed", hint=install_hint("sweeps"))


def write(results: SweepResults, path: Path) -> None:
    """Raises UsageError for a sweep without a metric, and if the picture cannot be written."""
    if not results.sweep.metric:
        raise UsageError(
            f"sweep `{results.sweep.first}` has no metric, so `--plot` has no values",
            hint=f"serried sweep show {results.sweep.first} --metric NAME:max --plot {path}",
        )
    save(lambda: figure(results), path)


def save(draw: Callable[[], Figure], path: Path) -> None:
    """Write the figure that `draw` makes in our style. Raises UsageError if it cannot be written."""
    content = io.BytesIO()
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a character that the font lacks becomes a box
        mpl.rcdefaults()  # the user's own matplotlibrc may need LaTeX
        mpl.rcParams.update(_STYLE)
        draw().savefig(content, format=path.suffix.lower()[1:])
    try:
        path.write_bytes(content.getvalue())
    except OSError as error:
        raise UsageError(f"`{path}` cannot be written: {reason(error)}") from None


def figure(results: SweepResults) -> Figure:
    """The figure, under no window and without global state of matplotlib."""
    from matplotlib.figure import Figure

    axes, omitted = _axes(results)
    width = max(12.0, 1.15 * (len(axes) + 1))
    drawn = Figure(figsize=(width, 9), layout="constrained")
    grid = drawn.add_gridspec(2, 2, width_ratios=(3, 2), height_ratios=(4, 5))
    name = results.runs[0].summary.name if results.runs and results.runs[0].summary else ""
    title = f"sweep {results.sweep.first}{f' ({_name(name)})' if name else ''}"
    drawn.suptitle(f"{title}: {results.sweep.goal} {_name(results.sweep.metric)}", fontsize=13)
    _draw_history(drawn.add_subplot(grid[0, 0]), results)
    _draw_importance(drawn.add_subplot(grid[0, 1]), results)
    _draw_coordinates(drawn.add_subplot(grid[1, :]), results, axes, omitted)
    return drawn


def _name(text: str) -> str:
    return fit(printable(text), _NAME)


def _label(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else as_argument(value)
    return fit(printable(text), _VALUE)


def _say(panel: Axes, text: str) -> None:
    """A sentence in place of a panel's content."""
    panel.set_axis_off()
    panel.text(0.5, 0.5, text, ha="center", va="center", color=_GREY, wrap=True, transform=panel.transAxes)


@dataclass(frozen=True)
class _Scale:
    """Numbers on an axis from 0 to 1."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        low, high, number = (math.log(each) if self.is_log else each for each in (self.low, self.high, value))
        if low == high:
            return 0.5
        return min(max((number / 2 - low / 2) / (high / 2 - low / 2), 0.0), 1.0)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        if self.low == self.high:
            return [(0.5, _label(float(self.low)))]
        inner = [each for each in self._round_numbers() if 0.06 < self.place(each) < 0.94]
        return [(self.place(each), f"{each:.4g}") for each in (self.low, *inner, self.high)]

    def _round_numbers(self) -> list[float]:
        from matplotlib.ticker import LogLocator, MaxNLocator

        locator = LogLocator(numticks=_MOST_TICKS) if self.is_log else MaxNLocator(_MOST_TICKS - 2)
        return [float(each) for each in locator.tick_values(self.low, self.high)]


@dataclass(frozen=True)
class _Axis:
    """A parameter in parallel coordinates: a scale, or a place for each value."""

    name: str
    scale: _Scale | None = None
    values: dict[str, str] = field(default_factory=dict)
    """The labels of values, by their JSON."""

    def place(self, trial: TrialResult) -> float:
        """From 0 to 1; NaN for a trial without this parameter."""
        if self.name not in trial.parameters:
            return math.nan
        value = trial.parameters[self.name]
        if self.scale:
            return self.scale.place(value)
        return list(self.values).index(_key(value)) / (len(self.values) - 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        if self.scale:
            return self.scale.ticks
        last = len(self.values) - 1
        step = math.ceil(len(self.values) / _MOST_PLACES)
        return [(place / last, label) for place, label in enumerate(self.values.values()) if place % step == 0]


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _axes(results: SweepResults) -> tuple[list[_Axis], int]:
    """The most important parameters with several values, in the order of the definition; the number of others."""
    try:
        defined = SweepDefinition.from_json(results.sweep.definition).parameters
    except DefinitionError:
        defined = {}
    ordered = sorted(results.trials, key=lambda trial: trial.number)
    axes = []
    for name in dict.fromkeys([*defined, *(name for trial in ordered for name in trial.parameters)]):
        values = [trial.parameters[name] for trial in ordered if name in trial.parameters]
        if len(set(map(_key, values))) > 1:
            axes.append(_axis(name, values, defined.get(name)))
    shares = importance_of(results).shares
    best = sorted(axes, key=lambda axis: -shares.get(axis.name, 0.0))[:MOST_AXES]
    return [axis for axis in axes if axis in best], len(axes) - len(best)


def _axis(name: str, values: Sequence[Any], defined: Parameter | None) -> _Axis:
    """The axis of a parameter: a list has its order, numbers ascend, and many different ones have a scale."""
    are_numbers = all(map(is_number, values))
    listed = list(defined.values) if defined else []
    is_list = bool(listed) or defined is None
    if not are_numbers or (is_list and len(set(map(_key, values))) <= _MOST_PLACES):
        tried = set(map(_key, values))
        ordered = sorted(values) if are_numbers else [each for each in listed if _key(each) in tried] + list(values)
        return _Axis(name, values={_key(value): _label(value) for value in ordered})
    low, high = min(values), max(values)
    is_log = "log" in defined.distribution if defined and not listed else high > _MANY_TIMES * low
    return _Axis(name, _Scale(low, high, is_log and low > 0))


def _value_scale(results: SweepResults) -> tuple[_Scale, int]:
    """The metric of the trials with a value, without those far beyond the others on the bad side; their number."""
    values = sorted(_clamped(trial) for trial in results.trials if trial.counts or _was_pruned(trial))
    low, high = values[0], values[-1]
    first, _, third = statistics.quantiles(values, method="inclusive") if len(values) >= 4 else (low, low, high)
    if len(values) >= 4 and third > first:  # else most trials have the same value, and any other is far from it
        room = 4 * (third - first)
        if results.sweep.goal == MAXIMIZE:
            low = next(value for value in values if value >= first - room)
        else:
            high = next(value for value in reversed(values) if value <= third + room)
    return _Scale(low, high), sum(not low <= value <= high for value in values)


def _was_pruned(trial: TrialResult) -> bool:
    return trial.state == PRUNED and trial.value is not None and math.isfinite(trial.value)


def _clamped(trial: TrialResult) -> float:
    """A value that matplotlib can compute with."""
    return min(max(trial.value or 0.0, -1e100), 1e100)


def _draw_history(panel: Axes, results: SweepResults) -> None:
    panel.set_title("history")
    trials = sorted(results.trials, key=lambda trial: trial.number)
    counted = [trial for trial in trials if trial.counts]
    if not counted:
        _say(panel, _nothing(results))
        return
    from matplotlib.ticker import MaxNLocator

    scale, beyond = _value_scale(results)
    room = 0.06 * (scale.high - scale.low) or 0.05 * abs(scale.high) or 1.0
    panel.set_ylim(scale.low - room, scale.high + room)

    def inside(trial: TrialResult) -> float:
        return min(max(_clamped(trial), scale.low), scale.high)

    size = 26 if len(counted) <= 200 else 8
    numbers = [trial.number for trial in counted]
    panel.scatter(numbers, list(map(inside, counted)), s=size, color=_BLUE, alpha=0.75, linewidths=0, label="completed")
    better = max if results.sweep.goal == MAXIMIZE else min
    best = list(accumulate(map(_clamped, counted), better))
    ends = ([*numbers, trials[-1].number], [*best, best[-1]])
    panel.step(*ends, where="post", color="black", lw=1.4, label="best so far")
    if pruned := [trial for trial in trials if _was_pruned(trial)]:
        places = [trial.number for trial in pruned]
        shown = list(map(inside, pruned))
        panel.scatter(places, shown, s=size, facecolors="none", edgecolors=_GREY, label="ended early")
    if failed := [trial.number for trial in trials if trial.has_failed]:
        at_edge = panel.get_xaxis_transform()
        edge = [0.02] * len(failed)
        panel.scatter(failed, edge, s=size, marker="x", color=_ORANGE, transform=at_edge, label="failed")
    if beyond:
        panel.set_title(f"history ({beyond} far worse, drawn at the edge)")
    panel.set_xlabel("trial")
    panel.set_ylabel(_name(results.sweep.metric))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    panel.grid(alpha=0.25)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False, fontsize=9)


def _nothing(results: SweepResults) -> str:
    return f"no completed trial has a value of {_name(results.sweep.metric)}"


def _draw_importance(panel: Axes, results: SweepResults) -> None:
    panel.set_title("importance")
    importance = importance_of(results)
    if importance.missing:
        _say(panel, printable(importance.missing))
        return
    shown = list(importance.shares.items())[:MOST_AXES]
    bars = panel.barh(range(len(shown)), [share for _, share in shown], color=_BLUE, height=0.7)
    panel.bar_label(bars, labels=[f"{share:.2f}" for _, share in shown], padding=3, fontsize=8)
    panel.set_yticks(range(len(shown)), [_name(name) for name, _ in shown], fontsize=9 if len(shown) < 10 else 8)
    panel.set_ylim(max(len(shown), 4) - 0.4, -0.6)
    panel.set_xlim(0, 1.12)
    panel.set_xticks([0, 0.25, 0.5, 0.75, 1])
    panel.set_xlabel(f"share of the variation of {_name(results.sweep.metric)}")
    panel.spines[["top", "right"]].set_visible(False)
    if len(importance.shares) > len(shown):
        panel.set_title(f"importance ({len(shown)} of {len(importance.shares)} parameters)")


def _draw_coordinates(panel: Axes, results: SweepResults, axes: Sequence[_Axis], omitted: int) -> None:
    panel.set_title(_heading(results, len(axes), omitted))
    counted = [trial for trial in reversed(results.trials) if trial.counts]
    if not counted or not axes:
        _say(panel, "no parameter has two values" if counted else _nothing(results))
        return
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize

    scale, beyond = _value_scale(results)
    last = len(axes)
    lines = [
        [*((place, axis.place(trial)) for place, axis in enumerate(axes)), (last, scale.place(_clamped(trial)))]
        for trial in counted
    ]
    # The best trials are dark, and drawn last.
    colours = colormaps["viridis_r" if results.sweep.goal == MAXIMIZE else "viridis"]
    alpha = 0.9 if len(counted) <= 50 else 0.6 if len(counted) <= 300 else 0.35
    widths = [1.3 if len(counted) <= 300 else 0.7] * (len(counted) - 1) + [3.0]
    shades = [colours(line[-1][1], alpha) for line in lines[:-1]] + [colours(lines[-1][-1][1])]
    panel.add_collection(LineCollection(lines, colors=shades, linewidths=widths), autolim=False)
    for place, ticks in enumerate([*(axis.ticks for axis in axes), scale.ticks]):
        panel.axvline(place, color="black", lw=0.8)
        for height, label in ticks:
            panel.plot([place - 0.02, place], [height, height], color="black", lw=0.8)
            text = panel.text(place - 0.03, height, label, ha="right", va="center", fontsize=8)
            text.set_bbox({"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6})
    names = [_name(axis.name) for axis in axes] + [_name(results.sweep.metric)]
    panel.xaxis.tick_top()
    are_long = len(names) > 9 or max(map(len, names)) * len(names) > 110
    panel.set_xticks(range(len(names)), names, rotation=25 if are_long else 0, ha="left" if are_long else "center")
    panel.set_yticks([])
    panel.set_xlim(-0.5, last + 0.15)
    panel.set_ylim(-0.05, 1.05)
    panel.spines[:].set_visible(False)
    panel.tick_params(length=0)
    if scale.low < scale.high:
        shade = ScalarMappable(Normalize(scale.low, scale.high), colours)
        end = ("min" if results.sweep.goal == MAXIMIZE else "max") if beyond else "neither"
        panel.figure.colorbar(shade, ax=panel, pad=0.01, aspect=30, extend=end).set_label(_name(results.sweep.metric))


def _heading(results: SweepResults, axes: int, omitted: int) -> str:
    """Which trials and parameters the lines show."""
    kinds = Counter(_kind(trial) for trial in results.trials)
    shown = kinds.pop("", 0)
    left_out = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    trials = f"{shown} of {len(results.trials)} trials" + (f" ({left_out})" if left_out else "")
    parameters = f"; {axes} of {axes + omitted} parameters" if omitted else ""
    return f"parallel coordinates: {trials}{parameters}"


def _kind(trial: TrialResult) -> str:
    """Why a trial has no line; empty if it has one."""
    if trial.counts:
        return ""
    if trial.has_failed:
        return "failed"
    if trial.state == PRUNED:
        return "ended early"
    return "without a value" if trial.is_complete else "not ended"
