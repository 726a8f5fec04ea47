"""What a run directory holds of Serried itself, as source and as the byte code of the submitting Python.

agent.pyz is what compute nodes run. library.zip is what ranks import: `serried.train` as it was when the run was
submitted, whatever their environment has or has not installed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import io
import marshal
import os
import stat
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

from serried.fs import files
from serried.protocol.layout import state_directory

HOUSE = Path(__file__).parents[1]
AGENT = ("agent", "fs", "process", "protocol")
LIBRARY = ("fs", "process", "protocol", "train")
MAIN = b"import sys\n\nfrom serried.agent.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
PACKAGE = HOUSE / "protocol" / "library_init.py"
"""What `serried` itself is to a rank."""
UNCHECKED = (0b01).to_bytes(4, "little")
MARSHAL = 2
"""From version 3 on, the bytes depend on how often this process refers to an object: each packing would differ."""
ALWAYS = (1980, 1, 1, 0, 0, 0)
"""The oldest date a zip can hold: when a file was installed says nothing about what it does."""


def agent() -> bytes:
    """What agent.pyz holds."""
    return _content(AGENT, [("__main__.py", MAIN), ("serried/__init__.py", b"")])


def library() -> bytes:
    """What library.zip holds."""
    return _content(LIBRARY, list(_module("serried/__init__.py", PACKAGE)))


def put(content: bytes, path: Path, folder: Path, modes: files.Modes) -> None:
    """Store `content` in `folder` under a name made of it, unless it is there, and make `path` a link to that.

    The link is made first: who removes what no run needs either sees it, or takes the file away before we look.
    Where `folder` or the one around it is another user's, or others can write there, `path` becomes a file of its own.
    """
    stored = folder / f"{path.stem}-{hashlib.sha256(content).hexdigest()[:16]}{path.suffix}"
    try:
        _make_ours(folder, modes.directory)
        path.symlink_to(stored)
        if not _is_stored(stored, len(content)):
            files.write_bytes(stored, content, modes.file)
    except PermissionError:
        path.unlink(missing_ok=True)
        files.write_bytes(path, content, modes.file)


def _make_ours(folder: Path, mode: int) -> None:
    """Raises PermissionError where others can put something there."""
    files.make_directory(folder, mode)
    if not all(map(files.is_ours_alone, (folder.parent, folder))):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(folder))


def _is_stored(path: Path, size: int) -> bool:
    """Whether it is there, and from now on as young as if we had written it: sites purge by age, and so do we.

    What somebody else wrote or could have written is not: it would run as us.
    """
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
            return False
        os.utime(path)
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _content(rooms: tuple[str, ...], entries: list[tuple[str, bytes]]) -> bytes:
    modules = [module for room in rooms for module in sorted((HOUSE / room).rglob("*.py")) if module != PACKAGE]
    kept = state_directory(os.environ) / "cache" / f"{'-'.join(rooms)}-{_digest([str(HOUSE)]).hex()[:12]}.zip"
    before = _digest(_as_they_are([PACKAGE, *modules]))
    content = _kept(kept, before)
    if content is None:
        content = _packed([*entries, *(entry for module in modules for entry in _module(_name(module), module))])
        with contextlib.suppress(OSError):  # a home that is full: packed each time
            files.make_directory(kept.parent)
            files.write_bytes(kept, content + before)
    return content


def _as_they_are(modules: list[Path]) -> list[str]:
    """Of each module what changes when it does (no program can set its ctime), and which Python's byte code it gets."""
    known = [importlib.util.cache_from_source(""), importlib.util.MAGIC_NUMBER.hex()]
    for module in modules:
        state = module.stat()
        known.append(f"{module} {state.st_ino} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}")
    return known


def _digest(lines: list[str]) -> bytes:
    return hashlib.sha256("\0".join(lines).encode("utf-8", "surrogateescape")).digest()


def _kept(path: Path, before: bytes) -> bytes | None:
    """What was packed for an earlier run, when nothing that it was packed from has changed: its last bytes say so."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content[: -len(before)] if content.endswith(before) else None


def _packed(entries: list[tuple[str, bytes]]) -> bytes:
    """Stored, not deflated: they are small, and a node starts them without inflating twenty modules.

    Compiling them takes longer than running them does. A Python of another version passes over byte code that is not
    its own and takes the source.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries:
            entry = zipfile.ZipInfo(name, date_time=ALWAYS)
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def _name(module: Path) -> str:
    return f"serried/{module.relative_to(HOUSE).as_posix()}"


def _module(name: str, path: Path) -> Iterator[tuple[str, bytes]]:
    source = path.read_bytes()
    yield f"{name}c", _byte_code(name, path, source)
    yield name, source


def _byte_code(name: str, path: Path, source: bytes) -> bytes:
    """The .pyc of a module, to be believed without a look at its source: nothing in the zip ever changes (PEP 552)."""
    code = SourceFileLoader(name, str(path)).get_code(name)  # compiled at most once: Python keeps what it compiled
    return importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source) + marshal.dumps(code, MARSHAL)
