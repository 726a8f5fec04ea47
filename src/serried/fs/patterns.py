"""Which files under a folder a pattern names: `samples`, `*.csv`, `logs/**/*.pt`, always from the top.

`*`, `?` and `[…]` stay within one name, `**` stands for any folders, none included. Links are found, never followed.
"""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Callable, Iterator, List, Sequence, Tuple

ANY_FOLDERS = "**"
_WILD = re.compile(r"[*?\[]")

Problem = Callable[[OSError], None]
"""What is told of a folder that cannot be read. One that has gone is no problem."""


def split(pattern: str) -> List[str]:
    """Its names, one below the other; `..` climbs nowhere."""
    return [name for name in pattern.split("/") if name not in ("", ".", "..")]


def beginning(pattern: str) -> str:
    """The folder that is named before anything is left open: what is found keeps its path from there."""
    names = split(pattern)
    fixed = next((place for place, name in enumerate(names) if _WILD.search(name)), len(names) - 1)
    return "/".join(names[: min(fixed, len(names) - 1)])


def find(root: str, pattern: str, problem: Problem) -> Iterator[Tuple[str, "os.DirEntry[str]"]]:
    """All that `pattern` names below `root`, as (path from the root, entry), each once."""
    seen = set()
    for path, entry in _below(root, "", split(pattern), problem):
        if path not in seen:
            seen.add(path)
            yield path, entry


def walk(root: str, path: str, problem: Problem) -> Iterator[Tuple[str, "os.DirEntry[str]"]]:
    """All that is in the folder `path` of `root`, folders before what they hold."""
    for entry in entries(f"{root}/{path}", problem):
        here = f"{path}/{entry.name}"
        yield here, entry
        if entry.is_dir(follow_symlinks=False):
            yield from walk(root, here, problem)


def entries(folder: str, problem: Problem) -> List["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        problem(error)
        return []


def _below(root: str, path: str, names: Sequence[str], problem: Problem) -> Iterator[Tuple[str, "os.DirEntry[str]"]]:
    if not names:
        return
    name, rest = names[0], names[1:]
    if name == ANY_FOLDERS:
        rest = rest or ["*"]
        yield from _below(root, path, rest, problem)
    for entry in entries(f"{root}/{path}", problem):
        here = f"{path}/{entry.name}" if path else entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if name == ANY_FOLDERS:
            if is_folder:
                yield from _below(root, here, names, problem)
        elif fnmatch.fnmatchcase(entry.name, name):
            if not rest:
                yield here, entry
            elif is_folder:
                yield from _below(root, here, rest, problem)
