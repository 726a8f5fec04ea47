"""Schedulers with commands of their own: how commands are started and counted, and answers shared for a few seconds.

An answer serves until it is `max(3 s, 20 x the time that it took)` old, and no longer than a minute: a slow controller
gets fewer questions. Our own processes share the last answer by one small file. The last writer wins; a torn or foreign
file is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Optional

from serried import schedulers
from serried.base import NamedTuple, files, shell
from serried.base.errors import (
    MissingProgramError,
    SchedulerUnreachable,
    SerriedError,
    SubmissionRefused,
    SubmissionUncertain,
    UsageError,
)
from serried.schedulers.interface import Job, Scheduler, WaitReasons
from serried.schema import successor_commands
from serried.schema.layout import state_directory
from serried.schema.plan import Plan
from serried.schema.reasons import Reason
from serried.schema.successor_commands import Commands

SHORTEST_SECONDS = 3.0
TIMES_AS_LONG = 20.0
LONGEST_SECONDS = 60.0

SUBMIT_SECONDS = 60.0
QUERY_SECONDS = 45.0
"""A client of Slurm gives up by itself after 10 s (18 s for two tries). Less than 30 s would cut off slow answers."""

VARIABLE = "SERRIED_SCHEDULER_TIMEOUT"

JobKey = tuple[str, Optional[int]]
"""The scheduler's id of a job, and the index of its task."""


class Answer(NamedTuple):
    """Output of the scheduler's commands, and the ids in the question."""

    at: float
    took: float
    asked: tuple[str, ...]
    texts: Mapping[str, str]


class Cache:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, *identity: str) -> Cache:
        """The cache of one scheduler. `identity` tells it from any other that shares this home."""
        key = hashlib.sha256("\0".join(identity).encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return cls(state_directory(os.environ) / "cache" / f"{key}.json")

    def get(self, now: float | None = None) -> Answer | None:
        """The cached answer, if it is recent enough."""
        if (answer := self.last()) is None:
            return None
        age = (time.time() if now is None else now) - answer.at
        return answer if 0 <= age < max(SHORTEST_SECONDS, min(TIMES_AS_LONG * answer.took, LONGEST_SECONDS)) else None

    def last(self) -> Answer | None:
        try:
            value = files.read_json(self.path) or {}
            return Answer(float(value["at"]), float(value["took"]), tuple(value["asked"]), dict(value["texts"]))
        except (KeyError, TypeError, ValueError):
            return None

    def put(self, asked: Sequence[str], texts: Mapping[str, str], took: float, now: float | None = None) -> None:
        """Share an answer. If that cannot be written (a full home), each process asks for itself."""
        value = {"at": time.time() if now is None else now, "took": took, "asked": list(asked), "texts": dict(texts)}
        with contextlib.suppress(OSError):
            files.make_directory(self.path.parent)
            files.write_bytes(self.path, files.text_of(value).encode(), durable=False)

    def forget(self) -> None:
        """After we have changed something."""
        with contextlib.suppress(OSError):
            self.path.unlink()


class SubmitOutcome(Enum):
    """Whether a job exists after a command that failed."""

    REFUSED = "refused"
    """The scheduler read the request and refused it: no job exists."""
    UNREACHABLE = "unreachable"
    """The request was not delivered: no job exists."""
    UNCERTAIN = "uncertain"
    """A job may exist."""


class CommandScheduler(Scheduler):
    """What Slurm and PBS have in common. A subclass holds its commands, its words and what differs."""

    title: str
    server: str
    """The part that answers its commands, in messages."""
    identity: str
    """The variable that selects one of several clusters."""
    survey: str
    """A command that answers if the server is up."""
    cancel_command: tuple[str, ...]
    release_command: tuple[str, ...]
    id_pattern: str
    """Matches the line of a submission's output that is the new id, its only group."""
    gone: re.Pattern[str]
    """Complaints of `cancel_command` about jobs that have ended; each line of stderr, or the empty one, must match."""
    begun: re.Pattern[str]
    """The same for `release_command` and jobs that are not held."""
    job_changes: tuple[str, ...] = ()
    """Variables that the scheduler sets in a job to values of that job alone."""
    strands = False
    reasons: WaitReasons

    def __init__(self, *, timeout: float | None = None, cache: Cache | None = None) -> None:
        self._timeout = timeout or timeout_setting()
        self._counts: Counter[str] = Counter()
        self._parsed: tuple[Mapping[str, str], dict[JobKey, Job]] | None = None
        self._cache = cache or Cache.of(self.name, os.environ.get(self.identity, ""), os.uname().nodename)

    @property
    def calls(self) -> Mapping[str, int]:
        return self._counts

    def commands(self, plan: Plan, environment: Mapping[str, str]) -> Commands:
        job, task = successor_commands.JOB, successor_commands.TASK if plan.array else ""
        return Commands(
            submit=self.submission(plan, successor_commands.TOKEN, {}, after=job, task=task).argv,
            cancel=(*self.cancel_command, job),
            ask=successor_commands.query(schedulers.traits(self.name).dialect.state_query, job),
            environment={name: environment.get(name) for name in self.job_changes},
            id_pattern=self.id_pattern,
            strands=self.strands,
            exclude=self.excluding(plan),
        )

    def excluding(self, plan: Plan) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def poll(self, ids: Sequence[str], since: float | None = None) -> Mapping[JobKey, Job]:
        if not ids:
            return {}
        if answer := self._cache.get():
            jobs = self.jobs_in(answer.texts)
            if not set(self.uncovered(ids, jobs)).difference(answer.asked):
                return self._only(ids, jobs)
        start = time.monotonic()
        texts = self.ask(ids, since)
        self._cache.put(ids, texts, time.monotonic() - start)
        return self._only(ids, self.jobs_in(texts))

    def jobs_in(self, texts: Mapping[str, str]) -> dict[JobKey, Job]:
        """`read`, once for the same texts: a queue may have thousands of jobs."""
        if self._parsed is None or self._parsed[0] != texts:
            self._parsed = (dict(texts), self.read(texts))
        return self._parsed[1]

    def cancel(self, ids: Sequence[str]) -> None:
        if ids:
            self._change((*self.cancel_command, *ids), self.gone, "the jobs may still run")

    def release(self, ids: Sequence[str]) -> None:
        self._change((*self.release_command, *ids), self.begun, "the jobs are still held")

    def explain(self, reason: str) -> str:
        row = self._row(reason)
        first = reason.strip().partition(": ")[2]
        rest = first.partition(": ")[2] or first
        return row[2].format(rest=rest) if row else f"{self.title} reports `{reason.strip()}`"

    def classify(self, reason: str) -> Reason | None:
        row = self._row(reason)
        return row[1] if row else None

    def reason_word(self, reason: str) -> str:
        """The text that the patterns of `reasons` are for."""
        return reason.strip()

    def _row(self, reason: str) -> tuple[str, Reason, str] | None:
        word = self.reason_word(reason)
        return next((row for row in self.reasons if fnmatchcase(word, row[0].replace("[", "[[]"))), None)

    def _change(self, argv: Sequence[str], harmless: re.Pattern[str], otherwise: str) -> None:
        self._cache.forget()
        result = self.query(argv)
        complaints = [line for line in result.stderr.splitlines() if line.strip()] or [""]
        if result.status and not all(map(harmless.search, complaints)):
            if self.outcome(result) is SubmitOutcome.UNREACHABLE:
                otherwise = f"{self.server} does not answer; nothing was changed"
            else:
                otherwise = f"`{argv[0]}` failed; {otherwise}"
            raise SchedulerUnreachable(otherwise, details=result.stderr)

    @abstractmethod
    def ask(self, ids: Sequence[str], since: float | None) -> dict[str, str]:
        """Output of the commands that list these jobs, by command. Raises SchedulerUnreachable."""

    @abstractmethod
    def read(self, texts: Mapping[str, str]) -> dict[JobKey, Job]:
        """The jobs in what `ask` returned. Pure."""

    @abstractmethod
    def outcome(self, result: shell.Result) -> SubmitOutcome:
        """What a failed submission has left behind. Pure."""

    @abstractmethod
    def query_environment(self) -> dict[str, str]:
        """Our environment, without settings that change output."""

    def uncovered(self, ids: Sequence[str], jobs: Mapping[JobKey, Job]) -> list[str]:
        """The ids of which `jobs` has nothing."""
        numbers = {number for number, _ in jobs}
        return [job for job in ids if self.split(job) not in jobs and (job != self.split(job)[0] or job not in numbers)]

    def _only(self, ids: Sequence[str], jobs: Mapping[JobKey, Job]) -> dict[JobKey, Job]:
        asked = {self.split(job) for job in ids}
        return {key: job for key, job in jobs.items() if {key, (key[0], None)} & asked}

    def query(self, argv: Sequence[str]) -> shell.Result:
        """Raises SchedulerUnreachable if no answer comes in time."""
        self._counts[argv[0]] += 1
        try:
            return query(argv, self.query_environment(), self._timeout)
        except MissingProgramError as error:
            raise schedulers.missing_command(self.name, argv[0]) from error

    def answer(self, argv: Sequence[str], statuses: Sequence[int] = (0,)) -> str:
        """What a query printed. Raises SchedulerUnreachable if it exits with another status."""
        result = self.query(argv)
        if result.status not in statuses:
            raise SchedulerUnreachable(f"{self.server} does not answer `{argv[0]}`", details=result.stderr)
        return result.stdout

    def deliver(self, argv: Sequence[str], environment: Mapping[str, str], umask: int) -> shell.Result:
        """Run a submission. Raises SubmissionUncertain if no answer comes in time."""
        # The job's PATH need not be ours, and may be empty.
        self._counts[argv[0]] += 1
        program = shell.which(argv[0]) or argv[0]
        seconds = self._timeout or SUBMIT_SECONDS
        try:
            return shell.run((program, *argv[1:]), timeout=seconds, env=environment, umask=umask)
        except shell.TimedOut as late:
            message = f"`{argv[0]}` did not answer in time; the job may have been accepted"
            raise SubmissionUncertain(message, details=late.details) from late

    def failure(self, command: str, result: shell.Result) -> SerriedError:
        outcome = self.outcome(result)
        details = result.stderr.strip() or result.stdout.strip() or None
        if outcome is SubmitOutcome.REFUSED:
            return SubmissionRefused(f"{self.title} refused the job", details=details)
        if outcome is SubmitOutcome.UNREACHABLE:
            return SchedulerUnreachable(
                f"{self.server} cannot be reached; nothing was submitted",
                details=details,
                hint=f"submit again when `{self.survey}` answers here",
            )
        return SubmissionUncertain(f"`{command}` did not report whether it submitted the job", details=details)


def query(argv: Sequence[str], environment: Mapping[str, str], timeout: float | None = None) -> shell.Result:
    """Run a command that changes nothing. Raises SchedulerUnreachable if no answer comes in time."""
    try:
        return shell.run(argv, timeout=timeout or timeout_setting() or QUERY_SECONDS, env=environment)
    except shell.TimedOut as late:
        raise SchedulerUnreachable(late.message, details=late.details) from late


def timeout_setting() -> float | None:
    """Seconds; None if the user has set none. Raises UsageError for a value that is not a duration."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"`{VARIABLE}` is `{text}`, not a number of seconds", hint="for example 120")
    return seconds
