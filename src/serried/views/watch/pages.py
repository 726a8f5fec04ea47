"""What the pages of `serried watch` say, as texts, tables and curves: for a terminal, and for `--once`. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from serried.base.text import duration
from serried.records.index import first_step
from serried.records.live import LiveGpu, LiveNode, LiveRank, RunProgress
from serried.views import console
from serried.views.console import Cell, state_style
from serried.views.run_files import Point
from serried.views.text import fit, printable, width

GpuKey = tuple[int, int]
"""A node and a GPU's index on it."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans({**dict(zip(_BLOCKS, ".:-=+*#@")), **dict(zip("·━╸╺─│╭╮╰╯…°←→", "?===-|++++~ <>"))})
_FEW_ROWS = 16
"""As many ranks are printed by `--once`, the worst first, and as many GPUs."""
_NARROWEST_NAME, _WIDEST_ID, _WIDEST_NODE = 8, 14, 10
_GIB, _GAP = 1 << 30, 2


def in_ascii(text: str) -> str:
    """The same in as many columns, for terminals that have no other characters."""
    if text.isascii():
        return text
    return "".join(one if one.isascii() else "?" * width(one) for one in text.translate(_ASCII))


def blocks(values: Iterable[float | None], low: float, high: float) -> str:
    """One character for each value."""
    shares = [None if value is None else (value - low) / (high - low or 1.0) for value in values]
    return "".join("·" if it is None else _BLOCKS[min(max(int(it * 8), 0), 7)] for it in shares)


class PageTable(NamedTuple):
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: tuple[str, ...] = ()
    """Of the rows, if one can be selected."""


class Meter(NamedTuple):
    label: str
    share: float | None
    """Of the bar, which is none without a whole."""
    texts: tuple[Cell, ...]
    is_late: bool = False


class PageCurve(NamedTuple):
    title: str
    values: tuple[float, ...]
    range: str


@dataclass(frozen=True)
class RunRow:
    """A run, or a task of an array, in a list."""

    id: str
    name: str
    state: str
    size: str = ""
    time: str = ""
    note: Cell = Cell("")  # noqa: RUF009 - it never changes
    project: str = ""
    ended: str = ""

    def matches(self, words: str) -> bool:
        return all(
            word in f"{self.id} {self.name} {self.state} {self.project}".lower() for word in words.lower().split()
        )

    @property
    def cells(self) -> tuple[Cell, ...]:
        before = (Cell(self.id), Cell(printable(self.name)), Cell(self.state, state_style(self.state)))
        return (*before, Cell(self.size), Cell(self.time), Cell(self.ended), self.note)


def run_table(rows: Sequence[RunRow], columns: int | None = None) -> PageTable:
    """The list. The names and the notes give way so that it fits in `columns`."""
    heads: tuple[str, ...] = ("ID", "NAME", "STATE", "SIZE", "TIME", "ENDED", "NOTE")
    cells = [row.cells for row in rows]
    if not any(row.ended for row in rows):
        heads, cells = _without("ENDED", heads, cells)
    if columns is not None:
        widest = max(columns // 4, _NARROWEST_NAME)
        cells = [(Cell(fit(one[0].text, _WIDEST_ID)), Cell(fit(one[1].text, widest)), *one[2:]) for one in cells]
        if max((width(one[-1].texts[-1]) for one in cells), default=0) > _room(heads, cells, columns):
            heads, cells = _without("SIZE", heads, cells)
        room = _room(heads, cells, columns)
        cells = [(*one[:-1], Cell(one[-1].fitted(room), one[-1].style)) for one in cells]
    return PageTable(heads, tuple(cells), tuple(row.id for row in rows))


Cells = tuple[Cell, ...]


def _without(head: str, heads: tuple[str, ...], rows: list[Cells]) -> tuple[tuple[str, ...], list[Cells]]:
    at = heads.index(head)
    return (*heads[:at], *heads[at + 1 :]), [(*row[:at], *row[at + 1 :]) for row in rows]


def _room(heads: Sequence[str], rows: Sequence[Cells], columns: int) -> int:
    widths = [max(map(width, (head, *(row[at].text for row in rows)))) for at, head in enumerate(heads[:-1])]
    return max(columns - sum(widths) - _GAP * len(heads), 0)


class RankView(NamedTuple):
    host: str
    now: LiveRank
    busy: float | None
    """Of its GPU; the mean of the node's GPUs if ranks and GPUs differ in number."""


class Quantity(NamedTuple):
    title: str
    value: Callable[[RankView], float | None]
    text: Callable[[float], str]
    judge: Callable[[float, float], str]
    """The style of a value, with the median of all ranks."""
    is_worst_high: bool = False


def _busy_style(percent: float) -> str:
    return "bad" if percent <= 15 else "warning" if percent < 50 else "good"


_QUANTITIES = (
    Quantity(
        "GPU busy", lambda rank: rank.busy, lambda percent: f"{percent:.0f}%", lambda percent, _: _busy_style(percent)
    ),
    Quantity(
        "steps/s",
        lambda rank: rank.now.steps_per_second,
        lambda rate: f"{rate:.3g}",
        lambda rate, median: "bad" if rate * 1.2 < median else "good",
    ),
    Quantity(
        "data wait",
        lambda rank: rank.now.data_wait,
        lambda share: f"{share:.0%}",
        lambda share, _: "bad" if share > 0.2 else "warning" if share > 0.1 else "good",
        is_worst_high=True,
    ),
    Quantity("CPU cores", lambda rank: rank.now.cpu, lambda cores: f"{cores:.1f}", lambda *_: "good"),
)


@dataclass(frozen=True)
class RunPage:
    id: str
    name: str
    state: str
    message: str = ""
    size: str = ""
    """`2 nodes, 8 GPUs on fir`."""
    elapsed: float | None = None
    limit: float | None = None
    live: RunProgress | None = None
    recent: Mapping[GpuKey, Sequence[float | None]] = field(default_factory=dict)
    """Busy percentages of the last periods, the latest last."""
    recent_seconds: float = 30.0
    """Of one period."""
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    logs: tuple[str, ...] = ()
    """The names of the logs: `rank 3 on n01`."""
    log: int = 0
    log_lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    has_ended: bool = False
    steps: tuple[str, ...] = ()
    """What to do about a run that has failed."""
    facts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Of a run that waits: heads, each with its lines."""

    @property
    def head(self) -> list[tuple[Cell, ...]]:
        """Lines, each of some texts."""
        name, state = Cell(fit(self.name, 26)), Cell(self.state, state_style(self.state))
        lines: list[tuple[Cell, ...]] = [(Cell(f"{self.id} ", "head"), name, Cell(" "), state, Cell(f"  {self.size}"))]
        lines += [(Cell(f"  {self.message}", "" if self.has_ended else "quiet"),)] if self.message else []
        lines += [(Cell(f"  - {step}"),) for step in self.steps[:2]] if self.has_ended else []
        if self.warnings:
            more = f" (+{len(self.warnings) - 1} more: serried why)" if len(self.warnings) > 1 else ""
            lines.append((Cell(f"! {self.warnings[0]}{more}", "warning"),))
        return lines

    @property
    def meters(self) -> list[Meter]:
        time = [] if self.elapsed is None else [self._time(self.elapsed)]
        return [*time, *([self._step(self.live)] if self.live else [])]

    def _time(self, elapsed: float) -> Meter:
        if not self.limit:
            return Meter("time", None, (Cell(duration(elapsed)),))
        text, share, is_late = f"{duration(elapsed)} of {duration(self.limit)}", elapsed / self.limit, False
        if not self.has_ended:
            left = self.live.limit_seconds_left if self.live else None
            text += f", {duration(max(self.limit - elapsed, 0.0) if left is None else left)} left"
            is_late = share > 0.9 or bool(self.live and self.live.is_too_slow)
        return Meter("time", min(share, 1.0), (Cell(text),), is_late)

    def _step(self, now: RunProgress) -> Meter:
        if now.step is None:
            return Meter("step", None, (Cell("no step yet: run.log, or `metric.from`, tells the step", "quiet"),))
        begin = f"{now.step} of {now.total_steps}" if now.total_steps else f"{now.step}"
        age = min((it.step_age for it in now.live.listed_ranks if it.step_age is not None), default=0.0)
        is_old = age > now.live.interval  # else there was one shortly before the file was written
        last = Cell(f", last {duration(age + now.age)} ago" if is_old else "", "bad" if now.is_stalled else "")
        rest = f", {now.steps_per_second:.3g}/s" if now.steps_per_second is not None else ""
        rest += f", {duration(now.seconds_left)} left" if now.seconds_left is not None else ""
        share = min(now.step / now.total_steps, 1.0) if now.total_steps else None
        return Meter("step", share, (Cell(begin), last, Cell(rest)))

    @property
    def _gpus(self) -> list[tuple[LiveNode, LiveGpu]]:
        return [(node, gpu) for node in self.live.live.nodes for gpu in node.gpus] if self.live else []

    @property
    def _ranks(self) -> list[RankView]:
        ranks = []
        for node in self.live.live.nodes if self.live else ():
            busy = [gpu.busy for gpu in node.gpus]
            if len(busy) != len(node.ranks):
                known = [percent for percent in busy if percent is not None]
                busy = [statistics.mean(known) if known else None] * len(node.ranks)
            own = sorted(node.ranks, key=lambda rank: rank.rank)
            ranks += [RankView(node.host, rank, percent) for rank, percent in zip(own, busy)]
        return sorted(ranks, key=lambda rank: rank.now.rank)

    @property
    def _quantities(self) -> list[Quantity]:
        ranks = self._ranks
        return [quantity for quantity in _QUANTITIES if any(quantity.value(rank) is not None for rank in ranks)]

    def table(self, choice: int, recent: int = 6) -> tuple[str, PageTable] | None:
        """The GPUs, or the ranks by one of their quantities, as many `choice`s as there are; and its title."""
        gpus, quantities = self._gpus, self._quantities
        if not gpus and not quantities:
            return None
        if gpus and choice % (len(quantities) + 1) == 0:
            live = self.live.live if self.live else None
            which = "" if live is None else f"{len(gpus)} of {live.gpus}" if live.gpus > len(gpus) else str(live.gpus)
            mean = f", mean {live.gpu_busy:.0f}%" if live and live.gpu_busy is not None else ""
            return f"GPUs {which}{mean}", self._gpu_table(gpus, recent)
        by = self._quantity(choice)

        def worst_first(rank: RankView) -> float:
            value = by.value(rank)
            return math.inf if value is None else -value if by.is_worst_high else value

        medians = {quantity.title: self._median(quantity) for quantity in quantities}
        rows = []
        for rank in sorted(self._ranks, key=worst_first):
            cells = [Cell(str(rank.now.rank)), Cell(fit(rank.host, _WIDEST_NODE))]
            for one in quantities:
                value = one.value(rank)
                style = "quiet" if value is None else one.judge(value, medians[one.title])
                cells.append(Cell("?" if value is None else one.text(value), style))
            rows.append(tuple(cells))
        heads = ("rank", "node", *(quantity.title for quantity in quantities))
        return f"ranks by {by.title}", PageTable(heads, tuple(rows))

    @property
    def tables(self) -> list[tuple[str, PageTable]]:
        """The GPUs, and the ranks if there are several."""
        gpus = self.table(0) if self._gpus else None
        ranks = self.table(1 if gpus else 0)
        summary = self.rank_summary(0)
        return [*([gpus] if gpus else []), *([(summary, ranks[1])] if ranks and summary else [])]

    def _quantity(self, choice: int) -> Quantity:
        """That of the ranks; beside the GPUs the first one."""
        quantities, gpus = self._quantities, bool(self._gpus)
        return quantities[max(choice % (len(quantities) + gpus) - gpus, 0)]

    def _gpu_table(self, gpus: Sequence[tuple[LiveNode, LiveGpu]], recent: int) -> PageTable:
        last = f"last {duration(recent * self.recent_seconds)}"
        heads: tuple[str, ...] = ("GPU", "busy", last, "memory G", "power W", "°C")
        rows: list[tuple[Cell, ...]] = []
        for node, gpu in gpus:
            name = f"{fit(node.host, _WIDEST_NODE - 1 - len(str(gpu.gpu)))}:{gpu.gpu}"
            style = "quiet" if gpu.busy is None else _busy_style(gpu.busy)
            curve = blocks(self.recent.get((node.node, gpu.gpu), ())[-recent:], 0.0, 100.0)
            memory = f"{_amount(gpu.memory, _GIB)}/{_amount(gpu.memory_total, _GIB)}"
            power = f"{_amount(gpu.power)}/{_amount(gpu.power_cap)}"
            busy = _amount(gpu.busy) + "%" * (gpu.busy is not None)
            rest = (Cell(memory), Cell(power), Cell(_amount(gpu.temperature)))
            rows.append((Cell(name), Cell(busy, style), Cell(curve, style), *rest))
        if not self.recent:
            heads, rows = (*heads[:2], *heads[3:]), [(*row[:2], *row[3:]) for row in rows]
        return PageTable(heads, tuple(rows))

    def _median(self, quantity: Quantity) -> float:
        return statistics.median(value for rank in self._ranks if (value := quantity.value(rank)) is not None)

    def rank_summary(self, choice: int) -> str:
        """One line about several ranks: the straggler is at one of the ends."""
        ranks = self._ranks
        if self.live is None or not self._quantities or self.live.live.ranks < 2:
            return ""
        quantity = self._quantity(choice)
        known = [(value, rank.now.rank) for rank in ranks if (value := quantity.value(rank)) is not None]
        ends = []
        for end in (max, min) if quantity.is_worst_high else (min, max):
            value, rank = end(known, key=lambda it: it[0])
            ends.append(f"{end.__name__} {quantity.text(value)} at rank {rank}")
        of_all = f" of {self.live.live.ranks}" if len(ranks) < self.live.live.ranks else ""
        median = quantity.text(self._median(quantity))
        return f"{len(ranks)}{of_all} ranks: {quantity.title}: {', '.join((*ends, f'median {median}'))}"

    def curve(self, choice: int) -> PageCurve | None:
        if not self.curves:
            return None
        name = list(self.curves)[choice % len(self.curves)]
        points = sorted(point for point in self.curves[name] if all(map(math.isfinite, point)))
        many = f"  {choice % len(self.curves) + 1} of {len(self.curves)}" if len(self.curves) > 1 else ""
        if not points:
            return PageCurve(f"{name}{many}", (), "no value so far")
        values = tuple(value for _, value in points)
        extent = f"{number(min(values))} to {number(max(values))}, steps {points[0][0]:.0f} to {points[-1][0]:.0f}"
        return PageCurve(f"{name} {number(values[-1])}{many}", values, extent)

    @property
    def log_title(self) -> str:
        if self.log >= len(self.logs):
            return "no output" if self.has_ended else "no output yet"
        many = f"  {self.log + 1} of {len(self.logs)}" if len(self.logs) > 1 else ""
        return f"output of {self.logs[self.log]}{many}"


def _amount(value: float | None, unit: float = 1.0) -> str:
    return "?" if value is None else f"{value / unit:.0f}"


def number(value: float) -> str:
    """A number in at most seven characters: `0.312`, `12.5`, `120k`, `1.2e-05`."""
    if value and not 1e-3 <= abs(value) < 1e9:
        return f"{value:.1e}"
    for size, unit, letter in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= size:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


def printed_list(title: str, rows: Sequence[RunRow], notice: str) -> list[str]:
    """The list as `--once` prints it."""
    shown = run_table(rows)
    lines = (
        console.table(shown.heads, shown.rows, shrink=1, spare=shown.heads.index("SIZE"))
        if rows
        else [f"no runs yet: {first_step()}"]
    )
    return [f"{title}  {len(rows)}", *([f"! {printable(notice)}"] if notice else []), *lines]


def _plain(cells: Iterable[Cell]) -> str:
    return printable("".join(cell.text for cell in cells))


def printed_run(page: RunPage, rows: int) -> list[str]:
    """The page as `--once` prints it: the output has what is left of `rows` lines."""
    lines = [*map(_plain, page.head)]
    for meter in page.meters:
        share = f"{meter.share:>4.0%}  " if meter.share is not None else ""
        lines.append(f" {meter.label}  {share}{_plain(meter.texts)}")
    for head, its in page.facts:
        lines += ["", head, *(f"  {printable(text)}" for text in its)]
    for title, table in page.tables:
        more = len(table.rows) - _FEW_ROWS
        lines += ["", title, *console.table(table.heads, table.rows[:_FEW_ROWS])]
        lines += [f"and {more} more"] if more > 0 else []
    if curve := page.curve(0):
        size = max(len(curve.values) / 40, 1.0)
        parts = [curve.values[int(at * size) : int((at + 1) * size)] for at in range(round(len(curve.values) / size))]
        shown = blocks(map(statistics.mean, parts), min(curve.values), max(curve.values)) if curve.values else ""
        lines += ["", printable(f"{curve.title}  {shown}  {curve.range}")]
    if not page.facts:
        lines += ["", printable(page.log_title)]
        lines += page.log_lines[-max(rows - len(lines) - 1, 5) :]
    return lines
