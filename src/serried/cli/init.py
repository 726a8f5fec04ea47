"""`serried init`: a serried.toml that fits."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path

import click

from serried.clusters import LOCAL, SLURM, machine
from serried.config import sources
from serried.config.catalogue import catalogue
from serried.contract.slug import slug
from serried.errors import UsageError
from serried.ui import console

_PREFERRED = ("train.py", "main.py", "run.py")
_MOST_SCRIPTS = 200


@click.command()
def command() -> None:
    """Write a serried.toml that fits this folder: its name, the script found in it, this cluster.

    Never overwrites.
    """
    here = Path.cwd()
    target = here / sources.FILE
    if os.path.lexists(target):
        raise UsageError(f"`{sources.FILE}` is here already", hint="`serried config show` shows what it says")
    found = catalogue(here, os.environ)
    script = find_script(here)
    gpus = machine.gpus(os.environ) if found.here == LOCAL else 0
    text = render(_readable(here.name) or "project", script, found.here, python=_python(), gpus=gpus)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = (error.strerror or "failed").lower()
        raise UsageError(f"`{sources.FILE}` cannot be written: {reason}") from None
    console.say(f"wrote {sources.FILE} for {f'`{script}`' if script else 'this folder'} on cluster `{found.here}`")
    if found.file:
        console.note(f"`{found.file}` described this folder until now; the new file takes its place here")
    if script is None:
        console.note("no script was found: write its name into `command`")
    console.next_steps(
        [
            ("serried run", "run it here, now"),
            ("serried submit --dry-run", "see what would be submitted"),
            ("serried submit", f"send it to `{found.here}`"),
        ]
    )


def find_script(folder: Path) -> str | None:
    """The script that trains: train.py, main.py or run.py, here or one folder below, else the one program here."""
    scripts = sorted(path.relative_to(folder) for path in _scripts(folder))
    named = [script for name in _PREFERRED for script in scripts if script.name == name]
    if named:
        return str(min(named, key=lambda script: (len(script.parts), _PREFERRED.index(script.name))))
    programs = [script for script in scripts if len(script.parts) == 1 and _is_program(folder / script)]
    return str(programs[0]) if len(programs) == 1 else None


def _scripts(folder: Path) -> list[Path]:
    below = [path for path in folder.iterdir() if path.is_dir() and _may_hold_scripts(path)]
    found = [path for place in (folder, *sorted(below)) for path in place.glob("*.py") if path.is_file()]
    return found[:_MOST_SCRIPTS]


def _may_hold_scripts(folder: Path) -> bool:
    """Not a virtual environment, nor tests, nor what is hidden."""
    return not folder.name.startswith((".", "test")) and not (folder / "pyvenv.cfg").exists()


def _is_program(path: Path) -> bool:
    """Whether a module has `if __name__ == "__main__"`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    tests = [node.test for node in tree.body if isinstance(node, ast.If)]
    return any("__name__" in ast.dump(test) and "__main__" in ast.dump(test) for test in tests)


def render(project: str, script: str | None, cluster: str, *, python: str = "python", gpus: int = 0) -> str:
    """The file's text, at most 20 lines. `gpus` are those of this machine, where `cluster` is this machine."""
    name = slug(Path(script).stem) if script else "train"
    table = f"experiments.{json.dumps(name) if '.' in name else name}"
    if cluster != LOCAL:
        resources = 'gpus = 1       # on each node; for CPUs alone: ranks = 4\ntime = "1h"'
    elif gpus:
        resources = f"gpus = {gpus}       # on each node, one rank each"
    else:
        resources = "ranks = 2      # processes; where there are GPUs: gpus = 4"
    return f"""\
# What runs, and where. `serried config show` explains each setting.
[project]
name = {_quoted(project)}

[{table}]
command = [{_quoted(python)}, {_quoted(script or "train.py")}]

[{table}.resources]
nodes = 1
{resources}

# Recognised here: cluster `{cluster}`. `serried clusters` lists them; one of them may differ:
# [{table}.on.{SLURM if cluster == LOCAL else cluster}.resources]
# nodes = 2
"""


def _quoted(text: str) -> str:
    """`text` as a TOML string; JSON's differ from them in DEL alone."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _readable(name: str) -> str:
    """A file's name as text; the bytes that are no UTF-8 become `\ufffd`."""
    return os.fsencode(name).decode("utf-8", "replace")


def _python() -> str:
    """What an active environment calls it; some systems have only `python3`."""
    return "python" if shutil.which("python") else "python3"
