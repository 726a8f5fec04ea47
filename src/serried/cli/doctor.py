"""`serried doctor`: check whether something on this machine, or on the nodes of a job, would make a run fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from serried.base.errors import Elsewhere, RunFailed, UsageError, did_you_mean
from serried.base.text import counted
from serried.cli import options, run_view
from serried.doctor.checks import findings
from serried.doctor.machine import Machine
from serried.records.record import records_directory
from serried.schema.checks import NOTE, PROBLEM, Finding
from serried.views import console
from serried.views.text import pad, printable

if TYPE_CHECKING:
    from serried.submission.deliver import Prepared

_LIKE = "Check nodes with the environment, container, resources and nodes of RUN's newest attempt."


@click.command(cls=options.Sorted, epilog=run_view.HELP)
@options.experiment
@options.resources
@click.option("--like", metavar="RUN", shell_complete=run_view.complete_runs, help=_LIKE)
@click.option("--cluster", type=run_view.CLUSTER, help="The cluster to check; by default this machine's.")
@options.any_setting("For nodes: any setting, as in `--set resources.qos=debug`.")
@click.option("--ticket", is_flag=True, help="For nodes: print the problems as a text for the administrators.")
@options.dry_runs
@run_view.as_json
def command(
    *, cluster: str | None, like: str | None, dry_run: bool, ticket: bool, as_json: bool, **values: Any
) -> None:
    r"""Check this machine, or nodes and the network between them, before a run needs them.

    Each line says what was seen, and what to change; `serried docs checks` explains each check. The exit
    code is 1 if there is a problem. Without options, `doctor` checks this machine: the scheduler, folders,
    space, clock and limits. It calls the scheduler once, and leaves no file. With `--nodes`, another
    resource, EXPERIMENT or `--like`, it submits a job of a few minutes, whose ranks do nothing.
    EXPERIMENT gives its environment and container. Ctrl-C stops the job.

    \b
    serried doctor
    serried doctor --cluster fir
    serried doctor --nodes 2 --gpus 1
    serried doctor --like last --ticket
    """
    given = [name for name, value in values.items() if value not in (None, (), False)]
    if like is not None and given:
        run_view.exclude("--like", "RUN has its resources and environment", **{name: values[name] for name in given})
    if like is not None or given:
        with options.progress(dry_run=dry_run) as observe:
            prepared = _prepared(like, cluster, values, is_sent=not dry_run, observe=observe)
        if dry_run:
            options.dry_run(prepared, as_json=as_json)
        else:
            _check_nodes(prepared, as_json=as_json, as_ticket=ticket)
        return
    if dry_run or ticket:
        option = "--dry-run" if dry_run else "--ticket"
        raise UsageError(f"`{option}` is for a check of nodes", hint=f"serried doctor --nodes 2 {option}")
    machine = Machine(Path.cwd(), os.environ, cluster)
    if cluster and cluster not in (known := [each.name for each in machine.catalogue.clusters]):
        raise UsageError(f"unknown cluster: `{cluster}`", hint=did_you_mean(cluster, known) or "serried clusters")
    if cluster and machine.is_elsewhere:
        raise Elsewhere(cluster, f"`{cluster}` is another cluster than this machine's", names_cluster=True)
    checks = machine.checks()
    _report(findings(checks), max(map(len, checks)), as_json=as_json)


def _report(found: Iterable[Finding], width: int, *, as_json: bool, run: str | None = None) -> None:
    """Print each finding once it is known, and how many are problems; exit with 1 if there is one."""
    seen = []
    for finding in found:
        seen.append(finding)
        if not as_json:
            head = f"{pad(finding.level, 10)}  {pad(finding.id, width)}  "
            console.out("\n".join(console.behind(head, finding.seen)))
            if finding.fix:
                console.out("\n".join(console.behind(" " * len(head), finding.fix)))
    problems, notes = (sum(one.level == level for one in seen) for level in (PROBLEM, NOTE))
    if as_json:
        console.out_json(checks=[one.to_json() for one in seen], **({"run": run} if run else {}))
    else:
        console.say(f"{counted(len(seen), 'check')}: {counted(problems, 'problem')}, {counted(notes, 'note')}")
    sys.exit(1 if problems else 0)


def _prepared(
    like: str | None, cluster: str | None, values: dict[str, Any], *, is_sent: bool, observe: Any
) -> Prepared:
    from serried.doctor import nodes  # a check of this machine needs no plan

    if like is None:
        asked = options.request(values, cluster)._replace(name=nodes.NAME, is_sent=is_sent)
        return nodes.prepare_checks(asked, Path.cwd(), observe=observe)
    selection = run_view.select(like)
    if selection.is_array:
        hint = f"serried doctor --like {selection}/{selection.tasks[0]}"
        raise UsageError(f"run `{selection}` is an array, and each task has its own nodes", hint=hint)
    return nodes.prepare_like(selection, observe=observe)


def _check_nodes(prepared: Prepared, *, as_json: bool, as_ticket: bool) -> None:
    from serried.doctor import nodes

    options.say_about(prepared.notes, prepared.warnings)
    try:
        with console.status_line("submitting") as line:
            done = nodes.checkup(prepared, line.update)
    except KeyboardInterrupt:
        if (records_directory() / prepared.plan.run).exists():  # else it had no job yet
            console.note(f"stopped run {prepared.plan.run}")
        raise
    run, found = done.status.id, done.findings
    problem = next((one for one in found if one.level == PROBLEM), None)
    if as_ticket and problem:
        console.out("\n".join(map(printable, nodes.ticket(done))))
    try:
        done.check()
    except RunFailed:
        if problem is None:
            raise
    if as_ticket:
        if problem is None:
            console.note("no check found a problem, so there is nothing to report")
        sys.exit(1 if problem else 0)
    _report(found, max(map(len, (one.id for one in found))), as_json=as_json, run=run)
