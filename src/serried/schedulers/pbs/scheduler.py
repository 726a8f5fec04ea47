"""PBS: one `qstat` for all runs together, one `qsub` for a submission."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence

from serried import shell
from serried.errors import SchedulerUnreachable, SubmissionRefused, SubmissionUncertain
from serried.fs import files
from serried.plan import Plan
from serried.protocol.environment import scrub
from serried.protocol.reasons import Reason
from serried.protocol.successor_commands import Commands
from serried.schedulers.cache import Cache
from serried.schedulers.client import Calls
from serried.schedulers.interface import Job, Submission
from serried.schedulers.job_name import names_token
from serried.schedulers.pbs import options, parse, reasons

MANY = 1000
"""Jobs that are asked about at once. `-E` has `qstat` open one connection for all of them: without it, it opens one for
each, from a privileged port, of which there are few, and waits (20 s with 150 jobs)."""
VERSION = "pbs_version"
"""What `qstat --version` begins with in OpenPBS and PBS Professional, and in nothing else that has a `qstat`."""

UNKNOWN_JOB = 153
HAS_FINISHED = 35
UNREACHABLE = (162, 255)
"""Exit statuses: the low byte of PBS's own error numbers (src/include/pbs_error.h)."""
GONE = (0, UNKNOWN_JOB, HAS_FINISHED)
_GONE = re.compile(r"Unknown Job Id|Job has finished|Request invalid for state of job")
"""What `qdel` says of jobs that have ended, are ending, or never were."""


class Pbs:
    name = "pbs"

    def __init__(self, *, timeout: float | None = None, cache: Cache | None = None) -> None:
        self._run = Calls(timeout)
        self._is_pbs = False
        self._cache = cache or Cache.of("pbs", os.environ.get("PBS_SERVER", ""), os.uname().nodename)

    @property
    def calls(self) -> Mapping[str, int]:
        return self._run.counts

    def submission(
        self,
        plan: Plan,
        token: str,
        environment: Mapping[str, str],
        *,
        after: str = "",
        element: str = "",
        held: bool = False,
    ) -> Submission:
        return options.submission(plan, token, environment, after=after, element=element, held=held)

    def commands(self, plan: Plan, environment: Mapping[str, str]) -> Commands:  # noqa: ARG002 - all is in the file
        return options.commands(plan)

    def interactive(
        self,
        plan: Plan,
        token: str,
        environment: Mapping[str, str],
        *,
        now: bool,  # noqa: ARG002 - `qsub` cannot be asked that
        has_terminal: bool,
    ) -> Submission:
        return options.interactive(plan, token, environment, has_terminal=has_terminal)

    def join(self, job: str, host: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:  # noqa: ARG002 - the host tells
        # PBS starts nothing in a job from outside of it.
        return ("ssh", *(("-t",) if has_terminal else ()), host, shlex.join(words))

    def errand(self, plan: Plan, host: str, words: Sequence[str]) -> tuple[str, ...]:
        return options.errand(plan, host, words)

    def submit(self, submission: Submission) -> str:
        if submission.handover is None:
            raise ValueError("PBS shows a job's variables to everybody: they need a file")
        self._check_version()
        is_shared = submission.handover.exists()  # by an earlier job of the run, which still needs it
        files.make_directory(submission.handover.parent)
        files.write_environment(submission.handover, submission.environment)
        result = self._run.deliver(submission.argv, scrub(os.environ), submission.umask)
        job = parse.submitted_id(result.stdout)
        if job is not None:
            return job
        failure = _failure(result)
        if not is_shared and not isinstance(failure, SubmissionUncertain):
            with contextlib.suppress(OSError):
                submission.handover.unlink()
        raise failure

    def find(self, token: str, since: float | None = None) -> str | None:
        # A minute more, for clocks that differ.
        window = () if since is None else (time.strftime("-tc.ge.%Y%m%d%H%M", time.localtime(since - 60)),)
        mine = self._query(("qselect", "-x", "-u", _user(), *window))
        if mine.status:
            raise SchedulerUnreachable("PBS does not answer `qselect`", details=mine.stderr)
        newest_first = mine.stdout.split()[::-1]
        pairs = parse.named(self._qstat(newest_first))
        return next((job for job, name in pairs if names_token(name, token)), None)

    def poll(self, ids: Sequence[str], since: float | None = None) -> Mapping[tuple[str, int | None], Job]:  # noqa: ARG002
        if not ids:
            return {}
        arrays = sorted({parse.split(job)[0] for job in ids})
        answer = self._cache.get()
        if answer is not None and set(arrays) <= set(answer.asked):
            return _only(ids, parse.jobs(answer.texts["qstat"]))
        start = time.monotonic()
        text = self._qstat(arrays)
        if before := parse.awaited(text):
            text += self._qstat(sorted(before))
        self._cache.put(arrays, {"qstat": text}, time.monotonic() - start)
        return _only(ids, parse.jobs(text))

    def cancel(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        self._cache.forget()
        result = self._query(("qdel", *ids))
        if result.status and not _only_gone(result.stderr):
            raise SchedulerUnreachable("`qdel` failed; the jobs may still run", details=result.stderr)

    def release(self, ids: Sequence[str]) -> None:
        self._cache.forget()
        result = self._query(("qrls", *ids))
        if result.status and not _only_gone(result.stderr):
            raise SchedulerUnreachable("`qrls` failed; the jobs are still held", details=result.stderr)

    def explain(self, reason: str) -> str:
        return reasons.explain(reason)

    def classify(self, reason: str) -> Reason | None:
        return reasons.classify(reason)

    def _check_version(self) -> None:
        """Torque and Slurm's wrappers have commands of the same names. Raises SubmissionRefused."""
        if self._is_pbs or shell.which("qstat") is None:
            return
        said = self._query(("qstat", "--version"))
        self._is_pbs = VERSION in said.stdout + said.stderr
        if not self._is_pbs:
            raise SubmissionRefused(
                "`qstat` here belongs to Torque or to Slurm's wrappers; Serried supports OpenPBS and PBS Professional",
                details=said.stdout.strip() or said.stderr.strip() or None,
                hint="on Slurm: `--cluster slurm`; within a job of Torque: `serried run --cluster local`, on one node",
            )

    def _qstat(self, ids: Sequence[str]) -> str:
        """All about these jobs and their elements, ended ones included. One that is unknown fails the call only."""
        said = []
        for start in range(0, len(ids), MANY):
            result = self._query(("qstat", "-E", "-x", "-t", "-f", "-w", *ids[start : start + MANY]))
            if result.status not in GONE:
                raise SchedulerUnreachable("PBS does not answer `qstat`", details=result.stderr)
            said.append(result.stdout)
        return "".join(said)

    def _query(self, argv: Sequence[str]) -> shell.Result:
        return self._run.ask(argv, {**scrub(os.environ), "LC_ALL": "C"})


SCHEDULER = Pbs


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _failure(result: shell.Result) -> Exception:
    """PBS says no in the foreground (`-f`): any status but that of a server that is away is a refusal."""
    details = result.stderr.strip() or result.stdout.strip() or None
    if result.status in UNREACHABLE:
        return SchedulerUnreachable(
            "the PBS server cannot be reached; nothing was submitted",
            details=details,
            hint="submit again when `qstat` answers here",
        )
    if result.status > 0:
        return SubmissionRefused("PBS refused the job", details=details)
    return SubmissionUncertain("`qsub` did not say whether it submitted the job", details=details)


def _only_gone(stderr: str) -> bool:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return bool(lines) and all(_GONE.search(line) for line in lines)


def _only(ids: Sequence[str], jobs: Sequence[Job]) -> dict[tuple[str, int | None], Job]:
    asked = {parse.split(job) for job in ids}
    return {(job.id, job.element): job for job in jobs if {(job.id, job.element), (job.id, None)} & asked}
