"""`serried stop` and `forget`: end runs, and give up a submission whose outcome is unknown."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from serried.base.errors import SubmissionUncertain, UsageError
from serried.cli import run_view
from serried.records import stopping
from serried.records.index import Selection
from serried.records.record import jobs_text
from serried.records.run_status import RunStatus
from serried.records.status import statuses_of
from serried.records.verdict import SUBMITTING, UNCERTAIN
from serried.submission import reconcile
from serried.views import console
from serried.views.text import printable

_NAMED = 5


@click.command()
@run_view.many_runs
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--save", is_flag=True, help="Let ranks save first, as before the time limit.")
@click.option("--now", is_flag=True, help="Cancel at once; ranks cannot save.")
def command(*, runs: tuple[str, ...], yes: bool, save: bool, now: bool) -> None:
    r"""Stop runs, or tasks of an array.

    Ranks receive TERM, then KILL after `limit.grace`. With `--save` they receive the stop notice first and
    have `limit.warn_before` to save and exit; `serried show` prints the saved step. Waiting jobs leave the
    queue. A stopped run never restarts. Stopping a run that has ended changes nothing and succeeds.

    \b
    serried stop last
    serried stop -y --save lr-sweep/17 a3k9
    """
    if save and now:
        raise UsageError(
            "`--save` and `--now` are mutually exclusive", hint="--save gives ranks time, --now gives them none"
        )
    selections = run_view.select_all(runs)
    found = statuses_of(selections)
    for status in found:
        if status.has_ended:
            run_view.say_how(status)
    live = [status for status in found if not status.has_ended]
    _refuse_what_is_not_submitted(live)
    if not live or not (yes or _agreed(live)):
        return
    requested = [] if now else [one for status in live for one in stopping.request(status, save=save)]
    named = {status.id for status in live}
    for status in live:
        if why := stopping.cancel(status, stopping.left(status, requested), now=now, stopped=named):
            console.warning(f"{why}; the job stays in its queue, and ends itself when it starts")
    if requested:
        limits = [status.record.plan.limit for status in live]
        grace = max(limit.grace_seconds for limit in limits)
        _await(requested, grace, max(limit.lead_seconds for limit in limits) if save else 0)
    if now:
        console.say(f"cancelled {', '.join(status.id for status in live)}")
        return
    for status in statuses_of([one for one in selections if any(str(one) == before.id for before in live)]):
        run_view.say_how(status)


def _refuse_what_is_not_submitted(live: Sequence[RunStatus]) -> None:
    for status in live:
        if status.state == SUBMITTING:
            raise SubmissionUncertain(
                f"run `{status.id}` is just being submitted by another command", hint=f"serried stop {status.id} later"
            )
        if status.state == UNCERTAIN or status.summary is None:
            raise SubmissionUncertain(
                f"it is not known whether the scheduler has run `{status.id}`",
                hint=f"serried forget {status.id} gives it up: should the job exist, it ends itself when it starts",
            )


def _agreed(live: Sequence[RunStatus]) -> bool:
    named = ", ".join(f"{one.id} ({one.summary.name if one.summary else '?'}, {one.state})" for one in live[:_NAMED])
    more = f" and {len(live) - _NAMED} more" if len(live) > _NAMED else ""
    return run_view.agreed("stop", "stopped", f"{named}{more}")


def _await(requested: list[Selection], grace: int, lead: int) -> None:
    patience = lead + grace + stopping.PATIENCE_SECONDS
    what = str(requested[0]) if len(requested) == 1 else f"{len(requested)} runs or tasks"
    request = f"save and exit, within {lead} s" if lead else f"stop; ranks have {grace} s to end"
    try:
        with console.status_line(f"waiting for {what} to {request}"):
            left = stopping.wait_for(requested, patience)
    except KeyboardInterrupt:
        console.say()
        console.note("stop requested; use `serried stop --now` to cancel immediately")
        sys.exit(130)
    for selection in left:
        _end_by_force(selection, patience)


def _end_by_force(selection: Selection, patience: int) -> None:
    status = statuses_of([selection])[0]
    if status.has_ended or status.job is None or status.summary is None:
        return
    job = selection.record.job_of(status.job, selection.task)
    console.warning(f"{printable(str(selection))} did not end within {patience} s; cancelling job {job}")
    stopping.end_job(status, job)


@click.command(epilog=run_view.HELP)
@run_view.one_run
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def forget_command(run: str, *, yes: bool) -> None:
    """Drop a submission whose outcome is unknown.

    Only for runs in the state UNCERTAIN: their `submit` was killed, or the scheduler did not answer. If
    the scheduler has the job after all, the job ends itself when it starts.
    """
    record = run_view.select(run).record
    if not yes and not run_view.agreed("forget", "forgotten", f"the submission of {record.id}"):
        return
    job = reconcile.forget(record)
    if job is not None:
        console.note(
            f"run {record.id} has started after all, as {jobs_text(job.split(','))}; `serried stop {record.id}` ends it"
        )
    else:
        console.say(f"forgot {record.id}: if its job starts after all, it ends itself")
