"""Judge how an attempt ended, first by the evidence, then by later knowledge, and write exit.json.

A second call changes nothing.
"""

from __future__ import annotations

import os
import time
from typing import Dict, List, Optional, Sequence

from serried.agent import notifications
from serried.agent.attempt import Attempt
from serried.agent.attempts import continuing, history, successor_jobs
from serried.agent.comms import job_environment
from serried.agent.node_disk.folder import boot
from serried.agent.outcome import checkpoint_progress, diagnose, reconcile, verdict
from serried.agent.outcome.evidence import AttemptEvidence, Event, FirstFailure, first_failure
from serried.base import files
from serried.schema import names
from serried.schema.endings import End, NodeEnded, NodeLost, Stopping, entries, missing_outputs, of_last_round
from serried.schema.events import JournalEvent
from serried.schema.exits import Exit
from serried.schema.layout import RESULTS
from serried.schema.reasons import Reason


def conclude(attempt: Attempt, *, lingers: bool = False) -> None:
    """Write the end from the head when job.sh was killed and cannot run `finish`."""
    publish(attempt, reconsider(attempt, assess(attempt), ""), lingers=lingers)


def assess(attempt: Attempt, *, is_unrecorded: bool = False) -> End:
    """The end, from all evidence. `is_unrecorded`: every agent was killed before it wrote its end.

    Raises OSError if the evidence cannot be read.
    """
    evidence = gather(attempt, is_unrecorded=is_unrecorded)
    failure = first_failure(evidence)
    tail = tail_of(attempt, evidence, failure) if failure else []
    return verdict.end_of(evidence, failure, tail, verdict.judge(evidence, failure, tail))


def gather(
    attempt: Attempt, *, is_unrecorded: bool = False, ends: Optional[Sequence[NodeEnded]] = None
) -> AttemptEvidence:
    """The evidence on disk. `ends`: what the nodes have reported of a round that has just ended."""
    claim = history.claim_of(attempt)
    began = claim.get("monotonic")
    # All processes of a machine share this clock, from one boot to the next.
    is_same_clock = claim.get("host") == os.uname().nodename and claim.get("boot") == boot()
    journal = files.entries(attempt.files.events)
    head = of_last_round(journal)
    node_ends = list(entries(head, JournalEvent.NODE_ENDED, NodeEnded) if ends is None else ends)
    others = [*entries(journal, JournalEvent.NODE_LOST, NodeLost), *entries(head, JournalEvent.SPARE_LOST, NodeLost)]
    for lost in others:
        if lost not in entries(head, JournalEvent.NODE_LOST, NodeLost):  # its ranks run elsewhere since
            missing = missing_outputs(files.entries(attempt.files.node_events(lost.node)))
            results = tuple(outputs for outputs in missing if outputs.kind == RESULTS)
            node_ends.append(NodeEnded((), lost.node, lost.host, missing=results))
    reported = {end.node for end in node_ends}
    rounds = sum(entry["event"] == JournalEvent.ROUND for entry in head)
    reason = next((stop.reason for stop in entries(head, JournalEvent.STOPPING, Stopping)), None)
    position = checkpoint_progress.position(attempt.directory.checkpoints, attempt.plan.watch_patterns)
    progressed = position.is_beyond(history.where_it_began(claim))
    nodes: Dict[int, Sequence[Event]] = {
        node: of_last_round(files.entries(attempt.files.node_events(node)), rounds)
        for node in attempt.node_numbers
        if node not in reported
    }
    return AttemptEvidence(
        run=attempt.plan.run,
        task=attempt.task,
        attempt=attempt.number,
        job=str(claim.get("job", "")),
        host=str(claim.get("host", "")),
        world_size=attempt.world_size,
        started=float(claim.get("started", time.time())),
        ended=time.time(),
        head=head,
        node_ends=node_ends,
        nodes=nodes,
        saved=checkpoint_progress.since(attempt.directory.checkpoints, attempt.files.claim, position),
        progressed=progressed,
        obstacle=continuing.obstacle(attempt, reason, progressed=progressed) if reason in verdict.SAVING else None,
        is_unrecorded=is_unrecorded,
        is_script=attempt.is_script,
        seconds=time.monotonic() - began if is_same_clock and isinstance(began, float) else None,
        saves_elsewhere=attempt.saves_elsewhere,
    )


def tail_of(attempt: Attempt, evidence: AttemptEvidence, failure: FirstFailure) -> List[str]:
    exit_ = failure.exit
    if failure.output is not None:
        return diagnose.read_tail(attempt.log_of(exit_.rank, None), end=failure.output)
    for event in evidence.head:
        is_failure = event["event"] in (JournalEvent.RANK_FAILED, JournalEvent.LAUNCHED_RANK_FAILED)
        if is_failure and event["tail"]:
            failed = Exit.from_json(event["exit"])
            if (failed.rank, failed.launch) == (exit_.rank, exit_.launch):
                return list(event["tail"])
    if exit_.launch:
        return diagnose.read_tail(attempt.files.launch_log(exit_.node or 0, exit_.launch, exit_.rank))
    return diagnose.tail_of(attempt, exit_.rank)


def reconsider(attempt: Attempt, end: End, final: str, *, next_is_here: bool = False) -> End:
    """Revise the end by the knowledge of job.sh (`final`) and of the scheduler, and by whether the run continues."""
    stop = history.stop_by_user(attempt.files.control)
    if stop and (end.state == names.REQUEUED or final == Reason.REQUEUE):
        return reconcile.stopped(end, stop.by)
    was_ended = Reason.CANCEL in (final, end.cause)
    if was_ended and attempt.plan.limit.continue_by != names.REQUEUE and not next_is_here:
        word = successor_jobs.how_it_stands(attempt, attempt.job_of(end.job or ""))
        final = Reason.PREEMPT if word == "PREEMPTED" else final
    end = reconcile.finalise(end, final)
    is_checked = end.cause == Reason.CHECK_FAILED and end.state == names.LAUNCH_FAILED
    has_failed = end.state in (names.FAILED, names.NODE_FAIL)
    has_bad = has_failed and bool(end.bad_nodes) and continuing.can_exclude(attempt)
    if ((is_checked and attempt.plan.limit.resubmit) or has_bad) and not (stop or history.is_superseded(attempt)):
        return continuing.without_nodes(attempt, end)
    may_continue = (
        attempt.plan.limit.restarts and not stop and continuing.may_continue(end, attempt.plan.limit.continue_by)
    )
    if not may_continue or history.is_superseded(attempt):
        return end
    hindrance = continuing.obstacle(attempt, end.cause, progressed=bool(end.progress), next_is_here=next_is_here)
    return continuing.continued(end, hindrance)


def publish(attempt: Attempt, end: End, heir: str = "", *, lingers: bool = True) -> End:
    """Write exit.json and return the end. The last attempt's end is also that of the run or task, unless it continues.

    `heir` is the token of the calling job if the attempt belongs to another job. With `lingers` the caller waits until
    people are notified.
    """
    is_final = end.state != names.REQUEUED and not history.is_superseded(attempt)
    try:
        end.write(attempt.files.exit, attempt.file_mode)
        if is_final:
            end._replace(attempts=attempt.number).write(attempt.directory.exit, attempt.file_mode)
    except OSError as error:
        files.give_back(attempt.files.reserve, error)  # for the next try
        raise
    attempt.files.reserve.unlink(missing_ok=True)
    if is_final:
        job_environment.remove_stored(attempt)
        if attempt.plan.limit.continue_by != names.REQUEUE or attempt.plan.may_exclude_nodes:
            successor_jobs.withdraw(attempt, heir or str(history.claim_of(attempt).get("token", "")))
        notifications.notify_end(attempt, end, lingers=lingers)
    return end
