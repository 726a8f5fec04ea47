"""One local job, or one element of it, from waiting to its end. The endings are Slurm's.

USR1 to job.sh `lead` before the limit; at the limit, or when cancelled, TERM to every process of the
job, KILL after the kill wait; and when job.sh has ended, whatever it left behind is killed. Where job.sh was killed,
its agents have the kill wait, and a little more, before that.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from serried import processes, shell
from serried.clusters.machine import VISIBLE
from serried.protocol import names
from serried.protocol.layout import RunDirectory
from serried.schedulers.local import process_tracking
from serried.schedulers.local.argv import Request
from serried.schedulers.local.machine import GPU, NOTHING
from serried.schedulers.local.state import JobFolder, Standing, element_of

REQUEUE_STATUS = names.EXIT_SAVED
"""job.sh's exit status that asks for another attempt."""
ORPHAN_PAUSE_SECONDS = 0.1
TIDY_SECONDS = 15.0
"""How much longer than the kill wait agents have whose job.sh was killed: ranks may take all of that to end."""


class Task:
    def __init__(self, request: Request, folder: JobFolder, key: str, environment: Mapping[str, str]) -> None:
        self.key = key
        self.element = element_of(key)
        self.standing = Standing()
        self.queued = time.time()
        self.mark = process_tracking.mark_of(folder.root, folder.number, self.element)
        self._request = request
        self._folder = folder
        self._inherited = environment
        self._child: shell.Child | None = None
        self._began = 0.0
        self._warned = False
        self._killed = False
        self._ending: str | None = None
        """The state it will end in, once it was told to stop."""
        self._told = 0.0
        self._orphaned = 0.0
        """When job.sh was found killed; 0 where it was not."""

    @property
    def has_ended(self) -> bool:
        return self.standing.state in names.ENDED

    @property
    def is_running(self) -> bool:
        return self._child is not None

    def start(self, slots: tuple[str, ...]) -> None:
        """Run job.sh on these slots; where it cannot be started, the task has ended."""
        run = RunDirectory(Path(self._request.directory))
        try:
            self._child = shell.start(
                self._request.command,
                log=run.scheduler_log(self.element),
                env=self._environment(slots),
                cwd=run.path,
                umask=self._request.umask,
                signal_on_our_death=signal.SIGTERM,
            )
        except OSError as error:
            self._end(names.LAUNCH_FAILED, reason=error.strerror or "JobLaunchFailure")
            return
        self._began, self._warned, self._killed, self._orphaned = time.monotonic(), False, False, 0.0
        # None where it has ended already.
        child = processes.identify(self._child.pid)
        self.standing = replace(
            self.standing, state=names.RUNNING, reason="", started=time.time(), slots=slots, child=child
        )

    def wait_because(self, reason: str) -> None:
        if self.standing.reason != reason:
            self.standing = replace(self.standing, reason=reason)

    def cancel(self) -> None:
        """End it for good; a request to requeue no longer counts."""
        if self._child is None:
            self._end(names.CANCELLED)
        elif self._ending != names.CANCELLED:
            self._tell_to_stop(names.CANCELLED, self._child.pid)

    def kill(self) -> None:
        """End it at once."""
        self.cancel()
        self._kill()

    def step(self, release: Callable[[Task], None]) -> None:
        """Look at the clock and at job.sh; do what is due. `release` gives the slots back."""
        if self._child is None:
            return
        status = self._child.poll()
        if status is not None and not self._leaves_agents(status):
            process_tracking.sweep(self._child.pid, self.mark)
            self._child = None
            release(self)
            self._judge(status)
            return
        if status is not None:
            return
        now, limit = time.monotonic(), self._request.time_seconds
        age = now - self._began
        if self._ending and not self._killed and now - self._told >= self._request.kill_wait_seconds:
            self._kill()
        if limit is None or self._ending:
            return
        if age >= limit:
            self._tell_to_stop(names.TIMEOUT, self._child.pid)
        elif not self._warned and self._request.lead_seconds and age >= limit - self._request.lead_seconds:
            self._warned = True
            self._child.send_signal(signal.SIGUSR1)

    def _leaves_agents(self, status: int) -> bool:
        """Whether job.sh was killed and its agents live: they end the ranks, tidy the node and write how it ended."""
        if self._child is None or status >= 0 or self._killed:
            return False
        self._orphaned = self._orphaned or time.monotonic()
        is_late = time.monotonic() - self._orphaned >= self._request.kill_wait_seconds + TIDY_SECONDS
        return not is_late and bool(process_tracking.of_session(self._child.pid))

    def next_moment(self) -> float:
        """Seconds until something is due by the clock; infinite where nothing is."""
        if self._child is None:
            return float("inf")
        if self._orphaned:
            return ORPHAN_PAUSE_SECONDS
        if self._ending:
            return float("inf") if self._killed else self._told + self._request.kill_wait_seconds - time.monotonic()
        limit = self._request.time_seconds
        if limit is None:
            return float("inf")
        due = limit if self._warned or not self._request.lead_seconds else limit - self._request.lead_seconds
        return self._began + due - time.monotonic()

    def _tell_to_stop(self, ending: str, session: int) -> None:
        if self._ending is None:
            self._told = time.monotonic()
        self._ending = ending
        process_tracking.signal_all(session, self.mark, signal.SIGTERM)

    def _kill(self) -> None:
        self._killed = True
        if self._child is not None:
            process_tracking.signal_all(self._child.pid, self.mark, signal.SIGKILL)

    def _judge(self, status: int) -> None:
        code, number = (128 - status, -status) if status < 0 else (status, None)
        # At its limit a job may still say so: it has saved, and was only slow to leave.
        may_requeue = self._request.requeue and self._ending in (None, names.TIMEOUT)
        if status == REQUEUE_STATUS and may_requeue and not self._is_final:
            self._ending = None
            self.queued = time.time()
            self.standing = Standing(restarts=self.standing.restarts + 1)
        elif self._ending:
            self._end(self._ending, exit_code=code, number=number)
        elif status == 0:
            self._end(names.COMPLETED, exit_code=0)
        else:
            self._end(names.FAILED, exit_code=code, number=number, reason="NonZeroExitCode" if number is None else "")

    @property
    def _is_final(self) -> bool:
        """Whether the agent has written the end: then the status is the program's own, and no wish."""
        return RunDirectory(Path(self._request.directory)).element(self.element).exit.exists()

    def _end(self, state: str, *, exit_code: int | None = None, number: int | None = None, reason: str = "") -> None:
        self.standing = replace(
            self.standing,
            state=state,
            reason=reason,
            exit_code=exit_code,
            signal=number,
            ended=time.time(),
            slots=(),
            child=None,
        )

    def _environment(self, slots: tuple[str, ...]) -> dict[str, str]:
        given = {
            **self._inherited,
            names.LOCAL_JOB: self.mark,
            names.JOB: str(self._folder.number),
            names.RESTARTS: str(self.standing.restarts),
        }
        if self._request.time_seconds is not None:
            given[names.JOB_END] = f"{time.time() + self._request.time_seconds:.3f}"
        if self._request.pool != NOTHING:
            # A job that asked for no GPU leaves them alone.
            given[VISIBLE] = ",".join(slots) if self._request.pool == GPU else ""
        return given if self.element is None else {**given, names.ELEMENT: self.key}
