"""The role `finish`, after the head: what still ends is waited for, this node swept, and job.sh told what to do."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from serried.agent import sweep
from serried.agent.attempts import claims, conclusion, history
from serried.agent.ending import afterwards
from serried.agent.options import parse
from serried.agent.work import Work, make_umask, run_directory
from serried.contract import files, names

STRAGGLER_SECONDS = 10.0
"""How much longer than their grace we wait for node agents whose head was killed."""


def main(arguments: List[str]) -> int:
    """`finish TOKEN --job ID [--element I] [--final REASON]`."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    options = parse(arguments)
    try:
        work = Work.load(run_directory(), options.element, 0)
        make_umask(work)
        begun = history.latest(work, options.token, options.job) or claims.begin(
            work, options.token, options.job, is_over=True
        )
        known = files.read_json(begun.place.attempt(begun.number).exit)
        final = _told(begun, options.final, is_first=known is None)
        result = conclusion.publish(begun, conclusion.reconsider(begun, known or _end(begun), final))
    except claims.Refused:
        print("done")
        return 0
    except (OSError, ValueError) as error:
        print(f"serried: cannot conclude: {error}", file=sys.stderr)
        print(f"fail {names.EXIT_CODES[names.LAUNCH_FAILED]}")
        return 0
    print(afterwards.word(result, work.form))
    return 0


def _told(work: Work, final: str, *, is_first: bool) -> str:
    """What job.sh knows. TERM at the limit is no cancel: Slurm, PBS and the local scheduler all send it.

    job.sh asks a second time where the job could not be run again.
    """
    if final == names.STOP_CANCEL and history.is_past_limit(work):
        return "" if is_first else names.STOP_LIMIT
    return final


def _end(work: Work) -> Dict[str, Any]:
    """Wait for what still ends, sweep, then judge."""
    attempt = work.place.attempt(work.number)
    if not any(event["event"] == "ended" for event in files.read_journal(attempt.events)):
        _await_stragglers(work)
    sweep.clear(work)
    sweep.end_groups(_unended(work))
    result = conclusion.assess(work)
    files.write_json(attempt.exit, result, work.file_mode)
    return result


def _await_stragglers(work: Work) -> None:
    """The head was killed: its nodes notice by themselves and end their ranks within the grace."""
    attempt = work.place.attempt(work.number)
    waiting = [node for node in range(work.nodes) if _is_busy(attempt.node_events(node))]
    limit = time.monotonic() + work.grace + STRAGGLER_SECONDS
    while waiting and time.monotonic() < limit:
        time.sleep(0.2)
        waiting = [node for node in waiting if _is_busy(attempt.node_events(node))]


def _unended(work: Work) -> List[int]:
    """Ranks of this node, the first, of which no end is known: its agent was killed before them."""
    events = files.read_journal(work.place.attempt(work.number).node_events(0))
    ended = {event["rank"] for event in events if event["event"] == "rank-exit"}
    return [event["pid"] for event in events if event["event"] == "started" and event["rank"] not in ended]


def _is_busy(journal: Path) -> bool:
    events: List[Optional[str]] = [event.get("event") for event in files.read_journal(journal)]
    return "started" in events and "ended" not in events
