"""Files of a run, for a copy: those that match the patterns, and those that stayed on nodes.

Small jobs on the nodes recover the latter. Each job runs a role of the agent; several jobs run at once.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.base import files, shell
from serried.base.errors import SerriedError, UsageError
from serried.base.files import MODES
from serried.records import outputs
from serried.records.index import Selection
from serried.records.outputs import MissingOutputs, places
from serried.schema.events import JournalEvent
from serried.schema.layout import CHECKPOINTS, RESULTS, TaskDirectory
from serried.schema.names import FETCHED
from serried.schema.outputs import FetchLedger, trees
from serried.schema.plan import Plan
from serried.submission import fetch_copy, script
from serried.submission.fetch_copy import FetchEntry, Report

AT_ONCE = 16
"""Most jobs in the queue at once, to spare the scheduler."""
LOOK_SECONDS = 0.2
LAST_LINES = 5
NAMED = 3

Observe = Callable[[str], None]
Answer = dict[str, Any] | SerriedError
"""The last journal entry of a node job, or why there is none."""


@dataclass(frozen=True)
class Errand:
    plan: Plan
    host: str
    role: tuple[str, ...]
    """The role of the agent on `host`."""
    journal: Path
    """The journal of the role. Until the job ends, its script and its output are beside the journal."""


def send_all(errands: Sequence[Errand], on_answer: Callable[[int, Answer], None], observe: Observe) -> None:
    """Run all; `on_answer` gets the place of each in `errands` and its answer. An exception ends the running jobs."""
    waiting = deque(enumerate(errands))
    out: dict[int, _Sent] = {}
    try:
        while waiting or out:
            while waiting and len(out) < AT_ONCE:
                number, errand = waiting.popleft()
                try:
                    out[number] = _Sent(errand)
                except SerriedError as error:
                    on_answer(number, error)
            observe(_progress(list(out.values()), [errand for _, errand in waiting]))
            time.sleep(LOOK_SECONDS if out else 0)
            for number in [number for number, sent in out.items() if sent.has_ended]:
                on_answer(number, out.pop(number).answer())
    except BaseException:
        for sent in out.values():
            sent.process.terminate()
        for sent in out.values():
            sent.process.wait()
        raise


class _Sent:
    """An errand with its job. Raises SerriedError if the job cannot start."""

    def __init__(self, errand: Errand) -> None:
        self.host = errand.host
        self._journal = errand.journal
        self._token = os.urandom(8).hex()
        self._has_begun = False
        scheduler = _scheduler_for(errand.plan, errand.host)
        modes, folder = MODES[errand.plan.share], errand.journal.parent
        self._script, self._log = folder / f"errand-{self._token}.sh", folder / f"errand-{self._token}.log"
        text = script.render_errand(errand.plan, [*errand.role, self._token], python=sys.executable)
        self._argv = schedulers.get(scheduler).errand(errand.plan, errand.host, ("/bin/bash", str(self._script)))
        try:
            files.make_directory(folder, modes.directory)
            files.write_text(self._script, text, modes.file)
            self.process = shell.start(
                self._argv,
                log=self._log,
                env=schedulers.scrub(os.environ),
                cwd=Path("/"),
                umask=modes.umask,
                signal_on_our_death=signal.SIGTERM,
            )
        except OSError as error:
            raise SerriedError(f"cannot start a job on {errand.host}: {folder}: {error.strerror}") from None

    @property
    def has_begun(self) -> bool:
        self._has_begun = self._has_begun or self._entry(JournalEvent.BEGUN) is not None
        return self._has_begun

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def answer(self) -> Answer:
        output = self._log.read_text(encoding="utf-8", errors="replace").splitlines() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        self._script.unlink(missing_ok=True)
        ended = self._entry(JournalEvent.ENDED)
        if ended is None:
            return SerriedError(
                f"the job on {self.host} failed: `{self._argv[0]}` exited with status {self.process.returncode}",
                details="\n".join(output[-LAST_LINES:]) or None,
            )
        return ended

    def _entry(self, event: str) -> dict[str, Any] | None:
        entries = reversed(files.read_journal(self._journal))
        return next((it for it in entries if (it.get("token"), it.get("event")) == (self._token, event)), None)


def _progress(out: Sequence[_Sent], waiting: Sequence[Errand]) -> str:
    """`at work on n1, waiting for n2, n3 and 4 more`."""
    busy = [sent.host for sent in out if sent.has_begun]
    hosts = [sent.host for sent in out] + [errand.host for errand in waiting]
    queued = [host for host in hosts if host not in busy]
    states = (("at work on", busy), ("waiting for", queued))
    return ", ".join(f"{state} {_listed(several)}" for state, several in states if several)


def _listed(hosts: Sequence[str]) -> str:
    names = list(dict.fromkeys(hosts))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _scheduler_for(plan: Plan, host: str) -> str:
    """The scheduler that starts jobs on `host`. Raises UsageError if none does."""
    here = os.uname().nodename
    is_queued = not schedulers.traits(plan.site.scheduler).is_this_machine
    if is_queued or host.split(".", maxsplit=1)[0] == here.split(".")[0]:
        return plan.site.scheduler
    if not plan.site.inside:  # otherwise the run was inside a job of that scheduler, and needs a new job
        raise UsageError(
            f"run `{plan.run}` was on {host}, and this is {here}",
            hint="no scheduler starts jobs there: log in to that machine",
        )
    return plan.site.inside


ALL = "*"
OUTPUTS = "outputs"
"""The folder of outputs whose paths in the target are those of results."""


@dataclass(frozen=True)
class Recovery:
    """The result of a job that copied the files of one node to the run directory."""

    files: int
    bytes: int
    problem: str
    """Why files are still missing; empty if none is."""
    is_gone: bool = False
    """The node does not have the files any more."""
    torn: tuple[str, ...] = ()
    """Checkpoints that may be torn, and stayed on the node."""


def recover(
    selection: Selection,
    lacking: Sequence[MissingOutputs],
    on_answer: Callable[[int, Recovery | SerriedError], None],
    observe: Observe,
) -> None:
    """Copy missing files to the run directory, by a job on each node.

    `on_answer` gets each outcome, with its place in `lacking`, as soon as the job has ended.
    """
    for attempt in sorted({found.attempt for found in lacking}):  # files of later attempts replace earlier ones
        numbers = [number for number, found in enumerate(lacking) if found.attempt == attempt]

        def settle(place: int, answer: Answer, numbers: Sequence[int] = numbers) -> None:
            number = numbers[place]
            if not isinstance(answer, SerriedError):
                on_answer(number, _settled(selection, lacking[number], answer))
            else:
                on_answer(number, answer)

        send_all([_errand(selection, lacking[number]) for number in numbers], settle, observe)


def _errand(selection: Selection, found: MissingOutputs) -> Errand:
    record = selection.record
    attempt = record.where.task(found.task).attempt(found.attempt)
    task = "-" if found.task is None else str(found.task)
    role = ("fetch", task, str(found.attempt), str(found.node), found.folder)
    return Errand(record.plan, found.host, role, attempt.fetched(found.node))


def _settled(selection: Selection, found: MissingOutputs, answer: Mapping[str, Any]) -> Recovery:
    """The result in the answer of a node, after an update of exit.json and the record."""
    problem = str(answer.get("problem") or "")
    if not problem:
        outputs.mark_fetched(selection, found)
    elif answer.get("is_gone"):
        outputs.mark_lost(selection, found)
    files, size = int(answer.get("files") or 0), int(answer.get("bytes") or 0)
    return Recovery(files, size, problem, is_gone=bool(answer.get("is_gone")), torn=tuple(answer.get("torn") or ()))


@dataclass(frozen=True)
class FetchMatches:
    """The files of a run that match the patterns."""

    entries: list[FetchEntry]
    """Results and checkpoints, then outputs."""
    noted: dict[Path, tuple[FetchLedger, str]]
    """By source: the ledger of copied files, and the name in that ledger."""


def has_any(selection: Selection) -> bool:
    """Whether the run has results or outputs to copy."""
    try:
        return bool(find(selection, (), Path()).entries)
    except UsageError:
        return False


def find(selection: Selection, wanted: Sequence[str], target: Path) -> FetchMatches:
    """The files of a run that match the patterns; by default its results and outputs. Raises UsageError for none.

    Patterns for outputs are relative to the project's folder, or to the folder in which ranks start. If `target` is a
    folder of the project, outputs below the same folder of the tree keep their paths from there. If two files have the
    same destination, a result keeps it, and an output goes to a folder `outputs` there.
    """
    entries: list[FetchEntry] = []
    noted: dict[Path, tuple[FetchLedger, str]] = {}

    taken: set[str] = set()

    def take(entry: FetchEntry, below: str, to: str, ledger: FetchLedger, name: str, *, aside: str) -> None:
        while below + to in taken and entry.kind != "folder":
            to = f"{aside}/{to}"
        taken.add(below + to)
        entries.append(dataclasses.replace(entry, path=below + to, replaces=ledger.states.get(name, frozenset())))
        noted[entry.source] = ledger, name

    for place, below in _places(selection):
        ledger = FetchLedger(place.fetched)
        for folder, entry in _of(place, wanted or [RESULTS]):
            to = entry.path if folder == RESULTS else f"{folder}/{entry.path}"
            take(entry, below, to, ledger, f"{{{folder}}}/{entry.path}", aside=folder)
    plan = selection.record.plan
    starts = "" if plan.source.workdir == os.curdir else f"{glob.escape(plan.source.workdir)}/"
    patterns = [*wanted, *(f"{starts}{pattern}" for pattern in wanted if starts)]
    within = _within(target, Path(plan.source.directory))
    for tree in (trees if wanted else places)(selection.record.where, plan, selection.task):
        listed = _found(tree.path, patterns or [ALL])
        for entry in sorted(listed, key=lambda entry: not entry.path.startswith(within)):
            if tree.is_output(entry.path, entry.kind, *entry.state):
                take(
                    entry,
                    tree.below,
                    entry.path.removeprefix(within),
                    tree.ledger,
                    tree.ledger_name(entry.path),
                    aside=OUTPUTS,
                )
    if not entries:
        what = " or ".join(f"`{pattern}`" for pattern in wanted)
        raise UsageError(
            f"run `{selection}` has no file that matches {what}"
            if wanted
            else f"run `{selection}` has neither results nor outputs",
            hint=_where_to_look(selection, is_all=not wanted),
        )
    return FetchMatches(entries, noted)


def _within(target: Path, project: Path) -> str:
    """The prefix of paths of the project that are below `target`; empty if `target` is not in the project."""
    here, top = target.resolve(), project.resolve()
    return f"{here.relative_to(top)}/" if here.is_relative_to(top) and here != top else ""


def note_fetched(selection: Selection, found: FetchMatches, report: Report, target: Path) -> None:
    """Record the files that are in `target` now: `clean` may delete these outputs, the next fetch replace the copies.

    Raises OSError if the run directory cannot be written.
    """
    by_ledger: dict[FetchLedger, list[tuple[str, int, int]]] = {}
    for entry in report.there:
        ledger, name = found.noted[entry.source]
        # A file may have changed after it was listed. Then its copy has the new state.
        states = {entry.state, fetch_copy.file_state(target / entry.path) or entry.state}
        by_ledger.setdefault(ledger, []).extend((name, *state) for state in sorted(states))
    mode = MODES[selection.record.plan.share].file
    for ledger, states_of_files in by_ledger.items():
        ledger.note(states_of_files, mode)


def mark(target: Path, project: Path) -> None:
    """Let snapshots leave `target` out, if it is a folder in `project` or in another project. Raises OSError."""
    folders = target.resolve().parents
    is_within = project.resolve() in folders or any((folder / name).exists() for folder in folders for name in _MARKS)
    if is_within and not os.path.lexists(target / ".gitignore"):
        (target / ".gitignore").write_text(FETCHED, encoding="utf-8")


_MARKS = (".git", "serried.toml")
"""In the folder of a project."""


def _where_to_look(selection: Selection, *, is_all: bool) -> str:
    source = selection.record.plan.source
    if is_all and any(_found(place.checkpoints, [ALL]) for place, _ in _places(selection)):
        return f"`serried fetch {selection} checkpoints --to DIR` copies its checkpoints"
    if source.snapshot:
        return f"`serried show {selection}` lists the folders of its files"
    return f"it ran in place: files that it wrote by relative paths are in `{source.directory}`"


def _places(selection: Selection) -> list[tuple[TaskDirectory, str]]:
    """For an array, the files of each task go to a folder with its number."""
    where = selection.record.where
    return [(where.task(each), f"{each}/" if selection.is_array else "") for each in selection.tasks]


def _of(place: TaskDirectory, wanted: Sequence[str]) -> Iterator[tuple[str, FetchEntry]]:
    pairs = [_folder_and_pattern(pattern) for pattern in wanted]
    for folder in (RESULTS, CHECKPOINTS):
        patterns = [pattern for which, pattern in pairs if which == folder]
        if patterns:
            yield from ((folder, entry) for entry in _found(place.path / folder, patterns))


def _folder_and_pattern(pattern: str) -> tuple[str, str]:
    first, _, rest = pattern.removeprefix("./").partition("/")
    return (first, rest or ALL) if first in (RESULTS, CHECKPOINTS) else (RESULTS, pattern)


def _found(root: Path, patterns: Sequence[str]) -> list[FetchEntry]:
    problems: list[OSError] = []
    found = fetch_copy.find(root, patterns, problems.append)
    if problems:
        raise UsageError(f"cannot read `{problems[0].filename}`: {problems[0].strerror}")
    return found
