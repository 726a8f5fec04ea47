"""Slurm, from 20.11 on: at most one `squeue` and one `sacct` for all runs together, one `sbatch` for a submission."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence

from serried.base import shell
from serried.base.errors import MissingProgramError, SchedulerUnreachable
from serried.schedulers import scrub
from serried.schedulers.client import CommandScheduler, JobKey, SubmitOutcome
from serried.schedulers.interface import Job, SubmitCommand, names_token
from serried.schedulers.slurm import options, parse
from serried.schema import successor_commands
from serried.schema.plan import Plan

ACCOUNT_SECONDS = 30 * 24 * 3600
"""How far back `sacct` looks at most: job ids wrap, and some sites refuse a wide window."""

_NO_ACCOUNTS = re.compile(r"accounting storage is disabled", re.IGNORECASE)
_GONE = r"Invalid job id|already completing or completed|Job/step already|Invalid job array"


class Slurm(CommandScheduler):
    name = "slurm"
    title = "Slurm"
    server = "Slurm's controller"
    identity = "SLURM_CONF"
    survey = "sinfo"
    cancel_command = ("scancel",)
    release_command = ("scontrol", "release")
    id_pattern = r"^(\d+)(?:;[\w.-]+)?$"
    gone = re.compile(rf"^$|{_GONE}")
    # If tasks of an array fare differently, `scontrol` has a line for each fate, also for that of released ones.
    begun = re.compile(rf"{_GONE}|no longer pending execution|Job has already finished|: No error$")
    reasons = parse.REASONS
    job_changes = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "TMPDIR")

    def submission(
        self,
        plan: Plan,
        token: str,
        environment: Mapping[str, str],
        *,
        after: str = "",
        task: str = "",
        held: bool = False,
    ) -> SubmitCommand:
        return options.submission(plan, token, environment, after=after, task=task, held=held)

    def interactive(
        self, plan: Plan, token: str, environment: Mapping[str, str], *, now: bool, has_terminal: bool
    ) -> SubmitCommand:
        return options.interactive(plan, token, environment, now=now, has_terminal=has_terminal)

    def join(self, job: str, host: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:
        return options.join(job, host, words, has_terminal=has_terminal)

    def errand(self, plan: Plan, host: str, words: Sequence[str]) -> tuple[str, ...]:
        return options.errand(plan, host, words)

    def submit(self, submission: SubmitCommand) -> str:
        environment = dict(submission.environment)
        if self.identity in os.environ:
            environment.setdefault(self.identity, os.environ[self.identity])
        result = self.deliver(submission.argv, environment, submission.umask)
        job = successor_commands.new_id(result.stdout, self.id_pattern)
        if job is None:
            raise self.failure("sbatch", result)
        return job

    def outcome(self, result: shell.Result) -> SubmitOutcome:
        return parse.submit_outcome(result.stderr) if result.status > 0 else SubmitOutcome.UNCERTAIN

    def find(self, token: str, since: float | None = None) -> str | None:
        for job, name in parse.named(self._squeue(parse.NAME_FORMAT)):
            if any(names_token(text, token) for text in name.split(parse.SEPARATOR)):
                return job
        accounts = self._sacct(("JobID", "JobName"), since)
        if accounts is None:
            raise SchedulerUnreachable("`sacct` does not answer; the job may or may not have been accepted")
        ids = [job for job, name in parse.named(accounts) if names_token(name, token)]
        return ids[-1] if ids else None

    def release(self, ids: Sequence[str]) -> None:
        super().release([",".join(ids)])

    def reason_word(self, reason: str) -> str:
        return reason.strip().strip("()").replace(" ", "_").rstrip("_") or "None"

    def ask(self, ids: Sequence[str], since: float | None) -> dict[str, str]:
        texts = {"squeue": self._squeue(parse.JOB_FORMAT)}
        if forgotten := self.uncovered(ids, self.jobs_in(texts)):
            texts["sacct"] = self._sacct(parse.ACCOUNT_FIELDS, since, forgotten) or ""
        return texts

    def read(self, texts: Mapping[str, str]) -> dict[JobKey, Job]:
        """Both answers as one; squeue's counts, because sacct lags behind."""
        rows = [*parse.accounting(texts.get("sacct", "")), *parse.queue(texts.get("squeue", ""))]
        return {(job.id, job.task): job for job in rows}

    def split(self, job: str) -> JobKey:
        number, _, task = job.partition("_")
        return number, int(task) if task else None

    def _squeue(self, fields: str) -> str:
        # By user, not by id: one id that squeue has forgotten would make it fail for all.
        listed = self.answer(("squeue", "--noheader", f"--user={os.getuid()}", "--states=all", f"--Format={fields}"))
        if listed.strip() and parse.SEPARATOR not in listed:
            # Unread, every job would look forgotten.
            raise SchedulerUnreachable("this `squeue` cannot divide its fields; Slurm 20.11 or later is needed")
        return listed

    def _sacct(self, fields: Sequence[str], since: float | None, ids: Sequence[str] = ()) -> str | None:
        """The jobs in the accounting database; empty without accounting, None if it cannot be read now."""
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
            result = self.query(argv)
        except (MissingProgramError, SchedulerUnreachable) as error:
            return "" if isinstance(error, MissingProgramError) else None
        if result.status:
            return "" if _NO_ACCOUNTS.search(result.stderr) else None
        return result.stdout

    def query_environment(self) -> dict[str, str]:
        """Ours, without the user's own formats."""
        return {**scrub(os.environ), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


SCHEDULER = Slurm
