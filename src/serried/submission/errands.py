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
    scheduler = _that_reaches(plan, host)
    token = os.urandom(8).hex()
    modes = MODES[plan.share]
    files.make_directory(folder, modes.directory)
    path, log = folder / "errand.sh", folder / "errand.log"
    files.write_text(path, script.render_errand(plan, [*role, token], python=sys.executable), modes.file)
    argv = schedulers.get(scheduler).errand(plan, host, ("/bin/bash", str(path)))
    log.unlink(missing_ok=True)
    process = shell.start(
        argv, log=log, env=scrub(os.environ), cwd=Path("/"), umask=modes.umask, signal_on_our_death=signal.SIGTERM
    )
    try:
        while process.poll() is None:
            begun = _entry(journal, token, "begun")
            observe(f"at work on {host}" if begun else f"waiting for {host}")
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


def _that_reaches(plan: Plan, host: str) -> str:
    """The scheduler that starts it there. Raises UsageError where none does."""
    here = os.uname().nodename
    if plan.site.scheduler != "local" or host.split(".", maxsplit=1)[0] == here.split(".")[0]:
        return plan.site.scheduler
    if not plan.site.inside:  # else it ran in a job of that scheduler, and needs another now
        raise UsageError(
            f"run `{plan.run}` was on {host}, and this is {here}",
            hint="no scheduler starts anything there: log in to it",
        )
    return plan.site.inside


def _entry(journal: Path, token: str, event: str) -> dict[str, Any] | None:
    found = (each for each in reversed(files.read_journal(journal)) if each.get("token") == token)
    return next((each for each in found if each.get("event") == event), None)
