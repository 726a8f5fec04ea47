"""`serried why`: why a run waits, or why it failed, and what to do."""

from __future__ import annotations

import time

import click

from serried.cli import run_view
from serried.protocol import names
from serried.records.explain import Explanation, explain
from serried.records.status import statuses_of
from serried.records.verdict import signal_name
from serried.ui import console
from serried.ui.text import ago, duration, harmless, local_time, overwritten, printable


@click.command()
@run_view.last_run
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, run: str, as_json: bool) -> None:
    r"""Explain why a run waits, or why it failed.

    For a run that waits: the scheduler's reason in plain words. For a run that failed: the first rank that
    failed, its node, its exit status or signal, its last lines, and the next steps.

    \b
    serried why last
    serried why lr-sweep/17
    """
    status = statuses_of([run_view.select(run)])[0]
    explanation = explain(status)
    if as_json:
        run_view.out_runs([explanation.to_json()])
    else:
        for line in _lines(explanation):
            console.out(line)
    run_view.warn_if_stale([status])
    run_view.insist([status])


def _lines(explanation: Explanation) -> list[str]:
    lines = run_view.headline(explanation.status)
    facts = list(filter(lambda fact: fact[1], _facts(explanation)))
    if facts:
        widest = max(len(name) for name, _ in facts)
        lines += ["", *(line for name, text in facts for line in console.behind(f"  {name.ljust(widest)}   ", text))]
    if explanation.tail:
        lines += ["", f"  last lines of {explanation.tail_of}"]
        lines += [f"  | {_shown(line)}" for line in explanation.tail]
    if explanation.steps:
        steps = (line for step in explanation.steps for line in console.behind("  - ", step))
        lines += ["", "  what to do", *steps]
    return lines


def _facts(explanation: Explanation) -> list[tuple[str, str]]:
    status, now = explanation.status, time.time()
    failure = explanation.first_failure or {}
    facts = [("reason", status.reason), ("means", explanation.meaning)]
    facts += [("warning", printable(warning["message"])) for warning in explanation.warnings]
    if status.state == names.PENDING:
        facts.append(("waits for", duration(now - status.created) if status.created else ""))
        if status.starts is not None:
            facts.append(("expected", f"{local_time(status.starts)}, in {duration(status.starts - now)}"))
    if failure:
        launch = failure.get("launch")
        which = names.rank_name(failure.get("rank")) + (f" of launch {launch}" if launch else "")
        local = "" if failure.get("rank") is None else f" (local rank {failure.get('local_rank')})"
        where = f"{which}{local} on {failure.get('host')}"
        seconds = failure.get("seconds")
        when = f", {duration(seconds)} after the start" if isinstance(seconds, int | float) else ""
        facts.append(("first failure", where + when))
        signal = failure.get("signal")
        facts.append(("raised", printable(str(failure.get("error") or ""))))
        facts.append(("ended by", signal_name(signal) if signal else f"exit status {failure.get('exit_code')}"))
    if status.has_ended:
        facts += [("exit code", "" if status.verdict.exit_code is None else str(status.verdict.exit_code))]
        facts += [("attempt", str(status.attempt) if (status.attempt or 1) > 1 else "")]
        facts += [("asked by", explanation.asked_by or "")]
        if status.verdict.since is not None:
            facts.append(("ended", f"{local_time(status.verdict.since)}, {ago(now - status.verdict.since)}"))
    if explanation.others:
        facts.append(("tasks", ", ".join(f"{state} {which}" for state, which in explanation.others.items())))
    return facts


def _shown(line: str) -> str:
    return harmless(overwritten(line)) if console.has_colour() else printable(overwritten(line))
