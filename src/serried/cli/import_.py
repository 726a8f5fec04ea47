"""`serried import`: write a serried.toml for a job script of sbatch or qsub."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from pathlib import Path

import click

from serried import importing
from serried.cli import verification_view
from serried.config import catalogue, layers, toml
from serried.errors import UsageError, reason
from serried.importing import Imported, ScriptLine
from serried.ui import console
from serried.ui.text import fit, printable

_MOST_REASONS = 3


@click.command()
@click.argument("script", metavar="SCRIPT")
@click.option("--name", metavar="NAME", help="Name of the experiment.  [default: of the job or file]")
@click.option("--dry-run", is_flag=True, help="Print the file and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all reasons and suggestions.")
@click.option("--verify", is_flag=True, help="Run the script and its import, with recorded programs, and compare them.")
@click.option("--array-tasks", metavar="LIST", help="With --verify: tasks of the array to compare: 0,3.")
def command(
    *, script: str, name: str | None, dry_run: bool, as_json: bool, verify: bool, array_tasks: str | None
) -> None:
    r"""Write a serried.toml for a job script.

    \b
    serried import train.sbatch                   write serried.toml
    serried import train.pbs --dry-run            show it
    serried import next.sbatch >> serried.toml    add to an existing file
    scontrol write batch_script 1234 - | serried import - --name again

    If every line is recognised completely, the file says the same as the script, and the script is
    no longer needed. Otherwise the file names the script, which runs unchanged. Suggestions name
    the features of Serried that replace lines of the script. Run the command in the folder where
    you submit the script. Never overwrites.
    """
    _check_options(script, verify=verify, name=name, array_tasks=array_tasks, dry_run=dry_run)
    if verify:
        verification_view.verify_script(script, array_tasks, as_json=as_json)
        return
    here = Path.cwd()
    path = here / layers.FILE
    is_there = os.path.lexists(path)
    names = catalogue(here, os.environ).experiments if is_there else ()
    file = "job.sh" if script == "-" else script
    imported = importing.read(_content(script), file, name, runs_copies=_runs_copies(path) if is_there else None)
    if imported.name in names:
        hint = "choose another with --name"
        raise UsageError(f"`{layers.FILE}` has an experiment `{imported.name}` already", hint=hint)
    if imported.script is not None and script == "-":
        raise UsageError(
            "the experiment runs the script, so the script must be a file",
            hint="save the script to a file, and import the file",
        )
    text = importing.text(imported, script)
    writes = not (dry_run or is_there)
    if writes:
        _write(path, text)
    if as_json:
        _as_json(imported, text, written=writes)
        return
    if not writes:
        console.out(text.removesuffix("\n"))
    if writes:
        console.say(f"wrote {layers.FILE} with `{imported.name}`")
    elif is_there and not dry_run:
        console.say(f"`{layers.FILE}` exists and was not changed; `>> {layers.FILE}` adds `{imported.name}`")
    _report(imported, script)
    if writes:
        console.say()
        called = shlex.quote(imported.name)
        console.next_steps(
            [
                (f"serried config show {called}", "each setting and where it comes from"),
                (f"serried submit {called} --dry-run", "print the plan and job script"),
            ]
        )


def _check_options(script: str, *, verify: bool, name: str | None, array_tasks: str | None, dry_run: bool) -> None:
    if array_tasks is not None and not verify:
        hint = f"serried import --verify --array-tasks {array_tasks} {shlex.quote(script)}"
        raise UsageError("`--array-tasks` needs `--verify`", hint=hint)
    if verify and dry_run:
        raise UsageError(
            "`--dry-run` does not apply to `--verify`, which runs the script",
            hint="only its launchers and Pythons are replaced by programs that record their arguments",
        )
    if verify and name is not None:
        raise UsageError("`--name` does not apply to `--verify`, which writes no file")


def _content(script: str) -> bytes:
    if script == "-":
        return sys.stdin.buffer.read(importing.MOST_BYTES + 1)
    try:
        with Path(script).open("rb") as file:
            return file.read(importing.MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read `{script}`: {reason(error)}") from None
    except ValueError:
        raise UsageError("a file's name cannot contain a NUL character") from None


def _runs_copies(path: Path) -> bool:
    return toml.read(path, layers.FILE).tables.get("project", {}).get("snapshot", True) is not False


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write `{path.name}`: {reason(error)}") from None


def _as_json(imported: Imported, text: str, *, written: bool) -> None:
    console.out_json(
        written=written,
        name=imported.name,
        script=imported.script,
        settings=imported.settings,
        reasons=[each._asdict() for each in imported.reasons],
        dropped=[each._asdict() for each in imported.dropped],
        notes=imported.notes,
        suggestions=[
            {**each._asdict(), "edits": [edit._asdict() for edit in each.edits]} for each in imported.suggestions
        ],
        toml=text,
    )


def _report(imported: Imported, script: str) -> None:
    """The result in a sentence, then why, then suggestions."""
    shown = printable(script)
    if imported.script is None:
        console.say(f"every line of `{shown}` is taken over: the script is not needed")
        _list(imported.dropped, "not written, because")
    else:
        console.say(f"the experiment runs `{shown}` unchanged; {_count(len(imported.suggestions), 'suggestion')}")
        _list(imported.reasons[:_MOST_REASONS], "not taken over, because")
        if (more := len(imported.reasons) - _MOST_REASONS) > 0:
            console.say(f"        and {_count(more, 'more line')}: `--json` lists them")
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
            for number, line in enumerate(edit.text.split("\n") if "\n" in edit.text else (), edit.line):
                _say_line(number, f"    {line}")


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _list(reasons: tuple[ScriptLine, ...], title: str) -> None:
    if reasons:
        console.say()
        console.say(f"{title}:")
    for each in reasons:
        if each.text:
            _say_line(each.line, each.text)
        _say_wrapped(each.why)


def _say_line(number: int, text: str) -> None:
    console.say(f"{number or '':>6}  {fit(printable(text), console.columns() - 8)}")


def _say_wrapped(text: str) -> None:
    for row in textwrap.wrap(text, max(40, console.columns() - 8)):
        console.say(f"        {console.style(row, 'quiet', sys.stderr)}")
