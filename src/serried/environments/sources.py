"""What an environment is built from: the file that is named or found, what else goes into it, how to install that."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serried.environments import pipfile
from serried.errors import UsageError
from serried.plan import Build

FOUND = {
    "venv": ("uv.lock", "Pipfile", "requirements.txt", "pyproject.toml"),
    "conda": ("environment.yml", "environment.yaml"),
}
"""Of several the first is meant: a lock file says most, and a project's own description least."""

TORCH = "https://download.pytorch.org/whl"
PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_INCLUDED = re.compile(r"\s*(?:-r|--requirement|-c|--constraint)[\s=]+(\S+)")
_LISTED = re.compile(r"\s*-\s+[\"']?")
"""What stands before pip's words in `environment.yml`."""
_LOCAL = re.compile(r"\s*(?:-e|--editable)?[\s=]*(\.{0,2}/[^\s;#\[]*|\.{1,2})(?:\[|\s|;|$)")


@dataclass(frozen=True)
class Source:
    path: Path
    install: str
    """Lines of bash that install it into the environment `$prefix`; they run in the folder of `path`."""
    contents: tuple[tuple[str, str], ...]
    """Names and hashes of all files that it depends on."""


def find(build: Build, project: Path) -> Source:
    """Raises UsageError where there is nothing to build from, or it cannot be understood."""
    path = Path(build.source) if build.source else _found(build.kind, project)
    if not path.is_file():
        raise UsageError(f"there is no `{path}` to build an environment from")
    install = _install(build, path)
    return Source(path, install, tuple((str(one), _hash(one)) for one in sorted(set(_inputs(path)))))


def _found(kind: str, project: Path) -> Path:
    for name in FOUND[kind]:
        if (project / name).is_file():
            return project / name
    listed = ", ".join(f"`{name}`" for name in FOUND[kind])
    raise UsageError(
        f"there is nothing to build an environment from in `{project}`: no {listed}",
        hint=f'write one, or name the file: `{kind} = "cluster/{FOUND[kind][-2]}"`',
    )


def _install(build: Build, path: Path) -> str:
    if build.kind == "conda" and build.torch:
        raise UsageError(
            "`environment.torch` is for what pip installs", hint=f"name the build of PyTorch in `{path.name}`"
        )
    if build.kind == "conda":
        return (
            "[[ ${conda##*/} == conda ]] || set -- --yes # conda itself does not ask, and may not know the option\n"
            f'"$conda" env create "$@" --quiet --prefix "$prefix" --file {shlex.quote(path.name)}\n'
        )
    if path.name == "uv.lock":
        if build.torch:
            raise UsageError(
                "`environment.torch` cannot change what `uv.lock` says",
                hint="name the index in `[tool.uv.sources]` of `pyproject.toml` and lock again",
            )
        return 'UV_PROJECT_ENVIRONMENT=$prefix uv sync --frozen --python "$prefix/bin/python"\n'
    if path.name == "Pipfile":
        return _pip(build, "--requirement /dev/stdin <<'REQUIREMENTS'") + pipfile.requirements(path) + "REQUIREMENTS\n"
    if path.suffix == ".txt":
        return _pip(build, f"--requirement {shlex.quote(path.name)}")
    if path.name == "pyproject.toml" and {"project", "build-system"} & _toml(path).keys():
        return _pip(build, "--editable .")
    raise UsageError(
        f"no environment can be built from `{path}`",
        hint="from `uv.lock`, `Pipfile`, `requirements.txt` or another `.txt`, or `pyproject.toml` with `[project]`",
    )


def _pip(build: Build, what: str) -> str:
    index = f" --extra-index-url {TORCH}/{build.torch}" if build.torch else ""
    # -I: what is on PYTHONPATH or in ~/.local is not in the environment, so it must not count as installed.
    return f'"$prefix/bin/python" -I -m pip install --disable-pip-version-check --no-input{index} {what}\n'


def _inputs(path: Path) -> Iterator[Path]:
    """The file and what it leads to: further requirements, and what describes a local project."""
    yield path
    if path.name == "uv.lock":
        yield path.with_name("pyproject.toml")
    elif path.name == "Pipfile" and path.with_name("Pipfile.lock").exists():
        yield path.with_name("Pipfile.lock")
    elif path.name == "pyproject.toml":
        yield from _described(path.parent)
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
            yield from [target] if target.is_file() else _described(target)


def _described(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in PROJECT_FILES if (folder / name).is_file())


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"`{path}` is no TOML: {error}") from None


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


def digest(*parts: object) -> str:
    """Twelve digits that change when any of `parts` does."""
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogateescape")).hexdigest()[:12]
