"""Whether what a program that knows nothing of Serried has left can be gone on from, as far as its form tells.

Nothing is unpickled, and of each file little is read (`formats`).
"""

from __future__ import annotations

import itertools
import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Iterator, Sequence, Tuple

from serried.fs import file_integrity
from serried.protocol import checkpoint_layouts

MOST_FILES = 10_000
"""Of a folder so many are looked at: a shared file system takes a while for each."""
_POINTERS = ("latest", "latest_checkpointed_iteration.txt")
"""Files of DeepSpeed and Megatron that name the folder beside them."""


def is_log(name: str) -> bool:
    """Whether a file called so tells of the training, or where its checkpoints are, and is none itself."""
    return fnmatchcase(name, "*tfevents*") or name in _POINTERS


def is_whole(path: Path, watch: Sequence[str] = ()) -> bool:
    """Whether the file or folder at `path` is there, not empty, and nothing in it was cut short."""
    try:
        if path.is_dir():
            return _is_whole_folder(path)
        return path.is_file() and not is_no_checkpoint(path.name, watch) and file_integrity.is_whole(path) is not False
    except OSError:
        return False


def is_no_checkpoint(name: str, watch: Sequence[str] = ()) -> bool:
    """Whether a file called so is none, whatever it contains.

    A pattern of `watch` that is for such files alone, `state.txt` or `*.out`, means them. One such as `*` does not.
    """
    meant = [last for last in (pattern.rpartition("/")[2] for pattern in watch) if checkpoint_layouts.is_never(last)]
    return is_log(name) or (checkpoint_layouts.is_never(name) and not any(fnmatchcase(name, last) for last in meant))


def has_logs_alone(folder: Path) -> bool:
    return all(is_no_checkpoint(name) for _, name in inside(folder))


def _is_whole_folder(path: Path) -> bool:
    """As its framework leaves it, or with something in it and nothing torn where no framework is known."""
    layout = checkpoint_layouts.of_folder(path)
    if layout and not checkpoint_layouts.has_all(path, layout):
        return False
    found = [(folder, name) for folder, name in inside(path) if not is_log(name)]
    shards = {folder for folder, name in found if name.endswith(".distcp")}
    if any(not Path(folder, ".metadata").exists() for folder in shards):
        return False
    files = [path for path in (Path(folder, name) for folder, name in found) if _has_content(path)]
    is_none = all(is_no_checkpoint(file.name) for file in files)
    return not is_none and all(file_integrity.is_whole(file) is not False for file in files)


def _has_content(path: Path) -> bool:
    """What is empty beside others is a mark, and no torn file."""
    status = path.stat()
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def inside(path: Path) -> Iterator[Tuple[str, str]]:
    """The files in a folder, as folder and name; no more than a checkpoint may be expected to have."""
    found = ((folder, name) for folder, _, names in os.walk(path) for name in names)
    return itertools.islice(found, MOST_FILES)
