"""How an environment is built: its name, by a hash of all that goes into it, and the script that does it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from serried import shell
from serried.environments import activation, check, conda, sources
from serried.environments.store import Store
from serried.errors import EnvironmentFailed, MissingProgramError
from serried.plan import Build, Environment

FORMAT = 1
"""Part of every hash: raised when the same inputs are to be built otherwise."""

PROBE = "import ensurepip, platform, sys, venv; print(sys.version, platform.machine())"

SCRIPT = Template("""\
#!/bin/bash
# Builds the environment $prefix from $source. Written by Serried.
prefix=$quoted
${activation}set -e
cd -- $folder
$commands""")


@dataclass(frozen=True)
class Recipe:
    build: Build
    source: Path
    name: str
    """Of the environment: `venv-` or `conda-` and a hash of what goes into it."""
    python: str
    """What makes it, or the Python that it is made with."""
    commands: str
    environment: Environment
    """What is active while it is built."""

    @property
    def doing(self) -> str:
        return f"building {self.name} from {self.source.name}"

    def store(self, root: Path) -> Store:
        """Where it is kept."""
        return Store(root, self.name)

    def script(self, prefix: Path) -> str:
        """The script that builds it in `prefix`."""
        lines = activation.lines(self.environment)
        make = {
            "venv": f'{shlex.quote(self.python)} -m venv --clear "$prefix"\n',
            "conda": f"conda={shlex.quote(self.python)}\n",
        }[self.build.kind]
        return SCRIPT.substitute(
            prefix=" ".join(str(prefix).split()),
            source=" ".join(str(self.source).split()),
            quoted=shlex.quote(str(prefix)),
            activation=f'{check.PREAMBLE}{lines}rm -f "$said"\n' if lines else "",
            folder=shlex.quote(str(self.source.parent)),
            commands=make + self.commands,
        )


def recipe(environment: Environment, project: Path, environ: Mapping[str, str]) -> Recipe | None:
    """How the environment of a run is built; None where Serried builds none.

    `environ` is what the run inherits. Raises UsageError where there is nothing to build from or with.
    """
    build = environment.build
    if build is None:
        return None
    source = sources.find(build, project)
    bare = environment._replace(build=None, venv=None, conda=None, setup="", check=None)
    if build.kind == "conda":
        tool, version = _conda(bare, environ), ""
    else:
        tool, version = _python(build, bare, environ)
        _check_uv(source.path, environ)
    about = [os.path.relpath(path, project) for path, _ in source.contents]
    key = sources.digest(
        FORMAT, build.kind, build.torch, environment.modules, version, about, [it for _, it in source.contents]
    )
    return Recipe(build, source.path, f"{build.kind}-{key}", tool, source.install, bare)


def _python(build: Build, bare: Environment, environ: Mapping[str, str]) -> tuple[str, str]:
    """The Python to build with, and its version."""
    candidates = [build.python] if build.python else ["python3", sys.executable]
    said = ""
    for candidate in candidates:
        words = f"exec {shlex.quote(candidate)} -I -c {shlex.quote(PROBE)}"
        done = shell.run(check.in_environment(bare, words), env=environ, timeout=check.SECONDS)
        if done.status == 0:
            return candidate, done.stdout.strip()
        said = said or done.stderr.strip()
        if done.status == check.UNABLE:
            break
    details = "\n".join(said.splitlines()[-check.LAST_LINES :])
    if done.status == check.UNABLE:
        raise EnvironmentFailed(
            f"{check.where(bare)} cannot be used here, and the environment is built with them",
            details=details,
            hint="`environment.modules` names them; `module avail` lists what is here",
        )
    raise EnvironmentFailed(
        f"`{candidates[0]}` cannot make virtual environments",
        details=details,
        hint="name another: `environment.python`; on Debian and Ubuntu `apt-get install python3-venv`",
    )


def _conda(bare: Environment, environ: Mapping[str, str]) -> str:
    found = conda.program(environ)
    if found is None and bare.modules:
        return "conda"  # one of them brings it
    if found is None:
        raise MissingProgramError(
            "no `conda`, `mamba` or `micromamba` is on PATH or in your home",
            hint="https://conda-forge.org/download, or the module that brings it: `environment.modules`",
        )
    return found


def _check_uv(source: Path, environ: Mapping[str, str]) -> None:
    if source.name == "uv.lock" and shutil.which("uv", path=environ.get("PATH")) is None:
        raise MissingProgramError(
            f"`{source}` is for `uv`, which is not on PATH",
            hint='`pip install uv`, or build from another file: `venv = "requirements.txt"`',
        )
