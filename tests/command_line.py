"""`python -m serried …`, forked from a process that has imported Serried: most of a short command is its imports.

It is a process of its own, with its own environment, folder, streams and exit status. Tests that look at imports, at a
terminal or at the process itself start a fresh interpreter.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import json_schemas
from forked import Forked, Forker
from house import HOUSE, MODULES, room_of

CODE = "from serried.cli import main; main()"
PYTHON = os.environ.get("COMMANDS_PYTHON", sys.executable)
"""`make compat` has commands run on the oldest Python of a login node, with the modules in COMMANDS_PATH."""
AT_START = ("PYTHON", "LC_", "LANG")
"""Variables that an interpreter reads when it starts."""
READ_AGAIN = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER")
"""Those of them that a forked one reads as well."""

_forker: Forker | None = None


def serried(
    *arguments: str, directory: Path, environ: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Its stdin is empty."""
    if _at_start(environ) != _at_start(os.environ):
        return _fresh(arguments, directory, environ, timeout)
    process = start(*arguments, directory=directory, environ=environ)
    try:
        out, err = process.communicate(timeout)
    except BaseException:
        process.kill()
        raise
    check_json(arguments, out)
    return subprocess.CompletedProcess(["serried", *arguments], process.returncode, out, err)


def check_json(arguments: Sequence[str], out: str) -> None:
    """What a command with `--json` prints has the command's schema, which here has to name every value."""
    if "--json" in itertools.takewhile("--".__ne__, arguments) and importlib.util.find_spec("jsonschema"):
        words = [" ".join(arguments[:2]), arguments[0]]
        command = next((name for name in words if name in json_schemas.COMMANDS), None)
        for value in _values(out) if command else ():
            _validator(command).validate(value)


def _values(text: str) -> Iterator[Any]:
    """One, or with `--follow` one on each line."""
    while text := text.lstrip():
        value, end = json.JSONDecoder().raw_decode(text)
        yield value
        text = text[end:]


@cache
def _validator(command: str) -> Any:
    import jsonschema  # `test_each_command_has_a_valid_schema_of_its_json` needs it

    schema = {**json_schemas.COMMANDS[command], "definitions": json_schemas.DEFINITIONS}
    return jsonschema.Draft7Validator(_closed(schema))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return list(map(_closed, schema)) if isinstance(schema, list) else schema
    is_object = isinstance(schema.get("required"), list) and "properties" in schema
    parts = {name: _closed(value) for name, value in schema.items()}
    return {**({"additionalProperties": False} if is_object else {}), **parts}


def start(*arguments: str, directory: Path, environ: Mapping[str, str]) -> Forked:
    """It leads a process group."""
    global _forker  # noqa: PLW0603 - one for all tests of a pytest process
    if _forker is None:
        path = {"PYTHONPATH": os.environ["COMMANDS_PATH"]} if "COMMANDS_PATH" in os.environ else {}
        _forker = Forker(_modules(), {**_at_start(os.environ), "PATH": os.environ["PATH"], **path}, PYTHON)
    return _forker.start(CODE, environ, arguments, directory, first=str(HOUSE / "__main__.py"), leads_group=True)


def here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In the folder and the environment of this process."""
    return serried(*arguments, directory=Path.cwd(), environ=os.environ, timeout=900)


def _fresh(
    arguments: tuple[str, ...], directory: Path, environ: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serried", *arguments],
        cwd=directory,
        env=dict(environ),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
    )


def end() -> None:
    """When no test wants commands any more."""
    global _forker  # noqa: PLW0603 - see above
    if _forker is not None:
        _forker.close()
        _forker = None


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(AT_START) and name not in READ_AGAIN}


def _modules() -> list[str]:
    """All of the submitting side; a module that is a program does its work when it is imported."""
    modules = [path for path in MODULES if room_of(path) not in ("agent", "train", "__main__") and path.stem != "main"]
    names = [".".join(path.relative_to(HOUSE.parent).with_suffix("").parts) for path in modules]
    return [name.removesuffix(".__init__") for name in names]
