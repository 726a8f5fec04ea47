"""The evidence about an ended attempt: the head's journal, the nodes' journals and the checkpoints. Pure.

The nodes' journals are read only where the head's is incomplete because the head was killed.
"""

from __future__ import annotations

import signal
from typing import Any, Container, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from serried.agent.outcome.checkpoint_progress import Saved
from serried.schema import names
from serried.schema.events import JournalEvent
from serried.schema.missing_outputs import of_journal
from serried.schema.reasons import Reason

Event = Dict[str, Any]
Exit = Dict[str, Any]

OWN_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that a lost connection never causes. Any process may send TERM; an uncaught C++ exception ends in ABRT."""

FATAL_SIGNALS = (*OWN_SIGNALS, signal.SIGABRT)


class Obstacle(NamedTuple):
    """Why a run has no further attempt."""

    reason: Reason
    message: str

    def cause(self, usual: Optional[Reason]) -> Optional[Reason]:
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
            or (self.has(JournalEvent.STARTING_RANKS) and self.has(JournalEvent.NODE_LOST))
            or any(event["event"] == JournalEvent.STARTED for events in self.nodes.values() for event in events)
        )

    def was_cut_off(self, node: int) -> bool:
        """Whether the node's agent lost the head, by its own journal."""
        return any(event["event"] == JournalEvent.HEAD_LOST for event in self.nodes.get(node, ()))

    @property
    def reasons(self) -> List[Reason]:
        """The reasons of all stops, in order."""
        stops = self.all(JournalEvent.STOPPING)
        if self._has_launcher_cancelled(stops):
            stops = [event for event in stops if "node" not in event]
        return [Reason(event["reason"]) for event in stops]

    def _has_launcher_cancelled(self, stops: Sequence[Event]) -> bool:
        """Whether TERM came from the launcher, which ends all agents when one of them has died.

        A cancelled job's TERM also reaches job.sh, and with it the head.
        """
        if any(event["reason"] == Reason.CANCEL and "node" not in event for event in stops):
            return False
        terminated = {event["node"] for event in stops if "node" in event}
        silent = [
            node
            for node, events in self.nodes.items()
            if node not in terminated and not any(event["event"] == JournalEvent.STOPPING for event in events)
        ]
        return bool(terminated and silent)

    @property
    def requests(self) -> List[Event]:
        """Requests to save and leave."""
        return [event for event in self.all(JournalEvent.STOPPING) if event.get("save")]

    @property
    def notice(self) -> Optional[str]:
        """The signal that ranks received as the stop notice, such as `USR1`."""
        return next((event["notice"] for event in self.requests if event.get("notice")), None)

    @property
    def was_requeued(self) -> bool:
        """Whether Slurm reports that it ended the job to requeue it, at the request of another program."""
        return any(
            "DUE TO JOB REQUEUE" in line
            for event in self.all(JournalEvent.AGENT_LAUNCHER_EXITED)
            for line in event["said"]
        )

    @property
    def hosts(self) -> Dict[int, str]:
        return {event["node"]: event["host"] for event in self.all(JournalEvent.CONNECTED)}

    @property
    def exits(self) -> List[Exit]:
        """The exits of all ranks that are known to have ended, each with its node and host."""
        exits = [
            {**exit_, "node": event["node"], "host": event["host"]}
            for event in self.all(JournalEvent.NODE_ENDED)
            for exit_ in event["exits"]
        ]
        known = {exit_["rank"] for exit_ in exits}
        hosts = self.hosts
        exits += [
            {**event, "node": node, "host": hosts.get(node, self.host)}
            for node, events in self.nodes.items()
            for event in events
            if event["event"] == JournalEvent.RANK_EXIT and event["rank"] not in known
        ]
        known = {exit_["rank"] for exit_ in exits}
        exits += [
            {**event["exit"], "node": event["node"], "host": event["host"]}
            for event in self.all(JournalEvent.RANK_FAILED)
            if event["exit"]["rank"] not in known
        ]
        return exits

    @property
    def are_all_ended(self) -> bool:
        """Whether every rank ended by itself, as far as is known."""
        known = self.exits
        return len(known) == self.world_size and not any(exit_["ended_by_us"] for exit_ in known)

    @property
    def are_all_well(self) -> bool:
        return self.are_all_ended and not any(exit_["exit_code"] or exit_["signal"] for exit_ in self.exits)

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
        swept = {event["node"]: event.get("swept") for event in self.all(JournalEvent.NODE_ENDED)}
        for node, events in self.nodes.items():
            swept[node] = next((event["count"] for event in events if event["event"] == JournalEvent.SWEPT), None)
        is_only_lost = self.reasons[:1] == [Reason.LOST] and not self.has(JournalEvent.SUPERSEDED)
        return is_only_lost and all(count == 0 for count in swept.values()) and self.are_all_well

    @property
    def failed_calls(self) -> List[Dict[str, Any]]:
        """The failed calls of launchers and of Python in a job script, in their order."""
        calls = [call for event in self.all(JournalEvent.LAUNCHES) for call in event["failures"]]
        return sorted(calls, key=lambda call: float(call.get("seconds", call["time"]) or 0))

    @property
    def failed_launched(self) -> List[Event]:
        """The failures of ranks in launches of a job script. A rank that its launcher started again did not fail."""

        def key(event: Event, rank: Dict[str, Any]) -> Tuple[Any, ...]:
            return event["node"], rank["launch"], rank.get("within")

        newest: Dict[Tuple[Any, ...], int] = {}
        for event in self.all(JournalEvent.LAUNCHED_RANK_RESTARTED):
            newest[key(event, event)] = max(event["restarts"], newest.get(key(event, event), 0))
        return [
            event
            for event in self.all(JournalEvent.LAUNCHED_RANK_FAILED)
            if event["exit"].get("restarts", 0) >= newest.get(key(event, event["exit"]), 0)
        ]

    @property
    def last_launch(self) -> Optional[str]:
        """The launch of a job script that began last, outside of other launches."""
        launches = [launch["launch"] for event in self.all(JournalEvent.LAUNCHES) for launch in event["launches"]]
        return next((launch for launch in reversed(launches) if "." not in launch), None)

    @property
    def have_saved(self) -> bool:
        """Whether a rank exited with 85 and the disk has a newer checkpoint."""
        return self.saved.is_newer and any(exit_["exit_code"] == names.EXIT_SAVED for exit_ in self.exits)

    @property
    def missing(self) -> List[Dict[str, Any]]:
        """Outputs that could not be copied back, by node and kind: how many, some names, why, and where."""
        missing = [
            {"node": event["node"], "host": event["host"], **outputs}
            for event in self.all(JournalEvent.NODE_ENDED)
            for outputs in event.get("missing", ())
        ]
        if self.has(JournalEvent.ORPHANED) and not self.has(JournalEvent.ENDED):
            return missing  # the head records this end at once, and again when its nodes have copied what they can
        for node, events in sorted(self.nodes.items()):
            host = self.hosts.get(node, self.host)
            missing += [{"node": node, "host": host, **outputs} for outputs in of_journal(events)]
        return missing


class IgnoredFailure(NamedTuple):
    """A call of a job script that failed, and whose failure no shell handled, though the script exited with 0."""

    words: str
    status: int
    line: int
    launch: Optional[str]
    """The id of the launch, if the call was one."""
    when: Dict[str, Any]
    """As `_when` has it."""


def ignored_failure(evidence: AttemptEvidence) -> Optional[IgnoredFailure]:
    """The first ignored failure of the script.

    A failure inside a launch counts only if the launch itself did not fail: otherwise the launch passed it on.
    """
    launches = _launches(evidence)
    failed = {launches.get(call["call"]) for call in evidence.failed_calls}
    for call in evidence.failed_calls:
        if not (call["handled"] or call["signalled"] or (call["within"] and call["within"] in failed)):
            return IgnoredFailure(call["words"], call["status"], call["line"], launches.get(call["call"]), _when(call))
    return _hidden_failure(evidence, failed)


def _hidden_failure(evidence: AttemptEvidence, failed: Container[Optional[str]]) -> Optional[IgnoredFailure]:
    """The first failure of a rank that the script could not see: the rank exited with 0, or its launcher always does.

    The script saw the `failed` launches.
    """
    all_launches = [launch for event in evidence.all(JournalEvent.LAUNCHES) for launch in event["launches"]]
    launches = {launch["launch"]: launch for launch in all_launches}
    for event in evidence.failed_launched:
        exit_ = event["exit"]
        launch = launches.get(exit_["launch"], {})
        is_seen = exit_["launch"] in failed or exit_["launch"].partition(".")[0] in failed
        is_hidden = (exit_.get("reported") and not is_seen) or launch.get("kind") == names.HIDES_FAILURES
        if is_hidden and not exit_["ended_by_us"]:
            status = 128 + exit_["signal"] if exit_["signal"] else exit_["exit_code"]
            return IgnoredFailure(launch.get("name", ""), status, 0, exit_["launch"], {})
    return None


def _when(call: Dict[str, Any]) -> Dict[str, Any]:
    """The time of a failed call, and the size of the script's output by then: the script may have gone on."""
    return {key: call[key] for key in ("seconds", "output") if call.get(key) is not None}


def _launches(evidence: AttemptEvidence) -> Dict[str, str]:
    """The launches of the script by call. If one call made several, as xargs does: the first one that failed."""
    failed = {event["exit"]["launch"] for event in evidence.failed_launched}
    launches = [
        launch for event in evidence.all(JournalEvent.LAUNCHES) for launch in event["launches"] if launch["call"]
    ]
    launches.sort(key=lambda launch: launch["launch"] in failed)
    by_call: Dict[str, str] = {}
    for launch in launches:
        if by_call.get(launch["call"]) not in failed:
            by_call[launch["call"]] = launch["launch"]
    return by_call


def _first_failure_of_script(evidence: AttemptEvidence) -> Optional[Exit]:
    """The first failed rank of the launch that ended the script, else the script itself.

    That is the last launch if the script failed, or one whose failure the script ignored. A trap may start further
    launches after a failure: then the script has the status of the launch that ended it.
    """
    own = next((exit_ for exit_ in evidence.exits if exit_["rank"] == names.SCRIPT_RANK), None)
    if own is None or own.get("reported"):
        return own
    if own["ended_by_us"]:
        return _first(_failed_in_running_launches(evidence, own))
    has_failed = bool(own["exit_code"] or own["signal"])
    ignored = None if has_failed else ignored_failure(evidence)
    if (has_failed and evidence.requests and _has_obeyed(evidence, own)) or not (has_failed or ignored):
        return None
    launch = evidence.last_launch if has_failed else ignored.launch if ignored else None
    failed = _failed_ranks(evidence, own, launch)
    if has_failed and not failed:
        failed = _failed_ranks(evidence, own, _launch_with_status(evidence, own["exit_code"]))
    first = _first(failed)
    if first is not None:
        return first
    if ignored is not None:
        return {**own, **_of_shell(ignored.status), **ignored.when, "words": ignored.words, "script": own}
    facts: Dict[str, Any] = {}
    for call in _passed_on(evidence, own["exit_code"])[-1:]:
        told = _of_shell(call["status"])
        facts = {**_when(call), **({**told, "words": call["words"], "script": own} if told["signal"] else {})}
    return {**own, **facts}


def _first(failed: Sequence[Exit]) -> Optional[Exit]:
    suspects = [exit_ for exit_ in failed if not exit_.get("stumbled")] or failed
    return min(suspects, key=lambda exit_: (exit_["seconds"], _how_ordinary(exit_), exit_["rank"]), default=None)


def _failed_in_running_launches(evidence: AttemptEvidence, script: Exit) -> List[Exit]:
    """The ranks that had failed before the first stop, in launches that still ran when ranks were ended."""
    stops = evidence.all(JournalEvent.STOPPING)
    known = [event["launches"] for event in stops if event.get("launches") is not None]
    running: Sequence[str] = known[0] if known else ()
    failed = [failure for launch in running for failure in _failed_ranks(evidence, script, launch)]
    return [failure for failure in failed if failure["at"] <= stops[0]["t"]]


def _of_shell(status: int) -> Dict[str, Optional[int]]:
    """The end of a program, by the status that a shell has for it: 128 and the signal."""
    number = status - 128
    return {"exit_code": None, "signal": number} if number in FATAL_SIGNALS else {"exit_code": status, "signal": None}


def _failed_ranks(evidence: AttemptEvidence, script: Exit, launch: Optional[str]) -> List[Exit]:
    return [
        {**event["exit"], "node": event["node"], "host": event["host"], "script": script, "at": event["t"]}
        for event in evidence.failed_launched
        if launch and f"{event['exit']['launch']}.".startswith(f"{launch}.")
    ]


def _launch_with_status(evidence: AttemptEvidence, status: Optional[int]) -> Optional[str]:
    """The last launch that failed with this status, and whose failure the script passed on."""
    launches = _launches(evidence)
    alike = _passed_on(evidence, status)
    return next((launches[call["call"]] for call in reversed(alike) if call["call"] in launches), None)


def _passed_on(evidence: AttemptEvidence, status: Optional[int]) -> List[Dict[str, Any]]:
    """The calls that failed with the status of the script, which did not handle their failure, or read the status."""
    return [
        call for call in evidence.failed_calls if call["status"] == status and (call.get("read") or not call["handled"])
    ]


def first_failure(evidence: AttemptEvidence) -> Optional[Exit]:
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
        if not exit_["ended_by_us"]
        and (exit_["exit_code"] or exit_["signal"])
        and exit_["seconds"] < end
        and exit_["rank"] not in with_the_job
        and not (has_request and _has_obeyed(evidence, exit_))
    ]
    suspects = [exit_ for exit_ in failures if not exit_.get("stumbled")]
    if not (suspects or with_the_job or evidence.has(JournalEvent.NODE_LOST)):
        suspects = failures
    first = min(suspects, key=lambda exit_: (exit_["seconds"], _how_ordinary(exit_), exit_["rank"]), default=None)
    counted = [exit_ for exit_ in suspects if "order" in exit_]
    if first is None or "error" not in first or not counted:
        return first
    return min(counted, key=lambda exit_: int(exit_["order"]))  # ranks without a count failed after the store was gone


def _how_ordinary(exit_: Exit) -> int:
    """Rank simultaneous exits. Python exits with 1 after any exception, also after a lost connection."""
    if exit_["signal"] in OWN_SIGNALS:
        return 0
    return 1 if exit_["exit_code"] not in (None, 1) else 2


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
    killed = {exit_["rank"] for exit_ in exits if exit_["signal"] == signal.SIGKILL and not exit_.get("oom")}
    return killed - failed_before


def _has_obeyed(evidence: AttemptEvidence, exit_: Exit) -> bool:
    code = exit_["exit_code"]
    return code in names.OBEYED_STATUSES and (code != names.EXIT_SAVED or evidence.saved.is_newer)


def _end_by_notice(evidence: AttemptEvidence, exits: Sequence[Exit]) -> float:
    """When the notice first ended a rank that does not handle its signal."""
    if evidence.notice is None:
        return float("inf")
    number = int(getattr(signal, f"SIG{evidence.notice}"))
    ended = (
        exit_["seconds"]
        for exit_ in exits
        if exit_["ended_by_us"] and (exit_["signal"] == number or exit_["exit_code"] == 128 + number)
    )
    return min(ended, default=float("inf"))
