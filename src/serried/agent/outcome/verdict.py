"""Conclude from the evidence of an attempt how it ended, and write that as exit.json. Pure."""

from __future__ import annotations

from typing import List, Optional, Sequence

from serried.agent.outcome import diagnose
from serried.agent.outcome.evidence import NO_ATTEMPT_LEFT, AttemptEvidence, FirstFailure, Obstacle, ignored_failure
from serried.base import NamedTuple
from serried.base.text import iso
from serried.schema import endings, names
from serried.schema.endings import Condition, End, FailureRecord, NodeLost, UncopiedOutputs, entries
from serried.schema.events import JournalEvent
from serried.schema.exits import Exit
from serried.schema.reasons import Reason, parse

KILLED_CODE = 137
"""The exit code of a run whose agent or job.sh was killed."""

FINAL_STOPS = (Reason.CANCEL, Reason.USER)
"""Reasons after which nothing continues."""
ENDED_FROM_WITHOUT = (*FINAL_STOPS, Reason.LOST, Reason.SILENCE, Reason.PRUNED, Reason.PROFILED)
"""Reasons that take precedence over a rank's own failure."""
SAVING = (Reason.LIMIT, Reason.PREEMPT)
"""Reasons after which ranks that saved may continue in another attempt."""
CONTINUES = "another attempt continues"
MOST_SUSPECTS = 4
"""The most ranks that a message names as possibly lost."""
CONSEQUENCES = (Reason.LAUNCHER_ENDED, Reason.STOP_IGNORED)
"""Codes of lost nodes that follow from an earlier problem."""
REQUEUED = "DUE TO JOB REQUEUE"
"""Slurm reports that it ended the job to requeue it, at the request of another program."""
BUSY_SECONDS = 0.5
"""A rank that computed for less time is not training: `hostname` on four nodes needs no warning."""


class AttemptVerdict(NamedTuple):
    state: str
    exit_code: int
    cause: Optional[str]
    message: str
    further: Sequence[Condition] = ()
    """Conditions beside the cause."""
    lost: Sequence[str] = ()
    """Hosts that were lost, or that failed a check."""


def judge(  # noqa: C901, PLR0911, PLR0912 - one rule after the other
    evidence: AttemptEvidence, failure: Optional[FirstFailure], tail: List[str]
) -> AttemptVerdict:
    """The verdict on the evidence. It is COMPLETED only if every rank exited with status 0 by itself."""
    reason = next(iter(evidence.reasons), None)
    stop = next((reason for reason in evidence.reasons if reason in FINAL_STOPS), None)
    has_lost_node = evidence.has(JournalEvent.NODE_LOST)
    if not evidence.has_started:
        return _of_launch(evidence, reason)
    if (evidence.were_all_well or evidence.were_well_though_lost) and not (evidence.is_script and failure):
        return _of_peace(evidence)
    if reason not in ENDED_FROM_WITHOUT and failure is not None:
        return _of_script(evidence, failure, tail) if evidence.is_script else _of_rank(evidence, failure.exit, tail)
    if reason not in FINAL_STOPS and evidence.has(JournalEvent.ORPHANED):
        return _killed(Reason.JOB_SCRIPT_KILLED, f"job.sh on {evidence.host} was killed")
    if reason in SAVING and stop == Reason.CANCEL and REQUEUED in " ".join(evidence.launcher_lines):
        # The program requeued its own job after the stop notice, as Lightning does.
        what = "hit its time limit, and the program requeued the job"
        if evidence.obstacle is None:
            return AttemptVerdict(names.REQUEUED, names.EXIT_SAVED, Reason.REQUEUE, what)
        return _hindered(_ended(names.TIMEOUT, Reason.LIMIT, what), evidence.obstacle)
    if stop is not None and reason not in (Reason.LOST, Reason.SILENCE):
        return _of_request(evidence, stop)
    if evidence.has(JournalEvent.SUPERSEDED):
        return _lost_node(f"the scheduler has given up {evidence.host}, and a later attempt has begun", [evidence.host])
    if reason is Reason.LOST or (reason is Reason.FAILURE and has_lost_node):
        return _of_loss(evidence)
    if reason is Reason.SILENCE:
        ranks = evidence.stops[0].ranks
        which = f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
        hung = evidence.stops[0].hung or f"{which} still ran"
        return AttemptVerdict(names.FAILED, 1, reason, f"no output from any rank for too long; {hung}")
    if reason is Reason.PRUNED:  # by the search of the user
        values = evidence.stops[0].values
        few = "value" if values == 1 else "values"
        return AttemptVerdict(names.COMPLETED, 0, reason, f"ended early, after {values} {few} of the metric")
    if reason is Reason.PROFILED:
        return AttemptVerdict(names.COMPLETED, 0, reason, "ended once its steps were profiled")
    if reason is Reason.LAUNCHER:  # it ended before the ranks, or did not start them correctly
        problem = evidence.all(JournalEvent.LAUNCHER_FAILED)[0]
        return AttemptVerdict(names.FAILED, problem["status"], reason, problem["message"])
    return _of_saving(evidence, reason) if reason in SAVING else _of_peace(evidence)


def end_of(evidence: AttemptEvidence, failure: Optional[FirstFailure], tail: List[str], verdict: AttemptVerdict) -> End:
    absent = evidence.missing
    conditions = [
        Condition(verdict.cause or Reason.COMPLETED, verdict.message, tuple(verdict.lost)),
        *verdict.further,
        *endings.recovered_in(evidence.head),
        *endings.bad_nodes_in(evidence.head),
        *_unsaved(evidence),
    ]
    if absent:
        conditions.append(Condition(Reason.RESULTS_MISSING, _missing_sentence(absent)))
    warnings = [] if failure else _unconnected_warnings(evidence)
    warnings += endings.warnings_in(evidence.head)
    warnings += [Condition(anomaly["code"], anomaly["message"]) for anomaly in evidence.all(JournalEvent.ANOMALY)]
    first = None
    if verdict.state == names.COMPLETED:
        warnings += _unseen_warnings(evidence)
    elif failure:
        exit_ = failure.exit
        first = FailureRecord(
            rank=None if exit_.rank == names.SCRIPT_RANK else exit_.rank,
            node=exit_.node or 0,
            host=exit_.host,
            local_rank=exit_.local_rank,
            exit_code=exit_.exit_code,
            signal=exit_.signal,
            seconds=exit_.seconds,
            error=exit_.error,
            launch=exit_.launch,
            tail=tuple(tail),
        )
    seconds = max(evidence.ended - evidence.started, 0.0) if evidence.seconds is None else evidence.seconds
    return End(
        run=evidence.run,
        task=evidence.task,
        attempt=evidence.attempt,
        job=evidence.job,
        state=verdict.state,
        exit_code=verdict.exit_code,
        cause=verdict.cause,
        conditions=tuple(conditions),
        first_failure=first,
        saved_step=evidence.saved.step,
        started=iso(evidence.started),
        ended=iso(evidence.ended),
        seconds=round(seconds, 1),
        nodes=tuple(host for _, host in sorted(evidence.hosts.items())) or (evidence.host,),
        world_size=evidence.world_size,
        rounds=len(evidence.all(JournalEvent.ROUND)) or None,
        progress=evidence.progressed,
        missing=tuple(absent),
        warnings=tuple(warnings),
    )


def _killed(cause: Reason, message: str) -> AttemptVerdict:
    return AttemptVerdict(names.FAILED, KILLED_CODE, cause, message)


def _ended(state: str, cause: Optional[Reason], message: str) -> AttemptVerdict:
    """A verdict with the exit code of `state`, for an end without a telling exit status of a rank."""
    return AttemptVerdict(state, names.EXIT_CODES[state], cause, message)


def _of_launch(evidence: AttemptEvidence, reason: Optional[Reason]) -> AttemptVerdict:
    if reason in FINAL_STOPS:
        return _ended(names.CANCELLED, reason, "cancelled before the ranks started")
    if reason == Reason.LIMIT:
        return _ended(names.TIMEOUT, reason, "hit its time limit before the ranks started")
    failures = evidence.all(JournalEvent.LAUNCH_FAILED)
    if failures:
        code = parse(failures[0].get("code")) or Reason.LAUNCH
        verdict = _ended(names.LAUNCH_FAILED, code, failures[0]["message"])
        return verdict._replace(lost=_failing_hosts(evidence)) if code is Reason.CHECK_FAILED else verdict
    if evidence.has(JournalEvent.ORPHANED):
        message = f"job.sh on {evidence.host} was killed before the ranks started"
        return _ended(names.LAUNCH_FAILED, Reason.JOB_SCRIPT_KILLED, message)
    messages = [" / ".join(event["said"]) for event in evidence.all(JournalEvent.AGENT_LAUNCHER_EXITED)]
    messages += [f"no agent answered from {', '.join(stop.absent)}" for stop in evidence.stops if stop.absent]
    messages += [f"the head agent on {evidence.host} ended before the ranks started"]
    return _ended(names.LAUNCH_FAILED, Reason.LAUNCH, next(filter(None, messages)))


def _failing_hosts(evidence: AttemptEvidence) -> Sequence[str]:
    from serried.schema.checks import PROBLEM, CheckResults  # only after a preflight

    found = [one for part in entries(evidence.head, JournalEvent.CHECKED, CheckResults) for one in part.findings]
    return tuple(dict.fromkeys(host for one in found if one.level == PROBLEM for host in one.hosts))


_BECAUSE = {Reason.OUT_OF_MEMORY: ": out of memory", Reason.IMPORT_ERROR: ": an import failed"}
"""Why a rank failed, by the cause."""


def _of_rank(evidence: AttemptEvidence, exit_: Exit, tail: List[str]) -> AttemptVerdict:
    cause = diagnose.cause(exit_, tail)
    state = names.OUT_OF_MEMORY if exit_.oom else names.FAILED
    who = f"rank {exit_.rank} on {exit_.host}"
    if exit_.problem:
        message = _with_problem(who, exit_)
    elif cause is Reason.PEER_LOST:
        message = f"{who} {exit_.how}: it lost another rank{_suspects(evidence)}"
    else:
        message = f"{who} {exit_.how}{_BECAUSE.get(cause, '')}"
    return AttemptVerdict(state, exit_.status, cause, message)


def _of_script(evidence: AttemptEvidence, failure: FirstFailure, tail: List[str]) -> AttemptVerdict:
    """The failure of a script, of a rank that it launched, or of a program whose failure it ignored."""
    exit_, words = failure.exit, failure.words
    own = failure.script or exit_
    cause = diagnose.cause(exit_, tail)
    why = _BECAUSE.get(cause, "")
    state = names.OUT_OF_MEMORY if exit_.oom else names.FAILED
    of_launch = f" of {_launch_name(evidence, exit_.launch)}" if exit_.launch else ""
    who = f"`{words}`" if words else f"{names.rank_name(exit_.rank)}{of_launch} on {exit_.host}"
    if exit_.problem:
        return AttemptVerdict(state, own.status or exit_.status, cause, _with_problem(who, exit_))
    if own.ended_by_us:
        when = "at the time limit" if evidence.reasons[:1] == [Reason.LIMIT] else "when the job was ended"
        message = f"{who} {exit_.how}{why}, and other ranks of its launch still ran {when}"
        return AttemptVerdict(state, exit_.status, cause, message)
    if own.status:
        then = f", and the script {own.how}" if exit_.launch or words else ""
        return AttemptVerdict(state, own.status, cause, f"{who} {exit_.how}{why}{then}")
    ignored = ignored_failure(evidence)
    status = ignored.status if ignored else 1
    how = f"failed with status {status}" if words and not exit_.signal else f"{exit_.how}{why}"
    line = f" in line {ignored.line}" if ignored and ignored.line else ""
    return AttemptVerdict(state, status, cause, f"{who} {how}, and the script ignored the failure{line}")


def _with_problem(who: str, exit_: Exit) -> str:
    return f"{who}{'' if exit_.reported else ':'} {exit_.message}"


def _launch_name(evidence: AttemptEvidence, launch: str) -> str:
    """`srun`, or `launch 2 (srun)` if there are several."""
    name_of = {known.launch: known.name for known in reversed(evidence.launches)}
    name = name_of.get(launch, "the launcher")
    return f"`{name}`" if len(name_of) == 1 else f"launch {launch} (`{name}`)"


def _suspects(evidence: AttemptEvidence) -> str:
    """The ranks that may have been lost, if only few did not fail; ranks that exited by themselves come first."""
    well = [exit_ for exit_ in evidence.exits if not (exit_.ended_by_us or exit_.has_failed)]
    suspects = well or [exit_ for exit_ in evidence.exits if exit_.ended_by_us]
    if not 0 < len(suspects) <= MOST_SUSPECTS:
        return ""
    numbers = ", ".join(map(str, sorted(exit_.rank for exit_ in suspects)))
    few = "rank" if len(suspects) == 1 else "ranks"
    return f"; {few} {numbers} {'had exited with status 0' if well else 'had not ended'}"


def _of_request(evidence: AttemptEvidence, reason: Optional[Reason]) -> AttemptVerdict:
    by = next((stop.by for stop in evidence.stops if stop.reason is reason), "")
    how = f"stopped by {by}" if reason == Reason.USER and by else "cancelled"
    if evidence.have_saved:
        how += f"; saved{_at_step(evidence)}"
    elif any(request.reason is reason for request in evidence.requests):
        how += f"; {_who(evidence)} did not confirm a save"
    return _ended(names.CANCELLED, reason, how)


def _hindered(verdict: AttemptVerdict, obstacle: Obstacle) -> AttemptVerdict:
    further = [*verdict.further, Condition(obstacle.reason, obstacle.message)]
    return verdict._replace(cause=obstacle.cause(verdict.cause), further=further)


def _of_loss(evidence: AttemptEvidence) -> AttemptVerdict:
    """A killed agent makes the launcher exit; a lost node leaves the launcher waiting."""
    every = entries(evidence.head, JournalEvent.NODE_LOST, NodeLost)
    lost = [node for node in every if node.code not in CONSEQUENCES] or every
    hosts = [node.host for node in lost] or [evidence.host]
    where = ", ".join(hosts)
    order = [event["event"] for event in evidence.head]
    launcher_left = JournalEvent.AGENT_LAUNCHER_EXITED in order and JournalEvent.ENDING_AGENT_LAUNCHER not in order
    said = " ".join(evidence.launcher_lines).lower()
    is_node = any(node.code == Reason.STEP_ENDED for node in lost) or "node fail" in said
    if lost and all(node.code == Reason.LAUNCHER_ENDED for node in lost) and not is_node:
        return _killed(Reason.AGENT_KILLED, "the launcher ended while ranks still ran")
    if lost and launcher_left and not is_node:
        own = [[entry["event"] for entry in evidence.nodes.get(node.node, ())] for node in lost]
        if all(JournalEvent.HEAD_LOST in entries for entries in own):
            return _lost_node(f"the connection to the agent on {where} broke", hosts)
        return _killed(Reason.AGENT_KILLED, f"the agent on {where} was killed")
    return _lost_node(f"node {where} was lost", hosts)


def _lost_node(message: str, hosts: Sequence[str]) -> AttemptVerdict:
    return _ended(names.NODE_FAIL, Reason.NODE_LOST, message)._replace(lost=hosts)


def _of_saving(evidence: AttemptEvidence, reason: Optional[Reason]) -> AttemptVerdict:
    """After the stop notice. A rank that exits with 0 has completed, unless the notice was a signal.

    The exit status of a script counts anyway, unless the user requested further attempts.
    """
    has_one_attempt = evidence.attempt == 1 and evidence.obstacle == NO_ATTEMPT_LEFT
    if evidence.are_all_well and (evidence.notice is None or (evidence.is_script and has_one_attempt)):
        peace = _of_peace(evidence)
        return peace._replace(message=f"{peace.message}, after the stop notice ({reason})")
    state = names.TIMEOUT if reason is Reason.LIMIT else names.PREEMPTED
    was_forced = any(stop.reason is reason and not stop.save for stop in evidence.stops)
    if evidence.have_saved:
        how = f"saved{_at_step(evidence)}"
    elif evidence.are_all_well:
        how = f"exited with status 0 after the notice `{evidence.notice}`"
    elif not evidence.are_all_ended and (was_forced or evidence.notice is None):
        how = "did not exit in time"
    else:
        how = "exited as requested"
    what = "hit its time limit" if reason is Reason.LIMIT else "preempted"
    verdict = _ended(state, reason, f"{what}; {_who(evidence)} {how}")
    if not (evidence.saved.is_newer or evidence.saves_elsewhere):
        missing = Condition(Reason.NO_CHECKPOINT, "no checkpoint in `{checkpoints}` to continue from")
        return verdict._replace(further=[missing])
    if evidence.obstacle is None:
        further = [Condition(Reason.CONTINUES, CONTINUES)]
        return AttemptVerdict(names.REQUEUED, names.EXIT_SAVED, reason, verdict.message, further)
    return _hindered(verdict, evidence.obstacle)


def _who(evidence: AttemptEvidence) -> str:
    return "the script" if evidence.is_script else "the ranks"


def _at_step(evidence: AttemptEvidence) -> str:
    return "" if evidence.saved.step is None else f" at step {evidence.saved.step}"


def _unsaved(evidence: AttemptEvidence) -> List[Condition]:
    """Checkpoints that could not be saved, as on a full disk. The program may have continued nevertheless."""
    unsaved = next((end.unsaved for end in evidence.node_ends if end.unsaved), None)
    if unsaved is None:
        return []
    few = "checkpoint" if unsaved.count == 1 else "checkpoints"
    return [Condition(Reason.UNSAVED, f"{unsaved.count} {few} could not be saved: {unsaved.problem}")]


def _of_peace(evidence: AttemptEvidence) -> AttemptVerdict:
    """The end of an attempt without a stop, or whose ranks had all exited before the stop."""
    if not evidence.are_all_ended:
        return _killed(Reason.AGENT_KILLED, f"the head agent on {evidence.host} was killed")
    left = next((end for end in evidence.node_ends if end.left), None)
    if left:
        what = ", ".join(f"`{command}`" for command in left.left[:3])
        message = f"every rank exited with status 0, but on {left.host} {what} still ran"
        return AttemptVerdict(names.FAILED, 1, Reason.LEFT_RUNNING, message)
    which = "the script" if evidence.is_script else "every rank"
    return AttemptVerdict(names.COMPLETED, 0, None, f"{which} exited with status 0")


def _unconnected_warnings(evidence: AttemptEvidence) -> List[Condition]:
    """The warning that ranks ran as separate programs; none if a node cannot tell, or if a rank failed early."""
    ends = evidence.node_ends
    is_known = bool(ends) and len(ends) == len(evidence.hosts) and all(end.contact is False for end in ends)
    if not is_known or evidence.has(JournalEvent.RANKS_CONNECTED):
        return []
    reported = evidence.all(JournalEvent.RANKS_UNCONNECTED)
    if evidence.are_all_ended:
        was_busy = sum(end.cpu_seconds for end in ends) >= BUSY_SECONDS * evidence.world_size
        text = unconnected_message(evidence.world_size) if was_busy or reported else None
    else:  # a rank that was ended while it imported torch would have connected later
        text = str(reported[0]["message"]) if reported else None
    return [Condition(Reason.RANKS_APART, text)] if text else []


def unconnected_message(count: int, seconds: Optional[float] = None) -> str:
    """`seconds`: how long ranks have run, if they still run. They may only be slow to import their libraries."""
    if seconds is None:
        return f"no rank has connected to another: the program ran {count} times, each by itself"
    return f"no rank has connected to another in {seconds:.0f} s: the program may run {count} times, each by itself"


def _unseen_warnings(evidence: AttemptEvidence) -> List[Condition]:
    """Launches that failed in a script without bash, where nobody knows whether the script handled the failure."""
    failed = {exit_.launch for exit_ in evidence.failed_launched}
    unseen = {launch.launch: None for launch in evidence.launches if launch.launch in failed and not launch.call}
    then = "failed, and the script exited with status 0"
    return [Condition(Reason.LAUNCH_FAILED_UNSEEN, f"{_launch_name(evidence, launch)} {then}") for launch in unseen]


def _missing_sentence(missing: Sequence[UncopiedOutputs]) -> str:
    """The condition for missing outputs, which never fail the run. `missing` is not empty."""
    counts = [outputs.files or 0 for outputs in missing]
    kinds = " and ".join(sorted({outputs.kind for outputs in missing}, reverse=True))
    count = "" if 0 in counts else f"{sum(counts)} {'file' if sum(counts) == 1 else 'files'} of "
    hosts = ", ".join(dict.fromkeys(outputs.host for outputs in missing))
    return f"{count}{kinds} could not be copied back from {hosts}: {missing[0].problem}"
