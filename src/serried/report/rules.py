"""The rules of `serried report`: the list, their pages, and which apply."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection

from serried.errors import UsageError, did_you_mean
from serried.protocol import names
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
    job_rules.cpu_per_gpu_high,
    job_rules.cpu_low,
    job_rules.time_over,
)
RULES: dict[str, Rule] = {rule.__name__.replace("_", "-"): rule for rule in _RULES}
"""By id, the most urgent first."""
_OF_ENDS = frozenset({"oom", "timeout", "gpu-lost"})
"""Rules for runs of any length, and the only ones for runs that ran out of memory."""


def judge(usage: Usage, mute: Collection[str] = ()) -> list[Note]:
    """The notes about a run, the most urgent first."""
    is_short = (usage.seconds or 0) < SHORTEST_SECONDS
    found: list[Note] = []
    for name, rule in RULES.items():
        if (
            name in mute
            or name in usage.mute
            or (name not in _OF_ENDS and (is_short or usage.state == names.OUT_OF_MEMORY))
        ):
            continue
        note = rule(usage)
        if note is not None:
            found.append(dataclasses.replace(note, rule=name))
    return found


def page_of(name: str) -> str:
    """The page of a rule, in Markdown. Raises UsageError."""
    if name not in RULES:
        raise UsageError(f"unknown rule: `{name}`", hint=did_you_mean(name, RULES) or "serried rule lists all rules")
    return inspect.getdoc(RULES[name]) or ""


def title_of(name: str) -> str:
    """The first sentence of the page, without its full stop."""
    return page_of(name).partition("\n")[0].rstrip(".")
