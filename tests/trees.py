"""What is in a folder, as a value to compare."""

from __future__ import annotations

from pathlib import Path


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
