"""`serried why`: why a run waits, or why it failed, and what to do."""

from __future__ import annotations

import contextlib
import os
import time

import click

from serried import schedulers
from serried.base.errors import SerriedError
from serried.base.text import ago, duration, local_time
from serried.cli import run_view
from serried.records.status import RunStatus, statuses_of
from serried.records.why import Explanation, explain
from serried.schema import exits, names
from serried.schema.reasons import Reason
from serried.views import console, run_lines
from serried.views.text import printable


@click.command(epilog=run_view.HELP)
@run_view.last_run
@run_view.as_json
def command(*, run: str, as_json: bool) -> None:
    r"""Explain why a run waits, why it failed, or what is suspicious while it runs.

    For a run that waits: the scheduler's reason in plain words. For a run that failed: the first rank that
    failed, its node, its exit status or signal, its last lines, and the next steps. For a run that runs:
    its step, and warnings such as a stall, a loss of NaN, idle GPUs or a limit that comes too early. For an
    array: the number of tasks in each state, and the first failures.

    \b
    serried why last
    serried why lr-sweep/17
    """
    status = statuses_of([run_view.select(run, of_others=True)])[0]
    explanation = explain(status)
    if as_json:
        console.out_json(runs=[explanation.to_json()])
    else:
        console.out("\n".join(_lines(explanation)))
    run_view.warn_if_stale([status])
    run_view.insist([status])


def _lines(explanation: Explanation) -> list[str]:
    lines = run_lines.headline(explanation.status)
    facts = [fact for fact in _facts(explanation) if fact[1]]
    if facts:
        widest = max(len(name) for name, _ in facts)
        lines += ["", *(line for name, text in facts for line in console.behind(f"  {name.ljust(widest)}   ", text))]
    if explanation.failures:
        failures = run_lines.failure_lines(explanation.status, explanation.failures)
        lines += ["", "  first failures", *failures]
    if explanation.tail:
        lines += ["", f"  last lines of {explanation.tail_of}"]
        lines += [f"  | {run_lines.output_line(line)}" for line in explanation.tail]
    if explanation.steps:
        steps = (line for step in explanation.steps for line in console.behind("  - ", step))
        lines += ["", "  what to do", *steps]
    return lines


def _queue(status: RunStatus) -> str:
    """The jobs ahead and what is free, if `serried queue` was used a moment ago. Queries nothing."""
    if status.summary is None or status.job is None or status.is_elsewhere:
        return ""
    with contextlib.suppress(SerriedError):  # a scheduler that this version does not have
        if not schedulers.traits(status.summary.scheduler).is_this_machine:
            from serried.views import queue_lines  # only for runs that wait

            return queue_lines.remembered(status.summary.scheduler, status.job.partition(",")[0], os.environ)
    return ""


def _facts(explanation: Explanation) -> list[tuple[str, str]]:
    status, now = explanation.status, time.time()
    is_array = status.tasks is not None
    failure = None if is_array else explanation.first_failure
    # The list of failures has the meaning of each.
    meaning = "" if status.has_ended and explanation.failures else explanation.meaning
    if status.state == names.COMPLETED and status.verdict.cause not in (Reason.PRUNED, Reason.PROFILED):
        meaning = ""  # the headline says it
    facts = []
    if is_array:
        facts += [("" if at else "tasks", line) for at, line in enumerate(run_lines.task_counts(status))]
    facts += [("reason", status.reason), ("now", run_lines.progress_line(status.progress)), ("means", meaning)]
    facts += [("warning", printable(warning.message)) for warning in explanation.warnings]
    facts += [("check", f"{finding.id}: {printable(finding.seen)}") for finding in explanation.checks]
    if status.state == names.PENDING:
        facts.append(("waits for", duration(now - status.created) if status.created else ""))
        if status.starts is not None:
            facts.append(("expected", f"{local_time(status.starts)}, in {duration(status.starts - now)}"))
        facts.append(("queue", _queue(status)))
    if failure:
        which = names.rank_name(failure.rank) + (f" of launch {failure.launch}" if failure.launch else "")
        local = "" if failure.rank is None else f" (local rank {failure.local_rank})"
        when = f"{duration(failure.seconds)} after the start"
        facts.append(("first failure", f"{which}{local} on {failure.host}, {when}"))
        facts.append(("raised", printable(failure.error)))
        how = exits.signal_name(failure.signal) if failure.signal else f"exit status {failure.exit_code}"
        facts.append(("ended by", how))
    if status.has_ended:
        facts += [("exit code", "" if status.verdict.exit_code is None else str(status.verdict.exit_code))]
        facts += [("attempt", str(status.attempt) if (status.attempt or 1) > 1 else "")]
        facts += [("requested by", explanation.asked_by or "")]
        if status.verdict.since is not None:
            facts.append(("ended", f"{local_time(status.verdict.since)}, {ago(now - status.verdict.since)}"))
    return facts
