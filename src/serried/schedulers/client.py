"""Starts a scheduler's commands, counts them, and says what their silence means."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from serried import shell
from serried.errors import SchedulerUnreachable, SubmissionUncertain, UsageError

SUBMIT_SECONDS = 60.0
QUERY_SECONDS = 45.0
"""A client of Slurm's gives up by itself after 10 s (18 s for two tries); less than 30 would cut off slow but true
answers."""

VARIABLE = "SERRIED_SCHEDULER_TIMEOUT"


class Calls:
    def __init__(self, timeout: float | None = None) -> None:
        self._timeout = timeout or asked()
        self.counts: Counter[str] = Counter()

    def ask(self, argv: Sequence[str], environment: Mapping[str, str]) -> shell.Result:
        """Raises SchedulerUnreachable where no answer comes in time."""
        self.counts[argv[0]] += 1
        try:
            return shell.run(argv, timeout=self._timeout or QUERY_SECONDS, env=environment)
        except shell.TimedOut as late:
            raise SchedulerUnreachable(late.message, details=late.details) from late

    def deliver(self, argv: Sequence[str], environment: Mapping[str, str], umask: int) -> shell.Result:
        """The same for a submission: without an answer, SubmissionUncertain."""
        # The job's PATH need not be ours, and may be empty.
        self.counts[argv[0]] += 1
        program = shell.which(argv[0]) or argv[0]
        seconds = self._timeout or SUBMIT_SECONDS
        try:
            return shell.run((program, *argv[1:]), timeout=seconds, env=environment, umask=umask)
        except shell.TimedOut as late:
            message = f"`{argv[0]}` did not answer in time; the job may have been accepted"
            raise SubmissionUncertain(message, details=late.details) from late


def asked() -> float | None:
    """Seconds; None where nobody asked. Raises UsageError where it is no time to wait."""
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
