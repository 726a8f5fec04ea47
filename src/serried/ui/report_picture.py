"""The use of a run over time as a picture: a heatmap of GPUs, and curves of memory and CPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from serried.errors import UsageError
from serried.metrics import series
from serried.metrics.samples import Samples
from serried.metrics.series import Axis, Series
from serried.protocol.sizes import counted
from serried.report.usage import GIB, Usage
from serried.ui import sweep_picture
from serried.ui.text import fit, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

check = sweep_picture.check
MOST_LINES = 4_000
"""More than for the numbers of a report: a short pause must not look as long as the lines around it."""
_COLUMNS = 240
"""Of the heatmap."""
_MOST_LABELS = 32
_MOST_CURVES = 8
_LABEL = 24
_SHADES = "viridis"
"""From dark to light, also in grey. Where nothing was measured, the paper is white."""
_DASHES = ("-", "--", ":", "-.")
"""Together with shades of grey: curves can be told apart without colours."""


class _Kind(NamedTuple):
    """A quantity that is drawn as curves."""

    title: str
    unit: str
    scale: float


_GPU_MEMORY, _CPU, _MEMORY = _Kind("GPU memory", "GiB", GIB), _Kind("CPU", "cores", 1), _Kind("memory", "GiB", GIB)
_WHOLE = " (of the whole node, with other jobs)"
_UNITS = ((3 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (300, 60, "minutes"))


def write(usage: Usage, samples: Samples, path: Path) -> None:
    """Raises UsageError for a run without samples, and if the picture cannot be written."""
    if not samples.nodes:
        reason = usage.missing or "its samples were removed with the run directory"
        raise UsageError(f"`--plot` has nothing to draw for `{usage.id}`: {reason}")
    sweep_picture.save(lambda: figure(usage, samples), path)


def figure(usage: Usage, samples: Samples) -> Figure:
    """The figure, under no window and without global state of matplotlib."""
    from matplotlib.figure import Figure

    busy = series.of_gpus(samples, "busy")
    panels = 4 if busy else 2
    tall = min(max(len(busy) * 0.22, 2.0), 8.0)
    heights = ([tall, 2.2] if busy else []) + [2.2, 2.2]
    drawn = Figure(figsize=(11, sum(heights) + 1.2), layout="constrained")
    name = f" ({fit(printable(usage.name), 40)})" if usage.name else ""
    read = f", {counted(samples.unread, 'node')} not read" if samples.unread else ""
    read += f", one line in {samples.one_in} was read" if samples.one_in > 1 else ""
    drawn.suptitle(f"{usage.id}{name}: use over time{read}", fontsize=13)
    grid = drawn.add_gridspec(panels, 1, height_ratios=heights)
    axis, panel = series.axis_of(samples), 0
    if busy:
        _draw_heatmap(drawn.add_subplot(grid[0]), busy, axis)
        gpu_memory = series.of_gpus(samples, "memory")
        _draw_curves(drawn.add_subplot(grid[1]), _GPU_MEMORY, gpu_memory, axis, usage.gpu_memory_total)
        panel = 2
    cpu, memory = series.of_nodes(samples, "cpu"), series.of_nodes(samples, "memory")
    whole = "" if usage.has_own_scope else _WHOLE
    _draw_curves(
        drawn.add_subplot(grid[panel]),
        _CPU._replace(title=f"CPU{whole}"),
        cpu,
        axis,
        usage.cpus_per_node if usage.has_own_scope else usage.cpus_of_node,
    )
    last = drawn.add_subplot(grid[panel + 1])
    _draw_curves(
        last,
        _MEMORY._replace(title=f"memory{whole}"),
        memory,
        axis,
        usage.memory_per_node if usage.has_own_scope else usage.memory_of_node,
    )
    _, unit = _unit(axis)
    last.set_xlabel(f"time in {unit}" + (", all attempts" if len(axis.starts) > 1 else ""))
    return drawn


def _unit(axis: Axis) -> tuple[float, str]:
    return next(((size, name) for least, size, name in _UNITS if axis.seconds >= least), (1, "seconds"))


def _draw_heatmap(panel: Axes, busy: Sequence[Series], axis: Axis) -> None:
    size, _ = _unit(axis)
    cells = [_cells(each, axis) for each in busy]
    extent = (0.0, axis.seconds / size, len(busy) - 0.5, -0.5)
    image = panel.imshow(cells, aspect="auto", cmap=_SHADES, vmin=0, vmax=100, extent=extent, interpolation="nearest")
    step = math.ceil(len(busy) / _MOST_LABELS)
    labels = [fit(printable(each.label), _LABEL) for each in busy]
    panel.set_yticks(range(0, len(busy), step), labels[::step], fontsize=8)
    panel.set_title("GPU busy" + (f" (a label for each {step} GPUs)" if step > 1 else ""))
    panel.figure.colorbar(image, ax=panel, pad=0.01, aspect=20).set_label("% of the time")
    _mark(panel, axis)


def _cells(one: Series, axis: Axis) -> list[float]:
    """The mean of each column; NaN where nothing was measured."""
    sums, weights = [0.0] * _COLUMNS, [0.0] * _COLUMNS
    width = axis.seconds / _COLUMNS or 1.0
    for point in one.points:
        first = min(max(int(point.begin / width), 0), _COLUMNS - 1)
        last = min(max(math.ceil(point.end / width) - 1, first), _COLUMNS - 1)
        for column in range(first, last + 1):
            sums[column] += point.value
            weights[column] += 1
    return [total / weight if weight else math.nan for total, weight in zip(sums, weights, strict=True)]


def _draw_curves(panel: Axes, kind: _Kind, found: Sequence[Series], axis: Axis, limit: float | None) -> None:
    """A curve for each; of many the lowest, the median and the highest."""
    size, _ = _unit(axis)
    scale = kind.scale
    panel.set_title(kind.title)
    panel.set_ylabel(kind.unit)
    panel.set_xlim(0, axis.seconds / size or 1)
    shown = found if len(found) <= _MOST_CURVES else _ends(found)
    for at, one in enumerate(shown):
        times = [(point.begin + point.end) / 2 / size for point in one.points]
        shade = str(0.65 * at / max(len(shown) - 1, 1))
        label = fit(printable(one.label), _LABEL)
        values = [point.value / scale for point in one.points]
        panel.plot(times, values, _DASHES[at % len(_DASHES)], color=shade, lw=1.3, label=label)
    if len(found) > len(shown):
        panel.set_title(f"{kind.title} (the lowest, the median and the highest of {len(found)})")
    if limit:
        panel.axhline(limit / scale, color="black", lw=0.8, ls=(0, (1, 3)))
        across = panel.get_yaxis_transform()
        panel.text(0.003, limit / scale, "requested or available", fontsize=8, va="bottom", transform=across)
    panel.set_ylim(0, max([limit or 0.0, *(point.value for one in shown for point in one.points)]) / scale * 1.15 or 1)
    panel.grid(alpha=0.25)
    if len(shown) > 1:
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    _mark(panel, axis)


def _ends(found: Sequence[Series]) -> list[Series]:
    ordered = sorted((one for one in found if one.points), key=_mean)
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if ordered else []


def _mean(one: Series) -> float:
    return sum(point.value for point in one.points) / len(one.points)


def _mark(panel: Axes, axis: Axis) -> None:
    """A line where each further attempt begins."""
    size, _ = _unit(axis)
    for start in axis.starts[1:]:
        panel.axvline(start / size, color="black", lw=1.2)
