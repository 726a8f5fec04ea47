"""`serried forget`: give up a submission whose fate cannot be found out."""

from __future__ import annotations

import click

from serried.cli import formatting, run_selector
from serried.records.record import jobs_text
from serried.submission.reconcile import forget
from serried.ui import console


@click.command(epilog=run_selector.HELP)
@run_selector.one_run()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def command(run: str, *, yes: bool) -> None:
    """Drop a submission whose outcome is unknown.

    Only for runs in the state UNCERTAIN: their `submit` was killed, or the scheduler did not answer. If
    the scheduler has the job after all, the job ends itself when it starts.
    """
    record = run_selector.select(run).record
    if not yes and not formatting.agreed(formatting.FORGET, f"the submission of {record.id}"):
        return
    job = forget(record)
    if job is not None:
        console.note(
            f"run {record.id} has started after all, as {jobs_text(job.split(','))}; `serried stop {record.id}` ends it"
        )
    else:
        console.say(f"forgot {record.id}: if its job starts after all, it ends itself")
