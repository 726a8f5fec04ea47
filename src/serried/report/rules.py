"""The rules of `serried report`: the list, their pages, and which apply."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence

from serried.errors import UsageError, did_you_mean
from serried.report import gpu_rules, job_rules, rank_rules
from serried.report.note import Note, Rule
from serried.report.usage import Usage

SHORTEST_SECONDS = 300
"""jobstats: nothing can be concluded from runs of less than 5 minutes."""

_RULES: tuple[Rule, ...] = (
    job_rules.oom,
    job_rules.timeout,
    gpu_rules.gpu_lost,
    gpu_rules.gpu_idle,
    gpu_rules.gpu_idle_holding_memory,
    rank_rules.straggler,
    rank_rules.ranks_spread,
    rank_rules.data_stall,
    rank_rules.scaling_poor,
    gpu_rules.gpu_low,
    gpu_rules.gpu_busy_but_cold,
    gpu_rules.gpu_hot,
    gpu_rules.gpu_mem_low,
    gpu_rules.gpu_fragmented,
    job_rules.cpu_mem_over,
    job_rules.cpu_low,
    job_rules.time_over,
)
RULES: dict[str, Rule] = {rule.__name__.replace("_", "-"): rule for rule in _RULES}
"""By id, the most urgent first."""
_OF_ENDS = frozenset({"oom", "timeout", "gpu-lost"})
"""Rules for runs of any length, and the only ones for runs that ran out of memory."""
_OF_SOME_TASKS = "gpu-idle"
"""Its change is right only for tasks that all have it."""
_OF_REQUESTS: dict[str, Callable[[Usage], float]] = {
    "cpu-mem-over": lambda usage: usage.node_memory.maximum if usage.node_memory else 0.0,
    "cpu-low": lambda usage: usage.most_cpu,
    "time-over": lambda usage: usage.seconds or 0.0,
}
"""Rules about a request that all tasks of an array share, each with the use by which the task that needs most is
found."""


def judge(usage: Usage, mute: Collection[str] = ()) -> list[Note]:
    """The notes about a run, the most urgent first. A task alone says nothing about the request of its array."""
    notes = _judge(usage, mute)
    if not usage.is_task:
        return notes
    return [
        dataclasses.replace(note, change=note.change * (note.rule != _OF_SOME_TASKS))
        for note in notes
        if note.rule not in _OF_REQUESTS
    ]


def judge_all(usages: Sequence[Usage], mute: Collection[str] = ()) -> list[Note]:
    """The notes about the tasks of an array or the runs of a sweep together: with one example for each rule.

    A smaller request is advised only if it suffices for all: by the one that needed most.
    """
    notes = {usage.id: {note.rule: note for note in _judge(usage, mute)} for usage in usages}
    ended = [usage for usage in usages if usage.shows_need and usage.measured_seconds >= SHORTEST_SECONDS]
    return [note for rule in RULES if (note := _of_all(rule, notes, ended)) is not None]


def _of_all(rule: str, notes: Mapping[str, Mapping[str, Note]], ended: Sequence[Usage]) -> Note | None:
    those = {run: of_run[rule] for run, of_run in notes.items() if rule in of_run}
    if not those:
        return None
    count = f"{len(those)} of {len(notes)}"
    if rule not in _OF_REQUESTS:
        run, note = next(((run, note) for run, note in those.items() if note.is_serious), next(iter(those.items())))
        is_common = all(other.change == note.change for other in those.values())
        is_common = is_common and (rule != _OF_SOME_TASKS or len(those) == len(notes))
        return dataclasses.replace(note, fact=f"{count}, such as {run}: {note.fact}", change=note.change * is_common)
    neediest = max(ended, key=_OF_REQUESTS[rule])
    if any(usage.id not in those for usage in ended):
        return None
    return dataclasses.replace(
        those[neediest.id], fact=f"{those[neediest.id].fact}, in {neediest.id}, which needed most"
    )


def _judge(usage: Usage, mute: Collection[str]) -> list[Note]:
    has_few = usage.measured_seconds < SHORTEST_SECONDS or usage.ran_out_of_memory
    found: list[Note] = []
    for name, rule in RULES.items():
        if name in mute or name in usage.mute or (has_few and name not in _OF_ENDS):
            continue
        note = rule(usage)
        if note is not None:
            found.append(dataclasses.replace(note, rule=name, verb=usage.spelling.verb))
    return found


def page_of(name: str) -> str:
    """The page of a rule, in Markdown. Raises UsageError."""
    if name not in RULES:
        raise UsageError(f"unknown rule: `{name}`", hint=did_you_mean(name, RULES) or "serried rule lists all rules")
    return inspect.getdoc(RULES[name]) or ""


def title_of(name: str) -> str:
    """The first sentence of the page, without its full stop."""
    return page_of(name).partition("\n")[0].rstrip(".")
