"""`serried shell`: a shell, or one command, on nodes of a cluster, on a node of a run, or beside a running rank."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from serried import config
from serried.base import shell
from serried.base.errors import RunNotFoundError, UsageError, did_you_mean
from serried.base.text import compress
from serried.cli import options, run_view
from serried.records import timeline
from serried.records.index import Selection
from serried.records.status import latest_attempt, statuses_of
from serried.records.timeline import RankProcess
from serried.schedulers import job_around
from serried.schema import names
from serried.schema.names import rank_name
from serried.submission import foreground
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide
from serried.views import console
from serried.views.plan_lines import plan_lines
from serried.views.text import pad


def _process(selection: Selection, rank: int) -> RankProcess:
    attempt = latest_attempt(selection.place)
    found = timeline.running(attempt) if attempt else []
    numbers = [process.rank for process in found if process.rank >= 0]
    wanted = rank if numbers or rank else names.SCRIPT_RANK  # a job script that has launched no ranks
    chosen = next((process for process in found if process.rank == wanted), None)
    if chosen is None:
        which = f"{rank_name(rank)} does not run" if numbers else "no rank runs"
        hint = f"its running ranks: {compress(numbers)}" if numbers else f"serried show {selection}"
        raise UsageError(f"{which} now in run `{selection}`", hint=hint)
    return chosen


A_SHELL = ("bash",)
"""The command of the plan if the user gives none."""
SHOWN = ("cluster", "each node", "ranks", "time", "cost", "data", "requires")
"""The lines of the plan that are printed before the wait."""


def _complete(*given: Any) -> list[Any]:
    return run_view.EXPERIMENT.shell_complete(*given) + run_view.complete_runs(*given)


@click.command(cls=options.TakesCommand)
@click.argument("what", metavar="[EXPERIMENT|RUN]", required=False, shell_complete=_complete)
@options.resources
@options.common
@click.option("--now", is_flag=True, help="Fail at once if the nodes are not free.")
@click.option("--node", type=click.IntRange(0), metavar="N", help="Node of the run, counted from 0.")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="Beside this rank of the run, or its job script.")
@options.dry_runs
def command(*, what: str | None, now: bool, node: int | None, rank: int | None, dry_run: bool, **values: Any) -> None:
    r"""Open a shell on a node with an experiment's environment, on a node of a run, or beside a rank.

    \b
    serried shell train                      with the resources of the experiment
    serried shell --gpus 1 --time 30m        with these resources
    serried shell --now --gpus 4             only if they are free
    serried shell train -- python check.py   one command; exits with its status
    serried shell k3f9q2                     on the first node of a run
    serried shell k3f9q2 --node 1 -- top     one command on its next node
    serried shell k3f9q2 --rank 3            beside rank 3 of a run

    The command prints why it waits for nodes. The shell has the experiment's environment. A script that
    you start there is a single rank; `serried run` uses all nodes.
    Beside a rank, it has the rank's variables, working directory and container, and shares its CPUs, memory
    and GPUs. It is not a rank. The ranks continue after its end.
    """
    words = tuple(click.get_current_context().meta.get(options.COMMAND, ()))
    overrides = options.overrides(values, values["settings"])
    run = _run(what)
    if run is None:
        run_view.need("RUN", "serried shell RUN --node N or --rank N", node=node, rank=rank)
    if rank is not None:
        run_view.exclude("--rank", "a rank runs on one node: name the rank", node=node)
    if run is None:
        if job := job_around(os.environ):
            hint = "`serried run` uses all nodes of the job; `exit` leaves it"
            raise UsageError(f"this shell is already in job {job.job}", hint=hint)
        request = Request(
            experiment=what,
            command=None if what else A_SHELL,
            overrides={"resources.spare_nodes": 0, **overrides},
            cluster=values["cluster"],
            array="off",
            name=values["name"] or f"{what or ''}-shell".strip("-"),
            is_sent=not dry_run,
        ).with_setting("project.snapshot", value=False)
        _open(request, words, now=now, dry_run=dry_run)
    elif overrides or now or values["cluster"] or values["name"]:
        hint = "only `--node`, `--rank`, `--dry-run` and a command are allowed"
        raise UsageError(f"`{what}` is a run, and a shell on its nodes uses its resources", hint=hint)
    else:
        status = statuses_of([run])[0]
        if rank is None:
            argv, environment = foreground.join_command(status, node or 0, words, os.environ)
        else:
            run_view.insist_on_one(run, f" --rank {rank}")
            foreground.joinable(status)
            argv, environment = foreground.attach_command(status, _process(run, rank), words, os.environ)
        if dry_run:
            console.out(shlex.join(argv))
        else:
            sys.exit(shell.foreground(argv, env=environment))


def _open(request: Request, words: tuple[str, ...], *, now: bool, dry_run: bool) -> None:
    decided = decide(request, Path.cwd(), os.environ)
    limit = decided.plan.limit._replace(restarts=0)
    plan = decided.plan._replace(command=words or A_SHELL, shell=False, beside=(), limit=limit, after=())
    plan = plan if request.experiment else plan._replace(experiment="shell")
    with options.progress(dry_run=dry_run) as observe:
        prepared = foreground.with_shell(prepare(plan, decided.resolved, os.environ, observe=observe), words, now=now)
    if dry_run:
        options.dry_run(prepared, as_json=False)
        return
    for label, text in plan_lines(prepared.plan, prepared.survey, prepared.revision):
        if label in SHOWN:
            console.say_behind(f"{pad(label, 11)}  ", text, "quiet")
    options.say_about(prepared.notes, prepared.warnings)
    sys.exit(foreground.open_shell(prepared, now=now, say=console.note))


def _run(what: str | None) -> Selection | None:
    """The run that `what` names; None for an experiment's name or no word. Raises UsageError for any other word."""
    known = config.catalogue(Path.cwd(), os.environ).experiments
    if what is None or what in known:
        return None
    try:
        return run_view.select(what)
    except RunNotFoundError as error:
        hint = did_you_mean(what, known) or f"put a command after `--`: serried shell -- {shlex.quote(what)}"
        raise UsageError(f"`{what}` is neither an experiment nor a run", hint=hint) from error
