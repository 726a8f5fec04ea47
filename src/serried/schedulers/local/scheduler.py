"""This machine as a cluster of one node: limits, warnings, requeue, arrays and a queue, without a daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from serried import processes, shell
from serried.clusters.machine import VISIBLE
from serried.errors import SubmissionRefused, SubmissionUncertain
from serried.fs.files import MODES
from serried.plan import Plan
from serried.processes import Process
from serried.protocol import successor_commands
from serried.protocol.environment import scrub
from serried.protocol.reasons import Reason
from serried.protocol.successor_commands import Commands
from serried.schedulers.interface import Job, Submission
from serried.schedulers.job_name import names_token
from serried.schedulers.local import argv, machine, process_tracking, slots, state
from serried.schedulers.local.state import WHOLE, JobFolder

START_TIMEOUT_SECONDS = 60.0

REASONS = {
    "Priority": "other jobs are ahead of it in this machine's queue",
    "Resources": "it is next in line; the slots it asks for are in use",
    "Dependency": "it waits for another job to end",
    "JobArrayTaskLimit": "as many tasks run as `--parallel` allows",
    "NonZeroExitCode": "its script ended with a non-zero exit code",
    state.SUPERVISOR_GONE: "the process that looked after it is gone: it was killed, or the machine restarted",
    "": "it has only just been queued",
}

CODES = {
    "Dependency": Reason.DEPENDENCY,
    **dict.fromkeys(("Resources", "Priority", "JobArrayTaskLimit", ""), Reason.QUEUED),
}


class Local:
    name = "local"

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    @property
    def calls(self) -> Mapping[str, int]:
        return self._calls

    def submission(
        self,
        plan: Plan,
        token: str,
        environment: Mapping[str, str],
        *,
        after: str = "",
        element: str = "",
        held: bool = False,  # noqa: ARG002 - no array is too large
    ) -> Submission:
        request = argv.of_plan(plan, token, after=after, element=element)
        return Submission(request.argv(), scrub(environment), umask=MODES[plan.share].umask)

    def commands(self, plan: Plan, environment: Mapping[str, str]) -> Commands:  # noqa: ARG002 - a job keeps the rest
        element = successor_commands.ELEMENT if plan.array else ""
        return Commands(
            submit=self.submission(
                plan, successor_commands.TOKEN, {}, after=successor_commands.JOB, element=element
            ).argv,
            cancel=(*argv.COMMAND, "cancel", successor_commands.JOB),
            ask=(*argv.COMMAND, "ask", successor_commands.JOB),
            # A job sees its own GPUs alone.
            environment={VISIBLE: os.environ.get(VISIBLE)},
        )

    def interactive(
        self,
        plan: Plan,
        token: str,
        environment: Mapping[str, str],
        *,
        now: bool,  # noqa: ARG002 - it never waits
        has_terminal: bool,  # noqa: ARG002 - it has ours
    ) -> Submission:
        """It takes no slots: who sits in front of it is the queue."""
        return Submission(("/bin/bash", f"{plan.directory}/job.sh", token), scrub(environment))

    def join(self, job: str, host: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:  # noqa: ARG002 - here is all there is
        return tuple(words)

    def errand(self, plan: Plan, host: str, words: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002 - here is all there is
        return tuple(words)

    def submit(self, submission: Submission) -> str:
        environment = dict(submission.environment)
        environment |= machine.settings()
        root = machine.root()
        known = {folder.number for folder in state.folders(root)}
        log = root / f"supervisor-{os.getpid()}-{time.monotonic_ns()}.log"
        self._calls["supervisor"] += 1
        pid = shell.spawn(submission.argv, log=log, env=environment, cwd=Path("/"), umask=submission.umask)
        try:
            return _await_job(root, known, pid, log)
        finally:
            with contextlib.suppress(OSError):
                log.unlink()

    def find(self, token: str, since: float | None = None) -> str | None:  # noqa: ARG002 - we forget nothing so soon
        for folder in reversed(state.folders(machine.root())):
            about = folder.about
            if about and not about["refused"] and names_token(about["name"], token):
                return str(folder.number)
        return None

    def poll(self, ids: Sequence[str], since: float | None = None) -> Mapping[tuple[str, int | None], Job]:  # noqa: ARG002
        answer: dict[tuple[str, int | None], Job] = {}
        asked = set(ids)
        for number in {job.partition("_")[0] for job in asked}:
            for job in _folder(number).jobs():
                if number in asked or f"{number}_{job.element}" in asked:
                    answer[job.id, job.element] = job
        if any(job.reason == state.SUPERVISOR_GONE for job in answer.values()):
            _tidy()
        return answer

    def cancel(self, ids: Sequence[str]) -> None:
        for job in ids:
            number, _, element = job.partition("_")
            _cancel(_folder(number), element or WHOLE)

    def release(self, ids: Sequence[str]) -> None:
        """Nothing is held: no array is too large for this queue."""

    def explain(self, reason: str) -> str:
        return REASONS.get(reason, f"this machine's queue says `{reason}`")

    def classify(self, reason: str) -> Reason | None:
        return CODES.get(reason)


SCHEDULER = Local


def _folder(number: str) -> JobFolder:
    return JobFolder(machine.root() / "jobs" / number)


def _tidy() -> None:
    """Do what a supervisor that was killed could not: give back its slots, sweep what its job left behind."""
    with slots.locked(machine.root()):
        pass


def _await_job(root: Path, known: set[int], pid: int, log: Path) -> str:
    """The id of the job that the supervisor `pid` has made."""
    identity = processes.identify(pid)
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        # In this order: who is gone by now had said all it would say before we looked.
        is_alive = identity is not None and identity.is_alive
        for folder in state.folders(root):
            about = None if folder.number in known else folder.about
            if about and about["supervisor"]["pid"] == pid:
                if about["refused"]:
                    raise SubmissionRefused(f"this machine cannot run the job: {about['refused']}")
                return str(folder.number)
        if not is_alive:
            raise SubmissionRefused("the job's supervisor could not start", details=_text(log))
        time.sleep(0.005)
    raise SubmissionUncertain("the job's supervisor does not answer; the job may start yet", details=_text(log))


def _text(log: Path) -> str | None:
    try:
        return log.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _cancel(folder: JobFolder, element: str) -> None:
    about = folder.about
    if about is None:
        return
    folder.ask_to_cancel(element)
    supervisor = Process(**about["supervisor"])
    if supervisor.is_alive:
        if about["hears_signals"]:
            supervisor.send(signal.SIGUSR1)
        return
    for key, standing in folder.standings().items():
        if key in (element, WHOLE) or element == WHOLE:
            child = standing.child
            if child is not None and child.is_alive:
                mark = process_tracking.mark_of(folder.root, folder.number, state.element_of(key))
                process_tracking.signal_all(child.pid, mark, signal.SIGTERM)
