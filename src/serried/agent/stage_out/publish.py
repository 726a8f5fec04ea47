"""Publishes copies in the run directory. No node and no attempt overwrites a file of another.

A node records each name in its ledger before the file exists. It replaces only files of its own ledger that have not
changed since. For other files it chooses another name.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import json
import os
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from serried.agent.attempt import Attempt
from serried.agent.stage_out.completeness import Artifact, fingerprint_of, is_append_only_text
from serried.base import NamedTuple, copy, files, tree
from serried.schema import checkpoints
from serried.schema.layout import CHECKPOINTS, RESULTS

IDLE, BEST_EFFORT = 3 << 13, 2 << 13 | 4
"""I/O priorities of ioprio_set(2): only when the disk is otherwise idle, and the usual one."""
_SYSCALL = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
LONGEST_SLEEP = 0.2


class OutOfTimeError(Exception):
    """The copy has no time left."""


class InterruptedByUrgentError(Exception):
    """A more urgent request interrupts the copy."""


class Throttle:
    """The pauses of a copy after each piece."""

    def __init__(self, bandwidth: Optional[int] = None) -> None:
        self._limit = self._bandwidth = bandwidth
        self._debt = 0.0
        self._is_raised = False
        self._lock = threading.Lock()
        self._updated_at = time.monotonic()
        self.ends_at: Optional[float] = None
        """When all copies must end, on the monotonic clock; None without a limit."""
        self.bytes_moved = 0
        """The number of copied bytes, incomplete copies included."""
        self.urgent_requests = 0
        """The number of requests that cannot wait for copies that are not urgent."""

    def set_urgent(self) -> None:
        """Copy at full speed from now on: the training has ended or soon will. Any thread may call this."""
        self._limit = None
        self.suspend_limit()

    def suspend_limit(self) -> None:
        """Copy at full speed until `restore_limit`, because no rank runs meanwhile. Any thread may call this."""
        self._bandwidth = None
        self.urgent_requests += 1

    def restore_limit(self) -> None:
        self._bandwidth = self._limit

    def advance(self, count: int, urgent_before: Optional[int] = None) -> None:
        """Pause after `count` bytes, within the bandwidth.

        Raises OutOfTimeError, and InterruptedByUrgentError if `urgent_requests` exceeds `urgent_before`.
        """
        if self.urgent_requests and not self._is_raised:  # each thread has its own priority
            self._is_raised = True
            prioritise(BEST_EFFORT)
        with self._lock:
            self.bytes_moved += count
        if self._bandwidth is not None:
            with self._lock:
                now = time.monotonic()
                self._debt = max(0.0, self._debt - (now - self._updated_at)) + count / self._bandwidth
                self._updated_at = now
        # In short sleeps: `set_urgent` ends the wait.
        while self._bandwidth is not None and (left := self._debt - (time.monotonic() - self._updated_at)) > 0:
            time.sleep(min(LONGEST_SLEEP, left))
        if self.ends_at is not None and time.monotonic() > self.ends_at:
            raise OutOfTimeError
        if urgent_before is not None and self.urgent_requests > urgent_before:
            raise InterruptedByUrgentError


def prioritise(value: int) -> None:
    """Set the I/O priority of this thread, if the kernel supports priorities."""
    number = _SYSCALL.get(os.uname().machine)
    if sys.platform == "linux" and number:
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).syscall(number, 1, 0, value)


APPEND_ONLY = "tfevents"
"""TensorBoard appends to files with this in their names, and may be reading the copy."""
COMPARED = 4096
"""Bytes at the end of a copy that are compared before more is appended."""
SAME_CLOCK_NS = 100_000_000
FREE_SECONDS, SKEW_SECONDS = 0.5, 60.0
"""How long an answer of the file system is used."""
LEAST_RESERVE, MOST_RESERVE = 64 << 10, 64 << 20


class ChangedError(OSError):
    """The program wrote to the file during the copy."""


class LedgerEntry(NamedTuple):
    kind: str
    name: str
    at: str
    """The path below the run's results or checkpoints."""
    size: int
    changed: int
    """Modification time of the source when it was copied."""
    stamp: int
    """Modification time of the copy, by which a later change is noticed; of a folder that of its newest file."""
    before: int
    """Stamp of the copy that this one replaces. A crash between record and rename leaves either of them."""
    is_folder: bool
    pattern: str
    """The pattern that the source matches; empty for a file in a checkpoint's folder."""
    attempt: int

    def matches(self, artifact: Artifact) -> bool:
        """Is the copy that of `artifact` as it is now?"""
        return (self.size, self.changed) == (artifact.size, artifact.mtime_ns)

    def is_unchanged_in(self, root: Path) -> bool:
        """Does the copy still exist as this node wrote it?"""
        try:
            status = (root / self.at).lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) if self.is_folder else status.st_mtime_ns in (self.stamp, self.before)


class StageOutLedger:
    def __init__(self, attempt: Attempt, node: int) -> None:
        self._mode = attempt.file_mode
        self._path = attempt.directory.attempt(attempt.number).copies(node)
        files.make_directory(self._path.parent, attempt.directory_mode)
        self._entries: Dict[str, LedgerEntry] = {}
        recorded = LedgerEntry._fields[:-1]
        for number in (number for number in files.numbers(attempt.directory.attempts) if number <= attempt.number):
            for facts in files.read_journal(attempt.directory.attempt(number).copies(node)):
                key = f"{facts.get('kind')}/{facts.get('name')}"
                if facts.get("gone"):
                    self._entries.pop(key, None)
                elif {*recorded} <= facts.keys():
                    self._entries[key] = LedgerEntry(attempt=number, **{name: facts[name] for name in recorded})
        self._file = -1
        self._lock = threading.Lock()
        self._is_torn = self._path.exists()
        """The last line may be incomplete, also after a crash."""

    def get(self, kind: str, name: str) -> Optional[LedgerEntry]:
        return self._entries.get(f"{kind}/{name}")

    def entries(self, kind: str) -> Iterator[LedgerEntry]:
        return (entry for entry in list(self._entries.values()) if entry.kind == kind)

    def record(self, entry: LedgerEntry) -> None:
        """Raises OSError if the entry cannot be written; then the file must not be published."""
        facts = entry._asdict()
        del facts["attempt"]
        self._append(facts)
        self._entries[f"{entry.kind}/{entry.name}"] = entry

    def remove(self, entry: LedgerEntry) -> None:
        self._append({"kind": entry.kind, "name": entry.name, "gone": True})
        self._entries.pop(f"{entry.kind}/{entry.name}", None)

    def _append(self, facts: Dict[str, Any]) -> None:
        line = (json.dumps(facts) + "\n").encode()
        with self._lock:
            if self._is_torn:
                line = b"\n" + line
            if self._file < 0:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, self._mode)
            self._is_torn = True
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            self._is_torn = False


class TargetFilesystem:
    """Free space and clock of the run directory's file system. Answers are kept, because each call takes a while."""

    def __init__(self) -> None:
        self._free_bytes = self._skew = 0
        self._free_until = self._skew_until = 0.0

    def check_space(self, folder: Path, size: int) -> None:
        """Raises OSError if `size` bytes would leave no space for the files that record the end of the run."""
        self._free_bytes -= size
        if time.monotonic() > self._free_until or self._free_bytes < 0:
            statistics = os.statvfs(folder)
            reserve = min(MOST_RESERVE, max(LEAST_RESERVE, statistics.f_blocks * statistics.f_frsize // 100))
            self._free_bytes = statistics.f_bavail * statistics.f_frsize - reserve - size
            self._free_until = time.monotonic() + FREE_SECONDS
        if self._free_bytes < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    def set_mtime(self, descriptor: int, mtime_ns: int) -> int:
        """Make a copy as old by the file server's clock as its source is by this node's. Returns the copy's time."""
        skew = self._clock_skew(descriptor)
        adjusted_ns = mtime_ns if abs(skew) < SAME_CLOCK_NS else mtime_ns + skew
        os.utime(descriptor, ns=(adjusted_ns, adjusted_ns))
        return os.fstat(descriptor).st_mtime_ns

    def _clock_skew(self, descriptor: int) -> int:
        """How many nanoseconds the server's clock is ahead, by the time that it gives to an open file."""
        if time.monotonic() > self._skew_until:
            before = time.time_ns()
            os.utime(descriptor)
            after, theirs = time.time_ns(), os.fstat(descriptor).st_mtime_ns
            self._skew = theirs - min(max(theirs, before), after)  # the duration of the call is not skew
            self._skew_until = time.monotonic() + SKEW_SECONDS
        return self._skew


class Publisher:
    def __init__(self, attempt: Attempt, node: int, throttle: Throttle) -> None:
        self.attempt = attempt
        self._node = node
        self.throttle = throttle
        self._ledger = StageOutLedger(attempt, node)
        self._filesystem = TargetFilesystem()
        self._published: Set[Tuple[str, str, int, int]] = set()
        self._directories: Set[Tuple[Path, str]] = set()
        self._roots = {RESULTS: attempt.directory.results, CHECKPOINTS: attempt.directory.checkpoints}
        self._temporary = attempt.directory.attempt(attempt.number).node(node) / "bringing"
        """Unfinished copies are here, in the run directory, so that a rename publishes them."""
        tree.remove(self._temporary)

    def is_published(self, kind: str, artifact: Artifact) -> bool:
        """Is there a copy of `artifact` as it is now?"""
        if artifact.kind == "folder" and not artifact.files:
            return (self._roots[kind] / artifact.name).is_dir()
        key = (kind, artifact.name, artifact.size, artifact.mtime_ns)
        if key not in self._published and self.is_still_published(kind, artifact):
            self._published.add(key)
        return key in self._published

    def is_still_published(self, kind: str, artifact: Artifact) -> bool:
        """The same from the files, whatever was seen before."""
        entry = self._ledger.get(kind, artifact.name)
        return bool(entry and entry.matches(artifact) and entry.is_unchanged_in(self._roots[kind]))

    @property
    def has_checkpoints(self) -> bool:
        """Has this attempt published any?"""
        return any(entry.attempt == self.attempt.number for entry in self._checkpoint_entries())

    def publish(self, kind: str, artifact: Artifact, urgent_before: Optional[int] = None) -> None:
        """Raises OSError, and the exceptions of `Throttle.advance`."""
        self._make_directory(self._temporary, "")
        if artifact.kind == "folder" and not artifact.files:
            copy.make_directories(self._roots[kind], artifact.name, self.attempt.directory_mode)
        elif artifact.kind == "folder":
            self._publish_folder(kind, artifact, urgent_before)
        elif not (APPEND_ONLY in artifact.path.rpartition("/")[2] and self._append(kind, artifact)):
            with copy.temporary_path(self._temporary) as path:
                self._publish_file(kind, artifact, path, self._copy(artifact, path, urgent_before))
        self._published.add((kind, artifact.name, artifact.size, artifact.mtime_ns))

    def prune(self, pattern: str, keep: int) -> None:
        """Delete this node's copies of a pattern's checkpoints, except the newest `keep`."""
        root = self._roots[CHECKPOINTS]
        entries = [entry for entry in self._checkpoint_entries() if entry.pattern == pattern]
        entries = [entry for entry in entries if entry.is_unchanged_in(root)]
        for entry in sorted(entries, key=lambda entry: entry.stamp, reverse=True)[keep:]:
            if entry.is_folder:
                self._prune_folder(root, entry)
            else:
                (root / entry.at).unlink()
            self._ledger.remove(entry)

    def close(self) -> None:
        """Delete the folder of unfinished copies."""
        self._directories.clear()
        tree.remove(self._temporary)

    def _copy(self, artifact: Artifact, target: Path, urgent_before: Optional[int]) -> int:
        """Copy a file or link to a temporary name. Returns the copy's time in nanoseconds. Raises ChangedError."""
        if artifact.kind == "link":
            goal = os.readlink(artifact.source)  # noqa: PTH115 - unchanged text
            if f"{goal}/".startswith(f"{artifact.root}/"):  # it is copied too: its place in the copy is relative
                goal = os.path.relpath(goal, os.path.dirname(artifact.source))  # noqa: PTH120 - no links followed
            target.symlink_to(goal)
            return target.lstat().st_mtime_ns
        is_text = is_append_only_text(artifact)
        with _opened(artifact.source, os.O_RDONLY | os.O_NONBLOCK) as source:
            before = os.fstat(source)
            if not stat.S_ISREG(before.st_mode):
                raise ChangedError(errno.EAGAIN, "it is not a file any more")
            if fingerprint_of(before) != artifact.fingerprint and not is_text:
                raise ChangedError(errno.EAGAIN, "it changed before the copy")
            size, held = before.st_size, copy.held_bytes(before)
            self._filesystem.check_space(target.parent, held)
            mode = self.attempt.file_mode
            if before.st_mode & stat.S_IXUSR:
                mode |= (mode & 0o444) >> 2
            with _opened(str(target), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode) as written:
                # `size` bytes at most: a program that writes faster than this copies would never be complete.
                count = copy.copy_content(
                    source,
                    written,
                    0,
                    size,
                    lambda chunk: self.throttle.advance(len(chunk), urgent_before),
                    keeps_holes=held < size,
                )
                if held < size or size >= copy.CHUNK:  # small files are many, and an fsync of each would take long
                    os.fsync(written)
                after = os.fstat(source)
                is_unchanged = (after.st_size, after.st_mtime_ns) == (size, before.st_mtime_ns)
                if count != size or not (is_unchanged or (is_text and after.st_size >= size)):
                    raise ChangedError(errno.EAGAIN, "it changed during the copy")
                return self._filesystem.set_mtime(written, before.st_mtime_ns)

    def _publish_file(self, kind: str, artifact: Artifact, path: Path, stamp: int) -> None:
        root = self._roots[kind]
        entry = self._ledger.get(kind, artifact.name)
        if entry and not entry.is_folder and entry.is_unchanged_in(root):
            if kind == CHECKPOINTS or entry.attempt == self.attempt.number:
                self._record(kind, artifact, entry.at, stamp, before=entry.stamp)
                path.replace(root / entry.at)
                return
            self._keep_earlier(root, entry, path)
        own = f"node-{self._node}"
        # The second name if another node owns the first, the third if somebody has changed this node's copy.
        for at in (artifact.name, f"{own}/{artifact.name}", f"{own}/attempt-{self.attempt.number}/{artifact.name}"):
            try:
                self._make_directory(root, at.rpartition("/")[0])
                self._record(kind, artifact, at, stamp)
                copy.publish_exclusive(path, root / at)
            except (FileExistsError, NotADirectoryError):
                continue
            except FileNotFoundError:  # somebody has deleted the folder
                self._directories.clear()
                raise
            return
        if entry := self._ledger.get(kind, artifact.name):
            self._ledger.remove(entry)
        raise FileExistsError(errno.EEXIST, "all its names are taken", str(root / artifact.name))

    def _keep_earlier(self, root: Path, entry: LedgerEntry, path: Path) -> None:
        """Move the result of an earlier attempt aside: attempts begin with an empty folder and do not continue it."""
        earlier = root / entry.at
        if not path.is_symlink() and filecmp.cmp(path, earlier, shallow=False):
            earlier.unlink()
            return
        kept = f"attempt-{entry.attempt}/{entry.at}"
        copy.make_directories(root, kept.rpartition("/")[0], self.attempt.directory_mode)
        with contextlib.suppress(FileExistsError):
            copy.publish_exclusive(earlier, root / kept)
            earlier.unlink(missing_ok=True)

    def _append(self, kind: str, artifact: Artifact) -> bool:
        """Append what this attempt's copy lacks. Returns False if the copy is not the beginning of the file."""
        entry = self._ledger.get(kind, artifact.name)
        if entry is None or entry.attempt != self.attempt.number:
            return False
        target = self._roots[kind] / entry.at
        begin = _common_prefix(artifact.source, target)
        if begin is None:
            return False
        with _opened(artifact.source, os.O_RDONLY) as source, _opened(str(target), os.O_RDWR) as written:
            end = os.fstat(source).st_size
            self._filesystem.check_space(target.parent, end - begin)
            copy.copy_content(source, written, begin, end, lambda chunk: self.throttle.advance(len(chunk)))
            if end - begin >= copy.CHUNK:
                os.fsync(written)
            stamp = self._filesystem.set_mtime(written, os.fstat(source).st_mtime_ns)
        self._record(kind, artifact, entry.at, stamp)
        return True

    def _publish_folder(self, kind: str, artifact: Artifact, urgent_before: Optional[int]) -> None:
        """Publish in one step if the name is free, or all files there are this node's. Else publish each file.

        Several nodes may write one checkpoint's folder together.
        """
        root = self._roots[kind]
        above = len(artifact.path) + 1
        parts = [part._replace(name=f"{artifact.name}/{part.path[above:]}") for part in artifact.files]
        parts.sort(key=lambda part: part.path.endswith(f"/{checkpoints.COMPLETE}"))
        is_new = not (root / artifact.name).exists()
        if is_new or self._owns_all(root, artifact.name):
            with copy.temporary_path(self._temporary) as path:
                stamps = []
                for part in parts:
                    below = part.path[above:]
                    copy.make_directories(path, below.rpartition("/")[0], self.attempt.directory_mode)
                    stamp = self._link_existing(kind, part, path / below)
                    stamps.append(stamp or self._copy(part, path / below, urgent_before))
                for part, stamp in zip(parts, stamps):
                    previous = self._ledger.get(kind, part.name)
                    self._record(kind, part, part.name, stamp, before=previous.stamp if previous else 0)
                self._record(kind, artifact, artifact.name, max(stamps), is_folder=True)
                copy.make_directories(root, artifact.name.rpartition("/")[0], self.attempt.directory_mode)
                try:
                    (copy.publish_exclusive if is_new else copy.exchange)(path, root / artifact.name)
                except FileExistsError:  # another node was faster
                    pass
                else:
                    return
        for part in parts:
            if not self.is_published(kind, part):
                self.publish(kind, part, urgent_before)
        entries = [self._ledger.get(kind, part.name) for part in parts]
        newest = max(entry.stamp for entry in entries if entry)
        self._record(kind, artifact, artifact.name, newest, is_folder=True)

    def _link_existing(self, kind: str, artifact: Artifact, target: Path) -> int:
        """Link a copy that exists to `target`. Returns its stamp; 0 without such a copy."""
        entry = self._ledger.get(kind, artifact.name)
        if entry is None or artifact.kind != "file" or not entry.matches(artifact):
            return 0
        try:
            os.link(self._roots[kind] / entry.at, target)
        except OSError:
            return 0
        return entry.stamp

    def _prune_folder(self, root: Path, folder: LedgerEntry) -> None:
        """Rename the folder first if all its files are this node's: half a checkpoint must not look like a whole."""
        entries = self._own_entries(folder.name)
        if self._owns_all(root, folder.name):
            files.make_directory(self._temporary, self.attempt.directory_mode)
            with copy.temporary_path(self._temporary) as path:
                (root / folder.at).rename(path)
        else:
            for at in sorted(entry.at for entry in entries if entry.is_unchanged_in(root)):
                (root / at).unlink(missing_ok=True)
        for entry in entries:
            self._ledger.remove(entry)

    def _make_directory(self, root: Path, folder: str) -> None:
        """Check each folder once: the check would take longer than a small file."""
        if (root, folder) not in self._directories:
            copy.make_directories(root, folder, self.attempt.directory_mode)
            self._directories.add((root, folder))

    def _record(
        self, kind: str, artifact: Artifact, at: str, stamp: int, *, before: int = 0, is_folder: bool = False
    ) -> None:
        name, size, changed, pattern = artifact.name, artifact.size, artifact.mtime_ns, artifact.pattern
        self._ledger.record(
            LedgerEntry(kind, name, at, size, changed, stamp, before, is_folder, pattern, self.attempt.number)
        )

    def _checkpoint_entries(self) -> Iterator[LedgerEntry]:
        """Without the logs beside checkpoints."""
        entries = self._ledger.entries(CHECKPOINTS)
        return (entry for entry in entries if not checkpoints.is_log(entry.name.rpartition("/")[2]))

    def _own_entries(self, folder: str) -> List[LedgerEntry]:
        """The files in a checkpoint's folder."""
        return [entry for entry in self._ledger.entries(CHECKPOINTS) if entry.name.startswith(f"{folder}/")]

    def _owns_all(self, root: Path, folder: str) -> bool:
        paths = {str(path.relative_to(root)) for path in (root / folder).rglob("*") if not path.is_dir()}
        return paths <= {entry.at for entry in self._own_entries(folder) if entry.is_unchanged_in(root)}


@contextlib.contextmanager
def _opened(path: str, flags: int, mode: int = 0) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _common_prefix(source: str, target: Path) -> Optional[int]:
    """The size of `target` if `source` begins with it, as far as its last bytes show."""
    try:
        with open(source, "rb") as source_file, target.open("rb") as target_file:  # noqa: PTH123 - a bare string
            length = os.fstat(target_file.fileno()).st_size
            if os.fstat(source_file.fileno()).st_size < length:
                return None
            for file in (source_file, target_file):
                file.seek(max(0, length - COMPARED))
            return length if source_file.read(min(length, COMPARED)) == target_file.read() else None
    except OSError:
        return None
