"""Walks trees of files, and removes them, with several threads where a file system is slow.

No walk follows a link, and entries that disappear meanwhile are left out.

A pattern names files from the top of a tree: `samples`, `*.csv`, `logs/**/*.pt`. `*`, `?` and `[…]` stay within one
name, and `**` stands for any number of folders.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import re
import stat
import time
from collections import deque
from pathlib import Path
from typing import Callable, Container, Deque, Iterator, List, Optional, Sequence, Tuple

ANY_FOLDERS = "**"
BATCH = 64
"""Entries that one thread examines before it takes the next batch."""
_WILD = r"[*?\[]"

Problem = Callable[[OSError], None]
"""Called for a folder or an entry that cannot be read."""


def entries(folder: str, problem: Problem) -> Iterator["os.DirEntry[str]"]:
    """The entries of a folder as the file system lists them; none if the folder is gone."""
    try:
        with os.scandir(folder) as listed:
            yield from listed
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        problem(error)


def walk(root: str, path: str, problem: Problem) -> Iterator[Tuple[str, "os.DirEntry[str]"]]:
    """The content of the folder `path` of `root`, by name, and folders before their content."""
    for entry in _sorted_entries(f"{root}/{path}", problem):
        entry_path = f"{path}/{entry.name}" if path else entry.name
        yield entry_path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from walk(root, entry_path, problem)


def states_in(folder: str, problem: Problem) -> Iterator[Tuple[str, os.stat_result]]:
    """The entries of a folder as (name, lstat), in no order: a file server can fail at any of them."""
    for entry in entries(folder, problem):
        try:
            yield entry.name, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem(error)


def states(root: str, problem: Problem, skipped: Container[str] = ()) -> Iterator[Tuple[str, os.stat_result]]:
    """Each entry below `root` as (path, lstat), in no order. The absolute paths in `skipped` are left out.

    `problem` is called once for a folder, however many of its entries cannot be read.
    """
    pending = [""]
    while pending:
        folder = pending.pop()
        problems: List[OSError] = []
        for name, state in states_in(f"{root}/{folder}", problems.append):
            path = f"{folder}/{name}" if folder else name
            if f"{root}/{path}" in skipped:
                continue
            if stat.S_ISDIR(state.st_mode):
                pending.append(path)
            yield path, state
        if problems:
            problem(problems[0])


def visit(
    root: bytes,
    pool: Crew,
    on_entry: Callable[[bytes, os.stat_result], None],
    on_problem: Callable[[bytes, OSError], None],
) -> None:
    """Call `on_entry(path, lstat)` for each entry below the folder `root`, in no order and in several threads.

    `on_problem` receives the full path of what cannot be read. An exception of either function ends the walk.
    """

    def list_folder(folder: bytes) -> None:
        path = _join(root, folder)
        try:
            with os.scandir(path) as listed:
                paths = [_join(folder, entry.name) for entry in listed]
        except OSError as error:
            if not (folder and isinstance(error, FileNotFoundError)):
                on_problem(path, error)
            return
        for start in range(0, len(paths), BATCH):
            batch = paths[start : start + BATCH]
            pool.add(lambda batch=batch: look_at(batch))  # type: ignore[misc]

    def look_at(batch: Sequence[bytes]) -> None:
        for path in batch:
            pool.look()
            try:
                state = os.lstat(_join(root, path))
                on_entry(path, state)
            except FileNotFoundError:
                continue
            except OSError as error:
                on_problem(_join(root, path), error)
                continue
            if stat.S_ISDIR(state.st_mode):
                pool.add(lambda folder=path: list_folder(folder))  # type: ignore[misc]

    pool.add(lambda: list_folder(b""))
    pool.run()


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name


def split(pattern: str) -> List[str]:
    """The names in a pattern; a `..` in it has no effect."""
    return [name for name in pattern.split("/") if name not in ("", ".", "..")]


def beginning(pattern: str) -> str:
    """The folder in front of the first wildcard, or of the last name: matches keep their paths from there."""
    names = split(pattern)
    fixed = next((place for place, name in enumerate(names) if re.search(_WILD, name)), len(names) - 1)
    return "/".join(names[: min(fixed, len(names) - 1)])


def find(root: str, pattern: str, problem: Problem) -> Iterator[Tuple[str, "os.DirEntry[str]"]]:
    """The entries below `root` that match `pattern`, as (path from the root, entry), each once."""
    seen = set()
    for path, entry in _matches(root, "", split(pattern), problem):
        if path not in seen:
            seen.add(path)
            yield path, entry


def _matches(root: str, path: str, names: Sequence[str], problem: Problem) -> Iterator[Tuple[str, "os.DirEntry[str]"]]:
    if not names:
        return
    name, rest = names[0], names[1:]
    if name == ANY_FOLDERS:
        rest = rest or ["*"]
        yield from _matches(root, path, rest, problem)
    for entry in _sorted_entries(f"{root}/{path}", problem):
        entry_path = f"{path}/{entry.name}" if path else entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if name == ANY_FOLDERS:
            if is_folder:
                yield from _matches(root, entry_path, names, problem)
        elif fnmatch.fnmatchcase(entry.name, name):
            if not rest:
                yield entry_path, entry
            elif is_folder:
                yield from _matches(root, entry_path, rest, problem)


def _sorted_entries(folder: str, problem: Problem) -> List["os.DirEntry[str]"]:
    return sorted(entries(folder, problem), key=lambda entry: entry.name)


_AT_ONCE = 4096
"""How many entries of a folder are held in memory."""
_DEEP = 48
"""Each level keeps a folder open, so deeper folders are first moved to the top."""


def remove(path: Path, until: Optional[float] = None) -> bool:
    """Remove a file, a link, or a folder with its content. Returns whether nothing is left.

    Removal ends at `until` on the monotonic clock. Mount points stay, with the content of what is mounted there.
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return True
        top = _open_folder(str(path), None)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        _Removal(top, until).empty(top, 0)
        path.rmdir()
    except OSError:
        return False
    finally:
        os.close(top)
    return True


class _TimeIsUpError(OSError):
    pass


class _Removal:
    def __init__(self, top: int, until: Optional[float]) -> None:
        self._top = top
        self._device = os.fstat(top).st_dev
        self._until = until
        self._moved = itertools.count()

    def empty(self, folder: int, depth: int) -> None:
        """Raises _TimeIsUpError. An entry that cannot be removed stays, and so does its folder."""
        is_done = False
        while not is_done:
            with os.scandir(folder) as entries:
                batch = list(itertools.islice(entries, _AT_ONCE))
            removed = [self._remove(entry, folder, depth) for entry in batch]
            is_done = not any(removed)

    def _remove(self, entry: "os.DirEntry[str]", folder: int, depth: int) -> bool:
        if self._until is not None and time.monotonic() > self._until:
            raise _TimeIsUpError
        try:
            if entry.is_dir(follow_symlinks=False):
                self._remove_folder(entry.name, folder, depth)
            else:
                os.unlink(entry.name, dir_fd=folder)
        except _TimeIsUpError:
            raise
        except OSError:
            return False
        return True

    def _remove_folder(self, name: str, outer: int, depth: int) -> None:
        inner = _open_folder(name, outer)
        try:
            if os.fstat(inner).st_dev != self._device:
                raise OSError(f"{name}: mounted")
            if depth >= _DEEP:
                os.rename(name, f".{next(self._moved)}.{os.urandom(4).hex()}", src_dir_fd=outer, dst_dir_fd=self._top)
                return
            self.empty(inner, depth + 1)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=outer)


def _open_folder(name: str, outer: Optional[int]) -> int:
    """Open a folder, with permissions to list it and to remove its entries."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=outer)
    except PermissionError:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=outer).st_mode):
            raise
        os.chmod(name, 0o700, dir_fd=outer)
        descriptor = os.open(name, flags, dir_fd=outer)
    if os.fstat(descriptor).st_mode & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o700)
    return descriptor


Task = Callable[[], None]

LOOK_SECONDS = 0.02
WAITS = 2000
"""Waits of the first thread for each second of CPU time; more of them mean that the file system is slow."""
BUSY = 0.7
"""A share of one processor. Above it further threads would only wait for Python's lock."""


class Crew:
    """Runs tasks, which may add tasks. The first exception ends the work, and `run` raises it."""

    def __init__(self, most: int, beat: Task = lambda: None) -> None:
        """`beat` is called after each piece of work: it shows that the file system responds."""
        import threading  # most processes that load this module have no trees to walk

        self._most = most
        self._beat = beat
        self._new_thread = threading.Thread
        self._tasks: Deque[Task] = deque()
        self._change = threading.Condition()
        self._threads: List[threading.Thread] = []
        self._at_work = 0
        self._problem: Optional[BaseException] = None
        self._is_over = False
        self._looked = time.monotonic()
        self._used = time.process_time()
        self._waits = 0

    def add(self, task: Task) -> None:
        with self._change:
            self._tasks.append(task)
            self._change.notify()

    def run(self) -> None:
        """Return when every task is done. The caller is interrupted only between tasks."""
        self._hire(1)
        with self._change:
            while self._at_work or (self._tasks and not self._is_over):
                self._change.wait()
            problem = self._problem
            self._tasks.clear()
            self._is_over = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        if problem:
            raise problem

    def stop(self, problem: BaseException) -> None:
        with self._change:
            self._problem, self._is_over = self._problem or problem, True
            self._change.notify_all()

    def look(self) -> None:
        """Start more threads if they would help. Long tasks call it repeatedly."""
        self._beat()
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            with self._change:
                self._look()

    def _hire(self, count: int) -> None:
        for _ in range(min(count, self._most - len(self._threads))):
            self._threads.append(self._new_thread(target=self._work, daemon=True))
            self._threads[-1].start()

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._tasks and not self._is_over:
                    self._change.wait()
                if self._is_over:
                    return
                task = self._tasks.popleft()
                self._at_work += 1
            try:
                task()
            except BaseException as problem:  # noqa: BLE001 - `run` raises it
                self.stop(problem)
            self._beat()
            with self._change:
                self._at_work -= 1
                if not self._at_work:
                    self._change.notify_all()
                self._look()

    def _look(self) -> None:
        """Double the threads while tasks are waiting and the file system is the bottleneck."""
        now = time.monotonic()
        seconds = now - self._looked
        if seconds < LOOK_SECONDS:
            return
        used, waits = time.process_time(), _waits()
        is_slow = len(self._threads) > 1 or waits - self._waits > WAITS * (used - self._used)
        if is_slow and used - self._used < BUSY * seconds and self._tasks and not self._is_over:
            self._hire(len(self._threads))
        self._looked, self._used, self._waits = now, used, waits


def _waits() -> int:
    """How often this thread has waited voluntarily: for a file system or for another thread."""
    import resource

    thread = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # only Linux counts for each thread
    return resource.getrusage(thread).ru_nvcsw
