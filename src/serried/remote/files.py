"""Results and outputs of a run on a cluster, copied here: what is missing, in one stream, each file verified.

    fetch(session, run, …)       here; the same call continues what was cut
    matches, stream, note        over there: list the files, send contents, note the copies in the run's ledgers

The stream is of records: a kind, a length and so many bytes. BEGIN and END of a file are JSON. Its DATA is PACKED if
that makes it smaller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from serried.base import copy as fs_copy
from serried.base.errors import NotConnected, RunNotFoundError, SerriedError, UsageError, reason
from serried.base.files import open_regular
from serried.records import index, outputs, shared
from serried.records.status import is_over, never_starts, statuses_of, wait
from serried.remote import project
from serried.remote.client import RemoteSession
from serried.schema.layout import project_folder, sent_tree
from serried.submission import fetch as local
from serried.submission.fetch import COPIED, EQUAL_SIZE, KEPT, SAME, FetchEntry, Outcome, Report
from serried.submission.reconcile import find_out

RECORD = struct.Struct(">BI")
BEGIN, DATA, PACKED, END = range(4)
CHUNK = 1 << 18
"""A cut costs a record at most."""
LONGEST = 1 << 20
NO_FILES = "what the cluster sent are not files"
_WRONG = (ValueError, LookupError, TypeError, OverflowError, RecursionError, zlib.error)
WORTH = 0.9
"""Data that does not become smaller than this share of its size stays as it is, with the rest of its file."""
TRIES = 3
ANSWER_SECONDS = 60


class ListedFiles:
    """The files of a run over there that match the patterns, and the way to copy them."""

    def __init__(
        self, session: RemoteSession, run: str, patterns: Sequence[str], target: Path, seconds: float | None = None
    ) -> None:
        """With `seconds`, wait so long for the run's end, and list files that are useful before it.

        Raises SerriedError, and UsageError if no file matches, here or on nodes.
        """
        self._session, self._target, listing = session, target, bytearray()
        within = project.place_of(target.absolute(), os.environ)
        self._place = {"run": run, "patterns": list(patterns), "within": within}
        wait = {} if seconds is None else {"seconds": seconds}
        limit = None if seconds is None else seconds + ANSWER_SECONDS
        self.facts = session.ask("matches", {**self._place, **wait}, on_data=listing.extend, seconds=limit)
        """`run`, its `state`, `has_ended`, `is_over` if waiting is useless, and how many nodes have `missing` files."""
        try:
            self.entries = [
                FetchEntry(
                    str(path), Path(source), kind, int(size), int(changed), Path(), frozenset(map(tuple, of)), *rest
                )
                for path, source, kind, size, changed, of, *rest in json.loads(listing)
            ]
        except _WRONG as error:
            raise SerriedError(NO_FILES, details=repr(error)) from None

    def copy(
        self, entries: Sequence[FetchEntry], *, force: bool, dry_run: bool, observe: Callable[[int], None]
    ) -> Report:
        """Copy these entries to the target, or report what would be copied. Raises UsageError, SerriedError."""
        target = self._target
        arrivals = _Arrivals(entries, target, observe)
        try:
            if not dry_run:
                target.mkdir(parents=True, exist_ok=True)
            arrivals.decide(force=force, dry_run=dry_run)
            self._receive(arrivals)
        except OSError as error:
            raise UsageError(f"cannot write to `{target}`: {reason(error)}") from None
        return local.report_of(arrivals.entries, arrivals.outcomes)

    def _receive(self, arrivals: _Arrivals) -> None:
        tries = 0
        while arrivals.wanted:
            before = arrivals.received, len(arrivals.wanted)
            request = json.dumps(arrivals.request()).encode()
            try:
                self._session.ask("stream", self._place, data=[request], on_data=arrivals.feed)
                if before == (arrivals.received, len(arrivals.wanted)):
                    raise NotConnected("the cluster sends no files")  # noqa: TRY301 - as if it were cut
                tries = 0
            except NotConnected as error:
                tries = 1 if arrivals.received > before[0] else tries + 1
                arrivals.reset()
                if tries >= TRIES:
                    error.hint = f"{error.hint or 'connect again'}; then the same command continues the copy"
                    raise

    def note(self, report: Report) -> None:
        """Note in the run's ledgers which files were copied. Raises SerriedError."""
        copied = [(entry.path, *entry.state) for entry in report.there]
        self._session.ask("note", self._place, data=[json.dumps(copied).encode()])


class _Arrivals:
    def __init__(self, entries: Sequence[FetchEntry], target: Path, observe: Callable[[int], None]) -> None:
        self.entries, self._target, self._observe = list(entries), target, observe
        self.outcomes: dict[int, Outcome] = {}
        self.wanted: dict[int, bool] = {}
        """Whether the content is wanted, or only its digest to compare."""
        self.received = 0
        self._tries: dict[int, int] = {}
        self._is_dry_run = False
        self._data = bytearray()
        self._file: tuple[int, dict[str, Any], BinaryIO | None] | None = None
        self._digest = hashlib.sha256()

    def decide(self, *, force: bool, dry_run: bool) -> None:
        self._is_dry_run = dry_run
        for number, entry in enumerate(self.entries):
            path = self._target / entry.path
            try:
                _check(entry)
                outcome = local.decide(entry, path, self._observe, force=force)
                is_new = outcome == COPIED and not dry_run
                if is_new:
                    above = entry.path if entry.kind == "folder" else os.path.dirname(entry.path)  # noqa: PTH120
                    fs_copy.make_directories(self._target, above)  # follows no link
                if is_new and entry.kind == "link":
                    with fs_copy.temporary_path(path.parent) as temporary:
                        temporary.symlink_to(entry.leads_to)
                        temporary.replace(path)
                if entry.kind == "file" and (is_new or outcome == EQUAL_SIZE):
                    self.wanted[number] = is_new
                else:
                    self.outcomes[number] = outcome
                    self._observe(entry.bytes)
            except OSError as error:
                self.outcomes[number] = error

    def request(self) -> list[tuple[int, str, int, int, int | None, bool]]:
        """For each wanted file: number, path, size, time, the number of bytes already here, and whether it grows.

        That number is None for a file that is only compared.
        """
        rows = []
        for number, has_content in self.wanted.items():
            entry, offset = self.entries[number], 0
            size, grows = entry.bytes, entry.grows
            if not has_content and (state := local.state_of(self._target / entry.path)) and state[0] < size:
                size, grows = state[0], True
            if has_content:
                part, present = self._part(entry), self._target / entry.path
                with contextlib.suppress(OSError):
                    is_new = number not in self._tries and not part.exists()
                    if entry.grows and is_new and local.state_of(present) in entry.replaces:
                        shutil.copyfile(present, part, follow_symlinks=False)  # most often, it has only grown since
                    offset = part.stat().st_size
            rows.append((number, str(entry.source), size, entry.changed, offset if has_content else None, grows))
        return rows

    def reset(self) -> None:
        self._close()
        self._data.clear()

    def _close(self) -> None:
        if self._file and self._file[2]:
            self._file[2].close()
        self._file = None

    def feed(self, data: bytes) -> None:
        """Raises OSError if a file cannot be written."""
        self._data += data
        self.received += len(data)
        at = 0
        while len(self._data) - at >= RECORD.size:
            kind, length = RECORD.unpack_from(self._data, at)
            end = at + RECORD.size + length
            if length > LONGEST:
                raise SerriedError(NO_FILES)
            if len(self._data) < end:
                break
            try:
                self._take(kind, bytes(self._data[at + RECORD.size : end]))
            except _WRONG as error:
                raise SerriedError(NO_FILES, details=repr(error)) from None
            at = end
        del self._data[:at]

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == BEGIN:
            self._close()
            facts = json.loads(payload)
            self._file = (facts["number"], facts, self._open(facts) if self.wanted[facts["number"]] else None)
        elif self._file is not None and kind in (DATA, PACKED):
            chunk = zlib.decompressobj().decompress(payload, CHUNK) if kind == PACKED else payload
            self._digest.update(chunk)
            if self._file[2]:
                self._file[2].write(chunk)
            self._observe(len(chunk))
        elif self._file is not None and kind == END:
            (number, facts, file), self._file = self._file, None
            with contextlib.ExitStack() as stack:
                if file:
                    stack.enter_context(file)
                self._settle(number, {**facts, **json.loads(payload)}, file)

    def _part(self, entry: FetchEntry) -> Path:
        name = local.temporary_name(entry.source, entry.bytes, entry.changed)
        return (self._target / entry.path).with_name(name)

    def _open(self, facts: Mapping[str, Any]) -> BinaryIO | None:
        """The unfinished copy, behind what is there; None if another process writes to it."""
        part, offset, self._digest = self._part(self.entries[facts["number"]]), facts["offset"], hashlib.sha256()
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+b")
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            while file.tell() < offset and (chunk := file.read(min(CHUNK, offset - file.tell()))):
                self._digest.update(chunk)
            file.truncate()
            self._observe(file.tell())
            return file
        file.close()
        return None

    def _settle(self, number: int, facts: Mapping[str, Any], file: BinaryIO | None) -> None:
        entry = self.entries[number]
        path, part = self._target / entry.path, self._part(entry)
        if problem := facts.get("problem"):
            self._end(number, OSError(errno.EIO, problem))
        elif not self.wanted[number]:
            with contextlib.suppress(OSError), path.open("rb") as present:
                digest = hashlib.sha256()
                while chunk := present.read(CHUNK):
                    digest.update(chunk)
                has_grown = present.tell() < entry.bytes
                if digest.hexdigest() != facts["sha256"]:
                    self._end(number, KEPT)
                elif has_grown and not self._is_dry_run:
                    self.wanted[number] = True
                else:
                    self._end(number, COPIED if has_grown else SAME)
                return
            self._end(number, KEPT)
        elif file is None:
            self._end(number, OSError(errno.EAGAIN, "another process copies the same file"))
        elif facts["is_steady"] and self._digest.hexdigest() == facts["sha256"]:
            file.flush()
            mode = os.fstat(file.fileno()).st_mode
            if facts["is_executable"]:
                os.fchmod(file.fileno(), mode | (mode & 0o444) >> 2)
            os.fsync(file.fileno())
            os.utime(file.fileno(), ns=(facts["changed"], facts["changed"]))
            part.replace(path)
            self.entries[number] = dataclasses.replace(entry, bytes=facts["size"], changed=facts["changed"])
            self._end(number, COPIED)
        else:
            part.unlink(missing_ok=True)
            self._tries[number] = self._tries.get(number, 0) + 1
            if self._tries[number] == TRIES:
                self._end(number, OSError(errno.EAGAIN, "the file changes during each copy"))

    def _end(self, number: int, outcome: Outcome) -> None:
        self.outcomes[number] = outcome
        del self.wanted[number]


def _check(entry: FetchEntry) -> None:
    """Raises OSError for a path, or a link, that leads out of the target: other people may have written it."""
    parts = entry.path.split("/")
    if not entry.path or {"", ".", ".."}.intersection(parts) or "\0" in entry.path:
        raise OSError(errno.EINVAL, "its path leads out of the folder")
    if entry.kind == "link":
        above, names = len(parts) - 1, entry.leads_to.split("/")
        rises = next((at for at, name in enumerate(names) if name != ".."), len(names))
        # `..` behind a name, which may be a link itself, leads anywhere.
        if entry.leads_to[:1] == "/" or rises > above or ".." in names[rises:]:
            raise OSError(errno.EINVAL, f"it is a link that leads out of the folder, to `{entry.leads_to}`")


# What follows runs over there.


def _selected(values: Mapping[str, Any]) -> index.Selection:
    word = str(values["run"])
    try:
        return index.find(word)
    except RunNotFoundError:
        if selection := shared.find(word):
            return selection
        raise


def _matches(values: Mapping[str, Any], selection: index.Selection) -> local.FetchMatches:
    target, within = Path(os.devnull), values.get("within")
    tree = sent_tree(selection.record.plan.source.directory)
    if within and tree and project_folder(tree).name == within["key"]:
        target = tree / within["start"]
    return local.find_files(selection, values["patterns"], target)


def matches(values: Mapping[str, Any], _content: BinaryIO, output: BinaryIO) -> dict[str, Any]:
    """List the files of a run. Raises UsageError for none, unless nodes have files."""
    selection = _selected(values)
    find_out(selection.record)
    selection.record.check_directory("results")
    seconds, rows = values.get("seconds"), []
    status = statuses_of([selection])[0] if seconds is None else wait([selection], timeout=float(seconds))[0]
    lacking = [] if selection.record.owner else outputs.missing(selection, has_ended=status.has_ended)
    try:
        entries = _matches(values, selection).entries
        for entry in entries if seconds is None else local.while_it_runs(entries):
            with contextlib.suppress(OSError):  # the run may delete files meanwhile
                link = entry.leads_to if entry.kind == "link" else ""
                states = sorted(entry.replaces)
                rows.append((entry.path, str(entry.source), entry.kind, *entry.state, states, link, entry.grows))
    except UsageError:
        if not lacking and seconds is None:
            raise
    output.write(json.dumps(rows).encode())
    facts = {"has_ended": status.has_ended, "is_over": is_over(status) or never_starts(status), "state": status.state}
    return {"run": status.id, **facts, "missing": len(lacking)}


def note(values: Mapping[str, Any], content: BinaryIO, _output: BinaryIO) -> dict[str, Any]:
    """Note the states in which files were copied, even if they differ now: the next fetch may replace these copies."""
    selection = _selected(values)
    found = _matches(values, selection)
    copied = {path: (int(size), int(changed)) for path, size, changed in json.loads(content.read())}
    there = [
        dataclasses.replace(entry, bytes=copied[entry.path][0], changed=copied[entry.path][1])
        for entry in found.entries
        if entry.path in copied
    ]
    local.note_fetched(selection, found, Report(there=there), Path(os.devnull))
    return {}


def stream(values: Mapping[str, Any], content: BinaryIO, output: BinaryIO) -> dict[str, Any]:
    """Send the contents that are requested, from their offsets."""
    _selected(values)  # from here on, another user's run has only files of that user opened

    def send(kind: int, payload: bytes) -> None:
        output.write(RECORD.pack(kind, len(payload)) + payload)

    def send_json(kind: int, **facts: Any) -> None:
        send(kind, json.dumps(facts).encode())

    for number, source, size, changed, offset, grows in json.loads(content.read()):
        facts = {"size": 0, "changed": 0, "offset": offset or 0}
        try:
            with open_regular(Path(source)) as file:
                state = os.fstat(file.fileno())
                is_same = grows or (state.st_size, state.st_mtime_ns) == (size, changed)
                begin = (offset or 0) if is_same and (offset or 0) <= size else 0
                whole = size if grows else state.st_size
                facts = {"size": whole, "changed": changed if grows else state.st_mtime_ns, "offset": begin}
                send_json(BEGIN, number=number, is_executable=bool(state.st_mode & 0o100), **facts)
                digest, is_worth, left = hashlib.sha256(), True, whole
                while left and (chunk := file.read(min(CHUNK, left))):
                    digest.update(chunk)
                    new = chunk[max(0, begin - (whole - left)) :]
                    left -= len(chunk)
                    if new and offset is not None:
                        packed = zlib.compress(new, 1) if is_worth else new
                        is_worth = len(packed) < WORTH * len(new)
                        send(PACKED if is_worth else DATA, packed if is_worth else new)
                after = os.fstat(file.fileno())
                is_same = (after.st_size, after.st_mtime_ns) == (state.st_size, state.st_mtime_ns)
                is_steady = not left and (is_same or (grows and after.st_size >= whole))
                send_json(END, sha256=digest.hexdigest(), is_steady=is_steady)
        except BrokenPipeError:
            break
        except OSError as error:
            send_json(BEGIN, number=number, **facts)
            send_json(END, problem=reason(error))
    output.flush()
    return {}
