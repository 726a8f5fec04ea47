"""A bench as a picture: throughput and efficiency over the number of ranks, each with the ideal line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serried.bench.results import CPU, BenchResults, RowResult
from serried.bench.store import SINGLE, Bench
from serried.views.pictures import check, drawing, save
from serried.views.text import fit, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES = (
    ("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", "-."), ("#CC79A7", "D", ":"),
    ("#56B4E9", "v", "-"), ("#E69F00", "P", "--"), ("#000000", "X", "-."), ("#767676", "*", ":"),
)  # fmt: skip
"""Colour, marker and style: markers and styles alone tell the lines apart in grey."""
_TITLE = 50
_MOST_SHAPES = 3


def write(bench: Bench, results: BenchResults, path: Path) -> None:
    """Raises UsageError without matplotlib, and if the picture cannot be written."""
    check(path)
    with drawing():
        save(figure(bench, results), path)


def figure(bench: Bench, results: BenchResults) -> Figure:
    """The figure, under no window and without global state of matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    drawn = Figure(figsize=(11, 4.6), layout="constrained")
    speed, efficiency = drawn.subplots(1, 2)
    unit = "GPUs" if results.device != CPU else "ranks"
    title = f"{fit(printable(bench.name), _TITLE)} on {fit(printable(results.device), _TITLE)}"
    drawn.suptitle(title, parse_math=False)
    rows = results.compared
    one = next((row for row in rows if row.point.method == SINGLE), None)
    worlds = sorted({row.point.world for row in rows})
    ticks = []
    for world in worlds:
        shapes = list(dict.fromkeys(row.point.shape for row in rows if row.point.world == world))
        ticks.append("\n".join([str(world), *shapes[:_MOST_SHAPES]]))
    _scale(speed, worlds, ticks, "samples per second")
    _scale(efficiency, worlds, ticks, "efficiency against 1 rank, %")
    bars = "; bars: standard deviation" if any(row.deviation for row in rows) else ""
    drawn.supxlabel(f"{unit}, as nodes x {unit} on each; of several, the fastest is drawn{bars}", fontsize=10)
    if not rows:
        speed.text(0.5, 0.5, "no point is measured yet", ha="center", va="center", transform=speed.transAxes)
        return drawn
    speed.set_yscale("log")
    speed.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    speed.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    speed.yaxis.set_minor_formatter(NullFormatter())
    if one and one.samples_per_second:
        rate = one.samples_per_second
        speed.plot(worlds, [rate * world for world in worlds], color="#767676", lw=1, ls=(0, (1, 2)), label="ideal")
        efficiency.axhline(100, color="#767676", lw=1, ls=(0, (1, 2)))
    series: dict[str, list[RowResult]] = {}  # by launcher, method and scaling; the point of one rank begins each line
    for row in rows:
        if row.point.method != SINGLE:
            series.setdefault(" ".join(row.point.labels), [one] if one else []).append(row)
    series = series or {SINGLE: rows}
    for (name, points), (colour, marker, style) in zip(series.items(), _LINES * 8):
        best = _best(points)
        look = {"color": colour, "marker": marker, "ls": style, "lw": 1.4, "ms": 6}
        errors = [(row.deviation or 0.0) * (row.samples_per_second or 0.0) for row in best]
        speed.errorbar(
            [row.point.world for row in best], [row.samples_per_second or 0.0 for row in best], errors,
            capsize=3, label=name, **look,
        )  # fmt: skip
        known = [row for row in best if row.efficiency is not None]
        efficiency.plot(
            [row.point.world for row in known], [100 * (row.efficiency or 0.0) for row in known], label=name, **look
        )
    efficiency.set_ylim(0, 1.05 * max([100.0, *(100 * (row.efficiency or 0.0) for row in rows)]))
    speed.legend(fontsize=9)
    return drawn


def _scale(panel: Axes, worlds: Sequence[int], ticks: Sequence[str], label: str) -> None:
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(worlds), list(ticks))
    panel.minorticks_off()
    panel.set_ylabel(label)
    panel.margins(x=0.08)
    panel.grid(visible=True, color="#dddddd", lw=0.6)


def _best(rows: Sequence[RowResult]) -> list[RowResult]:
    found: dict[int, RowResult] = {}
    for row in rows:
        best = found.get(row.point.world)
        if best is None or (row.samples_per_second or 0.0) > (best.samples_per_second or 0.0):
            found[row.point.world] = row
    return [found[world] for world in sorted(found)]
