"""Where run directories go when nobody says, and paths that name variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from serried.config.values import BadValue

NAME = "serried"


def default(environ: Mapping[str, str], *, is_this_machine: bool) -> tuple[str, str]:
    """The folder, and what decided on it."""
    if is_this_machine:
        data = environ.get("XDG_DATA_HOME", "")
        share = Path(data) if _is_absolute(data) else home(environ) / ".local" / "share"
        return str(share / NAME), "XDG_DATA_HOME" if _is_absolute(data) else "default"
    variable, folder = _scratch(environ)
    if folder:
        return str(Path(folder) / NAME), variable
    return str(home(environ) / NAME), "default"


def scratch(environ: Mapping[str, str]) -> str:
    """Where users keep what compute nodes see and write; empty where there is no such folder."""
    return _scratch(environ)[1]


def _scratch(environ: Mapping[str, str]) -> tuple[str, str]:
    for variable in ("SCRATCH", "PSCRATCH"):
        if _is_absolute(environ.get(variable, "")):
            return variable, environ[variable]
    folder = Path("/scratch") / environ.get("USER", "")
    found = environ.get("USER") and os.access(folder, os.W_OK)
    return "default", str(folder) if found else ""


def _is_absolute(path: str) -> bool:
    return path.startswith("/")


def home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def expand(text: str, environ: Mapping[str, str]) -> str:
    """`~` and `$NAME` filled in. Raises BadValue for a variable that is not set and for what is no absolute path."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = environ.get(name) or (environ.get("LOGNAME") if name == "USER" else None)  # cron's jobs have that alone
        if not found:
            raise BadValue(f"names `${name}`, which is not set here")
        return found

    path = re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text)
    path = at_home(path, environ)
    if not _is_absolute(path):
        raise BadValue(f"must be an absolute path, not `{text}`")
    return os.path.normpath(path)


def at_home(path: str, environ: Mapping[str, str]) -> str:
    """`path` with a leading `~` filled in."""
    return re.sub(r"^~(?=/|$)", lambda _: str(home(environ)), path)


def is_under_home(path: str, environ: Mapping[str, str]) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(home(environ)))
