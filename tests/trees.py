"""What is in a folder, as a value to compare; and a folder of all that is hard to copy."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from serried.base.manifest import scan

MIB = 1 << 20


def tree(folder: Path):
    """All that is below: the text of files, where links lead, `/` for an empty folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_bytes().decode("latin-1")
        elif not any(path.iterdir()):
            found[name] = "/"
    return found


def holding(folder: Path, text: bytes) -> list[Path]:
    """The files below that hold `text`; one that goes meanwhile holds nothing any more."""
    found = []
    for path in (Path(place, name) for place, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and text in path.read_bytes():
                found.append(path)
    return found


@contextlib.contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system with these options of tmpfs at `folder`, which only root can mount."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", folder]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def plant(there: Path, *, files: int, large: int) -> Path:
    """A source to stage: one large file, many small ones, a sparse one, links, an empty folder, odd names."""
    (there / "many" / "empty").mkdir(parents=True)
    for number in range(files):
        (there / "many" / f"{number}\n$(id) é").write_bytes(os.urandom(number * 17))
    (there / "large").write_bytes(os.urandom(large * MIB + 7))
    with (there / "sparse").open("wb") as file:
        file.seek(20 * MIB)
        file.write(b"middle")
        file.truncate(50 * MIB)
    (there / "many" / "link").symlink_to("../large")
    os.link(there / "large", there / "twin")
    (there / "many").chmod(0o750)
    return there


def is_same(here: Path, there: Path) -> bool:
    """In content, by another program, and in all else that a copy shares."""
    words = ["diff", "-r", "--no-dereference", here.resolve(), there]
    same = subprocess.run(words, check=False, capture_output=True)
    return same.returncode == 0 and scan(here.resolve()).key == scan(there).key
