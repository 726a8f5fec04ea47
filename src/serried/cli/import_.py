"""`serried import`: a job script for sbatch or qsub becomes a serried.toml."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import textwrap
from pathlib import Path

import click

from serried import importing
from serried.config import catalogue, layers
from serried.errors import UsageError, reason
from serried.importing import Imported
from serried.ui import console
from serried.ui.text import fit, printable


@click.command()
@click.argument("script", metavar="SCRIPT")
@click.option("--name", metavar="NAME", help="What to call the experiment.  [default: the job's name, or the file's]")
@click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: what became of each line, too.")
def command(*, script: str, name: str | None, dry_run: bool, as_json: bool) -> None:
    r"""Write the serried.toml that does what a job script does.

    \b
    serried import job.sbatch                     write serried.toml
    serried import job.pbs --dry-run              show it
    serried import next.sbatch >> serried.toml    add to one that is here
    scontrol write batch_script 1234 - | serried import - --name again

    Run it in the folder where you would submit the script. Reads `#SBATCH` and `#PBS` lines, modules,
    environments, variables, and what srun, torchrun, mpirun, horovodrun and the like start. What it
    cannot take over it says, line by line, here and in the file. Never overwrites.
    """
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
        console.say(f"`{layers.FILE}` is here already and stays as it is: `>> {layers.FILE}` adds {names} to it")
    _report(imported)
    if writes:
        _next(imported)


def _folder(script: str, here: Path) -> str:
    """Where the script lies, from here; empty for here itself, and for what is not below."""
    relative = os.path.relpath((here / script).parent, here)
    return "" if relative == os.curdir or relative.startswith(os.pardir) or script == "-" else relative


def _content(script: str) -> bytes:
    if script == "-":
        return sys.stdin.buffer.read(importing.MOST_BYTES + 1)
    try:
        with Path(script).open("rb") as file:
            return file.read(importing.MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"`{script}` cannot be read: {reason(error)}") from None
    except ValueError:
        raise UsageError("a file's name cannot contain a NUL character") from None


def _check_names(imported: Imported, here: Path) -> None:
    known = catalogue(here, os.environ).experiments
    taken = [each.name for each in imported.experiments if each.name in known]
    if taken:
        raise UsageError(f"`{layers.FILE}` has an experiment `{taken[0]}` already", hint="choose another by --name")


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"`{path.name}` cannot be written: {reason(error)}") from None


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
    """Line by line what was not taken over; of what is needless here, the numbers."""
    left = imported.of(importing.LEFT)
    if left:
        console.say()
        console.say("not taken over, or not wholly:")
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
        console.say(f"needless here: line{'s' if several else ''} {', '.join(map(str, numbers))}; `--json` says why")


def _next(imported: Imported) -> None:
    console.say()
    name = shlex.quote(imported.experiments[0].name)
    console.next_steps(
        [
            (f"serried config show {name}", "what it says, and where each value comes from"),
            (f"{importing.submits(imported)[0]} --dry-run", "what would be submitted"),
        ]
    )
