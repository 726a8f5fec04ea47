"""Slurm, from 20.11 on: at most one `squeue` and one `sacct` for all runs together, one `sbatch` for a submission."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence

from serried import shell
from serried.errors import (
    MissingProgramError,
    SchedulerUnreachable,
    SubmissionRefused,
    SubmissionUncertain,
)
from serried.plan import Plan
from serried.protocol.environment import CHOSEN_CLUSTER, scrub
from serried.protocol.reasons import Reason
from serried.protocol.successor_commands import Commands
from serried.schedulers.cache import Cache
from serried.schedulers.client import Calls
from serried.schedulers.interface import Job, Submission
from serried.schedulers.job_name import names_token
from serried.schedulers.slurm import options, parse, reasons
from serried.schedulers.slurm.submit_outcome import Outcome, classify

ACCOUNT_SECONDS = 30 * 24 * 3600
"""How far back `sacct` looks at most: job ids wrap, and a wide window is refused by some sites."""

_NO_ACCOUNTS = re.compile(r"accounting storage is disabled", re.IGNORECASE)


class Slurm:
    name = "slurm"

    def __init__(self, *, timeout: float | None = None, cache: Cache | None = None) -> None:
        self._run = Calls(timeout)
        self._cache = cache or Cache.of("slurm", os.environ.get("SLURM_CONF", ""), os.uname().nodename)

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

    def commands(self, plan: Plan, environment: Mapping[str, str]) -> Commands:
        return options.commands(plan, environment)

    def interactive(
        self, plan: Plan, token: str, environment: Mapping[str, str], *, now: bool, has_terminal: bool
    ) -> Submission:
        return options.interactive(plan, token, environment, now=now, has_terminal=has_terminal)

    def join(self, job: str, host: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:
        return options.join(job, host, words, has_terminal=has_terminal)

    def errand(self, plan: Plan, host: str, words: Sequence[str]) -> tuple[str, ...]:
        return options.errand(plan, host, words)

    def submit(self, submission: Submission) -> str:
        environment = dict(submission.environment)
        if CHOSEN_CLUSTER in os.environ:
            environment.setdefault(CHOSEN_CLUSTER, os.environ[CHOSEN_CLUSTER])
        result = self._run.deliver(submission.argv, environment, submission.umask)
        job = parse.submitted_id(result.stdout)
        if job is not None:
            return job
        raise _failure(result)

    def find(self, token: str, since: float | None = None) -> str | None:
        queue = self._squeue(parse.NAME_FORMAT)
        for job, name in parse.named(queue):
            if names_token(name, token):
                return job
        accounts = self._sacct(("JobID", "JobName"), since)
        if accounts is None:
            raise SchedulerUnreachable("`sacct` does not answer, so nobody knows whether the job was accepted")
        ids = [job for job, name in parse.named(accounts) if names_token(name, token)]
        return ids[-1] if ids else None

    def poll(self, ids: Sequence[str], since: float | None = None) -> Mapping[tuple[str, int | None], Job]:
        if not ids:
            return {}
        answer = self._cache.get()
        if answer is not None:
            jobs = _read(answer.texts)
            if not set(_uncovered(ids, jobs)).difference(answer.asked):
                return _only(ids, jobs)
        return _only(ids, self._ask(ids, since))

    def cancel(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        self._cache.forget()
        result = self._query(("scancel", *ids))
        if result.status and classify(result.stderr) is Outcome.UNREACHABLE:
            raise SchedulerUnreachable(
                "Slurm's controller does not answer; nothing was cancelled", details=result.stderr
            )
        if result.status and not _only_gone(result.stderr):
            raise SchedulerUnreachable("`scancel` failed; the jobs may still run", details=result.stderr)

    def release(self, ids: Sequence[str]) -> None:
        self._cache.forget()
        result = self._query(("scontrol", "release", ",".join(ids)))
        if result.status and not _only_begun(result.stderr):
            raise SchedulerUnreachable("`scontrol release` failed; the jobs are still held", details=result.stderr)

    def explain(self, reason: str) -> str:
        return reasons.explain(reason)

    def classify(self, reason: str) -> Reason | None:
        return reasons.classify(reason)

    def _ask(self, ids: Sequence[str], since: float | None) -> dict[tuple[str, int | None], Job]:
        start = time.monotonic()
        texts = {"squeue": self._squeue(parse.JOB_FORMAT)}
        jobs = _read(texts)
        forgotten = _uncovered(ids, jobs)
        if forgotten:
            texts["sacct"] = self._sacct(parse.ACCOUNT_FIELDS, since, forgotten) or ""
        self._cache.put(ids, texts, time.monotonic() - start)
        return _read(texts)

    def _squeue(self, fields: str) -> str:
        # By user, not by id: one id that squeue has forgotten would make it fail for all.
        result = self._query(("squeue", "--noheader", f"--user={os.getuid()}", "--states=all", f"--Format={fields}"))
        if result.status:
            raise SchedulerUnreachable("Slurm's controller does not answer `squeue`", details=result.stderr)
        if result.stdout.strip() and parse.SEPARATOR not in result.stdout:
            # Unread, every job would look forgotten.
            raise SchedulerUnreachable("this `squeue` cannot divide its fields; Slurm 20.11 or later is needed")
        return result.stdout

    def _sacct(self, fields: Sequence[str], since: float | None, ids: Sequence[str] = ()) -> str | None:
        """What the accounts say: nothing where there are none; None where they cannot be read now."""
        # A minute more, for clocks that differ. Relative, so that no time zone comes between us.
        window = ACCOUNT_SECONDS if since is None else min(max(int(time.time() - since), 0) + 60, ACCOUNT_SECONDS)
        jobs = [f"--jobs={','.join(ids)}"] if ids else []
        argv = [
            "sacct",
            "--allocations",
            "--parsable2",
            "--noheader",
            f"--delimiter={parse.SEPARATOR}",
            f"--user={os.getuid()}",
            f"--starttime=now-{window}seconds",
            f"--format={','.join(fields)}",
            *jobs,
        ]
        try:
            result = self._query(argv)
        except (MissingProgramError, SchedulerUnreachable) as error:
            return "" if isinstance(error, MissingProgramError) else None
        if result.status:
            return "" if _NO_ACCOUNTS.search(result.stderr) else None
        return result.stdout

    def _query(self, argv: Sequence[str]) -> shell.Result:
        return self._run.ask(argv, _query_environment())


SCHEDULER = Slurm


def _query_environment() -> dict[str, str]:
    """Ours, so that the user's own formats do not change what we parse."""
    return {
        **scrub(os.environ),
        "LC_ALL": "C",
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_BITSTR_LEN": "0",
    }


def _failure(result: shell.Result) -> Exception:
    outcome = classify(result.stderr) if result.status > 0 else Outcome.UNCERTAIN
    details = result.stderr.strip() or result.stdout.strip() or None
    if outcome is Outcome.REFUSED:
        return SubmissionRefused("Slurm refused the job", details=details)
    if outcome is Outcome.UNREACHABLE:
        return SchedulerUnreachable(
            "Slurm's controller cannot be reached; nothing was submitted",
            details=details,
            hint="submit again when `sinfo` answers here",
        )
    return SubmissionUncertain("`sbatch` did not say whether it submitted the job", details=details)


def _read(texts: Mapping[str, str]) -> dict[tuple[str, int | None], Job]:
    """Both answers as one; what squeue says counts, for sacct lags behind."""
    rows = [*parse.accounting(texts.get("sacct", "")), *parse.queue(texts.get("squeue", ""))]
    return {(job.id, job.element): job for job in rows}


def _key(job: str) -> tuple[str, int | None]:
    number, _, element = job.partition("_")
    return number, int(element) if element else None


def _uncovered(ids: Sequence[str], jobs: Mapping[tuple[str, int | None], Job]) -> list[str]:
    """The ids that `jobs` says nothing about."""
    numbers = {number for number, _ in jobs}
    return [job for job in ids if (job not in numbers if job.isdecimal() else _key(job) not in jobs)]


def _only(ids: Sequence[str], jobs: Mapping[tuple[str, int | None], Job]) -> dict[tuple[str, int | None], Job]:
    asked = {_key(job) for job in ids}
    return {key: job for key, job in jobs.items() if key in asked or (key[0], None) in asked}


_GONE = re.compile(r"Invalid job id|already completing or completed|Job/step already|Invalid job array")
_BEGUN = re.compile(rf"{_GONE.pattern}|no longer pending execution|Job has already finished|: No error$")
"""Where elements of an array fare differently, `scontrol` has a line for each fate, that of the released ones too."""


def _only_gone(stderr: str) -> bool:
    """Whether scancel complained of nothing but jobs that have ended."""
    return all(_GONE.search(line) for line in stderr.splitlines() if line.strip())


def _only_begun(stderr: str) -> bool:
    """Whether `scontrol release` complained of nothing but jobs that have begun or ended."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return bool(lines) and all(_BEGUN.search(line) for line in lines)
