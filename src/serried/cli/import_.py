"""`serried import`: write a serried.toml for a job script of sbatch or qsub."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from pathlib import Path

import click

from serried import importing
from serried.base.errors import UsageError, reason
from serried.config import catalogue, layers
from serried.importing import Imported
from serried.views import console
from serried.views.text import fit, printable


@click.command()
@click.argument("script", metavar="SCRIPT")
@click.option("--name", metavar="NAME", help="Name of the experiment.  [default: of the job or file]")
@click.option("--dry-run", is_flag=True, help="Print the file and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all suggestions.")
def command(*, script: str, name: str | None, dry_run: bool, as_json: bool) -> None:
    r"""Write a serried.toml for a job script.

    \b
    serried import train.sbatch                   write serried.toml
    serried import train.pbs --dry-run            show it
    serried import next.sbatch >> serried.toml    add to an existing file

    The file names the script, which runs unchanged, and has its directives as settings. Suggestions
    name the features of Serried that replace lines of the script. Run the command in the folder
    where you submit the script. Never overwrites.
    """
    here = Path.cwd()
    path = here / layers.FILE
    is_there = os.path.lexists(path)
    names = catalogue(here, os.environ).experiments if is_there else ()
    imported = importing.read(script, here, name)
    if imported.name in names:
        hint = "choose another with --name"
        raise UsageError(f"`{layers.FILE}` has an experiment `{imported.name}` already", hint=hint)
    writes = not (dry_run or is_there)
    if writes:
        _write(path, imported.text)
    if as_json:
        console.out_json(
            written=writes,
            name=imported.name,
            script=imported.script,
            settings=imported.settings,
            notes=imported.notes,
            suggestions=[
                {**each._asdict(), "edits": [edit._asdict() for edit in each.edits]} for each in imported.suggestions
            ],
            toml=imported.text,
        )
        return
    if not writes:
        console.out(imported.text.removesuffix("\n"))
    if writes:
        console.say(f"wrote {layers.FILE} with `{imported.name}`")
    elif not dry_run:
        console.say(f"`{layers.FILE}` exists and was not changed; `>> {layers.FILE}` adds `{imported.name}`")
    _report(imported)
    if writes:
        console.say()
        called = shlex.quote(imported.name)
        console.next_steps(
            [
                (f"serried config show {called}", "each setting and where it comes from"),
                (f"serried submit {called} --dry-run", "print the plan and job script"),
            ]
        )


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write `{path.name}`: {reason(error)}") from None


def _report(imported: Imported) -> None:
    number = len(imported.suggestions)
    count = f"{number or 'no'} suggestion{'' if number == 1 else 's'}"
    console.say(f"the experiment runs `{printable(imported.script)}` unchanged; {count}")
    for note in imported.notes:
        console.note(note)
    if imported.suggestions:
        console.say()
        console.say("suggestions, none of which is needed:")
    for each in imported.suggestions:
        _say_line(each.line, each.text)
        _say_wrapped(f"{each.id}: {each.sentence}")
        for line in (each.toml or each.command).splitlines():
            console.say(f"            {line}")
        for edit in each.edits:
            _say_wrapped(str(edit))
            for line_number, line in enumerate(edit.text.split("\n") if "\n" in edit.text else (), edit.line):
                _say_line(line_number, f"    {line}")


def _say_line(number: int, text: str) -> None:
    console.say(f"{number:>6}  {fit(printable(text), console.columns() - 8)}")


def _say_wrapped(text: str) -> None:
    for row in textwrap.wrap(text, max(40, console.columns() - 8)):
        console.say(f"        {console.style(row, 'quiet', sys.stderr)}")
