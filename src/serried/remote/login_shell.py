"""The environment that the user's login shell has on the login node: its PATH, its modules, its variables of the site.

A command that ssh starts has another one: sites set much of it for login shells alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from serried.base import files, shell
from serried.base.errors import MissingProgramError

LIMIT_SECONDS = 20
KEPT_SECONDS = 86400
KEPT = re.compile(
    r"PATH|MODULEPATH|LD_LIBRARY_PATH|SLURM_CONF|PBS_(EXEC|SERVER|DEFAULT|CONF_FILE)|XDG_[A-Z_]+|LANG|LC_[A-Z]+"
    r"|(?!\w*(AUTH|CRED|KEY|PASS|SECRET|TOKEN))\w*(SCRATCH|WORK|PROJECT|STORE)\w*"
)
"""The variables that a file may keep, if their values are paths or words without meaning to a thief."""
PLAIN = re.compile(r"[\w./:@+,~ -]*")
_DUMP = "printf {mark}; umask; env -0; printf {mark}"


def enter(base: Path, more: Mapping[str, str], *, is_fresh: bool) -> None:
    """Give this process the environment of a login shell, and `more` on top.

    Without `is_fresh`, the paths of an earlier one are enough, if there was one today.
    """
    kept = base / "environment"
    known = None if is_fresh else _read(kept)
    if known is None:
        known = _ask()
        paths = {name: value for name, value in known.items() if KEPT.fullmatch(name) and PLAIN.fullmatch(value)}
        with contextlib.suppress(OSError):  # a full home: the shell is asked each time
            files.write_bytes(kept, json.dumps(paths).encode(), durable=False)
    os.environ.update(known)
    os.environ.update(more)
    time.tzset()


def _read(kept: Path) -> dict[str, str] | None:
    try:
        is_recent = time.time() - kept.stat().st_mtime < KEPT_SECONDS
    except OSError:
        return None
    known = files.read_json(kept)
    return {str(name): str(value) for name, value in known.items()} if known and is_recent else None


def _ask() -> dict[str, str]:
    """Run the login shell. If it does not answer, the environment that ssh gave is what there is."""
    login = os.environ.get("SHELL", "")
    program = login if Path(login).name in ("bash", "zsh", "fish") else "bash"
    mark = f"serried{os.urandom(8).hex()}"
    try:
        result = shell.run((program, "-lc", _DUMP.format(mark=mark)), timeout=LIMIT_SECONDS, env=os.environ)
        output = result.stdout
    except (shell.TimedOut, MissingProgramError) as error:
        print(f"note: {error.message}; using the environment of ssh", file=sys.stderr)
        return {}
    parts = output.split(mark)
    if len(parts) != 3:
        print(f"note: `{program} -l` printed no environment; using that of ssh", file=sys.stderr)
        return {}
    umask, _, variables = parts[1].partition("\n")
    if umask.isdigit():
        os.umask(int(umask, 8))
    pairs = (entry.partition("=") for entry in variables.split("\0"))
    return {name: value for name, _, value in pairs if name and name not in ("_", "SHLVL", "PWD", "OLDPWD")}
