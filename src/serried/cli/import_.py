"""`serried import`: write a serried.toml from a job script for sbatch or qsub."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import textwrap
from pathlib import Path

import click

from serried import importing
from serried.cli import verification_view
from serried.config import catalogue, layers
from serried.errors import UsageError, reason
from serried.importing import Imported
from serried.ui import console
from serried.ui.text import fit, printable


@click.command()
@click.argument("script", metavar="SCRIPT")
@click.option("--name", metavar="NAME", help="Name of the experiment.  [default: of the job or file]")
@click.option("--dry-run", is_flag=True, help="Print the file and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the result for each line.")
@click.option("--verify", is_flag=True, help="Run script and import with recorded programs; compare them.")
@click.option("--array-tasks", metavar="LIST", help="With --verify: tasks of the array to compare: 0,3.")
def command(
    *, script: str, name: str | None, dry_run: bool, as_json: bool, verify: bool, array_tasks: str | None
) -> None:
    r"""Write a serried.toml that does the same as a job script.

    \b
    serried import job.sbatch                     write serried.toml
    serried import job.pbs --dry-run              show it
    serried import next.sbatch >> serried.toml    add to an existing file
    scontrol write batch_script 1234 - | serried import - --name again

    Run the command in the folder where you submit the script. The import reads `#SBATCH` and `#PBS`
    lines, modules, environments, variables, and commands of srun, torchrun, mpirun, horovodrun and
    other launchers. A report, here and in the file, lists the lines without an equivalent. Never
    overwrites.
    """
    if verify:
        verification_view.verify_script(script, array_tasks, as_json=as_json)
        return
    here = Path.cwd()
    file = "job.sh" if script == "-" else script
    imported = importing.read(_content(script), file, name, _folder(script, here))
    text = importing.text(imported, script)
    is_there = os.path.lexists(here / layers.FILE)
    if is_there:
        _check_names(imported, here)
    writes = not (dry_run or is_there)
    if writes:
        _write(here / layers.FILE, text)
    if as_json:
        _as_json(imported, text, written=writes)
        return
    if not writes:
        console.out(text.removesuffix("\n"))
    names = ", ".join(f"`{each.name}`" for each in imported.experiments)
    if writes:
        console.say(f"wrote {layers.FILE} with {names}")
    elif is_there and not dry_run:
        console.say(f"`{layers.FILE}` exists and was not changed; `>> {layers.FILE}` adds {names}")
    _report(imported)
    if writes:
        _next(imported)


def _folder(script: str, here: Path) -> str:
    """The script's folder relative to here; empty for this folder, and for a folder that is not below."""
    relative = os.path.relpath((here / script).parent, here)
    return "" if relative == os.curdir or relative.startswith(os.pardir) or script == "-" else relative


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


def _check_names(imported: Imported, here: Path) -> None:
    known = catalogue(here, os.environ).experiments
    taken = [each.name for each in imported.experiments if each.name in known]
    if taken:
        raise UsageError(f"`{layers.FILE}` has an experiment `{taken[0]}` already", hint="choose another with --name")


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write `{path.name}`: {reason(error)}") from None


def _as_json(imported: Imported, text: str, *, written: bool) -> None:
    console.out_json(
        written=written,
        experiments=[dataclasses.asdict(each) for each in imported.experiments],
        array=imported.array,
        parallel=imported.parallel,
        lines=[dataclasses.asdict(each) for each in imported.lines],
        toml=text,
    )


def _report(imported: Imported) -> None:
    """Print each line that was not imported, and the numbers of the lines that Serried does not need."""
    left = imported.of(importing.LEFT)
    if left:
        console.say()
        console.say("not imported, or only in part:")
    indent = " " * 8
    shown = None
    for each in left:
        number = str(each.number) if each.number else ""
        if each.text and (each.number, each.text) != shown:
            console.say(f"{number:>6}  {fit(printable(each.text), console.columns() - len(indent))}")
        shown = (each.number, each.text)
        for row in textwrap.wrap(each.why, max(40, console.columns() - len(indent))):
            console.say(f"{indent}{console.style(row, 'quiet', sys.stderr)}")
    numbers = sorted({each.number for each in imported.of(importing.NEEDLESS) if each.number})
    if numbers:
        console.say()
        several = len(numbers) > 1
        console.say(
            f"not needed here: line{'s' if several else ''} {', '.join(map(str, numbers))}; `--json` gives the reasons"
        )


def _next(imported: Imported) -> None:
    console.say()
    name = shlex.quote(imported.experiments[0].name)
    console.next_steps(
        [
            (f"serried config show {name}", "each setting and where it comes from"),
            (f"{importing.submits(imported)} --dry-run", "print the plan and job script"),
        ]
    )
