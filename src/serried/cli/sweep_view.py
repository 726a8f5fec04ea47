"""The trials of a sweep as JSON, as CSV and as tables."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from serried.protocol import tracking
from serried.protocol.settings import as_argument
from serried.sweeps.results import SweepResults, TrialResult
from serried.ui import console, sweep_picture
from serried.ui.console import Cell
from serried.ui.text import duration

_SHOWN = 20
_IMPORTANT = 5


def document(found: SweepResults) -> dict[str, Any]:
    return {
        "sweep": found.sweep.first,
        "service": found.sweep.service or None,
        "runs": [status.record.id for status in found.runs],
        "metric": found.sweep.metric or None,
        "goal": found.sweep.goal,
        "trials": [trial.to_json() for trial in found.trials],
        "groups": [group.to_json() for group in found.groups],
        "importance": sweep_picture.importance_of(found) or None,
    }


def _parameter_names(found: SweepResults) -> list[str]:
    return list(dict.fromkeys(name for trial in found.trials for name in trial.parameters))


def as_csv(found: SweepResults) -> str:
    parameters = _parameter_names(found)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", found.sweep.metric or "value", "seconds", *parameters])
    for trial in found.trials:
        own = [as_argument(trial.parameters[name]) if name in trial.parameters else "" for name in parameters]
        writer.writerow([trial.number, trial.state, trial.value, trial.seconds, *own])
    return text.getvalue()


def show(found: SweepResults, *, everything: bool) -> None:
    sweep, trials = found.sweep, found.trials
    counts = Counter(trial.state for trial in trials)
    states = ", ".join(f"{number} {state}" for state, number in counts.most_common())
    name = found.runs[0].summary.name if found.runs and found.runs[0].summary else "?"
    order = f"; {sweep.goal} {sweep.metric}" if sweep.metric else ""
    console.say(f"sweep {sweep.first} ({name}): {len(trials)} trials, {states}{order}")
    if sweep.service and found.runs:
        own = found.runs[0].record.plan.environment.env
        console.say(tracking.sweep_page(sweep.service, {**os.environ, **own}))
    shown = trials if everything else _to_show(trials)
    parameters = _parameter_names(found)
    heads = [
        "TRIAL",
        *([_head(sweep.metric)] if sweep.metric else []),
        *map(_head, parameters),
        "STATE",
        "TIME",
        "NOTE",
    ]
    console.out_table(heads, [_row(trial, parameters, has_metric=bool(sweep.metric)) for trial in shown])
    if len(shown) < len(trials):
        console.say(f"{len(trials) - len(shown)} more: serried sweep show {sweep.first} --all")
    _draw_groups(found, everything=everything)
    _say_importance(found)
    _note_missing_metric(found)
    _suggest(found)


def _say_importance(found: SweepResults) -> None:
    shares = sweep_picture.importance_of(found)
    if shares:
        most = ", ".join(f"{name} {share:.2f}" for name, share in list(shares.items())[:_IMPORTANT])
        console.say(f"importance: {most}")


def _note_missing_metric(found: SweepResults) -> None:
    completed = [trial for trial in found.trials if trial.is_complete]
    if found.sweep.metric and completed and all(trial.value is None for trial in found.trials):
        how = f"reported `{found.sweep.metric}` by `{found.sweep.source}`" if found.sweep.source else ""
        console.note(f"no trial has {how or f'logged `{found.sweep.metric}`'}")


def _to_show(trials: Sequence[TrialResult]) -> list[TrialResult]:
    """The best trials, and the first failed ones."""
    first = list(trials[:_SHOWN])
    failed = [trial for trial in trials[_SHOWN:] if trial.has_failed]
    return [*first, *failed[: _SHOWN // 4]]


def _head(name: str) -> str:
    return name.upper()


def _row(trial: TrialResult, parameters: Sequence[str], *, has_metric: bool) -> list[str | Cell]:
    value = [_figure(trial.value)] if has_metric else []
    return [
        str(trial.number),
        *value,
        *(_figure(trial.parameters[name]) if name in trial.parameters else "-" for name in parameters),
        Cell(trial.state, console.state_style(trial.state)),
        duration(trial.seconds) if trial.seconds is not None else "-",
        trial.message,
    ]


def _figure(value: Any) -> str:
    """A number with four digits, other values as arguments show them."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else as_argument(value)


def _draw_groups(found: SweepResults, *, everything: bool) -> None:
    groups = found.groups
    if not groups or not found.sweep.metric:
        return
    console.out()
    parameters = list(dict.fromkeys(name for group in groups for name in group.parameters))
    rows = [
        [
            _figure(group.mean),
            "-" if group.deviation is None else f"{group.deviation:.2g}",
            str(len(group.values)),
            *(_figure(group.parameters.get(name)) for name in parameters),
        ]
        for group in (groups if everything else groups[:_SHOWN])
    ]
    console.out_table([f"MEAN {_head(found.sweep.metric)}", "±", "SEEDS", *map(_head, parameters)], rows)


def _suggest(found: SweepResults) -> None:
    steps = []
    failed = [trial for trial in found.trials if trial.has_failed]
    if failed:
        steps.append((f"serried why {failed[0].id}", "what happened, and what to do"))
        if not found.sweep.service:
            steps.append((f"serried sweep retry {found.sweep.first}", "repeat what failed, from its checkpoints"))
    if found.sweep.metric and found.best_so_far is not None:
        steps.append((f"serried sweep show {found.sweep.first} --best", "the best parameters"))
    if steps:
        console.next_steps(steps)
