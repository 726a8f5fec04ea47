"""The page of one run: header, GPUs, loss, ranks, output. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from serried.ui import console
from serried.ui.text import duration, fit, pad, printable, wrapped
from serried.ui.watch import rank_map
from serried.ui.watch.drawing import (
    Canvas,
    Line,
    Point,
    Span,
    bar,
    beside,
    curve,
    footer,
    line,
    number,
    sparkline,
    titled,
    whole,
)
from serried.ui.watch.live_view import GpuKey, GpuView, LiveView

KEYS = (
    ("esc", "back"),
    ("left right", "rank"),
    ("m", "metric"),
    ("h", "map"),
    ("l", "log"),
    ("S", "stop"),
    ("?", "help"),
    ("q", "quit"),
)
_GIB = 1 << 30
_GPU_FIXED = 40
_NARROWEST_LEFT = 46


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
    live: LiveView | None = None
    recent: Mapping[GpuKey, Sequence[float | None]] = field(default_factory=dict)
    """Busy percentages of the last periods, the latest last."""
    recent_seconds: float = 30.0
    """Of one period."""
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    logs: tuple[str, ...] = ()
    """The names of the logs: `rank 3 on n01`."""
    log: int = 0
    log_lines: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    notice: str = ""
    has_ended: bool = False
    steps: tuple[str, ...] = ()
    """What to do about a run that has failed."""


@dataclass(frozen=True)
class Choice:
    """What the user chose to see."""

    quantity: int = 0
    metric: int = 0
    first_gpu: int = 0
    is_log_only: bool = False

    def changed(self, key: str) -> Choice:
        """After the key `m`, `h` or `l`."""
        if key == "l":
            return replace(self, is_log_only=not self.is_log_only)
        return replace(self, metric=self.metric + 1) if key == "m" else replace(self, quantity=self.quantity + 1)


def draw(page: RunPage, choice: Choice, canvas: Canvas) -> list[Line]:
    """As many lines as the terminal has rows."""
    head = header(page, canvas)
    room = canvas.rows - 1 - len(head)
    body = [] if choice.is_log_only else _measured(page, choice, canvas, room)
    log = _log(page, canvas, room - len(body))
    return whole([*head, *body, *log], footer(KEYS, canvas), canvas)


def header(page: RunPage, canvas: Canvas) -> list[Line]:
    state = Span(page.state, console.state_style(page.state))
    title = line(Span(f"{page.id} ", "head"), fit_name(page.name, canvas), " ", state, f"  {page.size}")
    warnings = _warnings((page.notice,) if page.notice else page.advice, canvas)
    return [title, *_message(page, canvas), *_progress(page, canvas), *warnings]


def fit_name(name: str, canvas: Canvas) -> str:
    return fit(name, max(canvas.columns // 3, 12))


def _message(page: RunPage, canvas: Canvas) -> list[Line]:
    if not page.message:
        return []
    texts = wrapped(page.message, canvas.columns - 2)[:2]
    steps = [f"- {step}" for step in page.steps[:2]] if page.has_ended else []
    return [line(Span(f"  {text}", "" if page.has_ended else "quiet")) for text in (*texts, *steps)]


def _warnings(warnings: Sequence[str], canvas: Canvas) -> list[Line]:
    """One line: the first warning, and the number of the others."""
    if not warnings:
        return []
    more = f" (+{len(warnings) - 1} more: serried why)" if len(warnings) > 1 else ""
    text = fit(printable(warnings[0]), canvas.columns - 2 - len(more))
    return [line(Span(f"! {text}{more}", "warning"))]


def _progress(page: RunPage, canvas: Canvas) -> list[Line]:
    columns = max(canvas.columns // 4, 10)
    time = [_time(page, page.elapsed, columns, canvas)] if page.elapsed is not None else []
    return [*time, *([_step(page.live, columns, canvas)] if page.live else [])]


def _time(page: RunPage, elapsed: float, columns: int, canvas: Canvas) -> Line:
    now = page.live.progress if page.live else None
    text = f"  {duration(elapsed)}"
    if not page.limit:
        return line(" time", text)
    text += f" of {duration(page.limit)}"
    share, is_late = elapsed / page.limit, False
    if not page.has_ended:
        left = now.limit_seconds_left if now else None
        text += f", {duration(max(page.limit - elapsed, 0.0) if left is None else left)} left"
        is_late = share > 0.9 or bool(now and now.is_too_slow)
    return line(" time  ", *bar(share, columns, canvas, "warning" if is_late else "busy"), text)


def _step(view: LiveView, columns: int, canvas: Canvas) -> Line:
    now = view.progress
    if now.step is None:
        return line(" step  ", Span("no step yet: run.log, or `metric.from`, tells the step", "quiet"))
    total, age = now.total_steps, view.step_age
    last = Span(f", last {duration(age)} ago" if age is not None else "", "bad" if now.is_stalled else "")
    rest = f", {now.steps_per_second:.3g}/s" if now.steps_per_second is not None else ""
    rest += f", {duration(now.seconds_left)} left" if now.seconds_left is not None else ""
    begin = [*bar(now.step / total, columns, canvas), f"  {now.step} of {total}"] if total else [f"{now.step}"]
    return line(" step  ", *begin, last, rest)


def _measured(page: RunPage, choice: Choice, canvas: Canvas, room: int) -> list[Line]:
    """GPUs and the curve beside each other, and the map of ranks below."""
    live = page.live
    ranks = rank_map.draw(live, choice.quantity, canvas) if live else []
    most = room - 4 - len(ranks)
    wanted = max(len(live.gpus) + 2 if live and live.gpus else 0, 7 if page.curves else 0)
    rows = min(wanted, most) if canvas.rows < 40 else min(max(wanted, most // 2), most)
    if rows < 2:
        return ranks[: max(room - 4, 0)]
    has_gpus = bool(live and live.gpus)
    left_columns = max(_NARROWEST_LEFT, canvas.columns * 11 // 20) if has_gpus else 0
    right_canvas = canvas._replace(columns=canvas.columns - left_columns - 2 if has_gpus else canvas.columns)
    right = _curve(page, choice, right_canvas, rows) if page.curves else []
    if not has_gpus or live is None:
        return [*right, *ranks]
    left_columns = left_columns if page.curves else canvas.columns
    left = _gpus(page, live, choice, canvas._replace(columns=left_columns), rows)
    return [*beside(left, right, left_columns), *ranks]


def _gpus(page: RunPage, live: LiveView, choice: Choice, canvas: Canvas, rows: int) -> list[Line]:
    fitting = rows - 2
    first = min(choice.first_gpu, max(len(live.gpus) - fitting, 0))
    shown = live.gpus[first : first + fitting]
    which = (
        f"{first + 1}-{first + len(shown)} of {live.live.gpus}" if live.live.gpus > len(shown) else str(live.live.gpus)
    )
    mean = f"mean {live.live.gpu_busy:.0f}%" if live.live.gpu_busy is not None else ""
    spark = max(canvas.columns - _GPU_FIXED, 4)
    unit = "C" if canvas.ascii else "°C"
    mean += f", last {duration(spark * page.recent_seconds)}" if page.recent and mean else ""
    heads = f" {'':10} busy {'':{spark}} {'memory G':>9} {'power W':>8} {unit:>3}"
    return [
        titled(f"GPUs {which}", canvas.columns, canvas, note=mean),
        line(Span(heads, "quiet")),
        *(_gpu(gpu, page.recent.get(gpu.key, ()), spark, canvas) for gpu in shown),
    ]


def _gpu(gpu: GpuView, recent: Sequence[float | None], spark: int, canvas: Canvas) -> Line:
    now = gpu.now
    name = fit(f"{fit(printable(gpu.host), 9 - len(str(now.gpu)))}:{now.gpu}", 10)
    busy = "?" if now.busy is None else f"{now.busy:.0f}%"
    style = "quiet" if now.busy is None else "bad" if now.busy <= 15 else "warning" if now.busy < 50 else "good"
    memory = f"{_gib(now.memory)}/{_gib(now.memory_total)}"
    power = f"{_whole(now.power)}/{_whole(now.power_cap)}"
    return line(
        f" {pad(name, 10)} ",
        Span(f"{busy:>4}", style),
        " ",
        Span(sparkline(recent, spark, canvas), style),
        f" {memory:>9} {power:>8} {_whole(now.temperature):>3}",
    )


def _gib(value: float | None) -> str:
    return "?" if value is None else f"{value / _GIB:.0f}"


def _whole(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def _curve(page: RunPage, choice: Choice, canvas: Canvas, rows: int) -> list[Line]:
    names = list(page.curves)
    at = choice.metric % len(names)
    points = page.curves[names[at]]
    last = f" {number(points[-1][1])}" if points else ""
    title = titled(
        f"{names[at]}{last}", canvas.columns, canvas, note=f"{at + 1} of {len(names)}" if len(names) > 1 else ""
    )
    drawn = curve(points, canvas.columns, min(rows - 1, 16), canvas)
    return [title, *(drawn or [line(Span(" one value so far", "quiet"))])]


def _log(page: RunPage, canvas: Canvas, rows: int) -> list[Line]:
    if rows < 1:
        return []
    name = page.logs[page.log] if page.log < len(page.logs) else "no output" if page.has_ended else "no output yet"
    note = f"{page.log + 1} of {len(page.logs)}" if len(page.logs) > 1 else ""
    room = rows - 1
    lines = [fit(text, canvas.columns - 1) for text in (page.log_lines[-room:] if room else ())]
    return [titled(f"output of {name}" if page.logs else name, canvas.columns, canvas, note=note), *map(line, lines)]
