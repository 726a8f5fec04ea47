"""Walks trees of files. No walk follows a link, and entries that disappear meanwhile are left out.

A pattern names files from the top of a tree: `samples`, `*.csv`, `logs/**/*.pt`. `*`, `?` and `[…]` stay within one
name, and `**` stands for any number of folders.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from typing import TYPE_CHECKING, Callable, Container, Iterator, List, Sequence, Tuple

if TYPE_CHECKING:
    from serried.base.adaptive_pool import Crew

ANY_FOLDERS = "**"
BATCH = 64
"""Entries that one thread examines before it takes the next batch."""
_WILD = re.compile(r"[*?\[]")

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
    fixed = next((place for place, name in enumerate(names) if _WILD.search(name)), len(names) - 1)
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
