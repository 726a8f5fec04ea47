"""Files of a run, for a copy: those that match the patterns, and those that stayed on nodes.

Small jobs on the nodes recover the latter. Each job runs a role of the agent; several jobs run at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import glob
import hashlib
import io
import os
import signal
import stat
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Union

from serried import schedulers
from serried.base import NamedTuple, files, shell, tree
from serried.base import copy as fs_copy
from serried.base.errors import SerriedError, UsageError
from serried.base.files import MODES
from serried.base.tree import Crew
from serried.records import outputs
from serried.records.index import Selection
from serried.records.outputs import MissingOutputs, places
from serried.schema import checkpoints
from serried.schema.events import JournalEvent
from serried.schema.layout import CHECKPOINTS, RESULTS, TaskDirectory
from serried.schema.names import FETCHED
from serried.schema.outputs import LOG_OF_SCRIPT, FetchLedger, is_append_only, trees
from serried.schema.plan import Plan

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
    record = selection.record
    for attempt in sorted({missing.attempt for missing in lacking}):  # files of later attempts replace earlier ones
        numbers = [number for number, missing in enumerate(lacking) if missing.attempt == attempt]
        errands = []
        for missing in (lacking[number] for number in numbers):
            task = "-" if missing.task is None else str(missing.task)
            role = ("fetch", task, str(attempt), str(missing.node), missing.folder)
            journal = record.where.task(missing.task).attempt(attempt).fetched(missing.node)
            errands.append(Errand(record.plan, missing.host, role, journal))

        def settle(place: int, answer: Answer, numbers: Sequence[int] = numbers) -> None:
            number = numbers[place]
            settled = answer if isinstance(answer, SerriedError) else _settled(selection, lacking[number], answer)
            on_answer(number, settled)

        send_all(errands, settle, observe)


def _settled(selection: Selection, found: MissingOutputs, answer: Mapping[str, Any]) -> Recovery:
    """The result in the answer of a node, after an update of exit.json and the record."""
    problem = str(answer.get("problem") or "")
    if not problem:
        outputs.mark_fetched(selection, found)
    elif answer.get("is_gone"):
        outputs.mark_lost(selection, found)
    files, size = int(answer.get("files") or 0), int(answer.get("bytes") or 0)
    return Recovery(files, size, problem, is_gone=bool(answer.get("is_gone")), torn=tuple(answer.get("torn") or ()))


class FetchMatches(NamedTuple):
    entries: list[FetchEntry]
    """Results and checkpoints, then outputs."""
    noted: dict[Path, tuple[FetchLedger, str]]
    """By source: the ledger of copied files, and the name in that ledger."""


def has_any(selection: Selection) -> bool:
    try:
        return bool(find_files(selection, (), Path()).entries)
    except UsageError:
        return False


def find_files(selection: Selection, wanted: Sequence[str], target: Path) -> FetchMatches:
    """The files of a run that match the patterns; by default its results and outputs. Raises UsageError for none.

    Patterns for outputs are relative to the project's folder, or to the folder in which ranks start. If `target` is a
    folder of the project, outputs below the same folder of the tree keep their paths from there. If two files have the
    same destination, a result keeps it, and an output goes to a folder `outputs` there.

    For another user's run, these are results and checkpoints, without links: those may lead to files of this user.
    """
    owner = selection.record.owner
    entries: list[FetchEntry] = []
    noted: dict[Path, tuple[FetchLedger, str]] = {}
    taken: set[str] = set()

    def take(entry: FetchEntry, below: str, to: str, ledger: FetchLedger, name: str, *, aside: str) -> None:
        while below + to in taken and entry.kind != "folder":
            to = f"{aside}/{to}"
        taken.add(below + to)
        replaces = frozenset() if owner else ledger.states.get(name, frozenset())
        entries.append(dataclasses.replace(entry, path=below + to, replaces=replaces))
        noted[entry.source] = ledger, name

    for place, below in _places(selection):
        ledger = FetchLedger(place.fetched)
        for folder in (RESULTS, CHECKPOINTS):
            patterns = [within for which, within in map(_folder_and_pattern, wanted or [RESULTS]) if which == folder]
            for entry in _found(place.path / folder, patterns, is_own=not owner):
                to = entry.path if folder == RESULTS else f"{folder}/{entry.path}"
                take(entry, below, to, ledger, f"{{{folder}}}/{entry.path}", aside=folder)
    plan = selection.record.plan
    starts = "" if plan.source.workdir == os.curdir else f"{glob.escape(plan.source.workdir)}/"
    patterns = [*wanted, *(f"{starts}{pattern}" for pattern in wanted if starts)]
    here, top = target.resolve(), Path(plan.source.directory).resolve()
    within = f"{here.relative_to(top)}/" if top in here.parents else ""
    for tree_outputs in () if owner else (trees if wanted else places)(selection.record.where, plan, selection.task):
        listed = _found(tree_outputs.path, patterns or [ALL])
        for entry in sorted(listed, key=lambda entry: not entry.path.startswith(within)):
            if tree_outputs.is_output(entry.path, entry.kind, *entry.state):
                to, name = entry.path.removeprefix(within), tree_outputs.ledger_name(entry.path)
                take(entry, tree_outputs.below, to, tree_outputs.ledger, name, aside=OUTPUTS)
    if not entries:
        what = " or ".join(f"`{pattern}`" for pattern in wanted)
        raise UsageError(
            f"run `{selection}` has no file that matches {what}"
            if wanted
            else f"run `{selection}` has neither results nor outputs",
            hint=_where_to_look(selection, is_all=not wanted),
        )
    return FetchMatches(entries, noted)


def note_fetched(selection: Selection, found: FetchMatches, report: Report, target: Path) -> None:
    """Record the files that are in `target` now: `clean` may delete these outputs, the next fetch replace the copies.

    Does nothing for runs of other users. Raises OSError if the run directory cannot be written to.
    """
    if selection.record.owner:
        return
    by_ledger: dict[FetchLedger, list[tuple[str, int, int]]] = {}
    copied = {*report.copied}
    for entry in report.there:
        ledger, name = found.noted[entry.source]
        # A file may have changed after it was listed. Then its copy has the new state. An equal file is no copy.
        states = {entry.state, (entry.path in copied and state_of(target / entry.path)) or entry.state}
        by_ledger.setdefault(ledger, []).extend((name, *state) for state in sorted(states))
    for ledger, states_of_files in by_ledger.items():
        ledger.note(states_of_files, MODES[selection.record.plan.share].file)


def mark(target: Path, project: Path) -> None:
    """Let snapshots leave `target` out, if it is a folder in `project` or in another project. Raises OSError."""
    folders = target.resolve().parents
    is_project = any((folder / name).exists() for folder in folders for name in (".git", "serried.toml"))
    if (is_project or project.resolve() in folders) and not os.path.lexists(target / ".gitignore"):
        (target / ".gitignore").write_text(FETCHED, encoding="utf-8")


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


def _folder_and_pattern(pattern: str) -> tuple[str, str]:
    first, _, rest = pattern.removeprefix("./").partition("/")
    return (first, rest or ALL) if first in (RESULTS, CHECKPOINTS) else (RESULTS, pattern)


def _found(root: Path, patterns: Sequence[str], *, is_own: bool = True) -> list[FetchEntry]:
    problems: list[OSError] = []
    found = list_entries(root, patterns, problems.append)
    if problems:
        raise UsageError(f"cannot read `{problems[0].filename}`: {problems[0].strerror}")
    return [entry for entry in found if is_own or (entry.kind != "link" and entry.source.is_relative_to(root))]


AT_ONCE = 16
"""Most jobs in the queue at once, to spare the scheduler."""
LOOK_SECONDS = 0.2
LAST_LINES, NAMED = 5, 3
Observe = Callable[[str], None]
Answer = Union[dict[str, Any], SerriedError]
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
            observe(_progress([*out.values()], [errand for _, errand in waiting]))
            time.sleep(LOOK_SECONDS if out else 0)
            for number in [number for number, sent in out.items() if sent.process.poll() is not None]:
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
        from serried.submission import script  # most fetches need no job

        self.host, self._journal, self._token = errand.host, errand.journal, os.urandom(8).hex()
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
    queued = [host for host in [*(sent.host for sent in out), *(errand.host for errand in waiting)] if host not in busy]
    states = []
    for state, hosts in (("at work on", list(dict.fromkeys(busy))), ("waiting for", list(dict.fromkeys(queued)))):
        if hosts:
            more = f" and {len(hosts) - NAMED} more" if len(hosts) > NAMED else ""
            states.append(f"{state} {', '.join(hosts[:NAMED])}{more}")
    return ", ".join(states)


def _scheduler_for(plan: Plan, host: str) -> str:
    """The scheduler that starts jobs on `host`. Raises UsageError if none does."""
    here = os.uname().nodename
    is_queued = not schedulers.traits(plan.site.scheduler).is_this_machine
    if is_queued or host.split(".", maxsplit=1)[0] == here.split(".")[0]:
        return plan.site.scheduler
    if not plan.site.inside:  # otherwise the run was inside a job of that scheduler, and needs a new job
        hint = "no scheduler starts jobs there: log in to that machine"
        raise UsageError(f"run `{plan.run}` was on {host}, and this is {here}", hint=hint)
    return plan.site.inside


THREADS = 16
"""The most files that are copied at once."""
TRIES = 3
"""How often a file is copied if it changes during the copy: the run may still be writing."""
COPIED, SAME, KEPT, EQUAL_SIZE = "copied", "same", "kept", "equal size"
Outcome = Union[str, OSError]
"""One of these, or why an entry could not be copied."""
OnCopied = Callable[[int], None]
"""Receives the number of bytes of each step."""


@dataclass(frozen=True)
class FetchEntry:
    path: str
    """Below the target folder."""
    source: Path
    kind: str
    """`file`, `link`, `folder`."""
    bytes: int
    changed: int
    """In nanoseconds."""
    top: Path
    """The folder of the run that contains it."""
    replaces: frozenset[tuple[int, int]] = frozenset()
    """Sizes and times of earlier copies of this file: no other file is replaced."""
    link: str | None = None
    """If the file is on another machine: the target of a link; empty for other kinds."""
    grows: bool = False
    """The run appends to the file: only its first `bytes` bytes are copied."""

    @property
    def state(self) -> tuple[int, int]:
        return self.bytes, self.changed

    @property
    def leads_to(self) -> str:
        """The target of a link. An absolute link into the run's folder is changed to lead to the copy."""
        if self.link is not None:
            return self.link
        written = str(self.source.readlink())
        for top in (str(self.top), os.path.realpath(self.top)):
            if written.startswith(f"{top}/"):
                return os.path.relpath(f"{self.top}{written[len(top) :]}", self.source.parent)
        return written


@dataclass
class Report:
    """The outcome of a copy, by the paths of entries."""

    copied: list[str] = field(default_factory=list)
    bytes: int = 0
    same: int = 0
    kept: list[str] = field(default_factory=list)
    """Paths that existed, were not earlier copies and were not replaced."""
    problems: dict[str, str] = field(default_factory=dict)
    there: list[FetchEntry] = field(default_factory=list)
    """Files that exist now, copied or unchanged."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("copied", "bytes", "same", "kept", "problems")}


def list_entries(root: Path, wanted: Sequence[str], problem: tree.Problem) -> list[FetchEntry]:
    """The entries below `root` that match the patterns, and the content of matching folders, by path."""
    entries: dict[str, FetchEntry] = {}
    for pattern in wanted:
        for path, entry in tree.find(str(root), pattern, problem):
            _add(entries, root, path, entry, problem)
            if entry.is_dir(follow_symlinks=False):
                for path_within, entry_within in tree.walk(str(root), path, problem):
                    _add(entries, root, path_within, entry_within, problem)
    return [entries[path] for path in sorted(entries)]


def _add(entries: dict[str, FetchEntry], root: Path, path: str, entry: os.DirEntry[str], problem: tree.Problem) -> None:
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
    source = root / path
    try:
        state = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(state.st_mode) and source.readlink().match(LOG_OF_SCRIPT):  # the link is no use elsewhere
            source, state = source.resolve(), entry.stat()
    except FileNotFoundError:  # the run may delete files meanwhile
        return
    except OSError as error:
        problem(error)
        return
    kind = kinds.get(stat.S_IFMT(state.st_mode))
    if kind:  # sockets and pipes are not copied
        size = state.st_size if kind == "file" else 0
        entries.setdefault(path, FetchEntry(path, source, kind, size, state.st_mtime_ns, root))


def while_it_runs(entries: Sequence[FetchEntry]) -> list[FetchEntry]:
    """Entries that are useful before the run has ended: logs and tables up to a complete line, complete checkpoints."""
    whole: dict[Path, bool] = {}
    found = []
    for entry in entries:
        name = entry.source.name
        try:
            if entry.kind == "file" and is_append_only(name):
                count = _whole_lines(entry.source, entry.bytes)
                found += [dataclasses.replace(entry, bytes=count, grows=True)] if count else []
                continue
            if any(map(checkpoints.is_unfinished, entry.path.split("/"))):
                continue
            if entry.kind == "file" and checkpoints.is_complete_file(entry.source) is False:
                continue
            if entry.top.name == CHECKPOINTS:
                first = entry.top / entry.source.relative_to(entry.top).parts[0]
                if not whole.setdefault(first, checkpoints.is_complete(first)):
                    continue
        except OSError:  # the run may delete files meanwhile
            continue
        found.append(entry)
    return found


def _whole_lines(path: Path, size: int) -> int:
    """The number of bytes up to the end of the last complete line; all bytes of a file without lines."""
    if "tfevents" in path.name:
        return size
    with files.open_regular(path) as file:
        begin = max(0, size - fs_copy.CHUNK)
        file.seek(begin)
        end = file.read(size - begin).rfind(b"\n") + 1
    return begin + end if end else 0 if not begin else size


class SettledFiles:
    """Selects files that did not change between two looks, and files that may be copied while they grow."""

    def __init__(self) -> None:
        self._before: dict[Path, tuple[int, int]] = {}

    def of(self, entries: Sequence[FetchEntry]) -> list[FetchEntry]:
        before, self._before = self._before, {entry.source: entry.state for entry in entries}
        return [e for e in entries if e.grows or e.kind != "file" or before.get(e.source) == e.state]


def copy(entries: Sequence[FetchEntry], target: Path, *, force: bool, observe: OnCopied) -> Report:
    """Copy the entries to `target`. Raises OSError if that folder cannot be created."""
    target.mkdir(parents=True, exist_ok=True)
    return report_of(entries, _Copying(target, observe, force=force).copy(entries))


def compare(entries: Sequence[FetchEntry], target: Path, *, force: bool) -> Report:
    """Report what `copy` would do."""
    outcomes: dict[int, Outcome] = {}
    for number, entry in enumerate(entries):
        try:
            outcomes[number] = decide(entry, target / entry.path, lambda _: None, force=force)
        except OSError as error:
            outcomes[number] = error
    return report_of(entries, outcomes)


def report_of(entries: Sequence[FetchEntry], outcomes: Mapping[int, Outcome]) -> Report:
    report = Report()
    for number, entry in enumerate(entries):
        outcome = outcomes[number]
        if isinstance(outcome, OSError):
            report.problems[entry.path] = outcome.strerror or str(outcome)
        elif outcome == KEPT:
            report.kept.append(entry.path)
        elif entry.kind != "folder":
            report.there.append(entry)
            if outcome == COPIED:
                report.copied.append(entry.path)
                report.bytes += entry.bytes
            report.same += outcome == SAME
    return report


class _Copying:
    def __init__(self, root: Path, observe: OnCopied, *, force: bool) -> None:
        self._root, self._force = root, force
        self._report_progress = observe
        self._pool = Crew(THREADS)
        self._lock = threading.Lock()
        self._folders: set[str] = set()
        """Those that exist in the target."""
        self._full: OSError | None = None
        """The error of a full disk: no further file is tried."""
        self._is_interrupted = False

    def copy(self, entries: Sequence[FetchEntry]) -> Mapping[int, Outcome]:
        """The outcomes by the entries' indices. An interruption leaves complete files and temporary ones."""
        outcomes: dict[int, Outcome] = {}

        def copy_in_turn(numbered: Iterable[tuple[int, FetchEntry]]) -> None:
            for number, entry in numbered:
                try:
                    outcomes[number] = self._full or self._copy(entry)
                except OSError as error:
                    outcomes[number] = error
                    if error.errno in (errno.ENOSPC, errno.EDQUOT):
                        self._full = error

        by_path: dict[str, list[tuple[int, FetchEntry]]] = {}
        for number, entry in enumerate(entries):  # of two entries with one target, the second must see the first
            by_path.setdefault(entry.path, []).append((number, entry))
        for numbered in by_path.values():
            self._pool.add(functools.partial(copy_in_turn, numbered))
        try:
            self._pool.run()
        except BaseException as interruption:
            self._is_interrupted = True
            self._pool.stop(interruption)
            raise
        return outcomes

    def _copy(self, entry: FetchEntry) -> str:
        target = self._root / entry.path
        self._make_folder(os.path.dirname(entry.path))  # noqa: PTH120 - it may be empty
        outcome = decide(entry, target, self._observe, force=self._force)
        if outcome != COPIED:
            self._observe(entry.bytes)
        elif entry.kind == "folder":
            self._make_folder(entry.path)
        elif entry.kind == "link":
            temporary = target.with_name(temporary_name(entry.source, 0, 0))
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(entry.leads_to)
            temporary.replace(target)
        else:
            copy_file(entry.source, target, self._observe, **({"most": entry.bytes} if entry.grows else {}))
        return outcome

    def _observe(self, count: int) -> None:
        if self._is_interrupted:
            raise InterruptedError
        self._pool.look()
        with self._lock:
            self._report_progress(count)

    def _make_folder(self, path: str) -> None:
        if path not in self._folders:
            fs_copy.make_directories(self._root, path)  # follows no link: a link of one run may be a folder of another
            self._folders.add(path)


def decide(entry: FetchEntry, target: Path, observe: OnCopied, *, force: bool) -> str:  # noqa: PLR0911
    """COPIED, SAME or KEPT; EQUAL_SIZE if only the content can tell, and the content is on another machine.

    Raises OSError if `target` cannot be replaced by an entry of this kind.
    """
    try:
        present = target.lstat()
    except OSError:
        return COPIED
    if entry.kind == "folder":
        if stat.S_ISDIR(present.st_mode):
            return SAME
        raise NotADirectoryError(errno.ENOTDIR, "the target exists and is not a folder")
    state = (present.st_size, present.st_mtime_ns)
    if entry.kind == "link":
        is_same = stat.S_ISLNK(present.st_mode) and str(target.readlink()) == entry.leads_to
    else:
        is_same = stat.S_ISREG(present.st_mode) and state == entry.state
    if is_same:
        return SAME
    if stat.S_ISDIR(present.st_mode):
        raise IsADirectoryError(errno.EISDIR, "the target is a folder")
    if force or state in entry.replaces:
        return COPIED
    has_grown = present.st_size < entry.bytes and is_append_only(entry.source.name)
    is_regular = entry.kind == "file" and stat.S_ISREG(present.st_mode)
    if not (is_regular and (has_grown or entry.bytes == present.st_size)):
        return KEPT
    if entry.link is not None:
        return EQUAL_SIZE
    same = COPIED if has_grown else SAME
    return same if _is_equal(entry.source, target, observe) else KEPT


def _is_equal(source: Path, target: Path, observe: OnCopied) -> bool:
    """Whether `source` begins with `target`: a run may have rewritten a file of the project, or its log has grown.

    Interrupted copies are not in a ledger, so only the content shows that `target` is one.
    """
    with contextlib.suppress(PermissionError), files.open_regular(source) as wanted, target.open("rb") as present:
        while chunk := present.read(fs_copy.CHUNK):
            observe(0)
            if wanted.read(len(chunk)) != chunk:
                return False
        return True
    return False


def state_of(path: Path) -> tuple[int, int] | None:
    """Size and time, as `FetchEntry.state`."""
    with contextlib.suppress(OSError):
        state = path.lstat()
        return state.st_size, state.st_mtime_ns
    return None


def copy_file(path: Path, target: Path, observe: OnCopied, most: int | None = None) -> None:
    """Copy to a temporary name that depends on the source alone, so that a later copy continues this one.

    With `most`, copy at most that many bytes: the file may grow.
    """
    for _ in range(TRIES):
        with files.open_regular(path) as source:
            before = os.fstat(source.fileno())
            size = before.st_size if most is None else min(most, before.st_size)
            temporary = target.with_name(temporary_name(path, size, before.st_mtime_ns))
            with temporary.open("a+b", buffering=0) as written:
                if not _lock(written, temporary):
                    if state_of(target) == (size, before.st_mtime_ns):
                        observe(size)
                        return
                    has_arrived = False
                    continue
                sent = _copy_rest(source, written, size, observe)
                has_arrived = sent == (_checksum(written), written.tell())
                after = os.fstat(source.fileno())
                is_steady = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
                if (is_steady or most is not None) and has_arrived and sent[1] == size <= after.st_size:
                    if before.st_mode & stat.S_IXUSR:
                        mode = temporary.stat().st_mode
                        temporary.chmod(mode | (mode & 0o444) >> 2)
                    os.utime(temporary, ns=(before.st_mtime_ns, before.st_mtime_ns))
                    temporary.replace(target)
                    return
                temporary.unlink()
    problem = "the file changes during each copy" if has_arrived else "the copy differs from the file"
    raise OSError(errno.EAGAIN, problem)


def _lock(written: io.FileIO, temporary: Path) -> bool:
    """Wait for another process that copies the same file. Returns False if that process has completed the copy."""
    with contextlib.suppress(OSError):  # without locks on this file system, the checksum detects a second writer
        fcntl.flock(written, fcntl.LOCK_EX)
    try:
        return temporary.stat().st_ino == os.fstat(written.fileno()).st_ino
    except FileNotFoundError:
        return False


def _copy_rest(source: BinaryIO, written: io.FileIO, size: int, observe: OnCopied) -> tuple[int, int]:
    """Append what `written` lacks of the first `size` bytes. Returns the source's checksum and the new length."""
    crc32, length = _checksum(written), written.tell()
    observe(length)

    def on_chunk(chunk: bytes) -> None:
        nonlocal crc32
        crc32 = zlib.crc32(chunk, crc32)
        observe(len(chunk))

    length = fs_copy.copy_content(source.fileno(), written.fileno(), length, size, on_chunk)
    os.fsync(written.fileno())
    return crc32, length


def _checksum(file: io.FileIO) -> int:
    """Of the whole file; the position is at its end afterwards."""
    crc32 = 0
    file.seek(0)
    while chunk := file.read(fs_copy.CHUNK):
        crc32 = zlib.crc32(chunk, crc32)
    return crc32


def temporary_name(path: Path, size: int, changed: int) -> str:
    key = f"{path}\0{size}\0{changed}".encode("utf-8", "surrogateescape")
    return f".serried-{hashlib.sha256(key).hexdigest()[:16]}{fs_copy.PART}"
