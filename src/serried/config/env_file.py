"""Files of `NAME=value` lines, as `.env` files are."""

from __future__ import annotations

import re
from pathlib import Path

from serried.errors import ConfigError

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=[ \t]*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$", "`": "`"}


def read_env_file(path: Path) -> dict[str, str]:
    """The names and values of a `.env` file: see `parse_env`. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("this is not UTF-8 text", path=str(path)) from error
    except OSError as error:
        raise ConfigError(
            f"cannot read the env_file: {error.strerror}",
            path=str(path),
            hint="paths are relative to the project's folder",
        ) from error
    return parse_env(text, str(path))


def parse_env(text: str, path: str) -> dict[str, str]:
    r"""Parse lines `NAME=value`, with `export`, comments, and quotes as a shell has them.

    'single' quotes keep everything, "double" ones know \n, \t, \r, \", \\, \$; both may span lines. `$NAME` is not
    expanded: what the file says is what the job gets. Raises ConfigError with the line.
    """
    values: dict[str, str] = {}
    position = 0
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end].strip()
        if not line or line.startswith("#"):
            position = end + 1
            continue
        number = text.count("\n", 0, position) + 1
        match = _LINE.match(text, position)
        if match is None or match.end() > end:
            raise ConfigError("this is not `NAME=value`", path=path, line=number)
        values[match[1]], position = _value(text, match.end(), path, number)
    return values


def _value(text: str, position: int, path: str, number: int) -> tuple[str, int]:
    """The value that starts at `position`, and where the next line starts."""
    quote = text[position : position + 1]
    if quote not in ("'", '"'):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        return re.split(r"(?:^|\s)#", text[position:end], maxsplit=1)[0].strip(), end + 1
    value = ""
    position += 1
    while position < len(text) and text[position] != quote:
        if text[position] == "\\" and quote == '"' and text[position + 1 : position + 2] in _ESCAPES:
            value += _ESCAPES[text[position + 1]]
            position += 2
        else:
            value += text[position]
            position += 1
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    rest = text[position + 1 : end].strip()
    if position >= len(text) or (rest and not rest.startswith("#")):
        raise ConfigError("the quotes of this value do not end", path=path, line=number)
    return value, end + 1
