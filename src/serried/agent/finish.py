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
from typing import List, Optional

from serried.agent import orphans, system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.attempts import claims, finalize, history
from serried.agent.options import Options, parse
from serried.agent.outcome import reconcile
from serried.base import files
from serried.schema import names
from serried.schema.endings import End
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
        attempt = Attempt.load(run_directory(), self._options.task, 0)
        set_umask(attempt)
        begun = self._begun(attempt)
        known = End.read(begun.files.exit)
        final = _final_reason(begun, self._options.final)
        end = finalize.reconsider(begun, known or _end(begun), final)
        self.word = reconcile.word(end, attempt.plan.limit.continue_by)
        if known is None and not begun.files.reserve.exists():
            end = reconcile.on_full_disk(end)
        finalize.publish(begun, end)

    def _begun(self, attempt: Attempt) -> Attempt:
        """The job's attempt. Creates the attempt if the job ended before it began one, so that its end is recorded."""
        token, job = self._options.token, self._options.job
        begun = history.latest(attempt, token, job)
        if begun is None:
            history.check_readable(attempt)
            self.is_unbegun = True
            begun = claims.begin(attempt, token, job, is_over=True)
            self.is_unbegun = False
        return begun


def _final_reason(attempt: Attempt, final: str) -> str:
    """The reason that job.sh knows. TERM at the limit does not mean a cancel: every scheduler sends it there.

    It never depends on files of an earlier call: job.sh repeats a call whose answer was lost.
    """
    if final == ENDED:
        return Reason.LIMIT if history.is_past_limit(attempt) else Reason.CANCEL
    if final == Reason.CANCEL and history.is_past_limit(attempt):
        return ""
    return final


def _end(attempt: Attempt) -> End:
    """Wait for nodes that are still ending, end leftovers, then judge."""
    if not any(event["event"] == JournalEvent.ENDED for event in files.read_journal(attempt.files.events)):
        _await_stragglers(attempt)
    orphans.clear(attempt)
    orphans.end_groups(_unended(attempt))
    end = finalize.assess(attempt)
    with contextlib.suppress(OSError):  # `publish` writes the final version
        end.write(attempt.files.exit, attempt.file_mode)
    return end


def _await_stragglers(attempt: Attempt) -> None:
    """Wait for the nodes of a head that was killed: they notice by themselves and end their ranks within the grace."""
    waiting = [node for node in attempt.node_numbers if _is_busy(attempt.files.node_events(node))]
    limit = time.monotonic() + attempt.grace_seconds + STRAGGLER_SECONDS
    while waiting and time.monotonic() < limit:
        time.sleep(0.2)
        waiting = [node for node in waiting if _is_busy(attempt.files.node_events(node))]


def _unended(attempt: Attempt) -> List[int]:
    """Ranks of this node, the first, of which no end is known: its agent was killed before them."""
    events = files.read_journal(attempt.files.node_events(0))
    ended = {event["rank"] for event in events if event["event"] == JournalEvent.RANK_EXIT}
    return [event["pid"] for event in events if event["event"] == JournalEvent.STARTED and event["rank"] not in ended]


def _is_busy(journal: Path) -> bool:
    events: List[Optional[str]] = [event.get("event") for event in files.read_journal(journal)]
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
