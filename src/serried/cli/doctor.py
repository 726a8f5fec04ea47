"""`serried doctor`: check whether something on this machine would make a run fail."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from serried.base.errors import Elsewhere, UsageError, did_you_mean
from serried.base.text import counted
from serried.cli import run_view
from serried.doctor.checks import findings
from serried.doctor.machine import Machine
from serried.schema.checks import NOTE, PROBLEM
from serried.views import console
from serried.views.text import pad


@click.command()
@click.option(
    "--cluster", type=run_view.CLUSTER, help="The cluster to check, on its login node; by default this machine."
)
@run_view.as_json
def command(*, cluster: str | None, as_json: bool) -> None:
    r"""Check this machine before a run needs it: the scheduler's answer, folders, space, clock, limits.

    Each line says what was seen, and what to change; `serried docs checks` explains each check. The exit
    code is 1 if there is a problem. There is one call of the scheduler, and no file stays.

    \b
    serried doctor
    serried doctor --cluster fir
    """
    machine = Machine(Path.cwd(), os.environ, cluster)
    if cluster and cluster not in (known := [each.name for each in machine.catalogue.clusters]):
        raise UsageError(f"unknown cluster: `{cluster}`", hint=did_you_mean(cluster, known) or "serried clusters")
    if cluster and machine.is_elsewhere:
        raise Elsewhere(cluster, f"`{cluster}` is another cluster than this machine's", names_cluster=True)
    found, checks = [], machine.checks()
    widest = max(map(len, checks))
    for finding in findings(checks):
        found.append(finding)
        if not as_json:
            head = f"{pad(finding.level, 10)}  {pad(finding.id, widest)}  "
            console.out("\n".join(console.behind(head, finding.seen)))
            if finding.fix:
                console.out("\n".join(console.behind(" " * len(head), finding.fix)))
    problems, notes = (sum(one.level == level for one in found) for level in (PROBLEM, NOTE))
    if as_json:
        console.out_json(checks=[one.to_json() for one in found])
    else:
        console.say(f"{counted(len(found), 'check')}: {counted(problems, 'problem')}, {counted(notes, 'note')}")
    sys.exit(1 if problems else 0)
