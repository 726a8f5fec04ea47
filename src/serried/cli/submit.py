"""`serried submit`: a plan, shown and handed to the scheduler, at most once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from serried.cli import asking
from serried.submission.deliver import deliver
from serried.submission.prepare import Prepared, prepare
from serried.submission.request import decide
from serried.ui import console


@click.command(cls=asking.TakesCommand)
@asking.flags
@click.option("-y", "--yes", is_flag=True, help="Do not ask, whatever the warnings.")
def command(*, cluster: str | None, dry_run: bool, as_json: bool, yes: bool, **values: Any) -> None:
    r"""Send an experiment, or any command, to the cluster.

    \b
    serried submit                                  the only experiment there is
    serried submit train --nodes 4 --set seed=3     one of several, with changes
    serried submit train --set config.lr=0.1        a setting of the training
    serried submit train --resume last --time 12h   on from another run
    serried submit --nodes 2 --gpus 4 --time 2h -- python train.py --lr 0.1
    serried submit --each commands.txt --parallel 8 one for each line

    The code is frozen: edits after this do not reach the job. What the job inherits, and what
    happens when this command is interrupted, is in the pages on snapshots and on how a job starts.
    """
    decided = decide(asking.request(values, cluster), Path.cwd(), os.environ)
    prepared = prepare(decided.plan, decided.resolved, os.environ, decided.each)
    send(prepared, dry_run=dry_run, as_json=as_json, yes=yes)


def send(prepared: Prepared, *, dry_run: bool, as_json: bool, yes: bool) -> None:
    """Show what is prepared, and hand it over; or, with `dry_run`, show it to the last byte."""
    if dry_run:
        asking.dry_run(prepared, as_json=as_json)
        return
    asking.show_plan(prepared)
    if prepared.warnings and not yes and console.can_ask() and not console.confirm("submit it all the same?"):
        raise click.Abort
    record = deliver(prepared)
    first, *further = record.submissions
    job = first.job
    for link in further:
        if link.state != "submitted":
            console.warning(f"only {link.number - 2} further jobs are queued: {link.message}")
    if as_json:
        from serried.cli import answers
        from serried.contract import names
        from serried.records.run_status import RunStatus
        from serried.records.verdict import Verdict

        status = RunStatus(record, record.summary, Verdict(names.PENDING), job=job)
        console.out_json(answers.runs_json([status.to_json()]))
        return
    console.say()
    more = ", ".join(str(link.job) for link in further if link.job)
    console.say(f"submitted {record.id} as job {job} of {prepared.plan.site.name}" + (f", then {more}" if more else ""))
    array = prepared.plan.array
    one = record.id if array is None else f"{record.id}/{array.indices[0]}"
    console.next_steps(
        [
            (f"serried logs {one} -f", "what it prints, as it prints it"),
            (f"serried wait {record.id}", "until it has ended"),
            (f"serried show {record.id}", "plan, timeline, and where its files are"),
        ]
    )
    console.out(record.id)
