"""`serried init`: write a serried.toml for a folder or a job script, or a project from a template."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import click

from serried import importing, schedulers, templates
from serried.base.errors import UsageError, reason
from serried.cli import run_view
from serried.config import catalogue, job_script, layers
from serried.config.toml import key, quoted
from serried.importing import Imported, find_programs, find_script, may_be_parallel
from serried.schedulers.clusters import LOCAL
from serried.schedulers.local import cluster
from serried.schema.layout import slug
from serried.submission import environments
from serried.submission.builds import SOURCES
from serried.views import console
from serried.views.text import fit, pad, printable


def _import(script: str, name: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Write a serried.toml that names the script; print it in a dry run, or if there is a serried.toml."""
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
        _write(here, {path.name: imported.text.encode()})
    if as_json:
        console.out_json(
            written=writes,
            name=imported.name,
            script=imported.script,
            settings=imported.settings,
            notes=imported.notes,
            suggestions=[
                it._asdict() | {"edits": [edit._asdict() for edit in it.edits]} for it in imported.suggestions
            ],
            toml=imported.text,
        )
        return
    if writes:
        console.say(f"wrote {layers.FILE} with `{imported.name}`")
    else:
        console.out(imported.text.removesuffix("\n"))
    if not writes and not dry_run:
        console.say(f"`{layers.FILE}` exists and was not changed; `>> {layers.FILE}` adds `{imported.name}`")
    _report_import(imported)
    if writes:
        console.say()
        called = shlex.quote(imported.name)
        show = (f"serried config show {called}", "each setting and where it comes from")
        console.next_steps([show, (f"serried submit {called} --dry-run", "print the plan and job script")])


def _report_import(imported: Imported) -> None:
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


_NAMED = 3
_MAY_BE_YOURS = (".env.template", ".gitignore", "README.md")
"""Files of a template that a folder may have already. They stay as they are; the project works with them."""


@dataclass(frozen=True)
class Draft:
    files: dict[str, bytes]
    summary: str
    notes: tuple[str, ...]
    next_steps: tuple[tuple[str, str], ...]


@click.command()
@click.option("--template", type=click.Choice(list(templates.TEMPLATES)), help="Write a whole project from a template.")
@click.option("--list", "lists", is_flag=True, help="List the templates.")
@click.option("--from", "script", metavar="FILE", help="Write it for a job script.")
@click.option("--name", metavar="NAME", help="With --from: name of the experiment.  [default: of the job or file]")
@click.option("--dry-run", is_flag=True, help="Print the files and write nothing.")
@run_view.as_json
def command(
    *, template: str | None, lists: bool, script: str | None, name: str | None, dry_run: bool, as_json: bool
) -> None:
    r"""Write a serried.toml for this folder, its training script and this cluster.

    \b
    serried init                    for the script in this folder
    serried init --list             list the templates
    serried init --template train   a script, its serried.toml and its test
    serried init --from job.sbatch  for a job script
    serried init --from next.sbatch >> serried.toml    add to an existing file

    A template trains on two ranks without changes; its test shows that. Never overwrites.
    With --from, the file names the script, which runs unchanged, and has its directives as settings.
    Suggestions name the features of Serried that replace lines of the script. Run the command in the folder
    where you submit the script.
    """
    if script is not None:
        run_view.exclude("--from", "serried init --from FILE", template=template, list=lists)
        _import(script, name, dry_run=dry_run, as_json=as_json)
        return
    run_view.need("--from", "serried init --from FILE --name NAME", name=name)
    if not lists:
        _init(template, dry_run=dry_run, as_json=as_json)
    elif as_json:
        console.out_json(templates=[{"name": name, "help": text} for name, text in templates.TEMPLATES.items()])
    else:
        console.out("\n".join(f"{pad(name, 9)}  {text}" for name, text in templates.TEMPLATES.items()))


def _init(template: str | None, *, dry_run: bool, as_json: bool) -> None:
    here = Path.cwd()
    draft = _project(here, template) if template else _settings(here)
    if not dry_run:
        _write(here, draft.files)
    if as_json:
        console.out_json(template=template, files=list(draft.files), written=not dry_run)
    elif dry_run:
        for name, content in draft.files.items():
            console.out(f"# {name}\n{content.decode()}")
    else:
        console.say_behind("", draft.summary, "head")
        for text in draft.notes:
            console.note(text)
        console.next_steps(draft.next_steps)


def _project(here: Path, template: str) -> Draft:
    """A template's files, without the optional ones that exist. Raises UsageError if another one exists."""
    content = templates.files(template)
    existing = [name for name in content if os.path.lexists(here / name)]
    taken = [name for name in existing if name not in _MAY_BE_YOURS]
    if taken:
        hint = f"in a new folder: mkdir {template} && cd {template} && serried init --template {template}"
        raise UsageError(f"{_these(taken, 'exists', 'exist')} already", hint=hint)
    files = {name: content[name] for name in content if name not in existing}
    return Draft(
        files,
        f"wrote {', '.join(files)}",
        (f"{_these(existing, 'was kept', 'were kept')}",) if existing else (),
        (
            ("pip install -r requirements.txt", "install its requirements"),
            ("pytest", "train on two ranks, in seconds"),
            ("serried run", "run it here, now"),
            ("serried submit", "submit it to the cluster"),
        ),
    )


def _these(names: list[str], *verbs: str) -> str:
    return f"{', '.join(f'`{name}`' for name in names)} {verbs[len(names) > 1]}"


def _settings(here: Path) -> Draft:
    if os.path.lexists(here / layers.FILE):
        raise UsageError(f"`{layers.FILE}` exists already", hint="serried config show prints its settings")
    found = catalogue(here, os.environ)
    script = find_script(here)
    is_alone = script is not None and not may_be_parallel(here / script)
    gpus = len(cluster.gpus(os.environ))
    project = os.fsencode(here.name).decode("utf-8", "replace") or "project"  # bytes that are not UTF-8 become `\ufffd`
    python = "python" if shutil.which("python") else "python3"  # some systems have only the latter
    text = render(
        project, script, found.here, python=python, gpus=gpus if found.here == LOCAL else 0, is_alone=is_alone
    )
    notes = []
    if found.file:
        notes.append(f"the new file replaces `{found.file}` for this folder")
    required = [name for name in SOURCES["venv"] if (here / name).is_file()]
    if required and environments.active_prefix(os.environ) is None:
        notes.append(
            f"no environment is active; with `environment.venv = true` Serried builds one from `{required[0]}`: "
            "serried docs environments"
        )
    if jobs := job_script.names_in(here):
        job = jobs[0]
        notes.append(
            f"`{job}` is a job script; add its settings: serried init --from {shlex.quote(job)} >> serried.toml"
        )
    if script is None and (several := find_programs(here)):
        more = f" and {len(several) - _NAMED} more" if len(several) > _NAMED else ""
        listed = ", ".join(f"`{name}`" for name in several[:_NAMED])
        notes.append(f"write the script to run into `command`; this folder has {listed}{more}")
    elif script is None:
        notes.append(
            "this folder has no training script: write its name into `command`, or begin with one in a new folder: "
            "serried init --template train"
        )
    elif is_alone:
        notes.append(
            f"`{script}` does not seem to be distributed, so it gets one rank; for more, see `serried docs adapt`"
        )
    run = ("serried run", "run it here, now")
    if found.here != LOCAL and not gpus:  # a login node without GPUs
        run = (f"serried run --gpus 0 --ranks {1 if is_alone else 2}", "run it here, now, on CPUs")
    submit = ("serried submit", f"submit it to `{found.here}`")
    return Draft(
        {layers.FILE: text.encode()},
        f"wrote {layers.FILE} for {f'`{script}`' if script else 'this folder'} on cluster `{found.here}`",
        tuple(notes),
        (run, ("serried submit --dry-run", "see what would be submitted"), submit) if script else (),
    )


def _write(directory: Path, files: dict[str, bytes]) -> None:
    written: list[Path] = []
    for name, content in files.items():
        try:
            with (directory / name).open("xb") as file:
                written.append(directory / name)
                file.write(content)
        except OSError as error:
            for path in written:
                path.unlink(missing_ok=True)
            raise UsageError(f"cannot write `{name}`: {reason(error)}") from None


def render(
    project: str, script: str | None, cluster: str, *, python: str = "python", gpus: int = 0, is_alone: bool = False
) -> str:
    """The file's text, at most 20 lines.

    `gpus` counts this machine's GPUs if `cluster` is this machine. `is_alone` is a script for a single rank.
    """
    name = slug(Path(script).stem) if script else "train"
    table = f"experiments.{key(name)}"
    if cluster != LOCAL:
        resources = 'gpus = 1       # on each node; without GPUs: ranks = 4\ntime = "1h"'
    elif gpus:
        resources = f"gpus = {1 if is_alone else gpus}       # on each node, one rank each"
    else:
        resources = f"ranks = {1 if is_alone else 2}      # processes; on GPUs: gpus = 4"
    return f"""\
# Experiments and their resources. `serried config show --explain` explains each setting.
[project]
name = {quoted(project)}

[{table}]
command = [{quoted(python)}, {quoted(script or "train.py")}]

[{table}.resources]
nodes = 1
{resources}

# Recognised here: cluster `{cluster}`. Settings for one cluster only (`serried clusters` lists all):
# [{table}.on.{schedulers.DEFAULT if cluster == LOCAL else cluster}.resources]
# nodes = 2
"""
