"""The evidence about an ended attempt: the head's journal, the nodes' journals and the checkpoints. Pure.

The nodes' journals are read only where the head's is incomplete because the head was killed.
"""

from __future__ import annotations

import signal
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from serried.agent.outcome.checkpoint_progress import Saved
from serried.base import NamedTuple
from serried.schema import endings, names
from serried.schema.events import JournalEvent
from serried.schema.exits import Exit
from serried.schema.reasons import Reason

Event = Dict[str, Any]

OWN_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that a lost connection never causes. Any process may send TERM; an uncaught C++ exception ends in ABRT."""

FATAL_SIGNALS = (*OWN_SIGNALS, signal.SIGABRT)


class Obstacle(NamedTuple):
    """Why a run has no further attempt."""

    reason: Reason
    message: str

    def cause(self, usual: Optional[str]) -> Optional[str]:
        """The cause of the end; an attempt without progress explains more than the request that ended it."""
        return self.reason if self.reason is Reason.NO_PROGRESS else usual


NO_ATTEMPT_LEFT = Obstacle(Reason.RESTARTS_USED, "no further attempt is allowed")


class AttemptEvidence(NamedTuple):
    run: str
    task: Optional[int]
    attempt: int
    job: str
    host: str
    """Where the head agent ran."""
    world_size: int
    started: float
    ended: float
    head: Sequence[Event]
    node_ends: Sequence[endings.NodeEnded]
    """Those in `head`."""
    nodes: Dict[int, Sequence[Event]]
    """Journals of the nodes whose end is missing from the head's journal."""
    saved: Saved
    progressed: bool
    """Its newest checkpoint is further than the one that the attempt found."""
    obstacle: Optional[Obstacle]
    """Why the run cannot continue although something was saved; None if it can."""
    is_unrecorded: bool = False
    """Both job.sh and the head were killed before they could record how it ended."""
    is_script: bool = False
    """The user's job script ran in place of ranks."""
    seconds: Optional[float] = None
    """How long it took by a clock that never steps; None if that is not known."""
    saves_elsewhere: bool = False
    """Its state is not known to Serried. So an attempt may follow without a checkpoint."""

    def all(self, event: str) -> List[Event]:
        return [entry for entry in self.head if entry["event"] == event]

    def has(self, event: str) -> bool:
        return bool(self.all(event))

    @property
    def has_started(self) -> bool:
        """Whether ranks started, or may have started on a node that was lost before it could report."""
        return (
            self.has(JournalEvent.STARTED)
            or self.has(JournalEvent.ROUND)
            or (self.has(JournalEvent.STARTING_RANKS) and self.has(JournalEvent.NODE_LOST))
            or any(event["event"] == JournalEvent.STARTED for events in self.nodes.values() for event in events)
        )

    @property
    def stops(self) -> List[endings.Stopping]:
        return endings.entries(self.head, JournalEvent.STOPPING, endings.Stopping)

    @property
    def reasons(self) -> List[Reason]:
        """The reasons of all stops, in order, without those of a TERM that came from the launcher.

        A launcher ends all agents when one of them has died. A cancelled job's TERM also reaches job.sh, and with it
        the head.
        """
        stops = self.stops
        terminated = {stop.node for stop in stops if stop.node is not None}
        others = [stop for stop in stops if stop.node is None]
        is_any_silent = any(
            node not in terminated and not any(event["event"] == JournalEvent.STOPPING for event in events)
            for node, events in self.nodes.items()
        )
        is_cancelled = any(stop.reason is Reason.CANCEL for stop in others)
        return [stop.reason for stop in (others if is_any_silent and not is_cancelled else stops)]

    @property
    def requests(self) -> List[endings.Stopping]:
        """Requests to save and leave."""
        return [stop for stop in self.stops if stop.save]

    @property
    def notice(self) -> Optional[str]:
        return next((request.notice for request in self.requests if request.notice), None)

    @property
    def launcher_lines(self) -> List[str]:
        return [line for event in self.all(JournalEvent.AGENT_LAUNCHER_EXITED) for line in event["said"]]

    @property
    def hosts(self) -> Dict[int, str]:
        return {event["node"]: event["host"] for event in self.all(JournalEvent.CONNECTED)}

    @property
    def exits(self) -> List[Exit]:
        """The exits of all ranks that are known to have ended, by the best source, with node and host."""
        ended = [exit_._replace(node=end.node, host=end.host) for end in self.node_ends for exit_ in end.exits]
        hosts = self.hosts
        of_nodes = [
            _exit_of({"node": node, "host": hosts.get(node, self.host)}, event)
            for node, events in self.nodes.items()
            for event in events
            if event["event"] == JournalEvent.RANK_EXIT
        ]
        failed = [_exit_of(event, event["exit"]) for event in self.all(JournalEvent.RANK_FAILED)]
        exits: Dict[int, Exit] = {}
        for exit_ in (*ended, *of_nodes, *failed):
            exits.setdefault(exit_.rank, exit_)
        return list(exits.values())

    @property
    def are_all_ended(self) -> bool:
        exits = self.exits
        return len(exits) == self.world_size and not any(exit_.ended_by_us for exit_ in exits)

    @property
    def are_all_well(self) -> bool:
        return self.are_all_ended and not any(exit_.has_failed for exit_ in self.exits)

    @property
    def were_all_well(self) -> bool:
        """Whether every rank exited with 0 before any stop: only copies of results were pending."""
        order = [event["event"] for event in self.head]
        return (
            JournalEvent.ALL_RANKS_ENDED in order
            and JournalEvent.STOPPING not in order[: order.index(JournalEvent.ALL_RANKS_ENDED)]
            and self.are_all_well
        )

    @property
    def were_well_though_lost(self) -> bool:
        """Whether every rank exited with 0 and left no process, though an agent or job.sh was lost meanwhile."""
        swept = {end.node: end.swept for end in self.node_ends}
        for node, events in self.nodes.items():
            swept[node] = next((event["count"] for event in events if event["event"] == JournalEvent.SWEPT), None)
        is_only_lost = self.reasons[:1] == [Reason.LOST] and not self.has(JournalEvent.SUPERSEDED)
        return is_only_lost and all(count == 0 for count in swept.values()) and self.are_all_well

    @property
    def launches(self) -> List[endings.ScriptLaunched]:
        entries = endings.entries(self.head, JournalEvent.LAUNCHES, endings.Launches)
        return [launch for entry in entries for launch in entry.launches]

    @property
    def failed_calls(self) -> List[endings.FailedCall]:
        entries = endings.entries(self.head, JournalEvent.LAUNCHES, endings.Launches)
        calls = [call for entry in entries for call in entry.failures]
        return sorted(calls, key=lambda call: float((call.time if call.seconds is None else call.seconds) or 0))

    @property
    def failed_launched(self) -> List[Exit]:
        """The failures of ranks in launches of a job script. A rank that its launcher started again did not fail."""
        return [exit_ for _, exit_ in self.failed_launched_by_time]

    @property
    def failed_launched_by_time(self) -> List[Tuple[float, Exit]]:
        newest: Dict[Tuple[int, str, str], int] = {}
        for event in self.all(JournalEvent.LAUNCHED_RANK_RESTARTED):
            key = event["node"], event["launch"], event["within"]
            newest[key] = max(event["restarts"], newest.get(key, 0))
        failed = [(event["t"], _exit_of(event, event["exit"])) for event in self.all(JournalEvent.LAUNCHED_RANK_FAILED)]
        return [
            (at, exit_)
            for at, exit_ in failed
            if exit_.restarts >= newest.get((exit_.node or 0, exit_.launch, exit_.within), 0)
        ]

    @property
    def have_saved(self) -> bool:
        """Whether a rank exited with 85 and the disk has a newer checkpoint."""
        return self.saved.is_newer and any(exit_.exit_code == names.EXIT_SAVED for exit_ in self.exits)

    @property
    def missing(self) -> List[endings.UncopiedOutputs]:
        """By node and kind."""
        missing = [outputs._replace(node=end.node, host=end.host) for end in self.node_ends for outputs in end.missing]
        if self.has(JournalEvent.ORPHANED) and not self.has(JournalEvent.ENDED):
            return missing  # the head records this end at once, and again when its nodes have copied what they can
        for node, events in sorted(self.nodes.items()):
            host = self.hosts.get(node, self.host)
            missing += [outputs._replace(node=node, host=host) for outputs in endings.missing_outputs(events)]
        return missing


def _exit_of(event: Event, fields: Dict[str, Any]) -> Exit:
    return Exit.from_json(fields)._replace(node=event["node"], host=event["host"])


class FirstFailure(NamedTuple):
    """What failed first: a rank, or a program of a job script."""

    exit: Exit
    script: Optional[Exit] = None
    """How the job script ended in which it failed."""
    words: str = ""
    """The command line of the program that failed."""
    output: Optional[int] = None
    """The size of the script's output by then: the script may have gone on."""


class IgnoredFailure(NamedTuple):
    """A call of a job script that failed, and whose failure no shell handled, though the script exited with 0."""

    words: str
    status: int
    line: int
    launch: Optional[str]
    """The id of the launch, if the call was one."""
    seconds: Optional[float] = None
    output: Optional[int] = None


def ignored_failure(evidence: AttemptEvidence) -> Optional[IgnoredFailure]:
    launch_of = _launch_of_calls(evidence)
    failed = {launch_of.get(call.call) for call in evidence.failed_calls}
    for call in evidence.failed_calls:
        # A failure inside a launch counts only if the launch itself did not fail: otherwise the launch passed it on.
        if not (call.handled or call.signalled or (call.within and call.within in failed)):
            launch = launch_of.get(call.call)
            return IgnoredFailure(call.words, call.status, call.line, launch, call.seconds, call.output)
    # Else that of a rank which the script could not see: the rank exited with 0, or its launcher always does.
    launches = {launch.launch: launch for launch in evidence.launches}
    for exit_ in evidence.failed_launched:
        launch_ = launches.get(exit_.launch)
        is_seen = exit_.launch in failed or exit_.launch.partition(".")[0] in failed
        hides_failures = launch_ is not None and launch_.kind == names.HIDES_FAILURES
        if ((exit_.reported and not is_seen) or hides_failures) and not exit_.ended_by_us:
            return IgnoredFailure(launch_.name if launch_ else "", exit_.status, 0, exit_.launch)
    return None


def _launch_of_calls(evidence: AttemptEvidence) -> Dict[str, str]:
    """The launches of the script by call. If one call made several, as xargs does: the first one that failed."""
    failed = {exit_.launch for exit_ in evidence.failed_launched}
    by_call: Dict[str, str] = {}
    for launch in evidence.launches:
        if launch.call and by_call.get(launch.call) not in failed:
            by_call[launch.call] = launch.launch
    return by_call


def _first_failure_of_script(evidence: AttemptEvidence) -> Optional[FirstFailure]:
    """The first failed rank of the launch that ended the script, else the script itself.

    That is the last launch if the script failed, or one whose failure the script ignored. A trap may start further
    launches after a failure: then the script has the status of the launch that ended it.
    """
    own = next((exit_ for exit_ in evidence.exits if exit_.rank == names.SCRIPT_RANK), None)
    if own is None or own.reported:
        return own and FirstFailure(own)
    if own.ended_by_us:
        first = _earliest(_failed_in_running_launches(evidence))
        return first and FirstFailure(first, own)
    ignored = None if own.has_failed else ignored_failure(evidence)
    if (own.has_failed and evidence.requests and _has_obeyed(evidence, own)) or not (own.has_failed or ignored):
        return None
    if ignored:
        launches = [ignored.launch]
    else:
        outermost = [launch.launch for launch in evidence.launches if "." not in launch.launch]
        launch_of = _launch_of_calls(evidence)
        alike = [launch_of.get(call.call) for call in reversed(_passed_on(evidence, own.exit_code))]
        launches = [*outermost[-1:], *[*filter(None, alike)][:1]]
    failed = next(filter(None, (_failed_in(evidence, launch) for launch in launches)), [])
    first = _earliest(failed)
    return FirstFailure(first, own) if first else _failure_of_program(evidence, own, ignored)


def _failure_of_program(evidence: AttemptEvidence, own: Exit, ignored: Optional[IgnoredFailure]) -> FirstFailure:
    """The program whose failure the script ignored, or passed on, else the script itself."""
    if ignored is not None:
        return FirstFailure(_ended_as(own, ignored.status, ignored.seconds), own, ignored.words, ignored.output)
    call = next(reversed(_passed_on(evidence, own.exit_code)), None)
    if call is None:
        return FirstFailure(own)
    exit_ = _ended_as(own, call.status, call.seconds)
    if exit_.signal:
        return FirstFailure(exit_, own, call.words, call.output)
    return FirstFailure(own._replace(seconds=exit_.seconds), output=call.output)


def _earliest(failed: Sequence[Exit]) -> Optional[Exit]:
    """The first that failed by itself. Python exits with 1 after any exception, also after a lost connection."""

    def order(exit_: Exit) -> Tuple[float, int, int]:
        ordinary = 0 if exit_.signal in OWN_SIGNALS else 1 if exit_.exit_code not in (None, 1) else 2
        return exit_.seconds, ordinary, exit_.rank

    return min([exit_ for exit_ in failed if not exit_.stumbled] or failed, key=order, default=None)


def _failed_in_running_launches(evidence: AttemptEvidence) -> List[Exit]:
    """The ranks that had failed before the first stop, in launches that still ran when ranks were ended."""
    stops = evidence.stops
    running = next((stop.launches for stop in stops if stop.launches is not None), ())
    failed = [exit_ for at, exit_ in evidence.failed_launched_by_time if stops and at <= stops[0].t]
    return [exit_ for launch in running for exit_ in failed if _is_within(exit_, launch)]


def _ended_as(exit_: Exit, status: int, seconds: Optional[float]) -> Exit:
    """The end of a program, by the status that a shell has for it: 128 and the signal."""
    number = status - 128 if status - 128 in FATAL_SIGNALS else None
    seconds = exit_.seconds if seconds is None else seconds
    return exit_._replace(exit_code=None if number else status, signal=number, seconds=seconds)


def _failed_in(evidence: AttemptEvidence, launch: Optional[str]) -> List[Exit]:
    return [exit_ for exit_ in evidence.failed_launched if launch and _is_within(exit_, launch)]


def _is_within(exit_: Exit, launch: str) -> bool:
    return f"{exit_.launch}.".startswith(f"{launch}.")


def _passed_on(evidence: AttemptEvidence, status: Optional[int]) -> List[endings.FailedCall]:
    """The calls that failed with the status of the script, which did not handle their failure, or read the status."""
    return [call for call in evidence.failed_calls if call.status == status and (call.read or not call.handled)]


def first_failure(evidence: AttemptEvidence) -> Optional[FirstFailure]:
    """The rank that failed first by itself, in the order of the ranks' common store, else by its node's clock.

    A rank that only lost another counts if all failed ranks did and neither a node nor the job was lost. A rank that
    obeyed the stop notice did not fail. A rank that failed after the notice had ended another rank, or because its
    job was killed, is not the cause.
    """
    if evidence.is_script:
        return _first_failure_of_script(evidence)
    exits = evidence.exits
    end = _end_by_notice(evidence, exits)
    with_the_job = _died_with_the_job(evidence, exits)
    has_request = bool(evidence.requests)
    failures = [
        exit_
        for exit_ in exits
        if exit_.has_failed
        and not exit_.ended_by_us
        and exit_.seconds < end
        and exit_.rank not in with_the_job
        and not (has_request and _has_obeyed(evidence, exit_))
    ]
    suspects = [exit_ for exit_ in failures if not exit_.stumbled]
    if not (suspects or with_the_job or evidence.has(JournalEvent.NODE_LOST)):
        suspects = failures
    first = _earliest(suspects)
    counted = [exit_ for exit_ in suspects if exit_.order is not None]
    if first is not None and first.error and counted:
        first = min(counted, key=lambda exit_: exit_.order or 0)  # those without one failed after the store was gone
    return first and FirstFailure(first)


def _died_with_the_job(evidence: AttemptEvidence, exits: Sequence[Exit]) -> Set[int]:
    """The ranks that were killed after job.sh: the scheduler kills the whole job, and may kill ranks before agents."""
    failed_before = set()
    for event in evidence.head:
        if event["event"] == JournalEvent.ORPHANED:
            break
        if event["event"] == JournalEvent.RANK_FAILED:
            failed_before.add(event["exit"]["rank"])
    else:
        if not evidence.is_unrecorded:
            return set()
    killed = {exit_.rank for exit_ in exits if exit_.signal == signal.SIGKILL and not exit_.oom}
    return killed - failed_before


def _has_obeyed(evidence: AttemptEvidence, exit_: Exit) -> bool:
    code = exit_.exit_code
    return code in names.OBEYED_STATUSES and (code != names.EXIT_SAVED or evidence.saved.is_newer)


def _end_by_notice(evidence: AttemptEvidence, exits: Sequence[Exit]) -> float:
    """When the notice first ended a rank that does not handle its signal."""
    if evidence.notice is None:
        return float("inf")
    number = int(getattr(signal, f"SIG{evidence.notice}"))
    ended = (exit_.seconds for exit_ in exits if exit_.ended_by_us and exit_.status == 128 + number)
    return min(ended, default=float("inf"))
