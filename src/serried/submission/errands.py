"""A small job on one node of a run whose jobs have ended: a role of the agent, awaited."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from serried import schedulers, script, shell
from serried.contract import files
from serried.contract.environment import scrub
from serried.contract.files import MODES
from serried.errors import SerriedError, UsageError
from serried.plan import Plan

LOOK_SECONDS = 0.2
LAST_LINES = 5

Observe = Callable[[str], None]


def send(plan: Plan, host: str, role: Sequence[str], journal: Path, observe: Observe) -> dict[str, Any]:
    """Run a role of the agent on `host`; the entry of `journal` that carries our token says how it ended.

    Beside that go its script and its output. Raises SerriedError where it never said.
    """
    folder = journal.parent
    _check_reach(plan, host)
    token = os.urandom(8).hex()
    modes = MODES[plan.share]
    files.make_directory(folder, modes.directory)
    path, log = folder / "errand.sh", folder / "errand.log"
    files.write_text(path, script.render_errand(plan, [*role, token], python=sys.executable), modes.file)
    argv = schedulers.get(plan.site.scheduler).errand(plan, host, ("/bin/bash", str(path)))
    log.unlink(missing_ok=True)
    process = shell.start(
        argv, log=log, env=scrub(os.environ), cwd=Path("/"), umask=modes.umask, signal_on_our_death=signal.SIGTERM
    )
    try:
        while process.poll() is None:
            begun = _entry(journal, token, "begun")
            observe(f"copying from {host}" if begun else f"waiting for {host}")
            time.sleep(LOOK_SECONDS)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    ended = _entry(journal, token, "ended")
    if ended is None:
        said = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        raise SerriedError(
            f"nothing could be done on {host}: `{argv[0]}` exited with status {process.returncode}",
            details="\n".join(said[-LAST_LINES:]) or None,
        )
    log.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return ended


def _check_reach(plan: Plan, host: str) -> None:
    here = os.uname().nodename
    if plan.site.scheduler == "local" and host.split(".", maxsplit=1)[0] != here.split(".")[0]:
        hint = f"there: serried fetch {plan.run}"
        raise UsageError(f"what is missing is on {host}, and this is {here}", hint=hint)


def _entry(journal: Path, token: str, event: str) -> dict[str, Any] | None:
    found = (each for each in reversed(files.read_journal(journal)) if each.get("token") == token)
    return next((each for each in found if each.get("event") == event), None)
