"""A report as lines of text: bars, nodes, the spread between ranks, and notes; several runs as a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from serried.base.text import counted, duration, local_time, show_minutes
from serried.records.rules import SHORTEST_SECONDS, Note
from serried.records.samples import GpuFigures
from serried.records.usage import DATA_WAIT, GPU_BUSY, GPU_POWER, RANK_MEMORY, STEP_TIME, Spread, Usage, amount, spreads
from serried.views import console, run_lines
from serried.views.console import Cell
from serried.views.text import fit, printable, wrapped

_Item = TypeVar("_Item")
WIDTH = 80
_LABEL = 12
_BAR = 26
_MOST_NODES = 8
_MOST_GPUS = 8
_LOW = 25
"""Percent: how busy GPUs are at least for a green bar."""
_NOTABLE = 0.02
"""Smaller differences between ranks are not worth a name."""
TABLE_HEADS = ("RUN", "NAME", "STATE", "ELAPSED", "TIME", "CPU", "MEM", "GPU")


def page(usage: Usage, found: Sequence[Note]) -> list[str]:
    name = fit(printable(usage.name), WIDTH - len(usage.id) - len(usage.state) - 2)
    lines = [f"{usage.id} {name} {usage.state}".replace("  ", " "), ""]
    for label, text in _facts(usage):
        lines += console.behind(f"  {label.ljust(_LABEL)} ", text) if text else []
    lines += ["", console.style("use", "head"), *_bars(usage)]
    lines += [*_goodput(usage), *_nodes(usage)]
    found_spreads = spreads(usage)
    if found_spreads:
        rows = [
            (f"  {_NAMES[it.kind]}", _value(it.kind, it.median), _value(it.kind, it.extreme), _where(it))
            for it in found_spreads
        ]
        lines += ["", console.style("between ranks", "head"), *console.table(("", "MEDIAN", "EXTREME", "OF"), rows)]
    if not found and not usage.missing:
        least = show_minutes(SHORTEST_SECONDS)
        why = f"none: the run was shorter than {least}" if usage.has_ended else f"none until the run has lasted {least}"
        if usage.measured_seconds >= SHORTEST_SECONDS:
            why = "none: nothing stands out"
        return [*lines, "", console.style("notes", "head"), f"  {why}"]
    return lines + notes(found)


def _facts(usage: Usage) -> list[tuple[str, str]]:
    measured = usage.measured
    size = [counted(usage.gpus, f"{usage.gpu_type} GPU".strip())] if usage.gpus else []
    size += [counted(int(usage.cpus), "CPU")] if usage.cpus else []
    size += [amount(usage.memory)] if usage.memory else []
    nodes = "1 node" if usage.nodes == 1 else f"{usage.nodes} nodes, each"
    spares = f"; {counted(usage.spare_nodes, 'spare node')}" if usage.spare_nodes else ""
    shown = ", ".join(usage.node_names[:4]) + (f" +{len(usage.node_names) - 4}" if len(usage.node_names) > 4 else "")
    job = f", job {usage.job}" if usage.job else ""
    attempt = f", attempt {usage.attempt}" if usage.attempt > 1 else ""
    return [
        ("command", fit(printable(usage.command), 400)),
        ("cluster", f"{usage.cluster}{job}" if usage.cluster else ""),
        ("size", (f"{nodes} with {', '.join(size)}" if size else nodes) + spares),
        ("nodes", shown),
        ("started", local_time(usage.started) + attempt if usage.started else ""),
        ("ended", local_time(usage.ended) if usage.ended else ""),
        ("GPUs", ", ".join(sorted({gpu.name for gpu in measured.gpus if gpu.name}))),
        ("measured", _quality(usage)),
        ("warning", printable(usage.recovered or "")),
    ]


def _quality(usage: Usage) -> str:
    measured = usage.measured
    if usage.missing:
        return f"nothing: {usage.missing}"
    parts = [f"every {measured.interval:.3g} s"] if measured.interval else []
    parts += [f"GPUs by {measured.source}"] if measured.source and measured.gpus else []
    parts += [f"{counted(measured.unread, 'node')} not read"] if measured.unread else []
    parts += [f"one line in {measured.one_in} was read"] if measured.one_in > 1 else []
    parts += [f"{counted(measured.damaged, 'damaged line')}"] if measured.damaged else []
    parts += [f"{counted(measured.disordered, 'line')} out of order"] if measured.disordered else []
    absent = {node for _, node in measured.without}
    parts += [f"no samples of {counted(len(absent), 'node')}"] if absent else []
    return ", ".join(parts)


def _bars(usage: Usage) -> list[str]:
    cpu, memory = usage.cpu, usage.node_memory
    total_memory, cpus, power, cap = usage.memory_per_node, usage.cpus_per_node, usage.power, usage.power_cap
    gpu_memory, gpu_total, busy = usage.gpu_memory, usage.gpu_memory_total, usage.busy
    limit, seconds = usage.limit_seconds, usage.seconds
    lines: list[str] = []
    if busy is not None:
        means = [gpu.busy.mean for gpu in usage.rated_gpus if gpu.busy]
        extremes = f"{min(means):.0f} to {max(means):.0f} %" if len(means) > 1 else ""
        lines.append(_bar("GPU busy", busy.mean, extremes, is_low=busy.mean < _LOW))
    elif usage.gpus or usage.measured.gpus:
        lines.append(_unknown("GPU busy", "MIG" if any(gpu.is_mig for gpu in usage.measured.gpus) else ""))
    if gpu_memory is not None and gpu_total:
        lines.append(_share("GPU memory", gpu_memory.maximum, gpu_total, f"peak {amount(gpu_memory.maximum)}"))
    if power is not None and cap:
        lines.append(_share("GPU power", power.mean, cap, f"{power.mean:.0f} of {cap:.0f} W"))
    if cpu is not None and cpus:
        lines.append(_share("CPU", cpu.mean, cpus, f"{cpu.mean:.1f} of {cpus:.0f} cores"))
    elif usage.measured.nodes:
        lines.append(_unknown("CPU", ""))
    if memory is not None and total_memory:
        scope = "" if usage.has_own_scope else " of the ranks" if usage.measured.ranks else ", whole node"
        lines.append(_share("memory", memory.maximum, total_memory, f"peak {amount(memory.maximum)}{scope}"))
    if seconds is not None:
        text = duration(seconds)
        lines.append(_share("time", seconds, limit, f"{text} of {duration(limit)}") if limit else _plain("time", text))
    return lines or ["  nothing was measured"]


def _goodput(usage: Usage) -> list[str]:
    """Where the time went since the submission."""
    spent = usage.time
    if spent is None or not spent.total:
        return []
    (_, shares), _ = run_lines.goodput_facts(spent)
    parts = {"steps": spent.steps, "ranks": spent.unknown, **spent.lost}
    rows = [_share(name, seconds, spent.total, duration(seconds)) for name, seconds in parts.items() if seconds >= 1]
    return ["", *console.behind(f"{console.style('goodput', 'head')} ", shares.replace("%", " %")), *rows]


def _share(label: str, value: float, total: float, text: str) -> str:
    return _bar(label, 100 * value / total, text)


def _bar(label: str, percent: float, text: str, *, is_low: bool = False) -> str:
    filled = round(min(max(percent, 0.0), 100.0) * _BAR / 100)
    bar = console.style("|" * filled, "bad" if is_low else "good") + " " * (_BAR - filled)
    return f"  {label.ljust(_LABEL)} [{bar}] {percent:3.0f} %  {text}".rstrip()


def _plain(label: str, text: str) -> str:
    return f"  {label.ljust(_LABEL)} {text}"


def _unknown(label: str, why: str) -> str:
    return _plain(label, f"unknown{f' ({why})' if why else ''}")


def _nodes(usage: Usage) -> list[str]:
    """A line for each node, and for each GPU if there are few; of many the ones that differ most."""
    measured = usage.measured
    lines: list[str] = []
    if len(measured.nodes) > 1:
        shown = _outliers(measured.nodes, _MOST_NODES, lambda node: node.cpu.mean if node.cpu else 0.0)
        rows = [
            [
                f"  {node.host}",
                f"{node.cpu.mean:.1f}" if node.cpu else "?",
                f"{node.cpus:.0f}" if node.cpus else "?",
                amount(node.memory and node.memory.maximum),
                amount(node.memory_total),
                amount(node.disk_free),
            ]
            for node in shown
        ]
        scope = "" if usage.has_own_scope else ", with all that runs on them"
        lines += ["", console.style("nodes", "head") + scope + _of(len(shown), len(measured.nodes))]
        lines += console.table(("  NODE", "CPU", "OF", "MEMORY", "OF", "DISK FREE"), rows, shrink=0)
    if measured.gpus:
        few = _outliers(measured.gpus, _MOST_GPUS, lambda gpu: gpu.busy.mean if gpu.busy else 0.0)
        gpu_rows = [_gpu_row(gpu) for gpu in few]
        lines += ["", console.style("GPUs", "head") + _of(len(few), len(measured.gpus))]
        lines += console.table(
            ("  NODE", "GPU", "RANK", "BUSY", "MEMORY", "OF", "POWER", "MAX TEMP"), gpu_rows, shrink=0
        )
    return lines


def _of(shown: int, total: int) -> str:
    return f" ({shown} of {total}: those that differ most)" if shown < total else ""


def _outliers(items: Sequence[_Item], most: int, value: Callable[[_Item], float]) -> list[_Item]:
    if len(items) <= most:
        return list(items)
    middle = statistics.median(map(value, items))
    farthest = sorted(range(len(items)), key=lambda at: -abs(value(items[at]) - middle))[:most]
    return [items[at] for at in sorted(farthest)]


def _gpu_row(gpu: GpuFigures) -> list[str | Cell]:
    busy = "?" if gpu.busy is None or gpu.is_mig else f"{gpu.busy.mean:.0f} %"
    is_idle = gpu.busy is not None and not gpu.is_mig and gpu.busy.maximum == 0
    return [
        f"  {gpu.host}",
        gpu.gpu + (" lost" if gpu.lost_at is not None else ""),
        "" if gpu.rank is None else str(gpu.rank),
        Cell(busy, "bad" if is_idle else None),
        amount(gpu.memory and gpu.memory.maximum),
        amount(gpu.memory_total),
        f"{gpu.power.mean:.0f} W" if gpu.power else "?",
        f"{gpu.temperature.maximum:.0f} °C" if gpu.temperature else "?",
    ]


_NAMES = {
    STEP_TIME: "step time",
    DATA_WAIT: "data wait",
    GPU_BUSY: "GPU busy",
    GPU_POWER: "GPU power",
    RANK_MEMORY: "memory",
}


def _value(kind: str, value: float) -> str:
    if kind == STEP_TIME:
        return f"{1000 * value:.0f} ms" if value < 10 else f"{value:.1f} s"
    if kind == DATA_WAIT:
        return f"{100 * value:.0f} %"
    if kind == RANK_MEMORY:
        return amount(value)
    return f"{value:.0f} {'%' if kind == GPU_BUSY else 'W'}"


def _where(spread: Spread) -> str:
    if spread.kind == DATA_WAIT:  # a share of the time: twice nothing is nothing
        return spread.where if spread.extreme - spread.median >= _NOTABLE else "all alike"
    factor = spread.extreme / spread.median if spread.median > 0 else 1.0
    return f"{spread.where} ({factor:.2f} x)" if abs(factor - 1) >= _NOTABLE else "all alike"


def notes(found: Sequence[Note]) -> list[str]:
    """The part of the page below the numbers; empty without notes."""
    lines = ["", console.style("notes", "head")] if found else []
    for note in found:
        look = "bad" if note.is_serious else "warning"
        fact = note.fact[0].upper() + note.fact[1:] if note.fact[0].isalpha() and note.fact[:4] != "rank" else note.fact
        lines += _note_line("  ! " if note.is_serious else "  - ", f"{fact}.", look)
        change = f"{_capital(note.verb)} `{note.change}`: " if note.change else ""
        change = change or (f"{_capital(note.advice)}: " if note.advice else "")
        lines += _note_line("    ", f"{change}{note.why if change else _capital(note.why)}.")
        lines += _note_line("    ", f"serried report --explain {note.rule}", look="quiet")
    return lines


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _note_line(begin: str, text: str, look: str | None = None) -> list[str]:
    lines = wrapped(printable(text), WIDTH - len(begin))
    return [f"{begin if not at else ' ' * len(begin)}{console.style(line, look)}" for at, line in enumerate(lines)]


def table(usages: Iterable[Usage]) -> list[str]:
    """Several runs, as reportseff shows jobs."""
    rows: list[list[str | Cell]] = [
        [
            usage.id,
            usage.name,
            Cell(usage.state, console.state_style(usage.state)),
            duration(usage.seconds),
            _share_of(usage.seconds, usage.limit_seconds),
            _share_of(usage.cpu and usage.cpu.mean, usage.cpus_per_node),
            _share_of(usage.node_memory and usage.node_memory.maximum, usage.memory_per_node),
            "-" if usage.busy is None else f"{usage.busy.mean:.0f} %",
        ]
        for usage in usages
    ]
    return console.table(TABLE_HEADS, rows, shrink=1)


def _share_of(value: float | None, total: float | None) -> str:
    return f"{100 * value / total:.0f} %" if value is not None and total else "-"
