"""`serried init`: a serried.toml that fits, or a whole project to begin with."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import click

from serried import inherit, schedulers, templates
from serried.clusters import LOCAL, machine
from serried.config import catalogue, layers
from serried.config.toml import key, quoted
from serried.environments.recipe import SOURCES
from serried.errors import UsageError, reason
from serried.protocol.slug import slug
from serried.ui import console
from serried.ui.text import pad

_PREFERRED = ("train.py", "main.py", "run.py")
_MOST_SCRIPTS = 200
_LONG_FOR_A_JOB = 64 * 1024
_NAMED = 3
_PARALLEL = re.compile(rb"distributed|serried|RANK|lightning|accelerat|Trainer|deepspeed|horovod|mpi4py|jax")
"""What a script that shares its work out among ranks names somewhere."""
_DIRECTIVE = re.compile(rb"^#(SBATCH|PBS)\b", re.MULTILINE)
_NO_PROGRAMS = re.compile(r"(setup|conftest|__init__|test_.*|.*_test)\.py")
_MAY_BE_YOURS = (".env.template", ".gitignore", "README.md")
"""Files of a template that a folder may have already: they stay as they are, and the project works with them."""


@dataclass(frozen=True)
class Draft:
    """What is to be written, and what to say when it has been."""

    files: dict[str, bytes]
    said: str
    notes: tuple[str, ...]
    next_steps: tuple[tuple[str, str], ...]


@click.command()
@click.option("--template", type=click.Choice(list(templates.TEMPLATES)), help="Write a whole project to begin with.")
@click.option("--list", "lists", is_flag=True, help="List the templates.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, template: str | None, lists: bool, dry_run: bool, as_json: bool) -> None:
    r"""Write a serried.toml that fits this folder: its name, the script found in it, this cluster.

    \b
    serried init                    for the script that is here
    serried init --list             which templates there are
    serried init --template train   a script, its serried.toml and a test of it

    A template trains as it is, on two ranks, and its test shows that. Never overwrites.
    """
    if lists:
        _list(as_json=as_json)
        return
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
        console.say_behind("", draft.said, "head")
        for text in draft.notes:
            console.note(text)
        console.next_steps(draft.next_steps)


def _list(*, as_json: bool) -> None:
    known = [{"name": name, "help": words} for name, words in templates.TEMPLATES.items()]
    if as_json:
        console.out_json(templates=known)
        return
    for each in known:
        console.out(f"{pad(each['name'], 9)}  {each['help']}")


def _project(here: Path, template: str) -> Draft:
    """A template's files, but for those that may be there already.

    Raises UsageError where one of the others is there.
    """
    content = templates.files(template)
    there = [name for name in content if os.path.lexists(here / name)]
    taken = [name for name in there if name not in _MAY_BE_YOURS]
    if taken:
        raise UsageError(
            f"{_these(taken, 'is', 'are')} here already",
            hint=f"in a new folder: mkdir {template} && cd {template} && serried init --template {template}",
        )
    files = {name: content[name] for name in content if name not in there}
    return Draft(
        files,
        f"wrote {', '.join(files)}",
        (f"{_these(there, 'stays as it was', 'stay as they were')}",) if there else (),
        (
            ("pip install -r requirements.txt", "what it needs"),
            ("pytest", "see two ranks learn, in seconds"),
            ("serried run", "run it here, now"),
            ("serried submit", "send it to the cluster"),
        ),
    )


def _these(names: list[str], *verbs: str) -> str:
    """`a` is, or `a`, `b` are."""
    return f"{', '.join(f'`{name}`' for name in names)} {verbs[len(names) > 1]}"


def _settings(here: Path) -> Draft:
    """The serried.toml that fits `here`."""
    if os.path.lexists(here / layers.FILE):
        raise UsageError(f"`{layers.FILE}` is here already", hint="`serried config show` shows what it says")
    found = catalogue(here, os.environ)
    script = find_script(here)
    is_alone = script is not None and not _may_be_parallel(here / script)
    gpus = len(machine.gpus(os.environ))
    text = render(
        _readable(here.name) or "project",
        script,
        found.here,
        python=_python(),
        gpus=gpus if found.here == LOCAL else 0,
        is_alone=is_alone,
    )
    notes = []
    if found.file:
        notes.append(f"`{found.file}` described this folder until now; the new file takes its place here")
    required = [name for name in SOURCES["venv"] if (here / name).is_file()]
    if required and inherit.active_prefix(os.environ) is None:
        notes.append(
            f"no environment is active: `environment.venv = true` has Serried build one from `{required[0]}`; "
            "see docs/environments.md"
        )
    if job := _job_script(here):
        notes.append(f"`{job}` is a job script: `serried import {shlex.quote(job)} >> serried.toml` adds what it does")
    if script is None and (several := _programs(here)):
        notes.append(
            f"write into `command` which script to run: {', '.join(f'`{name}`' for name in several[:_NAMED])}"
            + (f" and {len(several) - _NAMED} more are here" if len(several) > _NAMED else " are here")
        )
    elif script is None:
        notes.append(
            "no script was found: write its name into `command`; "
            "in a new folder `serried init --template train` writes one that trains"
        )
    elif is_alone:
        notes.append(f"`{script}` seems to train alone, so it gets one rank; for several, see docs/adapt.md")
    return Draft(
        {layers.FILE: text.encode()},
        f"wrote {layers.FILE} for {f'`{script}`' if script else 'this folder'} on cluster `{found.here}`",
        tuple(notes),
        _next(found.here, gpus=gpus, is_alone=is_alone) if script else (),
    )


def _next(cluster: str, *, gpus: int, is_alone: bool) -> tuple[tuple[str, str], ...]:
    """What one would type next; a file that asks for a GPU runs on this machine's CPUs where it has none."""
    on_cpus = cluster != LOCAL and not gpus
    here = f"serried run --gpus 0 --ranks {1 if is_alone else 2}" if on_cpus else "serried run"
    return (
        (here, "run it here, now, on CPUs" if on_cpus else "run it here, now"),
        ("serried submit --dry-run", "see what would be submitted"),
        ("serried submit", f"send it to `{cluster}`"),
    )


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """All of them, or none."""
    written: list[Path] = []
    for name, content in files.items():
        try:
            with (folder / name).open("xb") as file:
                written.append(folder / name)
                file.write(content)
        except OSError as error:
            for path in written:
                path.unlink(missing_ok=True)
            raise UsageError(f"`{name}` cannot be written: {reason(error)}") from None


def find_script(folder: Path) -> str | None:
    """The script that trains: train.py, main.py or run.py, here or one folder below, else the one program here.

    That has `if __name__ == "__main__"`, or is the only script.
    """
    scripts = sorted(path.relative_to(folder) for path in _scripts(folder))
    named = [script for name in _PREFERRED for script in scripts if script.name == name]
    if named:
        return str(min(named, key=lambda script: (len(script.parts), _PREFERRED.index(script.name))))
    programs = _programs(folder)
    return programs[0] if len(programs) == 1 else None


def _programs(folder: Path) -> list[str]:
    """The programs in a folder itself: what has `if __name__ == "__main__"`; without any, every script."""
    here = [path for path in sorted(_scripts(folder)) if path.parent == folder]
    scripts = [path for path in here if not _NO_PROGRAMS.fullmatch(path.name)]
    return [path.name for path in scripts if _is_program(path)] or [path.name for path in scripts]


def _job_script(folder: Path) -> str | None:
    """One for `sbatch` or `qsub`, if there is one here."""
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError):
            may_be = path.is_file() and path.suffix != ".py" and path.stat().st_size < _LONG_FOR_A_JOB
            if may_be and _DIRECTIVE.search(path.read_bytes()):
                return path.name
    return None


def _scripts(folder: Path) -> list[Path]:
    below = [path for path in folder.iterdir() if path.is_dir() and _may_hold_scripts(path)]
    found = [path for place in (folder, *sorted(below)) for path in place.glob("*.py") if path.is_file()]
    return found[:_MOST_SCRIPTS]


def _may_hold_scripts(folder: Path) -> bool:
    """Not a virtual environment, nor tests, nor what is hidden."""
    return not folder.name.startswith((".", "test")) and not (folder / "pyvenv.cfg").exists()


def _may_be_parallel(path: Path) -> bool:
    try:
        return _PARALLEL.search(path.read_bytes()) is not None
    except OSError:
        return True


def _is_program(path: Path) -> bool:
    """Whether a module has `if __name__ == "__main__"`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    tests = [node.test for node in tree.body if isinstance(node, ast.If)]
    return any("__name__" in ast.dump(test) and "__main__" in ast.dump(test) for test in tests)


def render(
    project: str, script: str | None, cluster: str, *, python: str = "python", gpus: int = 0, is_alone: bool = False
) -> str:
    """The file's text, at most 20 lines. `gpus` are those of this machine, where `cluster` is this machine.

    A script that is alone knows nothing of other ranks.
    """
    name = slug(Path(script).stem) if script else "train"
    table = f"experiments.{key(name)}"
    if cluster != LOCAL:
        resources = 'gpus = 1       # on each node; for CPUs alone: ranks = 4\ntime = "1h"'
    elif gpus:
        resources = f"gpus = {1 if is_alone else gpus}       # on each node, one rank each"
    else:
        resources = f"ranks = {1 if is_alone else 2}      # processes; where there are GPUs: gpus = 4"
    return f"""\
# What runs, and where. `serried config show` explains each setting.
[project]
name = {quoted(project)}

[{table}]
command = [{quoted(python)}, {quoted(script or "train.py")}]

[{table}.resources]
nodes = 1
{resources}

# Recognised here: cluster `{cluster}`. `serried clusters` lists them; one of them may differ:
# [{table}.on.{schedulers.DEFAULT if cluster == LOCAL else cluster}.resources]
# nodes = 2
"""


def _readable(name: str) -> str:
    """A file's name as text; the bytes that are no UTF-8 become `\ufffd`."""
    return os.fsencode(name).decode("utf-8", "replace")


def _python() -> str:
    """What an active environment calls it; some systems have only `python3`."""
    return "python" if shutil.which("python") else "python3"
