"""The role `finish`, after the head: waits for nodes, cleans up this node, and prints the next step for job.sh.

Also the role `fail-setup`, which ends an attempt that cannot start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import List

from serried.agent import orphans, system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.attempts import claims, finalize, history
from serried.agent.options import Options, parse
from serried.agent.outcome import reconcile
from serried.base import files
from serried.schema import names
from serried.schema.endings import End, of_last_round
from serried.schema.events import JournalEvent
from serried.schema.reasons import Reason

RETRY_SECONDS = 300.0
"""How long to retry writing the end on a full disk or an unreachable file system.

The scheduler may kill this process before.
"""
ENDED = "ended"
"""`--final` of job.sh's second call: the scheduler ended the job before it could be requeued."""
STRAGGLER_SECONDS = 10.0
"""How long to wait, beyond their grace, for node agents whose head was killed."""


def main(arguments: List[str]) -> int:
    """`finish TOKEN --job ID [--task I] [--final REASON]`."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    finish = Finish(parse(arguments))
    try:
        system.retry(finish.conclude, RETRY_SECONDS, (OSError, ValueError), lambda: finish.is_unbegun)
    except claims.Refused:
        finish.word = "done"
    print(finish.word)
    return 0


class Finish:
    """Concludes an attempt; may be retried after any failure."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.is_unbegun = False
        """The job has no attempt, and none can be created: there is nothing to conclude."""
        self.word = f"fail {names.EXIT_CODES[names.LAUNCH_FAILED]}"
        """The instruction for job.sh; this one where no file can be written."""

    def conclude(self) -> None:
        """Raises OSError, ValueError, or claims.Refused."""
        run = Attempt.load(run_directory(), self._options.task, 0)
        set_umask(run)
        token, job, final = self._options.token, self._options.job, self._options.final
        attempt = history.latest(run, token, job)
        if attempt is None:  # the job ended before it began one, which is to record its end
            history.check_readable(run)
            self.is_unbegun = True
            attempt = claims.begin(run, token, job, is_over=True)
            self.is_unbegun = False
        known = End.read(attempt.files.exit)
        # TERM at the limit does not mean a cancel: every scheduler sends it there. That never depends on files of an
        # earlier call, because job.sh repeats a call whose answer was lost.
        if final in (ENDED, Reason.CANCEL) and history.is_past_limit(attempt):
            final = Reason.LIMIT if final == ENDED else ""
        elif final == ENDED:
            final = Reason.CANCEL
        end = finalize.reconsider(attempt, known or _end(attempt), final)
        self.word = reconcile.word(end, run.plan.limit.continue_by)
        if known is None and not attempt.files.reserve.exists():
            end = reconcile.on_full_disk(end)
        finalize.publish(attempt, end)


def _end(attempt: Attempt) -> End:
    """Wait for nodes that are still ending, end leftovers, then judge."""
    journals = [attempt.files.node_events(node) for node in attempt.node_numbers]
    if not any(event["event"] == JournalEvent.ENDED for event in files.read_journal(attempt.files.events)):
        # The head was killed. Its nodes notice by themselves and end their ranks within the grace.
        limit = time.monotonic() + attempt.grace_seconds + STRAGGLER_SECONDS
        busy = journals
        while (busy := [journal for journal in busy if _is_busy(journal)]) and time.monotonic() < limit:
            time.sleep(0.2)
    orphans.clear(attempt)
    # Ranks of this node, the first, of which no end is known: its agent was killed before them.
    events = of_last_round(files.read_journal(journals[0]))
    ended = {event["rank"] for event in events if event["event"] == JournalEvent.RANK_EXIT}
    started = [event for event in events if event["event"] == JournalEvent.STARTED]
    orphans.end_groups([event["pid"] for event in started if event["rank"] not in ended])
    end = finalize.assess(attempt)
    with contextlib.suppress(OSError):  # `publish` writes the final version
        end.write(attempt.files.exit, attempt.file_mode)
    return end


def _is_busy(journal: Path) -> bool:
    events = [event.get("event") for event in files.read_journal(journal)]
    return JournalEvent.STARTED in events and JournalEvent.ENDED not in events


def refuse(attempt: Attempt, options: Options, problem: str) -> None:
    """End a claimed attempt before any rank has started. Raises OSError."""
    host = os.uname().nodename
    journal = files.Journal(attempt.files.events, attempt.file_mode)
    for event, facts in (
        (JournalEvent.CLAIMED, {"job": options.job, "token": options.token, "host": host}),
        (JournalEvent.LAUNCH_FAILED, {"code": Reason.LAUNCH, "message": f"{host}: {problem}"}),
        (JournalEvent.ENDED, {}),
    ):
        journal.append({"t": round(time.time(), 3), "event": event, **facts})
    finalize.conclude(attempt, lingers=True)


def fail_setup(arguments: List[str]) -> int:
    """`fail-setup TOKEN --job ID [--task I] --problem WHY`: for an attempt that cannot start.

    Returns the exit status of job.sh.
    """
    options = parse(arguments)
    print(f"serried: {options.problem}", file=sys.stderr)
    try:
        attempt = Attempt.load(run_directory(), options.task, 0)
        set_umask(attempt)
        refuse(claims.begin(attempt, options.token, options.job), options, options.problem)
    except claims.Refused as refusal:
        print(f"serried: nothing to do: {refusal}", file=sys.stderr)
        return 0
    except (OSError, ValueError) as error:
        print(f"serried: cannot conclude: {error}", file=sys.stderr)
    return names.EXIT_CODES[names.LAUNCH_FAILED]
