"""Small jobs on nodes of ended runs. Each job runs a role of the agent; several jobs run at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.base import files, shell
from serried.base.errors import SerriedError, UsageError
from serried.base.files import MODES
from serried.schema.events import JournalEvent
from serried.schema.plan import Plan
from serried.submission import script

AT_ONCE = 16
"""Most jobs in the queue at once, to spare the scheduler."""
LOOK_SECONDS = 0.2
LAST_LINES = 5
NAMED = 3

Observe = Callable[[str], None]
Answer = dict[str, Any] | SerriedError
"""The last journal entry of a node job, or why there is none."""


@dataclass(frozen=True)
class Errand:
    plan: Plan
    host: str
    role: tuple[str, ...]
    """The role of the agent on `host`."""
    journal: Path
    """The journal of the role. Until the job ends, its script and its output are beside the journal."""


def send_all(errands: Sequence[Errand], on_answer: Callable[[int, Answer], None], observe: Observe) -> None:
    """Run all; `on_answer` gets the place of each in `errands` and its answer. An exception ends the running jobs."""
    waiting = deque(enumerate(errands))
    out: dict[int, _Sent] = {}
    try:
        while waiting or out:
            while waiting and len(out) < AT_ONCE:
                number, errand = waiting.popleft()
                try:
                    out[number] = _Sent(errand)
                except SerriedError as error:
                    on_answer(number, error)
            observe(_progress(list(out.values()), [errand for _, errand in waiting]))
            time.sleep(LOOK_SECONDS if out else 0)
            for number in [number for number, sent in out.items() if sent.has_ended]:
                on_answer(number, out.pop(number).answer())
    except BaseException:
        for sent in out.values():
            sent.process.terminate()
        for sent in out.values():
            sent.process.wait()
        raise


class _Sent:
    """An errand with its job. Raises SerriedError if the job cannot start."""

    def __init__(self, errand: Errand) -> None:
        self.host = errand.host
        self._journal = errand.journal
        self._token = os.urandom(8).hex()
        self._has_begun = False
        scheduler = _scheduler_for(errand.plan, errand.host)
        modes, folder = MODES[errand.plan.share], errand.journal.parent
        self._script, self._log = folder / f"errand-{self._token}.sh", folder / f"errand-{self._token}.log"
        text = script.render_errand(errand.plan, [*errand.role, self._token], python=sys.executable)
        self._argv = schedulers.get(scheduler).errand(errand.plan, errand.host, ("/bin/bash", str(self._script)))
        try:
            files.make_directory(folder, modes.directory)
            files.write_text(self._script, text, modes.file)
            self.process = shell.start(
                self._argv,
                log=self._log,
                env=schedulers.scrub(os.environ),
                cwd=Path("/"),
                umask=modes.umask,
                signal_on_our_death=signal.SIGTERM,
            )
        except OSError as error:
            raise SerriedError(f"cannot start a job on {errand.host}: {folder}: {error.strerror}") from None

    @property
    def has_begun(self) -> bool:
        self._has_begun = self._has_begun or self._entry(JournalEvent.BEGUN) is not None
        return self._has_begun

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def answer(self) -> Answer:
        output = self._log.read_text(encoding="utf-8", errors="replace").splitlines() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        self._script.unlink(missing_ok=True)
        ended = self._entry(JournalEvent.ENDED)
        if ended is None:
            return SerriedError(
                f"the job on {self.host} failed: `{self._argv[0]}` exited with status {self.process.returncode}",
                details="\n".join(output[-LAST_LINES:]) or None,
            )
        return ended

    def _entry(self, event: str) -> dict[str, Any] | None:
        entries = reversed(files.read_journal(self._journal))
        return next((it for it in entries if (it.get("token"), it.get("event")) == (self._token, event)), None)


def _progress(out: Sequence[_Sent], waiting: Sequence[Errand]) -> str:
    """`at work on n1, waiting for n2, n3 and 4 more`."""
    busy = [sent.host for sent in out if sent.has_begun]
    hosts = [sent.host for sent in out] + [errand.host for errand in waiting]
    queued = [host for host in hosts if host not in busy]
    states = (("at work on", busy), ("waiting for", queued))
    return ", ".join(f"{state} {_listed(several)}" for state, several in states if several)


def _listed(hosts: Sequence[str]) -> str:
    names = list(dict.fromkeys(hosts))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _scheduler_for(plan: Plan, host: str) -> str:
    """The scheduler that starts jobs on `host`. Raises UsageError if none does."""
    here = os.uname().nodename
    is_queued = not schedulers.traits(plan.site.scheduler).is_this_machine
    if is_queued or host.split(".", maxsplit=1)[0] == here.split(".")[0]:
        return plan.site.scheduler
    if not plan.site.inside:  # otherwise the run was inside a job of that scheduler, and needs a new job
        raise UsageError(
            f"run `{plan.run}` was on {host}, and this is {here}",
            hint="no scheduler starts jobs there: log in to that machine",
        )
    return plan.site.inside
