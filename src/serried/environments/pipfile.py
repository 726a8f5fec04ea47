"""A Pipfile as lines that pip reads: what is locked in Pipfile.lock where there is one, else what the Pipfile asks for.

Pipenv itself is not needed, and makes its environments where it likes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serried.errors import UsageError

USUAL = "pypi"
"""By this name pipenv writes the public index into every Pipfile; who has another one for pip has that instead."""
CONDITIONS = ("os_name", "sys_platform", "platform_machine", "platform_system", "python_version")
VERSION_CONTROL = ("git", "hg", "svn", "bzr")


def requirements(path: Path) -> str:
    """Lines for pip. Raises UsageError."""
    lock = path.with_name("Pipfile.lock")
    try:
        if lock.exists():
            said = json.loads(lock.read_text(encoding="utf-8"))
            sources, packages = said["_meta"].get("sources", []), said["default"]
        else:
            said = tomllib.loads(path.read_text(encoding="utf-8"))
            sources, packages = said.get("source", []), said.get("packages", {})
        lines = [*_indexes(sources), *(_line(name, wanted) for name, wanted in packages.items())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"cannot understand `{lock if lock.exists() else path}`: {error}") from None
    return "".join(f"{' '.join(line.split())}\n" for line in lines)


def _indexes(sources: list[Mapping[str, Any]]) -> Iterator[str]:
    for source in sources:
        if source.get("name") != USUAL:
            yield f"--extra-index-url {source['url']}"


def _line(name: str, wanted: str | Mapping[str, Any]) -> str:
    if isinstance(wanted, str):
        return name if wanted == "*" else f"{name}{wanted}"
    extras = f"[{','.join(wanted['extras'])}]" if wanted.get("extras") else ""
    conditions = [f"({wanted['markers']})"] if wanted.get("markers") else []
    conditions += [f"{name} {wanted[name]}" for name in CONDITIONS if name in wanted]
    markers = " and ".join(conditions)
    after = f" ; {markers}" if markers else ""
    where = wanted.get("path") or wanted.get("file")
    if where:
        return f"--editable {where}{extras}{after}" if wanted.get("editable") else f"{where}{extras}{after}"
    for system in VERSION_CONTROL:
        if system in wanted:
            at = f"@{wanted['ref']}" if wanted.get("ref") else ""
            inside = f"#subdirectory={wanted['subdirectory']}" if wanted.get("subdirectory") else ""
            return f"{name}{extras} @ {system}+{wanted[system]}{at}{inside}{after}"
    version = wanted.get("version", "*")
    return f"{name}{extras}{'' if version == '*' else version}{after}"
