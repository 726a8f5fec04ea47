"""`serried submit` and `rerun`: print plans and submit them to the scheduler, each at most once."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from serried.base.errors import SerriedError, SubmissionUncertain, UsageError
from serried.cli import options, run_view
from serried.records.record import Record, RecordUnreadable, jobs_text
from serried.schema.reasons import Reason
from serried.submission.deliver import Prepared, behind, deliver, refuse_in_place, unqueued
from serried.submission.prepare import prepare
from serried.submission.request import decide, decide_all
from serried.views import console

_AFTER = "Start after RUN completes; `:any` after any end, `:notok` only if RUN does not complete."
_SNAPSHOT = "Run a copy of the code, or the project itself.  [default: a copy; a job script runs in place]"


@click.command(cls=options.TakesCommand)
@click.argument("experiments", nargs=-1, type=options.PROGRAM)
@options.flags
@click.option("--chain", type=click.IntRange(1), metavar="N", help="At most N attempts, each resuming from the last.")
@click.option("--after", metavar="RUN[:any|:notok]", multiple=True, shell_complete=run_view.complete_runs, help=_AFTER)
@click.option("--snapshot/--in-place", default=None, help=_SNAPSHOT)
@options.yes
@options.wait
def command(
    *,
    experiments: tuple[str, ...],
    yes: bool,
    wait: bool,
    chain: int | None,
    after: tuple[str, ...],
    snapshot: bool | None,
    **values: Any,
) -> None:
    r"""Submit an experiment, or any command, to the cluster.

    \b
    serried submit                                  the only experiment
    serried submit --nodes 2 --gpus 4 --time 2h -- python train.py --lr 0.1
    serried submit train.sbatch -- --lr 0.1         a job script, unmodified
    serried submit train --nodes 4 --set seed=3     one of several, with changes
    serried submit train --set config.lr=0.1        a setting of the training
    serried submit train --resume last --time 12h   from the checkpoint of a run
    serried submit train --after last               after the project's newest
    serried submit train --chain 7                  at most seven jobs, one by one
    serried submit prepare train evaluate           several, ordered by `after`
    serried submit --commands commands.txt          a task for each line
    serried submit --repeat 5 -- python train.py --seed {seed}
    serried submit -N 2 -t 30 < train.sbatch        from standard input

    The job runs a copy of the code: later edits do not reach it. A job script runs in place. See
    `serried docs running` for the copy, and `serried docs variables` for what the job inherits.
    """
    request = options.request({**values, "experiment": next(iter(experiments), None)}, values["cluster"])
    request = request._replace(after=after or None)
    if chain is not None:
        if values["restarts"] is not None:
            hint = "keep one of them: a chain of N jobs has N - 1 restarts"
            raise UsageError("`--chain` and `--restarts` both set the number of attempts", hint=hint)
        request = request.with_setting("limit.restarts", value=chain - 1).with_setting("limit.total_time", value="off")
    if snapshot is not None:
        request = request.with_setting("project.snapshot", value=snapshot)
    if len(experiments) > 1 and request.is_script:
        raise options.script_is_followed(click.get_current_context(), experiments, 1)
    if len(experiments) > 1:
        options.check_several(values)
        decided = decide_all(request, experiments, Path.cwd(), os.environ)
    else:
        decided = [decide(request, Path.cwd(), os.environ)]
    with options.progress(dry_run=values["dry_run"]) as observe:
        prepared = [prepare(one.plan, one.resolved, os.environ, one.each, one.jobs, observe=observe) for one in decided]
    send(*prepared, dry_run=values["dry_run"], as_json=values["as_json"], yes=yes, wait=wait)


@click.command(epilog=run_view.HELP)
@run_view.one_run
@click.option("--failed/--all", default=None, help="Of an array, repeat the tasks that did not complete, or all tasks.")
@click.option("--fresh", is_flag=True, help="Start where that run started, not from its newest checkpoint.")
@click.option("--new-code", is_flag=True, help="Use the present code of the project, not that of the old run.")
@click.option("--name", metavar="NAME", help="Name of the new run.  [default: the old name]")
@options.sending
def rerun_command(*, run: str, failed: bool | None, fresh: bool, new_code: bool, name: str | None, **how: bool) -> None:
    r"""Submit the plan of RUN again: a new run, with the same code, from its newest complete checkpoint.

    \b
    serried rerun last
    serried rerun sweep --failed          tasks of an array that did not complete
    serried rerun sweep/17                one task of an array
    serried rerun k3f9q2 --fresh          from the start
    serried rerun k3f9q2 --new-code       with the present code

    Command, settings and resources are those of RUN. For others: serried submit … --resume RUN
    """
    from serried.submission.again import prepare_again

    # The note is printed.
    selection = dataclasses.replace(run_view.select(run, own=True, new_code=new_code), note=None)
    try:
        with options.progress(dry_run=how["dry_run"]) as observe:
            prepared = prepare_again(
                selection, os.environ, failed=failed, fresh=fresh, new_code=new_code, name=name, observe=observe
            )
    except UsageError as error:
        if error.code is not Reason.NO_TASK_FAILED:
            raise
        console.note(f"nothing to repeat: {error.message}")
        if how["as_json"]:
            console.out_json(runs=[])
        return
    send(prepared, **how)


def send(*prepared: Prepared, dry_run: bool, as_json: bool, yes: bool, wait: bool = False) -> None:
    """Print the plans and submit them; with `dry_run`, print what the scheduler would receive. `wait` for their end.

    If the scheduler refuses one of several, the runs before it are submitted, and stay.
    """
    for one in prepared:
        refuse_in_place(one)
    if dry_run:
        options.dry_run(*prepared, as_json=as_json)
        return
    for one in prepared:
        options.show_plan(one, several=len(prepared) > 1)
    options.agree((text for one in prepared for text in one.warnings), yes=yes)
    records: list[Record] = []
    try:
        for one in prepared:
            before = {
                record.id: [str(link.job) for link in record.submissions if link.is_submitted] for record in records
            }
            records.append(deliver(behind(one, before)))
    except (SerriedError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt):  # perhaps after its first job, while further jobs were being queued
            with contextlib.suppress(RecordUnreadable, IndexError):
                record = Record.load(prepared[len(records)].plan.run)
                records += [record] if record.first_submissions[0].is_submitted else []
        if records:
            _print_submitted(records, prepared, as_json=as_json)
        if records and isinstance(error, SerriedError):
            ids = " ".join(record.id for record in records)
            what = "may have been submitted" if isinstance(error, SubmissionUncertain) else "was not submitted"
            error.message = f"`{prepared[len(records)].plan.name}` {what}: {error.message}"
            error.hint = f"{error.hint or 'the runs before it are submitted'}; `serried stop {ids}` stops those"
        raise
    _print_submitted(records, prepared, as_json=as_json, waits=wait)
    if wait:
        from serried.cli.stop import wait_for
        from serried.records.index import Selection

        wait_for([Selection(record) for record in records], as_json=as_json)


def _print_submitted(
    records: Sequence[Record], prepared: Sequence[Prepared], *, as_json: bool, waits: bool = False
) -> None:
    for record in records:
        for text in unqueued(record):
            console.warning(text)
    if as_json and not waits:  # with `--wait`, the one value comes at the end
        from serried.records.status import just_submitted

        console.out_json(runs=[just_submitted(record).to_json() for record in records])
        return
    if len(prepared) == 1:
        console.say()
    for record, one in zip(records, prepared):
        first, *further = record.submissions
        more = ", ".join(str(link.job) for link in further if link.job)
        name = f" ({one.plan.name})" if len(prepared) > 1 else ""
        then = f", then {more}" if more else ""
        console.say(f"submitted {record.id}{name} as {jobs_text(first.jobs)} of {one.plan.site.name}{then}")
    if len(prepared) == 1:
        array, run, sweep = prepared[0].plan.array, records[0].id, prepared[0].plan.sweep
        one_task = run if array is None else f"{run}/{array.indices[0]}"
        trials = (f"serried sweep show {sweep.first}", "its trials, the best first") if sweep else None
        steps = [
            (f"serried logs {one_task} -f", "follow its output"),
            *([] if waits else [(f"serried wait {run}", "wait until it has ended")]),
        ]
        console.next_steps([*steps, trials or (f"serried show {run}", "plan, timeline, and where its files are")])
    elif len(records) == len(prepared) and not waits:
        ids = " ".join(record.id for record in records)
        console.next_steps([("serried ps", "their states"), (f"serried wait {ids}", "wait until all have ended")])
    for record in [] if as_json else records:
        console.out(record.id)
