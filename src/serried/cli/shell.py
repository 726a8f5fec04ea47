"""`serried shell`: a shell, or one command, on nodes of a cluster."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from serried import config
from serried.cli import options, run_view
from serried.errors import RunNotFoundError, UsageError, did_you_mean
from serried.records.index import Selection
from serried.records.status import statuses_of
from serried.schedulers import job_around
from serried.submission import interactive
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide
from serried.ui import console
from serried.ui.plan_lines import plan_lines
from serried.ui.text import pad

A_SHELL = ("bash",)
"""What stands for the command where none is needed."""
SHOWN = ("cluster", "each node", "ranks", "costs", "data", "in place")
"""Lines of the plan that say what one waits for."""


@click.command(cls=options.TakesCommand)
@click.argument("what", metavar="[EXPERIMENT|RUN]", required=False, shell_complete=run_view.complete_runs)
@options.resources
@options.common
@click.option("--now", is_flag=True, help="Fail at once if nothing that fits is free.")
@click.option("--node", type=int, metavar="N", help="Of a run: which node, from 0 on.")
@click.option("--dry-run", is_flag=True, help="Show all that would be done, and do nothing.")
def command(*, what: str | None, now: bool, node: int | None, dry_run: bool, **values: Any) -> None:
    r"""Open a shell on a node, with all that an experiment would have there, or beside a run's ranks.

    \b
    serried shell train                      what the experiment asks for
    serried shell --gpus 1 --time 30m        or what you ask for
    serried shell --now --gpus 4             only if it is free
    serried shell train -- python check.py   one command, its exit status
    serried shell k3f9q2                     beside a run, on its first node
    serried shell k3f9q2 --node 1 -- top     or on the next

    It waits for the nodes, and says why. Inside, the environment is the experiment's, a script that
    you start finds itself the only rank, and `serried run` uses all nodes.
    """
    words = tuple(click.get_current_context().meta.get(options.COMMAND, ()))
    overrides = options.overrides(values, values["settings"])
    run = _run(what)
    if run is None and node is not None:
        raise UsageError("`--node` is for a shell beside a run", hint="a shell of its own is on its first node")
    if run is None:
        _open(_asked(what, overrides, values), words, now=now, dry_run=dry_run)
    elif overrides or now or values["cluster"] or values["name"]:
        raise UsageError(
            f"`{what}` is a run, and beside it one has what it has",
            hint="only `--node`, `--dry-run` and a command go with it",
        )
    else:
        _join(run, node or 0, words, dry_run=dry_run)


def _join(run: Selection, node: int, words: tuple[str, ...], *, dry_run: bool) -> None:
    status = statuses_of([run])[0]
    if dry_run:
        console.out(shlex.join(interactive.joining(status, node, words, os.environ)[0]))
    else:
        sys.exit(interactive.join(status, node, words, os.environ))


def _asked(what: str | None, overrides: Mapping[str, Any], values: Mapping[str, Any]) -> Request:
    job = job_around(os.environ)
    if job is not None:
        raise UsageError(f"this is job {job.job} already", hint="`serried run` uses all its nodes; `exit` leaves it")
    return Request(
        experiment=what,
        command=None if what else A_SHELL,
        overrides=overrides,
        cluster=values["cluster"],
        name=values["name"] or f"{what or ''}-shell".strip("-"),
    ).with_setting("project.snapshot", value=False)


def _open(asked: Request, words: tuple[str, ...], *, now: bool, dry_run: bool) -> None:
    decided = decide(asked, Path.cwd(), os.environ)
    limit = decided.plan.limit._replace(restarts=0)
    plan = dataclasses.replace(decided.plan, command=words or A_SHELL, shell=False, limit=limit, after=())
    plan = plan if asked.experiment else dataclasses.replace(plan, experiment="shell")
    with options.progress(dry_run=dry_run) as observe:
        made = interactive.prepared(prepare(plan, decided.resolved, os.environ, observe=observe), words, now=now)
    if dry_run:
        options.dry_run(made, as_json=False)
        return
    for label, text in plan_lines(made.plan, made.survey, made.revision):
        if label in SHOWN:
            console.say_behind(f"{pad(label, 11)}  ", text, "quiet")
    options.say_about(made.notes, made.warnings)
    sys.exit(interactive.open_shell(made, now=now, say=console.note))


def _run(what: str | None) -> Selection | None:
    """The run that the word means; None where it is an experiment's name, or is not said.

    Raises UsageError where it is neither.
    """
    if what is None or what in config.catalogue(Path.cwd(), os.environ).experiments:
        return None
    try:
        return run_view.select(what)
    except RunNotFoundError as error:
        known = config.catalogue(Path.cwd(), os.environ).experiments
        hint = did_you_mean(what, known) or f"a command goes after `--`: serried shell -- {shlex.quote(what)}"
        raise UsageError(f"`{what}` is neither an experiment nor a run", hint=hint) from error
