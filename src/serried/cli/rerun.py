"""`serried rerun`: a run's plan and code again, from where it had come to."""

from __future__ import annotations

import os

import click

from serried.cli import run_selector, submit_options
from serried.cli.submit import send
from serried.submission.rerun import prepare_again


@click.command()
@run_selector.one_run()
@click.option("--fresh", is_flag=True, help="Begin where that run began, not from its newest checkpoint.")
@click.option("--new-code", is_flag=True, help="The project's code as it is now, not as that run had it.")
@click.option("--name", metavar="NAME", help="Name of the new run.  [default: the old name]")
@click.option("-y", "--yes", is_flag=True, help="Do not ask, whatever the warnings.")
@click.option("--dry-run", is_flag=True, help="Show all that would be done, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *, run: str, fresh: bool, new_code: bool, name: str | None, yes: bool, dry_run: bool, as_json: bool
) -> None:
    r"""Submit the plan of RUN again: a new run, with the same code, from its newest whole checkpoint.

    \b
    serried rerun last
    serried rerun sweep/17                one task of an array
    serried rerun k3f9q2 --fresh          from the start
    serried rerun k3f9q2 --new-code       with the project's code of now

    Command, settings and resources are those of RUN. For others: serried submit … --resume RUN
    """
    selection = run_selector.select(run)
    with submit_options.progress(dry_run=dry_run) as observe:
        prepared = prepare_again(selection, os.environ, fresh=fresh, new_code=new_code, name=name, observe=observe)
    send(prepared, dry_run=dry_run, as_json=as_json, yes=yes)
