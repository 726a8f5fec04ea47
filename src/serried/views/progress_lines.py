"""What a running run does now, in words: a note in a table, a line, facts on a page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serried.base.text import duration
from serried.records.live import LiveNode, RunProgress
from serried.schema.live import NODE
from serried.schema.reasons import Reason

_SILENT_SECONDS = 300.0
"""A run without steps that prints nothing for so long is worth a word."""
_SILENT_NODE_SECONDS = 30.0
_FEW_NODES = 4
_GIB = 1 << 30


def note(progress: RunProgress) -> tuple[list[str], str]:
    """`step 1200/5000 loss 0.31 3.1 it/s` and shorter forms; and `12m left`, which always belongs behind."""
    parts = [_step(progress), _metric(progress), _rate(progress)]
    texts = [" ".join(filter(None, parts[:length])) for length in (3, 2, 1)]
    if progress.step is not None and progress.total_steps:
        texts.append(f"{100 * progress.step // progress.total_steps}%")
    if progress.step is None and progress.gpu_busy is not None:
        texts = [f"GPUs {progress.gpu_busy:.0f}% busy"]
    return list(dict.fromkeys(filter(None, texts))), _end(progress)


def line(progress: RunProgress) -> str:
    """All of the note."""
    texts, end = note(progress)
    return ", ".join(filter(None, (*texts[:1], end)))


def _end(progress: RunProgress) -> str:
    return ", ".join(filter(None, (_warning(progress), _trouble(progress) or _left(progress))))


def _warning(progress: RunProgress) -> str:
    """The code of the first warning of the agents that a note does not show in words."""
    codes = (warning.get("code") for warning in progress.live.warnings)
    shown = (code for code in codes if isinstance(code, str) and code != Reason.STALLED)
    return "" if progress.is_stale else next(shown, "")


def _trouble(progress: RunProgress) -> str:
    """What a reader must not miss: how old all this is, or that nothing moves."""
    if progress.is_stale:
        return f"as of {_short(progress.age)} ago"
    if progress.is_stalled:
        return f"no step for {_short(progress.lead.step_age)}"
    if progress.has_all_steps and progress.lead.step_age is not None:
        return f"last step {_short(progress.lead.step_age)} ago"
    if progress.step is None and (progress.silent_seconds or 0.0) > _SILENT_SECONDS:
        return f"no output for {_short(progress.silent_seconds)}"
    return ""


def _left(progress: RunProgress) -> str:
    if progress.seconds_left is not None and not progress.is_cut_short:
        return f"{_short(progress.seconds_left)} left"
    if progress.notice_seconds_left:
        return f"stop notice in {_short(progress.notice_seconds_left)}"
    return "" if progress.limit_seconds_left is None else f"limit in {_short(progress.limit_seconds_left)}"


def facts(progress: RunProgress) -> list[tuple[str, str]]:
    """`(label, text)` for a page; a text may be empty."""
    shown = [
        ("progress", ", ".join(filter(None, (_step(progress), _metrics(progress), _trouble(progress))))),
        ("speed", _speed(progress)),
        ("time left", _time_left(progress)),
        ("GPUs", _gpus(progress.live.nodes, progress.live.gpus, progress.gpu_busy)),
        ("CPUs", _cpus(progress.live.nodes)),
        ("memory", _memory(progress.live.nodes)),
    ]
    if 1 < len(progress.live.nodes) <= _FEW_NODES:
        shown += [("" if at else "by node", _node(node)) for at, node in enumerate(progress.live.nodes)]
    return shown


def _step(progress: RunProgress) -> str:
    if progress.step is None:
        return ""
    return f"step {progress.step}" + (f"/{progress.total_steps}" if progress.total_steps else "")


def _metric(progress: RunProgress) -> str:
    metric = progress.shown_metric
    return f"{metric[0]} {metric[1]:.3g}" if metric else ""


def _metrics(progress: RunProgress) -> str:
    """The shown metric first, and a few others."""
    first = progress.shown_metric
    others = [(name, value) for name, value in progress.lead.metrics.items() if not first or name != first[0]]
    plain = [one for one in others if not one[0].startswith("serried/")]
    return ", ".join(f"{name} {value:.4g}" for name, value in [*([first] if first else []), *plain][:_FEW_NODES])


def _rate(progress: RunProgress) -> str:
    rate = progress.steps_per_second
    if not rate or progress.is_stale:
        return ""
    return f"{_figure(rate)} it/s" if rate >= 1 else f"{_figure(1 / rate)} s/it"


def _speed(progress: RunProgress) -> str:
    if progress.is_stale:
        return ""
    samples, wait = progress.samples_per_second, progress.data_wait
    parts = [_rate(progress), f"{_figure(samples, 4)} samples/s" if samples else ""]
    parts += [f"{wait:.0%} of the time waiting for data" if wait is not None else ""]
    return ", ".join(filter(None, parts))


def _time_left(progress: RunProgress) -> str:
    steps, limit = progress.seconds_left, progress.limit_seconds_left
    notice = progress.notice_seconds_left
    by_limit = "" if limit is None else f"{_short(limit)} until the limit"
    by_limit += f", {_short(notice)} until the stop notice" if notice else ""
    by_steps = "" if steps is None else f"{_short(steps)} by the rate of its steps"
    return ", ".join(filter(None, (by_steps, by_limit)))


def _gpus(nodes: Sequence[LiveNode], number: int, busy: float | None) -> str:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    if not gpus:
        return ""
    used = [(gpu.memory, gpu.memory_total) for gpu in gpus if gpu.memory is not None and gpu.memory_total]
    watts = [gpu.power for gpu in gpus if gpu.power is not None]
    names = sorted({gpu.name for gpu in gpus if gpu.name})
    parts = [f"{number} {names[0] if len(names) == 1 else ''}".rstrip()]
    parts += [f"{busy:.0f}% busy" if busy is not None else "", _lowest(nodes)]
    parts += [_of(max(used, key=lambda one: one[0])) if used else ""]
    parts += [f"{sum(watts) / len(watts):.0f} W" if watts else ""]
    return ", ".join(filter(None, parts))


def _lowest(nodes: Sequence[LiveNode]) -> str:
    """The least busy of several, and its node if the nodes have no lines of their own."""
    busy = [(gpu.busy, node.host) for node in nodes for gpu in node.gpus if gpu.busy is not None]
    if len(busy) < 2:
        return ""
    least, host = min(busy)
    return f"the least {least:.0f}%" + (f" on {host}" if len(nodes) > _FEW_NODES else "")


def _cpus(nodes: Sequence[LiveNode]) -> str:
    """Of the listed nodes."""
    known = [(node.cpu, node.cpus) for node in nodes if node.cpu is not None and node.cpus]
    return f"{_figure(sum(cpu for cpu, _ in known))} of {sum(cpus for _, cpus in known):,.0f} busy" if known else ""


def _memory(nodes: Sequence[LiveNode]) -> str:
    """Of the fullest node."""
    known = [(node.memory, node.memory_limit, node) for node in nodes if node.memory is not None]
    if not known:
        return ""
    used, limit, node = max(known, key=lambda one: one[0] / (one[1] or 1e30))
    text = _of((used, limit)) if limit else f"{_figure(used / _GIB)} GiB"
    whole = ", with all other programs on the node" if node.memory_scope == NODE else ""
    return text + (f" on {node.host}" if len(nodes) > 1 else "") + whole


def _figure(value: float, digits: int = 3) -> str:
    """`15.9`, `1,920`: no powers of ten for what a large job has."""
    return f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:.{digits}g}"


def _of(pair: tuple[float, float]) -> str:
    return f"{_figure(pair[0] / _GIB)} of {_figure(pair[1] / _GIB)} GiB"


def _node(node: LiveNode) -> str:
    busy = [gpu.busy for gpu in node.gpus if gpu.busy is not None]
    cpu = f"{node.cpu:.3g} of {node.cpus:.0f} CPUs" if node.cpu is not None and node.cpus else ""
    parts = [f"GPUs {sum(busy) / len(busy):.0f}%" if busy else "", cpu]
    parts += [f"{_figure(node.memory / _GIB)} GiB" if node.memory is not None else ""]
    parts += [f"silent for {_short(node.age)}" if (node.age or 0.0) > _SILENT_NODE_SECONDS else ""]
    return f"{node.host}: " + (", ".join(filter(None, parts)) or "not measured now")


def _short(seconds: float | None) -> str:
    """`12m`, `2h05m`, `40s`: minutes have no seconds, because estimates have none."""
    if seconds is None:
        return "-"
    minute, hour = 60, 3600
    return f"{int(seconds // minute)}m" if minute <= seconds < hour else duration(seconds)
