"""Sweeps at W&B's service, created from the login node by the real `wandb sweep`."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from serried.base import shell
from serried.base.errors import MissingProgramError, SerriedError, UsageError
from serried.schema import tracking
from serried.schema.tracking import AccountKey

SECONDS = 60.0
"""For `wandb sweep`. It tries for minutes to reach a server."""
REACH_SECONDS = 10.0
_AGENT = re.compile(r"wandb agent (['\"]?)([^/\s'\"]+/[^/'\"\n]+/[\w-]+)\1")
"""The command that `wandb sweep` prints, with quotes if the project's name has a space."""


class ServerUnreachable(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 3


def program() -> str:
    """The command of wandb, from PATH or from the environment in which Serried is installed."""
    found = shutil.which("wandb") or shutil.which("wandb", path=str(Path(sys.prefix, "bin")))
    if found is None:
        raise MissingProgramError("`wandb` is not installed here", hint="pip install wandb")
    return found


def key_of(environ: Mapping[str, str], project: Path) -> AccountKey:
    """The key of the account. Raises UsageError without one."""
    key = tracking.find_key(environ, project)
    if key is None:
        raise UsageError(
            f"a sweep at W&B needs a key, and `{tracking.KEY}`, `.env`, `~/.netrc` and "
            f"`~/{tracking.CREDENTIALS}` have none",
            hint="run `wandb login`; without an account, `serried sweep FILE` draws the parameters itself",
        )
    return key


def create(file: Path, environ: Mapping[str, str], project: Path) -> str:
    """Create the sweep of a file at W&B. Returns its `ENTITY/PROJECT/ID`.

    Raises UsageError without a key, and SerriedError if W&B refuses the file or does not answer.
    """
    environment = {**environ, tracking.KEY: key_of(environ, project).value, "WANDB_MODE": tracking.ONLINE}
    server = tracking.address(environ)
    check_server(server, environ)
    done = shell.run([program(), "sweep", str(file)], env=environment, timeout=SECONDS)
    printed = done.stderr + done.stdout
    if done.status:
        raise SerriedError(f"`wandb sweep {file}` created no sweep", details=printed.strip())
    created = _AGENT.search(printed)
    if created is None:  # wandb ends with 0 also after some errors
        raise SerriedError("cannot read the id of the new sweep", details=printed.strip())
    return created[2]


def check_server(server: str, environ: Mapping[str, str]) -> None:
    """Raises ServerUnreachable: some commands of wandb never give up."""
    if not tracking.is_reachable(server, environ, REACH_SECONDS):
        raise ServerUnreachable(
            f"cannot connect to `{server}`", hint="run this command on a machine with internet, such as a login node"
        )
