"""A job script for sbatch or qsub -> an experiment that runs it, its directives as settings, and suggestions.

The script is not translated: bash runs it unchanged. Settings and suggestions say what can be written in its place.
Nothing is run or asked while a script is read. For a folder without a job script, there are its training scripts.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from serried import schedulers
from serried.base.errors import UsageError
from serried.config import job_script, shell_words, toml
from serried.importing.suggestions import ReadScript, Suggestion

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


__all__ = ["Imported", "Suggestion", "find_programs", "find_script", "may_be_parallel", "read"]

_SHELLS = re.compile(r"(?:.*[/ ])?(?:ba|z|k|da)?sh(?: .*)?")


class Imported(NamedTuple):
    name: str
    """Of the experiment."""
    script: str
    """The path as the user wrote it."""
    settings: Mapping[str, Any]
    """Of the experiment, by dotted key: `{"script": "train.sbatch", "resources.nodes": 2}`."""
    notes: tuple[str, ...] = ()
    """Of the reader of directives."""
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def text(self) -> str:
        """The whole file. One table with dotted keys: suggestions are pasted below it."""
        shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in self.script)
        head = (
            f"# From `{shown}`, by `serried init --from`. A value that you change replaces the directive in the script."
        )
        keys = "".join(f"{key} = {toml.value(value)}\n" for key, value in self.settings.items())
        return f"{head}\n\n[{toml.dotted(('experiments', self.name))}]\n{keys}"


def read(file: str, folder: Path, name: str | None = None) -> Imported:
    """Import the script `file` in `folder`. The experiment's name is `name`, else the job's, else the file's.

    Raises UsageError for a file that is not a job script, or that its scheduler would refuse.
    """
    script = job_script.read(folder / file, schedulers.LOCAL, None)
    directives = script.directives
    text = script.text.decode(errors="replace").removeprefix("\ufeff")
    stated = {f"resources.{key}" for directive in directives.options for key in directive.keys}
    path = PurePath(file).as_posix()
    quoted = path if re.fullmatch(r"[\w@%+=:,./-]+", path) else shlex.quote(path)
    # A list if splitting the text would not give the path again.
    settings: dict[str, Any] = {
        "script": quoted if "\n" not in quoted and shell_words.split(quoted) == (path,) else [path]
    }
    if directives.array:
        settings["array"] = directives.array
    settings |= {key: value for key, value in directives.settings.items() if key in stated}
    called = (name or directives.name or "").strip() or PurePath(file).stem or "job"
    suggestions: tuple[Suggestion, ...] = ()
    if _SHELLS.fullmatch(" ".join(script.interpreter)):
        read_script = ReadScript(text, file)
        if not script.dialect and (line := read_script.submits_others):
            hint = f"import the script that it submits: serried init --from {read_script.submitted or 'SCRIPT'}"
            if read_script.has_loop:
                hint += "\nfor a job per value: `serried submit --commands FILE` or `--array 0-9`"
            message = f"`{file}` submits jobs and is not a job script: line {line} calls the scheduler"
            raise UsageError(message, hint=hint)
        suggestions = read_script.suggestions(shlex.quote(called))
    return Imported(called, file, settings, directives.notes, suggestions)
