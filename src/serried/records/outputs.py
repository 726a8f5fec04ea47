"""The files that a run wrote: its outputs, those that stayed on nodes, and checkpoints that no attempt looks for."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from serried.base import NamedTuple
from serried.base import tree as file_tree
from serried.base.files import read_journal, read_json, write_json
from serried.base.text import seconds_of
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.records.status import attempt_numbers
from serried.schema import checkpoints, outputs
from serried.schema.endings import Condition, End, UncopiedOutputs, missing_outputs
from serried.schema.events import JournalEvent
from serried.schema.layout import AttemptDirectory, RunDirectory, TaskDirectory
from serried.schema.outputs import CACHES, LOOKED, OutputFile, Outputs, Place, Tally, is_noise
from serried.schema.plan import Plan
from serried.schema.reasons import Reason


def places(where: RunDirectory, plan: Plan, task: int | None = None) -> list[Place]:
    """Where outputs of a run, or of one task, are: its working trees, and models among its checkpoints."""
    return [*outputs.trees(where, plan, task), *outputs.final_models(where, plan, task)]


def of(selection: Selection, most: int | None = LOOKED) -> Outputs:
    """The outputs of a run, with all tasks of an array; empty for another user's run, or if the plan cannot be read."""
    if selection.record.owner:  # a plan may name any folder
        return Outputs()
    try:
        plan = selection.record.plan
    except RecordUnreadable:
        return Outputs()
    return outputs.describe(places(selection.record.where, plan, selection.task), most)


def changed_in_place(project: Path, since: float, leave_out: Path) -> Outputs:
    """Files of the project that have changed `since`: the outputs of a run without a snapshot, as far as one can know.

    Empty for a home, where many programs write. At most `LOOKED` entries are read, those near the top first, without
    caches, virtual environments and the folder `leave_out`. No link is followed.
    """
    if project in (Path.home(), *Path.home().parents):
        return Outputs()
    left_out = None
    with contextlib.suppress(OSError):
        left_out = leave_out.stat()
    tally, looked, is_all = Tally(), 0, True
    problems: list[OSError] = []
    pending = deque([""])
    while pending and is_all:
        folder = pending.popleft()
        entries = dict(file_tree.states_in(str(project / folder), problems.append))
        if "pyvenv.cfg" in entries and folder:
            continue
        for name, state in entries.items():
            looked += 1
            if looked > LOOKED:
                is_all = False
                break
            path = f"{folder}/{name}" if folder else name
            if is_noise(name) or any(fnmatchcase(name, pattern) for pattern in CACHES):
                continue
            if stat.S_ISDIR(state.st_mode):
                if left_out is None or not os.path.samestat(left_out, state):
                    pending.append(path)
            elif stat.S_ISREG(state.st_mode) and min(state.st_mtime, state.st_ctime) >= since:
                tally.add(OutputFile(path, state.st_size, state.st_mtime_ns))
    return Outputs(tally.files, tally.bytes, newest=tuple(tally.newest), unread=len(problems), is_all=is_all)


@dataclass(frozen=True)
class MissingOutputs:
    """Results and checkpoints that stayed on a node's disk because they could not be copied back in time."""

    task: int | None
    attempt: int
    node: int
    host: str
    folder: str
    """On that node's disk."""
    kinds: tuple[str, ...]
    files: int | None
    """None if unknown: the agent was killed."""
    bytes: int | None
    names: tuple[str, ...]
    """Some of the files."""
    problem: str
    """Why the first file could not be copied back."""
    is_lost: bool = False
    """The node does not have the files any more."""

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "kinds": list(self.kinds), "names": list(self.names)}

    @property
    def text(self) -> str:
        count = "" if self.files is None else f"{self.files} {'file' if self.files == 1 else 'files'} of "
        where = f"lost with {self.host}" if self.is_lost else f"on {self.host}"
        return f"{count}{self.what} {where} ({self.problem})"

    @property
    def what(self) -> str:
        """`results`, `checkpoints and results`."""
        return " and ".join(self.kinds)


def missing(selection: Selection, *, has_ended: bool) -> list[MissingOutputs]:
    """The files that each attempt has left on nodes; for an array, those of each task."""
    found: list[MissingOutputs] = []
    for task in selection.tasks:
        place = selection.record.where.task(task)
        for number in attempt_numbers(place):
            attempt = place.attempt(number)
            found += missing_in(End.read_known(attempt.exit) or _unwritten(task, place, attempt, has_ended=has_ended))
    return found


def missing_in(end: End) -> list[MissingOutputs]:
    by_node: dict[tuple[int, str], list[UncopiedOutputs]] = {}
    for entry in end.missing:
        by_node.setdefault((entry.node or 0, entry.folder), []).append(entry)
    return [
        MissingOutputs(
            task=end.task,
            attempt=end.attempt or 1,
            node=node,
            host=entries[0].host or "?",
            folder=folder,
            kinds=tuple(entry.kind for entry in entries),
            files=_sum(entry.files for entry in entries),
            bytes=_sum(entry.bytes for entry in entries),
            names=tuple(name for entry in entries for name in entry.names),
            problem=entries[0].problem,
            is_lost=entries[0].is_lost,
        )
        for (node, folder), entries in sorted(by_node.items())
        if folder
    ]


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [*counts]
    return None if None in known else sum(filter(None, known))


def _unwritten(task: int | None, place: TaskDirectory, attempt: AttemptDirectory, *, has_ended: bool) -> End:
    """What exit.json would list, from the journals of the nodes, for an attempt that could not write it."""
    end = End.of({"task": task, "attempt": attempt.number})
    is_last = attempt.number == max(attempt_numbers(place), default=attempt.number)  # a site may have purged all
    if is_last and not has_ended:
        return end
    hosts = {0: (read_json(attempt.claim) or {}).get("host", "?")}
    for event in read_journal(attempt.events):
        if event["event"] == JournalEvent.CONNECTED:
            hosts[event["node"]] = event["host"]
    entries: list[UncopiedOutputs] = []
    for node in sorted(hosts):
        fetches = [event for event in read_journal(attempt.fetched(node)) if event["event"] == JournalEvent.ENDED]
        last_fetch = fetches[-1] if fetches else {"problem": ""}
        if last_fetch.get("problem") is not None:  # else `serried fetch` got all files of the node
            is_lost = bool(last_fetch.get("is_gone"))
            left = missing_outputs(read_journal(attempt.node_events(node)))
            entries += [entry._replace(node=node, host=hosts[node], is_lost=is_lost) for entry in left]
    return end._replace(missing=tuple(entries))


def mark_fetched(selection: Selection, fetched: MissingOutputs) -> None:

    def without(end: End) -> End:
        left = tuple(entry for entry in end.missing if entry.folder != fetched.folder)
        if left:
            return end._replace(missing=left)
        conditions = [*end.conditions]
        at = next((at for at, one in enumerate(conditions) if one.code == Reason.RESULTS_MISSING), len(conditions))
        note = Condition(Reason.RESULTS_FETCHED, "files that had stayed on nodes were fetched later")
        conditions[at : at + 1] = [note]
        return end._replace(missing=(), conditions=tuple(conditions))

    _change_exits(selection, fetched, without)


def mark_lost(selection: Selection, lost: MissingOutputs) -> None:

    def as_lost(end: End) -> End:
        marked = (entry._replace(is_lost=True) if entry.folder == lost.folder else entry for entry in end.missing)
        return end._replace(missing=tuple(marked))

    _change_exits(selection, lost, as_lost)


def _change_exits(selection: Selection, entry: MissingOutputs, change: Callable[[End], End]) -> None:
    record = selection.record
    place = record.where.task(entry.task)
    for path in (place.attempt(entry.attempt).exit, place.exit):
        document = read_json(path) or {}
        end = End.of(document)
        if end.missing:  # what a later version has written beside it stays
            known, changed = end.to_json(), {"missing": [], **change(end).to_json()}
            facts = {name: value for name, value in changed.items() if value != known.get(name)}
            write_json(path, {**document, **facts}, path.stat().st_mode & 0o777)
    if record.end is not None and record.end.missing:
        record.write_end(change(record.end))


class StrayCheckpoint(NamedTuple):
    """A complete checkpoint among the outputs. No attempt resumes from it, because it is not in `{checkpoints}`."""

    path: Path
    framework: str
    """A key of `checkpoints.OPTIONS`, or another name."""
    shown: str
    """Relative to the project's folder."""
    pattern: str
    """For `checkpoint.watch`: relative to the folder where ranks start; empty if it is outside of that."""

    @property
    def placeholders(self) -> dict[str, str]:
        options = checkpoints.OPTIONS.get(self.framework)
        return {
            "checkpoint": f"`{self.shown}`",
            "checkpoint_path": shlex.quote(str(self.path)),
            "options": f"`{options}`" if options else "`{checkpoints}`, and `{resume:--OPTION=}`",
            "page": "frameworks" if options else "resuming",
            "watch": self.pattern,
        }


def newest_stray_checkpoint(selection: Selection) -> StrayCheckpoint | None:
    """The newest complete checkpoint among the outputs; None for another user's run."""
    if selection.record.owner:  # a plan may name any folder
        return None
    try:
        plan = selection.record.plan
    except RecordUnreadable:
        return None
    found: dict[Path, StrayCheckpoint] = {}
    looked: set[Path] = set()
    for root, path in _written_files(selection, plan):
        parts = path.split("/")
        if not set(parts).isdisjoint(checkpoints.NEVER_FOLDERS):
            continue
        for depth in range(1, len(parts) + 1):
            shown = "/".join(parts[:depth])
            candidate = root / shown
            if candidate not in looked and (framework := checkpoints.framework_of(candidate)):
                pattern = os.path.relpath(re.sub(r"\d+", "*", shown), plan.source.workdir)
                pattern = "" if pattern.startswith(os.pardir) else pattern
                found[candidate] = StrayCheckpoint(candidate, framework, shown, pattern)
            looked.add(candidate)
            if candidate in found:
                break
    by_age = sorted(found, key=checkpoints.changed_within, reverse=True)
    return next((found[path] for path in by_age if checkpoints.is_complete(path)), None)


def _written_files(selection: Selection, plan: Plan) -> Iterator[tuple[Path, str]]:
    """The outputs, as the folder and the path below it: of a run in the project itself, those that are newer."""
    for tree in outputs.trees(selection.record.where, plan, selection.task):
        listed = itertools.islice(tree.walk(lambda _: None), LOOKED)
        yield from ((tree.path, path) for path, _, is_output in listed if is_output)
    project = Path(plan.source.directory)
    if plan.source.snapshot or project in (Path.home(), *Path.home().parents):
        return
    began, own = seconds_of(plan.created) or 0, {str(selection.record.where.path)}
    states = itertools.islice(file_tree.states(str(project), lambda _: None, own), LOOKED)
    yield from ((project, path) for path, state in states if stat.S_ISREG(state.st_mode) and state.st_mtime >= began)
