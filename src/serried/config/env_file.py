"""Files of `NAME=value` lines, as `.env` files are."""

from __future__ import annotations

import re
from pathlib import Path

from serried.config import words
from serried.errors import ConfigError

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


def read(path: Path) -> dict[str, str]:
    """The variables that a file defines, in its order; quotes as in a shell, nothing expanded.

    Raises ConfigError, which never quotes a line: its value may be a secret.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise ConfigError(f"cannot be read: {reason}", path=str(path), hint="`environment.env_file` names it") from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text", path=str(path)) from None
    return parse(text, str(path))


def parse(text: str, path: str) -> dict[str, str]:
    variables = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ConfigError("is no `NAME=value` line", path=path, line=number)
        variables[match[1]] = _value(match[2], path, number)
    return variables


def _value(text: str, path: str, number: int) -> str:
    if text[:1] not in {"'", '"'}:
        return re.sub(r"\s+#.*", "", text).strip()
    try:
        found = words.split(text)
    except ValueError as error:
        raise ConfigError(f"the value {error}", path=path, line=number) from None
    if len(found) > 1 and not found[1].startswith("#"):
        raise ConfigError("something follows the closing quote", path=path, line=number)
    return found[0]
