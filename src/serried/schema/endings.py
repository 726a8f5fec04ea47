"""How an attempt, a task or a run ended: entries of the journals that show it, exit.json, and warnings.

Head and nodes write the entries, in JSON without the fields that have their default. Agents write and revise the
exit.json of an attempt. The first reader that is certain of the end of a run writes it into the record.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

from serried.base import NamedTuple, files
from serried.base.text import counted, spell
from serried.schema import SCHEMA, exits, names, reasons
from serried.schema.codec import facts_of, from_json, known, known_fields
from serried.schema.events import JournalEvent
from serried.schema.exits import Exit
from serried.schema.reasons import Reason

T = TypeVar("T")


def entries(journal: Iterable[Mapping[str, Any]], event: str, kind: Type[T]) -> List[T]:
    """The entries of one event, as far as they are known. Raises ValueError for one that lacks a field."""
    return [known(kind, entry) for entry in journal if entry.get("event") == event]


class Stopping(NamedTuple):
    """A node's journal has the reason alone."""

    reason: Reason
    because: str = ""
    save: bool = False
    """Ranks were asked to save."""
    notice: Optional[str] = None
    """The signal that they received for that, such as `USR1`."""
    node: Optional[int] = None
    """The node that received the scheduler's TERM."""
    absent: Tuple[str, ...] = ()
    """Hosts whose agents had not connected."""
    launches: Optional[Tuple[str, ...]] = None
    """Those of a job script that ran then."""
    by: str = ""
    """The user who requested it."""
    ranks: Tuple[int, ...] = ()
    """Those that had written nothing for too long."""
    hung: str = ""
    """Which of them hangs, and where."""
    values: int = 0
    """Of the metric, by which the search ended the trial."""
    t: float = 0.0


class RoundBegun(NamedTuple):
    """The ranks of all nodes start again in the same attempt."""

    round: int
    """From 2."""
    code: Reason
    """Why the round before ended, as `message`."""
    message: str
    resume: Optional[str] = None
    rank: Optional[int] = None
    """The one that failed, as `host` and `error`; None if none is known."""
    host: str = ""
    error: str = ""
    t: float = 0.0


_OF_A_ROUND = frozenset(
    {
        JournalEvent.STARTED, JournalEvent.STARTING_RANKS, JournalEvent.STOPPING, JournalEvent.RANK_FAILED,
        JournalEvent.RANK_EXIT, JournalEvent.SWEPT, JournalEvent.NODE_ENDED, JournalEvent.ALL_RANKS_ENDED,
        JournalEvent.RANKS_CONNECTED, JournalEvent.RANKS_UNCONNECTED, JournalEvent.SIDE_COMMAND_FAILED,
        JournalEvent.SIDE_COMMAND_EXITED, JournalEvent.NODE_LOST,
    }
)  # fmt: skip


def of_last_round(journal: Sequence[Dict[str, Any]], rounds: int = 0) -> List[Dict[str, Any]]:
    """A journal without what belongs to the rounds before the last, by the head's: it has begun `rounds` again."""
    begun = [(at, entry["round"]) for at, entry in enumerate(journal) if entry["event"] == JournalEvent.ROUND]
    last, number = begun[-1] if begun else (0, 1)
    last = len(journal) if number <= rounds else last
    return [entry for at, entry in enumerate(journal) if at >= last or entry["event"] not in _OF_A_ROUND]


class NodeLost(NamedTuple):
    host: str
    node: int = -1
    code: Optional[str] = None
    """A reason."""
    because: str = ""


class UncopiedOutputs(NamedTuple):
    """Results or checkpoints that could not be copied back from a node; in JSON without what is unknown."""

    kind: str = "results"
    """Or `checkpoints`."""
    files: Optional[int] = None
    bytes: Optional[int] = None
    names: Tuple[str, ...] = ()
    """Some of the files."""
    problem: str = ""
    """Why the first one could not be copied."""
    folder: str = ""
    """On the node's disk."""
    node: Optional[int] = None
    """As `host`, unless it is in the node's own journal."""
    host: str = ""
    is_lost: bool = False
    """The node does not have the files any more."""

    @classmethod
    def of_json(cls, entry: object) -> UncopiedOutputs:
        """As far as it is known: what was not copied must not be forgotten for a field of another type."""
        return cls(**known_fields(cls, entry)) if isinstance(entry, dict) else cls()

    def to_json(self) -> Dict[str, Any]:
        return {**facts_of(self), "kind": self.kind, "names": list(self.names)}


class Unsaved(NamedTuple):
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    problem: str


class NodeEnded(NamedTuple):
    """What a node agent reports when its ranks have ended, and all copies are made or given up."""

    exits: Tuple[Exit, ...]
    """Of its ranks."""
    node: Optional[int] = None
    host: str = ""
    left: Any = ()
    """Commands that still ran after the ranks. In whatever form they are stated, they fail the run."""
    swept: Optional[int] = None
    """The number of processes that it ended."""
    unsaved: Optional[Unsaved] = None
    missing: Tuple[UncopiedOutputs, ...] = ()
    contact: Optional[bool] = None
    """Ranks were connected to others; None where it cannot tell."""
    cpu_seconds: float = 0.0
    """Of its ranks, if they were watched for that."""
    unfit: str = ""
    """What keeps the node from another round."""


class ScriptLaunched(NamedTuple):
    launch: str = ""
    name: str = ""
    kind: str = ""
    call: str = ""
    """The call of the script that made it; empty if no bash has seen it."""


def launch_documents(folder: Path) -> List[Dict[str, Any]]:
    """What launches of a job script wrote as they began, by time; of one that several ranks started, all."""
    found = documents_in(folder)
    for rank in folder.glob("[0-9]*/**/rank-*"):
        found += documents_in(rank)
    return sorted(found, key=lambda document: float(document["time"]))


def documents_in(folder: Path) -> List[Dict[str, Any]]:
    """The complete documents of launches, or of failed calls, in a folder."""
    documents = map(files.read_json, sorted(folder.glob("*.json")))
    return [document for document in documents if document and isinstance(document.get("time"), (int, float))]


class FailedCall(NamedTuple):
    call: str = ""
    words: str = ""
    status: int = 0
    line: int = 0
    handled: bool = False
    signalled: bool = False
    """The script ended it."""
    within: Optional[str] = None
    """The launch in which a rank made the call."""
    read: Optional[bool] = None
    """The script has read its status."""
    time: Optional[float] = None
    seconds: Optional[float] = None
    """When, as in an exit."""
    output: Optional[int] = None
    """The size of the script's output by then."""


class Launches(NamedTuple):
    launches: Tuple[ScriptLaunched, ...]
    failures: Tuple[FailedCall, ...]


class Condition(NamedTuple):
    """One statement, or a warning: a code, and the sentence for it."""

    code: Optional[str]
    message: str
    nodes: Tuple[str, ...] = ()
    """Those in the sentence."""

    def to_json(self) -> Dict[str, Any]:
        return {"code": self.code, "message": self.message, **({"nodes": list(self.nodes)} if self.nodes else {})}


def conditions_of(document: Mapping[str, Any]) -> Tuple[Condition, ...]:
    """The conditions of an exit.json; its cause and message if an earlier version wrote it without conditions."""
    stated = document.get("conditions")
    with contextlib.suppress(ValueError):
        if stated and isinstance(stated, list):
            return tuple(from_json(Condition, condition) for condition in stated)
    return (condition_of(document.get("state"), document.get("cause"), str(document.get("message") or "")),)


def condition_of(state: object, cause: object, message: str) -> Condition:
    return Condition(Reason.COMPLETED if state == names.COMPLETED else reasons.parse(cause), message)


class FailureRecord(NamedTuple):
    rank: Optional[int]
    """None for a job script."""
    node: int
    host: str
    local_rank: int
    exit_code: Optional[int]
    signal: Optional[int]
    seconds: float
    error: str = ""
    launch: str = ""
    tail: Tuple[str, ...] = ()
    """The last lines of its output."""

    def to_json(self) -> Dict[str, Any]:
        return {**facts_of(self), "tail": list(self.tail)}


class End(NamedTuple):
    run: str
    task: Optional[int]
    attempt: Optional[int]
    """None for a run that was cancelled before it began. Then the facts of an attempt are None too."""
    job: Optional[str]
    state: str
    exit_code: Optional[int]
    cause: Optional[str]
    conditions: Tuple[Condition, ...]
    first_failure: Optional[FailureRecord] = None
    saved_step: Optional[int] = None
    started: Optional[str] = None
    ended: Optional[str] = None
    """UTC, ISO 8601, as `started`."""
    seconds: Optional[float] = None
    nodes: Tuple[str, ...] = ()
    world_size: Optional[int] = None
    rounds: Optional[int] = None
    """How often the ranks of the attempt started again after a failure; None if they did not."""
    progress: Optional[bool] = None
    """Its newest checkpoint is further than the one that the attempt found."""
    missing: Tuple[UncopiedOutputs, ...] = ()
    warnings: Tuple[Condition, ...] = ()
    attempts: Optional[int] = None
    """The number of attempts, in the end of a run or task."""
    tasks: Mapping[str, str] = {}
    """In the end of an array: the tasks by state, `0-16,18`."""

    @property
    def message(self) -> str:
        return "; ".join(condition.message for condition in self.conditions)

    @property
    def bad_nodes(self) -> Tuple[str, ...]:
        """Those because of which ranks did not start again. The next attempt does not use them."""
        return tuple(host for each in self.conditions if each.code == Reason.BAD_NODE for host in each.nodes)

    @property
    def newest_attempt(self) -> Optional[int]:
        return self.attempt if self.attempts is None else self.attempts

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> End:
        """Raises ValueError."""
        return from_json(cls, {**document, "conditions": ()})._replace(conditions=conditions_of(document))

    @classmethod
    def read(cls, path: Path) -> Optional[End]:
        """None without a valid exit.json: then how the attempt ended is to be found out."""
        with contextlib.suppress(ValueError):
            document = files.read_json(path)
            return cls.from_json(document) if document else None
        return None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> End:
        """As far as it is known: a later version or a failing disk may have written anything.

        A field of another type counts as missing. `state` is empty if the document states no end.
        """
        unknown = dict.fromkeys(cls._fields[: cls._fields.index("conditions")])
        stated = document.get("missing")
        missing = [entry for entry in stated if isinstance(entry, dict)] if isinstance(stated, list) else []
        fields = known_fields(cls, {**document, "missing": missing})
        found = {**unknown, **fields, "conditions": conditions_of(document)}
        is_stated = found["state"] in names.ENDED | {names.REQUEUED}
        return cls(**{**found, "run": found["run"] or "", "state": found["state"] if is_stated else ""})

    @classmethod
    def read_known(cls, path: Path) -> Optional[End]:
        """None without an exit.json, else as `of`."""
        document = files.read_json(path)
        return None if document is None else cls.of(document)

    def write(self, path: Path, mode: int) -> None:
        """Raises OSError."""
        files.write_json(path, self.to_json(), mode)

    def to_json(self) -> Dict[str, Any]:
        document: Dict[str, Any] = {"schema": SCHEMA}
        for name, value in self._asdict().items():
            is_optional = name in _OPTIONAL + (_OF_ATTEMPT if self.attempt is None else ())
            if not is_optional or value not in (None, (), {}):
                document[name] = value
            if name == "cause":
                document["message"] = self.message
        document["conditions"] = [condition.to_json() for condition in self.conditions]
        document["first_failure"] = self.first_failure.to_json() if self.first_failure else None
        document["nodes"] = list(self.nodes)
        if self.missing:
            document["missing"] = [outputs.to_json() for outputs in self.missing]
        if self.warnings:
            document["warnings"] = [warning.to_json() for warning in self.warnings]
        return document


_OPTIONAL = ("missing", "warnings", "attempts", "tasks", "rounds")
_OF_ATTEMPT = ("saved_step", "started", "seconds", "world_size", "progress")


_LONGEST_COMMAND = 60


class SideExit(NamedTuple):
    """How a command of `beside` ended; in JSON without an empty `problem` and `host`."""

    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    command: str
    exit_code: Optional[int]
    signal: Optional[int]
    seconds: float
    ended_by_us: bool
    problem: str = ""
    """Why it could not be started."""
    host: str = ""

    def to_json(self) -> Dict[str, Any]:
        return facts_of(self)


def shown(words: Sequence[str]) -> str:
    """A command in a message: one line, shortened."""
    import shlex

    text = " ".join((words[0] if len(words) == 1 else shlex.join(words)).split())
    return text if len(text) <= _LONGEST_COMMAND else f"{text[: _LONGEST_COMMAND - 1]}…"


def often(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def recovered_in(events: Sequence[Mapping[str, Any]]) -> List[Condition]:
    """How often ranks started again, and why, by the head's journal: a success must not hide a bad node."""
    rounds = entries(events, JournalEvent.ROUND, RoundBegun)
    if not rounds:
        return []
    causes = Counter(begun.message for begun in rounds)
    why = ", ".join(f"{message}{f' ({count} times)' if count > 1 else ''}" for message, count in causes.items())
    hosts = tuple(dict.fromkeys(begun.host for begun in rounds if begun.host))
    return [Condition(Reason.RECOVERED, f"recovered {often(len(rounds))}: {why}", hosts)]


def recoveries(conditions: Iterable[Condition]) -> List[str]:
    """What these say of recoveries. Readers show it of a success too: that must not hide a bad node."""
    return [condition.message for condition in conditions if condition.code == Reason.RECOVERED]


def bad_nodes_in(events: Sequence[Mapping[str, Any]]) -> List[Condition]:
    """The nodes because of which no round followed, by the head's journal."""
    every = [entry["hosts"] for entry in events if entry["event"] == JournalEvent.BAD_NODES]
    return [
        Condition(Reason.BAD_NODE, f"no further round on {host}: {why}", (host,))
        for hosts in every
        for host, why in hosts.items()
    ]


def warnings_in(events: Sequence[Mapping[str, Any]]) -> List[Condition]:
    """About each command of `beside` that failed by itself, and about GPUs in use, by the head's journal."""
    failures: Dict[int, List[SideExit]] = {}
    used: Dict[int, Mapping[str, Any]] = {}
    for event in events:
        if event.get("event") == JournalEvent.SIDE_COMMAND_FAILED:
            failures.setdefault(event["index"], []).append(from_json(SideExit, event))
        elif event.get("event") == JournalEvent.GPUS_IN_USE:
            used[event["node"]] = event
    warnings = []
    for index, (first, *others) in sorted(failures.items()):
        how = f"could not start: {first.problem}" if first.problem else exits.how(first.exit_code, first.signal)
        hosts = len({failure.host for failure in others} - {first.host})
        more = f" and {hosts} more {'node' if hosts == 1 else 'nodes'}" if hosts else ""
        message = f"command {index} of `beside`, `{first.command}`, {how} on {first.host}{more}"
        warnings.append(Condition(Reason.SIDE_COMMAND_FAILED, message))
    return [*warnings, *([Condition(Reason.GPUS_IN_USE, _gpus_in_use(used))] if used else [])]


def _gpus_in_use(used: Mapping[int, Mapping[str, Any]]) -> str:
    """One sentence for all nodes."""
    first, *others = (used[node]["gpus"] for node in sorted(used))
    numbers = ", ".join(str(gpu["gpu"]) for gpu in first)
    elsewhere = sum(map(len, others))
    which = f"GPU{'s' * (len(first) > 1)} {numbers} on {used[min(used)]['host']}"
    more = f" and {counted(elsewhere, 'GPU')} on other nodes" if elsewhere else ""
    gpus = [*first, *itertools.chain(*others)]
    processes, memory = sum(gpu["processes"] for gpu in gpus), sum(gpu["memory"] for gpu in gpus)
    held = [f"{processes} process{'es' * (processes > 1)}"] * bool(processes)
    held += [f"{spell(memory)} of GPU memory"] * bool(memory)
    return f"other programs used {which}{more} when the ranks started: {', '.join(held)}"


UNWATCHED = "unwatched"
"""The folder of the results for files that lie where checkpoints are watched and match no pattern."""
COPIER_KILLED = "its agent ended before every file was copied"
_NAMES_LISTED = 3


def missing_outputs(events: Sequence[Mapping[str, Any]]) -> List[UncopiedOutputs]:
    """Those of a node, by its journal, one for each kind."""
    begun = next((event for event in events if event["event"] == JournalEvent.STAGE_OUT_STARTED), None)
    ended = next((event for event in events if event["event"] == JournalEvent.STAGE_OUT_ENDED), None)
    if ended is not None:
        return [*map(UncopiedOutputs.of_json, ended.get("missing", ()))]
    if begun is None:
        return []
    return [UncopiedOutputs(kind, problem=COPIER_KILLED, folder=begun["folder"]) for kind in begun["kinds"]]


def outputs_left_out(facts: Mapping[str, Any]) -> List[str]:
    """Sentences about files that match no pattern, from the facts that a node reports after its last copy."""
    sentences = []
    left, unwatched = facts.get("unnamed"), facts.get("unwatched")
    if left:
        which = "1 file matches" if left["files"] == 1 else f"{left['files']} files match"
        kept = "is" if left["files"] == 1 else "are"
        names = ", ".join(map(repr, left["names"][:_NAMES_LISTED]))
        sentences.append(f"{which} no pattern of `data.results` and {kept} not kept: {names}")
    if unwatched:
        names = ", ".join(map(repr, unwatched[:_NAMES_LISTED]))
        sentences.append(
            f"no file in `{{checkpoints}}` matches a pattern of `checkpoint.watch`: {names}; "
            f"at the end the newest are copied to `{UNWATCHED}` in the results"
        )
    return sentences
