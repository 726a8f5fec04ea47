"""Where run directories go when nobody says, and paths that name variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from serried.config.values import BadValue

NAME = "serried"


def default(scheduler: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The folder, and what decided on it."""
    if scheduler == "local":
        data = environ.get("XDG_DATA_HOME", "")
        folder = Path(data) if _is_absolute(data) else home(environ) / ".local" / "share"
        return str(folder / NAME), "XDG_DATA_HOME" if _is_absolute(data) else "default"
    for variable in ("SCRATCH", "PSCRATCH"):
        if _is_absolute(environ.get(variable, "")):
            return str(Path(environ[variable]) / NAME), variable
    scratch = Path("/scratch") / environ.get("USER", "")
    if environ.get("USER") and os.access(scratch, os.W_OK):
        return str(scratch / NAME), "default"
    return str(home(environ) / NAME), "default"


def _is_absolute(path: str) -> bool:
    return path.startswith("/")


def home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def expand(text: str, environ: Mapping[str, str]) -> str:
    """`~` and `$NAME` filled in. Raises BadValue for a variable that is not set and for what is no absolute path."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not environ.get(name):
            raise BadValue(f"names `${name}`, which is not set here")
        return environ[name]

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
