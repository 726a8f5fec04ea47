"""A run in words: its state, a row of a list, what it does now, and the tasks of an array.

Readers of runs share these lines: `ps`, `watch`, `show`, `why`, `logs`, `wait` and the web page.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from serried.base.text import ago, compress, duration
from serried.records.record import RecordUnreadable
from serried.records.status import SUBMITTING, UNCERTAIN, RunStatus, task_of, tasks_by_state
from serried.schema import exits, names
from serried.schema.endings import End, often, recoveries
from serried.schema.live import NODE
from serried.schema.reasons import Reason
from serried.views import console
from serried.views.console import Cell
from serried.views.text import harmless, overwritten, printable, wrapped

if TYPE_CHECKING:
    from serried.records.live import LiveNode, RunProgress
    from serried.records.timeline import TimeSpent
    from serried.records.why import Explanation

_WIDEST_COUNT = 62
"""Columns of a line about the tasks in one state."""
_TAIL_LINES = 3
_SILENT_SECONDS = 300.0
"""A run without steps that prints nothing for so long is worth a word."""
_SILENT_NODE_SECONDS = 30.0
_FEW_NODES = 4
_GIB = 1 << 30
_ORDER = {names.RUNNING: 0, names.PENDING: 1, SUBMITTING: 1, names.UNKNOWN: 2, UNCERTAIN: 2}
_ENDED_LAST = 3
_OF_RANKS = (Reason.EXIT, Reason.SIGNAL, Reason.OUT_OF_MEMORY, Reason.IMPORT_ERROR)
"""Causes that the exit of a rank and its last line explain best."""
_IN_WORDS = (Reason.STALLED, Reason.RECOVERED)
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Interrupt)(:|$)")
"""Any other last line of a rank's output is shown as output."""


def headline(status: RunStatus) -> list[str]:
    """The state of a run, and why, at the top of a page."""
    name = printable(status.summary.name) if status.summary else "?"
    begin, message = f"{status.id} {name} ", status.verdict.message
    text = f"{begin}{status.state}" + (f": {printable(message)}" if message else "")
    first, *more = wrapped(text, console.columns() - 2) if console.is_terminal() else [text]
    rest = [f"  {line}" for line in more]
    if not first.startswith(begin + status.state):  # a long name
        return [first, *rest]
    state = console.style(status.state, console.state_style(status.state))
    return [begin + state + first[len(begin) + len(status.state) :], *rest]


def how(status: RunStatus) -> str:
    """The status of a run in one line: `k3f9q2 train COMPLETED after 10m00s`."""
    name = f" {printable(status.summary.name)}" if status.summary else ""
    state = console.style(status.state, console.state_style(status.state), sys.stderr)
    after = f" after {duration(status.seconds)}" if status.seconds is not None else ""
    after += f" of attempt {status.attempt}" if after and (status.attempt or 1) > 1 else ""
    code = status.verdict.exit_code
    detail = f" with exit code {code}" if status.has_ended and code else ""
    said = (
        "; ".join(recoveries(status.verdict.conditions)) if status.state == names.COMPLETED else status.verdict.message
    )
    message = f": {printable(said)}" if said else ""
    return f"{status.id}{name} {state}{after}{detail}{message}"


def output_line(line: str) -> str:
    """A line of a program's output, without what could do harm to a terminal."""
    return harmless(overwritten(line)) if console.has_colour() else printable(overwritten(line))


def list_place(state: str) -> int:
    """The running ones come first, then those that wait, and last those that have ended."""
    return _ORDER.get(state, _ENDED_LAST)


def list_order(status: RunStatus) -> tuple[int, float, str]:
    """A key for sorting: in each place the latest comes first."""
    moment = status.verdict.since if status.has_ended else None
    return list_place(status.state), -(moment or status.created), status.id


class Line(NamedTuple):
    """A run in a list of runs: one of this machine, or as another machine has described it."""

    order: tuple[int, float, str]
    id: str
    project: str
    name: str
    state: str
    size: str
    cluster: str
    job: str
    time: str
    ended: str
    user: str
    """The owner of another user's run; empty for our own."""
    note: Cell

    @classmethod
    def of(cls, status: RunStatus, now: float) -> Line:
        summary = status.summary
        return cls(
            order=list_order(status),
            id=status.record.id,
            project=summary.project if summary else "?",
            name=summary.name if summary else "?",
            state=status.state,
            size=summary.size if summary else "?",
            cluster=summary.cluster if summary else "?",
            job=status.job or "",
            time=duration(total_seconds(status, now)),
            ended=ended(status, now),
            user=status.record.owner,
            note=note_of(status, now),
        )

    @classmethod
    def from_json(cls, fields: Sequence[Any], cluster: str, since: str) -> Line:
        """A line of another machine's answer. `since` is the age of an answer that is not of now."""
        (place, moment, run), *texts, note = fields
        cell = Cell(*note)
        cell = cell._replace(end=", ".join(filter(None, (cell.end, since))))
        line = cls._make([(int(place), float(moment), str(run)), *map(str, texts), cell])
        return line._replace(cluster=cluster)


def total_seconds(status: RunStatus, now: float) -> float | None:
    """How long it ran or runs in all of its attempts, or how long it waits."""
    last = elapsed_seconds(status, now)
    if last is None or (status.attempt or 1) == 1 or status.state not in (names.RUNNING, *names.ENDED):
        return last
    task = status.record.where.task(status.task)
    before = [End.read_known(task.attempt(number).exit) for number in range(1, status.attempt or 1)]
    return last + sum(end.seconds or 0 for end in before if end is not None)


def elapsed_seconds(status: RunStatus, now: float) -> float | None:
    """How long its last attempt ran or runs, or how long it waits."""
    if status.has_ended:
        return status.seconds
    start = status.started if status.state == names.RUNNING and status.tasks is None else status.created
    return max(now - start, 0.0) if start else None


def note_of(status: RunStatus, now: float) -> Cell:
    """What matters most now. Times to come stand at the end, where they are not cut off."""
    parts = ["smoke test"] if status.summary and status.summary.smoke else []
    parts += ["rehearsal"] if status.summary and status.summary.rehearsal else []
    ends: list[str] = []
    shorter: list[str] = []
    if status.tasks is not None:
        parts.append(tasks_text(status))
    if status.state in (names.PENDING, names.RUNNING) and status.tasks is None:
        shorter, end = progress_note(status.progress) if status.progress else ([], "")
        verdict = status.verdict
        parts += [*shorter[:1], "" if verdict.stale is not None else verdict.message or status.reason]
        parts += [f"attempt {status.attempt}"] if (status.attempt or 1) > 1 else []
        starts = 0.0 if verdict.stale is not None or verdict.message else status.starts or 0.0
        ends += [f"starts in {duration(starts - now)}"] if starts > now else []
        ends.append(end)
    elif status.state == UNCERTAIN:
        parts.append(f"serried why {status.record.id}")
    elif status.state != names.COMPLETED and status.tasks is None:
        parts.append(cause_of(status))
    elif status.has_ended and (kept := status.record.end) and not all(one.is_lost for one in kept.missing):
        shorter = [f"serried fetch {status.record.id}"]
        parts.append(f"files missing: {shorter[0]}")
    if status.has_ended:
        parts += recoveries(status.verdict.conditions)
    if status.verdict.stale is not None:
        ends.append(f"as of {ago(now - status.verdict.stale)}")
    style = "quiet" if status.state in (names.COMPLETED, names.CANCELLED) else None
    return Cell(", ".join(filter(None, parts)), style, ", ".join(filter(None, ends)), tuple(shorter))


def cause_of(status: RunStatus) -> str:
    """Why it failed, the cause first: `exit 1: ValueError: loss is nan`, and the rank if there are several."""
    end = None
    with contextlib.suppress(RecordUnreadable):
        end = status.record.end
    first = end.first_failure if end else None
    if end is None or first is None or first.rank is None or first.launch or status.verdict.cause not in _OF_RANKS:
        return status.verdict.message
    how = f"exit {first.exit_code}" if not first.signal else exits.signal_name(first.signal)
    how = "out of memory" if status.verdict.cause == Reason.OUT_OF_MEMORY else how
    last = first.error or next((line for line in map(overwritten, reversed(first.tail)) if line.strip()), "")
    mark = ": " if first.error or _EXCEPTION.match(last) else " | "
    who = f", rank {first.rank} on {first.host}" if end.world_size != 1 else ""
    return how + (f"{mark}{last.strip()}" if last else "") + who


def ended(status: RunStatus, now: float) -> str:
    """`49m ago`; empty before the end."""
    return ago(now - status.verdict.since) if status.has_ended and status.verdict.since is not None else ""


def progress_note(progress: RunProgress) -> tuple[list[str], str]:
    """`step 1200/5000 loss 0.31 3.1 it/s` and shorter forms; and `12m left`, which always belongs behind."""
    metric = progress.shown_metric
    parts = [_step(progress), f"{metric[0]} {metric[1]:.3g}" if metric else "", _rate(progress)]
    texts = [" ".join(filter(None, parts[:length])) for length in (3, 2, 1)]
    if progress.step is not None and progress.total_steps:
        texts.append(f"{100 * progress.step // progress.total_steps}%")
    if progress.step is None and progress.live.gpu_busy is not None:
        texts = [f"GPUs {progress.live.gpu_busy:.0f}% busy"]
    # The code of the first warning of the agents that the rest does not say in words.
    codes = (warning.get("code") for warning in progress.live.warnings if not progress.is_stale)
    warning = next((code for code in codes if isinstance(code, str) and code not in _IN_WORDS), "")
    left = "" if progress.limit_seconds_left is None else f"limit in {_short(progress.limit_seconds_left)}"
    if progress.seconds_left is not None and not progress.is_cut_short:
        left = f"{_short(progress.seconds_left)} left"
    elif progress.notice_seconds_left:
        left = f"stop notice in {_short(progress.notice_seconds_left)}"
    recovered = f"recovered {often(progress.live.recoveries)}" if progress.live.recoveries else ""
    end = ", ".join(filter(None, (recovered, warning, _trouble(progress) or left)))
    return list(dict.fromkeys(filter(None, texts))), end


def progress_line(progress: RunProgress | None) -> str:
    """All of the note: `step 1200/5000 loss 0.312 3.1 it/s, 20m left`. Empty without progress."""
    if progress is None:
        return ""
    texts, end = progress_note(progress)
    return ", ".join(filter(None, (*texts[:1], end)))


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


def progress_facts(progress: RunProgress) -> list[tuple[str, str]]:
    """`(label, text)` for a page; a text may be empty."""
    nodes, first = progress.live.nodes, progress.shown_metric
    # The shown metric first, and a few others.
    metrics = [first] if first else []
    metrics += [(name, value) for name, value in progress.lead.metrics.items() if not name.startswith("serried/")]
    samples, wait = progress.samples_per_second, progress.data_wait
    speed = [_rate(progress), f"{_figure(samples, 4)} samples/s" if samples else ""]
    speed += [f"{wait:.0%} of the time waiting for data" if wait is not None else ""]
    steps, limit, notice = progress.seconds_left, progress.limit_seconds_left, progress.notice_seconds_left
    left = ["" if steps is None else f"{_short(steps)} by the rate of its steps"]
    left += [f"{_short(limit)} until the limit"] if limit is not None else []
    left += [f"{_short(notice)} until the stop notice"] if notice else []
    cpus = [(node.cpu, node.cpus) for node in nodes if node.cpu is not None and node.cpus]
    in_use = f"{_figure(sum(cpu for cpu, _ in cpus))} of {sum(number for _, number in cpus):,.0f} busy" if cpus else ""
    logged = ", ".join(f"{name} {value:.4g}" for name, value in [*dict(metrics).items()][:_FEW_NODES])
    shown = [
        ("progress", ", ".join(filter(None, (_step(progress), logged, _trouble(progress))))),
        ("speed", "" if progress.is_stale else ", ".join(filter(None, speed))),
        ("time left", ", ".join(filter(None, left))),
        ("GPUs", _gpus(nodes, progress.live.gpus, progress.live.gpu_busy)),
        ("CPUs", in_use),
        ("memory", _memory(nodes)),
    ]
    if 1 < len(nodes) <= _FEW_NODES:
        shown += [("" if at else "by node", _node(node)) for at, node in enumerate(nodes)]
    return shown


LOST = {"repeated": "repeated steps"}
"""Words for causes of lost time that do not speak for themselves."""


def goodput_facts(spent: TimeSpent | None) -> list[tuple[str, str]]:
    """`(label, text)` for a page."""
    if spent is None:
        return []
    all_time = f"of {duration(spent.total)} since submission"
    lost = ", ".join(
        f"{LOST.get(cause, cause)} {duration(seconds)}" for cause, seconds in spent.lost.items() if seconds >= 1
    )
    if spent.goodput is None or spent.goodput_without_queue is None:
        ran = f"ranks ran {spent.unknown / spent.total:.0%} {all_time}" if spent.total else ""
        return [("goodput", f"unknown without steps; {ran}"), ("lost time", lost)]
    shares = f"{spent.goodput:.0%} {all_time}, {spent.goodput_without_queue:.0%} without the queue"
    return [("goodput", shares), ("lost time", lost)]


def _step(progress: RunProgress) -> str:
    if progress.step is None:
        return "checking nodes" if progress.live.checking and not progress.is_stale else ""
    return f"step {progress.step}" + (f"/{progress.total_steps}" if progress.total_steps else "")


def _rate(progress: RunProgress) -> str:
    rate = progress.steps_per_second
    if not rate or progress.is_stale:
        return ""
    return f"{_figure(rate)} it/s" if rate >= 1 else f"{_figure(1 / rate)} s/it"


def _gpus(nodes: Sequence[LiveNode], number: int, busy: float | None) -> str:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    if not gpus:
        return ""
    used = [(gpu.memory, gpu.memory_total) for gpu in gpus if gpu.memory is not None and gpu.memory_total]
    watts = [gpu.power for gpu in gpus if gpu.power is not None]
    names = sorted({gpu.name for gpu in gpus if gpu.name})
    parts = [f"{number} {names[0] if len(names) == 1 else ''}".rstrip()]
    parts += [f"{busy:.0f}% busy" if busy is not None else ""]
    percents = [(gpu.busy, node.host) for node in nodes for gpu in node.gpus if gpu.busy is not None]
    if len(percents) > 1:
        least, host = min(percents)
        # Of a few nodes, each has a line of its own.
        parts.append(f"the least {least:.0f}%" + (f" on {host}" if len(nodes) > _FEW_NODES else ""))
    parts += [_of(max(used, key=lambda one: one[0])) if used else ""]
    parts += [f"{sum(watts) / len(watts):.0f} W" if watts else ""]
    return ", ".join(filter(None, parts))


def _memory(nodes: Sequence[LiveNode]) -> str:
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


def task_counts(status: RunStatus) -> list[str]:
    """`957 COMPLETED  0-2,4-6,…`: the number of tasks in each state, and the first of their indices."""
    by_state = tasks_by_state(status.tasks or {})
    digits = max((len(f"{len(tasks):,}") for tasks in by_state.values()), default=0)
    widest = max(map(len, by_state), default=0)
    lines = []
    for state, tasks in by_state.items():
        label, indices = f"{len(tasks):>{digits},} {state.ljust(widest)}  ", compress(tasks)
        room = _WIDEST_COUNT - len(label)
        if len(indices) > room:
            indices = indices[: indices.rindex(",", 0, room - 1)] + ",…"  # as many ranges as fit
        lines.append(label + indices)
    return lines


def tasks_text(status: RunStatus) -> str:
    """`960/1000 done, 38 failed, 2 timeout`: the tasks in each state but PENDING. Those that may hang come first."""
    by_state = tasks_by_state(status.tasks or {})
    parts = [f"{len(by_state.pop(names.COMPLETED, []))}/{len(status.tasks or {})} done"]
    by_state.pop(names.PENDING, None)
    stalled = sum(progress.is_stalled for progress in status.progress_of_tasks.values())
    parts += [f"{stalled} without a step for minutes"] if stalled else []
    parts += [f"{len(tasks)} {state.lower().replace('_', ' ')}" for state, tasks in by_state.items()]
    return ", ".join(parts)


def failure_lines(status: RunStatus, failures: Sequence[Explanation], *, with_tail: bool = False) -> list[str]:
    """The first failures of an array, each with its reason and the next command, or `with_tail` with its last lines."""
    lines = []
    widest = max((len(it.status.id) for it in failures), default=0)
    blank = " " * (widest + 4)
    for it in failures:
        message = f": {it.status.verdict.message}" if it.status.verdict.message else ""
        lines += console.behind(f"  {it.status.id.ljust(widest)}  ", f"{it.status.state}{message}")
        if with_tail:
            lines += [f"  | {output_line(line)}" for line in it.tail[-_TAIL_LINES:]]
            lines.append(f"  {it.logs_command}")
        else:
            # Of a failure that nothing explains, the last line says more than the meaning.
            text = f"| {overwritten(it.tail[-1])}" if it.reason is Reason.EXIT and it.tail else it.meaning
            lines += console.behind(blank, text) if text else []
            lines.append(f"{blank}serried why {it.status.id}")
    number = sum(it.has_ended and it.state != names.COMPLETED for it in (status.tasks or {}).values())
    if number > len(failures):
        lines.append(f"  {number - len(failures):,} more: serried show {status.id} --tasks")
    return lines


def out_tasks(status: RunStatus) -> None:
    rows: list[list[str | Cell]] = []
    for index in status.tasks or {}:
        task = task_of(status, index)
        note = task.reason
        if task.state != names.PENDING:  # what a task does now is read for a few of them
            note = task.verdict.message or progress_line(status.progress_of_tasks.get(index))
        rows.append(
            [
                str(index),
                Cell(task.state, console.state_style(task.state)),
                duration(task.seconds),
                ", ".join(task.node_names),
                note if task.state != names.COMPLETED else "",
            ]
        )
    console.out_table(("TASK", "STATE", "TIME", "NODES", "NOTE"), rows, shrink=3)
