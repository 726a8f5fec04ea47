"""PBS: one `qstat` for all runs together, one `qsub` for a submission."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence

from serried.base import files, processes, shell
from serried.base.errors import SubmissionRefused, SubmissionUncertain
from serried.schedulers import scrub
from serried.schedulers.client import CommandScheduler, JobKey, SubmitOutcome
from serried.schedulers.interface import Job, SubmitCommand, names_token
from serried.schedulers.pbs import options, parse
from serried.schema import successor_commands
from serried.schema.plan import Plan

MANY = 1000
"""Jobs in one query. With `-E`, `qstat` opens one connection for all jobs. Without, it opens one for each, from a
privileged port; there are few of these, so it waits (20 s with 150 jobs)."""
VERSION = "pbs_version"
"""The first word of `qstat --version` in OpenPBS and PBS Professional, and in no other system with a `qstat`."""

UNKNOWN_JOB = 153
HAS_FINISHED = 35
UNREACHABLE = (162, 255)
"""Exit statuses: the low byte of PBS's own error numbers (src/include/pbs_error.h)."""
GONE = (0, UNKNOWN_JOB, HAS_FINISHED)


class Pbs(CommandScheduler):
    name = "pbs"
    title = "PBS"
    server = "the PBS server"
    identity = "PBS_SERVER"
    survey = "qstat"
    cancel_command = ("qdel",)
    release_command = ("qrls",)
    id_pattern = r"^(\d+(?:\[\])?\.[\w.-]+)$"
    gone = begun = re.compile(r"Unknown Job Id|Job has finished|Request invalid for state of job")
    reasons = parse.REASONS
    strands = True
    _is_pbs = False

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
        self,
        plan: Plan,
        token: str,
        environment: Mapping[str, str],
        *,
        now: bool,  # noqa: ARG002 - `qsub` cannot be asked that
        has_terminal: bool,
    ) -> SubmitCommand:
        return options.interactive(plan, token, environment, has_terminal=has_terminal)

    def join(self, job: str, host: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:  # noqa: ARG002 - the host tells
        # PBS starts nothing in a job from outside of it.
        return ("ssh", *(("-t",) if has_terminal else ()), host, shlex.join(words))

    def errand(self, plan: Plan, host: str, words: Sequence[str]) -> tuple[str, ...]:
        return options.errand(plan, host, words)

    def submit(self, submission: SubmitCommand) -> str:
        if submission.handover is None:
            raise ValueError("PBS shows a job's variables to everybody: they need a file")
        self._check_version()
        is_shared = submission.handover.exists()  # by an earlier job of the run, which still needs it
        files.make_directory(submission.handover.parent)
        files.write_environment(submission.handover, submission.environment)
        result = self.deliver(submission.argv, scrub(os.environ), submission.umask)
        job = successor_commands.new_id(result.stdout, self.id_pattern)
        if job is not None:
            return job
        failure = self.failure("qsub", result)
        if not is_shared and not isinstance(failure, SubmissionUncertain):
            with contextlib.suppress(OSError):
                submission.handover.unlink()
        raise failure

    def find(self, token: str, since: float | None = None) -> str | None:
        # A minute more, for clocks that differ.
        window = () if since is None else (time.strftime("-tc.ge.%Y%m%d%H%M", time.localtime(since - 60)),)
        newest_first = self.answer(("qselect", "-x", "-u", processes.user(), *window)).split()[::-1]
        pairs = parse.named(self._qstat(newest_first))
        return next((job for job, name in pairs if names_token(name, token)), None)

    def outcome(self, result: shell.Result) -> SubmitOutcome:
        """PBS refuses in the foreground (`-f`): any status but that of an absent server is a refusal."""
        if result.status in UNREACHABLE:
            return SubmitOutcome.UNREACHABLE
        return SubmitOutcome.REFUSED if result.status > 0 else SubmitOutcome.UNCERTAIN

    def ask(self, ids: Sequence[str], since: float | None) -> dict[str, str]:  # noqa: ARG002 - the ids are enough
        text = self._qstat(sorted({parse.split(job)[0] for job in ids}))
        if before := parse.awaited(text):
            text += self._qstat(sorted(before))
        return {"qstat": text}

    def read(self, texts: Mapping[str, str]) -> dict[JobKey, Job]:
        return {(job.id, job.task): job for job in parse.jobs(texts["qstat"])}

    def split(self, job: str) -> JobKey:
        return parse.split(job)

    def _check_version(self) -> None:
        """Torque and Slurm's wrappers have commands of the same names. Raises SubmissionRefused."""
        if self._is_pbs or shell.which("qstat") is None:
            return
        version = self.query(("qstat", "--version"))
        self._is_pbs = VERSION in version.stdout + version.stderr
        if not self._is_pbs:
            raise SubmissionRefused(
                "`qstat` here belongs to Torque or to Slurm's wrappers; Serried supports OpenPBS and PBS Professional",
                details=version.stdout.strip() or version.stderr.strip() or None,
                hint="on Slurm: `--cluster slurm`; within a job of Torque: `serried run --cluster local`, on one node",
            )

    def _qstat(self, ids: Sequence[str]) -> str:
        """All attributes of these jobs and their tasks, ended ones included. An unknown job only changes the status."""
        parts = (ids[start : start + MANY] for start in range(0, len(ids), MANY))
        return "".join(self.answer(("qstat", "-E", "-x", "-t", "-f", "-w", *part), GONE) for part in parts)

    def query_environment(self) -> dict[str, str]:
        return {**scrub(os.environ), "LC_ALL": "C"}


SCHEDULER = Pbs
