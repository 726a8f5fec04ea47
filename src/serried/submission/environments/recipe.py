"""How Serried builds a virtual or conda environment: from which file, with which Python, under which name."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serried.base import shell
from serried.base.errors import EnvironmentFailed, MissingProgramError, UsageError
from serried.schema.plan import Build, Environment
from serried.submission import builds
from serried.submission.builds import Recipe
from serried.submission.environments import activation
from serried.submission.environments.activation import conda_program

FORMAT = 1
"""Part of every hash: raised when the same inputs have to give another build."""
SOURCES = {
    "venv": ("uv.lock", "Pipfile", "requirements.txt", "pyproject.toml"),
    "conda": ("environment.yml", "environment.yaml"),
}
"""The first that exists is taken: a lock file is the most exact, a project's own description the least."""
PROBE = "import ensurepip, platform, sys, venv; print(sys.version, platform.machine())"
TORCH = "https://download.pytorch.org/whl"
PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_INCLUDED = re.compile(r"\s*(?:-r|--requirement|-c|--constraint)[\s=]+(\S+)")
_LISTED = re.compile(r"\s*-\s+[\"']?")
"""The text before pip's words in `environment.yml`."""
_LOCAL = re.compile(r"\s*(?:-e|--editable)?[\s=]*(\.{0,2}/[^\s;#\[]*|\.{1,2})(?:\[|\s|;|$)")


def recipe(environment: Environment, project: Path, environ: Mapping[str, str]) -> Recipe | None:
    """How to build the environment of a run; None if Serried does not build it.

    `environ` holds the variables that the run inherits. Raises UsageError if the file or the program is missing.
    """
    build = environment.build
    if build is None:
        return None
    source = source_of(build, project)
    install = install_commands(build, source)
    contents = {path: _hash(path) for path in sorted(set(inputs(source)))}
    bare = environment._replace(build=None, venv=None, conda=None, setup="", check=None)
    version = ""
    if build.kind == "conda":
        create = f"conda={shlex.quote(_conda(bare, environ))}\n"
    else:
        python, version = _python(build, bare, environ)
        if source.name == "uv.lock" and shutil.which("uv", path=environ.get("PATH")) is None:
            raise MissingProgramError(
                f"`{source}` needs `uv`, which is not on PATH",
                hint='`pip install uv`, or build from another file: `venv = "requirements.txt"`',
            )
        create = f'{shlex.quote(python)} -m venv --clear "$prefix"\n'
    paths = [os.path.relpath(path, project) for path in contents]
    key = builds.digest(FORMAT, build.kind, build.torch, environment.modules, version, paths, list(contents.values()))
    name = f"{build.kind}-{key}"
    return Recipe(
        folder=project / builds.ENVIRONMENTS,
        name=name,
        product="bin/python",
        source=str(source),
        step=f"building {name} from {source.name}",
        commands=f"{activation.whole_lines(bare)}set -e\ncd -- {shlex.quote(str(source.parent))}\n{create}{install}",
    )


def source_of(build: Build, project: Path) -> Path:
    """The file that lists the packages. Raises UsageError if there is none."""
    if build.source:
        if not Path(build.source).is_file():
            raise UsageError(f"cannot build an environment: `{build.source}` does not exist")
        return Path(build.source)
    names = SOURCES[build.kind]
    source = next((project / name for name in names if (project / name).is_file()), None)
    if source is None:
        raise UsageError(
            f"cannot build an environment: `{project}` has no {', '.join(f'`{name}`' for name in names)}",
            hint=f'write one, or name the file: `{build.kind} = "cluster/{names[-2]}"`',
        )
    return source


def install_commands(build: Build, path: Path) -> str:
    """Lines of bash that install the packages listed in `path`. They run in the folder of `path`. Raises UsageError."""
    if build.kind == "conda":
        if build.torch:
            raise UsageError(
                "`environment.torch` works only with pip, not with conda",
                hint=f"name the build of PyTorch in `{path.name}`",
            )
        return (
            "[[ ${conda##*/} == conda ]] || set -- --yes # conda itself does not ask, and may not know the option\n"
            f'"$conda" env create "$@" --quiet --prefix "$prefix" --file {shlex.quote(path.name)}\n'
        )
    if path.name == "uv.lock":
        if build.torch:
            raise UsageError(
                "`environment.torch` cannot change the packages in `uv.lock`",
                hint="name the index in `[tool.uv.sources]` of `pyproject.toml` and lock again",
            )
        return 'UV_PROJECT_ENVIRONMENT=$prefix uv sync --frozen --python "$prefix/bin/python"\n'
    if path.name == "Pipfile":
        packages = "--requirement /dev/stdin <<'REQUIREMENTS'"
    elif path.suffix == ".txt":
        packages = f"--requirement {shlex.quote(path.name)}"
    elif path.name == "pyproject.toml" and {"project", "build-system"} & _toml(path).keys():
        packages = "--editable ."
    else:
        raise UsageError(
            f"cannot build an environment from `{path}`",
            hint="use `uv.lock`, `Pipfile`, `requirements.txt` or another `.txt`, or `pyproject.toml` with `[project]`",
        )
    index = f" --extra-index-url {TORCH}/{build.torch}" if build.torch else ""
    # -I: packages on PYTHONPATH and in ~/.local are not in the environment, so pip must not count them as installed.
    pip = f'"$prefix/bin/python" -I -m pip install --disable-pip-version-check --no-input{index} {packages}\n'
    return f"{pip}{_pipfile_requirements(path)}REQUIREMENTS\n" if path.name == "Pipfile" else pip


def inputs(path: Path) -> Iterator[Path]:
    """The file, the requirements that it includes, and the descriptions of local projects."""
    yield path
    if path.name == "uv.lock":
        yield path.with_name("pyproject.toml")
    elif path.name == "Pipfile" and path.with_name("Pipfile.lock").exists():
        yield path.with_name("Pipfile.lock")
    elif path.name == "pyproject.toml":
        yield from _project_files(path.parent)
    else:
        yield from _required(path, {path})


def _required(path: Path, seen: set[Path]) -> Iterator[Path]:
    for text in _text(path).splitlines():
        line = text if path.suffix == ".txt" else _LISTED.sub("", text).rstrip("\"' ")
        if included := _INCLUDED.match(line):
            inner = path.parent / included[1]
            if inner not in seen and inner.is_file():
                seen.add(inner)
                yield inner
                yield from _required(inner, seen)
        elif local := _LOCAL.match(line):
            target = path.parent / local[1]
            yield from [target] if target.is_file() else _project_files(target)


def _project_files(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in PROJECT_FILES if (folder / name).is_file())


_USUAL_INDEX = "pypi"
"""Pipenv writes the public index with this name into every Pipfile. It must not replace the index that pip uses."""
_CONDITIONS = ("os_name", "sys_platform", "platform_machine", "platform_system", "python_version")
_VERSION_CONTROL = ("git", "hg", "svn", "bzr")


def _pipfile_requirements(path: Path) -> str:
    """Pipfile.lock, else the Pipfile, as lines for pip. Pipenv is not needed: it chooses its own folders."""
    lock = path.with_name("Pipfile.lock")
    try:
        if lock.exists():
            locked = json.loads(lock.read_text(encoding="utf-8"))
            sources, packages = locked["_meta"].get("sources", []), locked["default"]
        else:
            wanted = tomllib.loads(path.read_text(encoding="utf-8"))
            sources, packages = wanted.get("source", []), wanted.get("packages", {})
        lines = [f"--extra-index-url {source['url']}" for source in sources if source.get("name") != _USUAL_INDEX]
        lines += [_requirement(name, package) for name, package in packages.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"cannot understand `{lock if lock.exists() else path}`: {error}") from None
    return "".join(f"{' '.join(line.split())}\n" for line in lines)


def _requirement(name: str, package: str | Mapping[str, Any]) -> str:
    if isinstance(package, str):
        return name if package == "*" else f"{name}{package}"
    extras = f"[{','.join(package['extras'])}]" if package.get("extras") else ""
    conditions = [f"({package['markers']})"] if package.get("markers") else []
    conditions += [f"{name} {package[name]}" for name in _CONDITIONS if name in package]
    markers = f" ; {' and '.join(conditions)}" if conditions else ""
    place = package.get("path") or package.get("file")
    if place:
        return f"{'--editable ' if package.get('editable') else ''}{place}{extras}{markers}"
    for system in _VERSION_CONTROL:
        if system in package:
            ref = f"@{package['ref']}" if package.get("ref") else ""
            below = f"#subdirectory={package['subdirectory']}" if package.get("subdirectory") else ""
            return f"{name}{extras} @ {system}+{package[system]}{ref}{below}{markers}"
    version = package.get("version", "*")
    return f"{name}{extras}{'' if version == '*' else version}{markers}"


def _python(build: Build, bare: Environment, environ: Mapping[str, str]) -> tuple[str, str]:
    """The Python to build with, and its version."""
    candidates = [build.python] if build.python else ["python3", sys.executable]
    errors = ""
    for candidate in candidates:
        words = f"exec {shlex.quote(candidate)} -I -c {shlex.quote(PROBE)}"
        argv = ["/bin/bash", "-c", activation.script(bare, words)]
        done = shell.run(argv, env=environ, timeout=activation.SECONDS)
        if done.status == 0:
            return candidate, done.stdout.strip()
        errors = errors or done.stderr.strip()
        if done.status == activation.UNABLE:
            break
    details = "\n".join(errors.splitlines()[-activation.LAST_LINES :])
    if done.status == activation.UNABLE:
        raise EnvironmentFailed(
            f"cannot build the environment: {activation.describe(bare)} cannot be used here",
            details=details,
            hint="`environment.modules` names them; `module avail` lists the modules of this machine",
        )
    raise EnvironmentFailed(
        f"`{candidates[0]}` cannot create virtual environments",
        details=details,
        hint="name another: `environment.python`; on Debian and Ubuntu `apt-get install python3-venv`",
    )


def _conda(bare: Environment, environ: Mapping[str, str]) -> str:
    program = conda_program(environ)
    if program is None and not bare.modules:
        raise MissingProgramError(
            "no `conda`, `mamba` or `micromamba` on PATH or in your home directory",
            hint="https://conda-forge.org/download, or the module that brings it: `environment.modules`",
        )
    return program or "conda"  # from one of the modules


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"`{path}` is not valid TOML: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from None


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error}") from None
