"""The scripts in a project's folder, and the one that trains."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_PREFERRED = ("train.py", "main.py", "run.py")
_NOT_A_PROGRAM = re.compile(r"(setup|conftest|__init__|test_.*|.*_test)\.py")
_MOST_SCRIPTS = 200
_PARALLEL = re.compile(rb"distributed|serried|RANK|lightning|accelerat|Trainer|deepspeed|horovod|mpi4py|jax")
"""A script that divides its work among ranks contains one of these."""


def find_script(folder: Path) -> str | None:
    """The training script: train.py, main.py or run.py, here or one folder below, else the only program here."""
    scripts = [path.relative_to(folder) for path in _scripts(folder)]
    named = [script for script in scripts if script.name in _PREFERRED]
    if named:
        return str(min(named, key=lambda script: (len(script.parts), _PREFERRED.index(script.name), script)))
    programs = find_programs(folder)
    return programs[0] if len(programs) == 1 else None


def find_programs(folder: Path) -> list[str]:
    """The scripts in `folder` itself that have `if __name__ == "__main__"`; all scripts if none has."""
    here = [path for path in sorted(_scripts(folder)) if path.parent == folder]
    scripts = [path for path in here if not _NOT_A_PROGRAM.fullmatch(path.name)]
    return [path.name for path in scripts if _is_program(path)] or [path.name for path in scripts]


def may_be_parallel(script: Path) -> bool:
    """Whether the script may divide its work among ranks. A script that cannot be read may."""
    try:
        return _PARALLEL.search(script.read_bytes()) is not None
    except OSError:
        return True


def _scripts(folder: Path) -> list[Path]:
    """Python files in `folder` and one level below, without virtual environments, tests and hidden folders."""
    below = [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.name.startswith((".", "test")) and not (path / "pyvenv.cfg").exists()
    ]
    return [path for place in (folder, *below) for path in place.glob("*.py") if path.is_file()][:_MOST_SCRIPTS]


def _is_program(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    tests = [node.test for node in tree.body if isinstance(node, ast.If)]
    return any("__name__" in ast.dump(test) and "__main__" in ast.dump(test) for test in tests)
