"""`data.prepare`: the command that makes the data, run once on this machine before a run is submitted.

It is kept in mind as environments are: under a name that a hash of all that goes into it is a part of.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.environments import building, check
from serried.environments.building import Observe, Tick
from serried.environments.store import Store
from serried.errors import DataFailed
from serried.plan import Environment
from serried.protocol.names import DATA_DIR

FOLDER = Path(".serried") / "data"
FORMAT = 1
"""Part of every hash: raised when the same command is to run again."""
DONE = "done"
MOST_HASHED = 64 << 20
"""Of larger files size and time are enough: hashing gigabytes takes too long."""

_DATA = re.compile(r"\{\{data\}\}|\{data\}")


@dataclass(frozen=True)
class Recipe:
    command: tuple[str, ...]
    """Placeholders unfilled."""
    project: Path
    root: str
    """What `{data}` is in it."""
    environment: Environment
    """What is active while it runs."""

    @property
    def source(self) -> str:
        return shlex.join(self.command)

    @property
    def doing(self) -> str:
        return f"making the data by {self.source}"

    @property
    def name(self) -> str:
        said = json.dumps([FORMAT, self.command, self.root, self._files(), _key(self.environment)])
        return f"data-{hashlib.sha256(said.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"

    def store(self, root: Path) -> Store:
        return Store(root, self.name, DONE, FOLDER)

    def script(self, prefix: Path) -> str:
        """The script that runs it, and says in `prefix` that it went well."""
        done = shlex.quote(str(prefix / DONE))
        words = (
            f"cd -- {shlex.quote(str(self.project))} && {shlex.join(self._words())} && "
            f"mkdir -p -- {shlex.quote(str(prefix))} && : >{done}"
        )
        return f"#!/bin/bash\n# Makes data. Written by Serried.\n{check.in_environment(self.environment, words)[-1]}\n"

    def _words(self) -> list[str]:
        return [_DATA.sub(lambda it: "{data}" if it[0] == "{{data}}" else self.root, word) for word in self.command]

    def _files(self) -> dict[str, str]:
        """The files of the project that it names: another text of `download.py` makes other data."""
        paths = {word: self.project / word for word in self.command if word and "\0" not in word}
        return {word: _state(path) for word, path in paths.items() if _is_file(path)}


def make(recipe: Recipe, variables: Mapping[str, str], observe: Observe) -> None:
    """Run it unless that has been done; who comes meanwhile waits. Raises DataFailed with its last lines."""

    def build(script: Path, log: Path, tick: Tick) -> None:
        status = building.run_script(script, log, tick, {**variables, DATA_DIR: recipe.root})
        if status:
            raise DataFailed(
                f"`data.prepare` ended with status {status}: `{recipe.source}`",
                details=building.last_lines(log),
                hint=f"nothing was submitted; all that it said is in {log}",
            )

    building.provide(recipe, recipe.project, build, observe)


def is_made(recipe: Recipe) -> bool:
    return recipe.store(recipe.project).finished() is not None


def forget(recipe: Recipe) -> None:
    """What it has made is gone: the next `make` runs it again."""
    recipe.store(recipe.project).forget()


def _key(environment: Environment) -> list[Any]:
    """Of an environment, what may make a difference to what runs in it."""
    prefix = environment.venv or environment.conda or ""
    built = prefix.rpartition("-")[0] if environment.build else prefix  # the rest is new each time that it is built
    return [built, environment.modules, environment.setup, sorted(environment.env.items())]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a word that is too long for a path
        return False


def _state(path: Path) -> str:
    state = path.stat()
    if state.st_size > MOST_HASHED:
        return f"{state.st_size} {state.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()
