"""Serried's own code in a run directory, as source and as byte code of the submitting Python.

Compute nodes run agent.pyz. Ranks import `serried.train` from library.zip, as of submit, whatever their environment has
installed.
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
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from serried.base import files
from serried.schema.layout import state_directory

if TYPE_CHECKING:
    from types import CodeType

HOUSE = Path(__file__).parents[2]
AGENT = ("agent", "base", "schema")
LIBRARY = ("base", "schema", "train")
MAIN = HOUSE / "agent" / "__main__.py"
PACKAGE = HOUSE / "schema" / "library_init.py"
"""The module `serried` of a rank."""
STARTUP = HOUSE / "base" / "startup.py"
"""What Python runs first in a rank."""
UNCHECKED = (0b01).to_bytes(4, "little")
MARSHAL = 2
"""From version 3 on, the bytes depend on reference counts in this process, so each archive would differ."""
ALWAYS = (1980, 1, 1, 0, 0, 0)
"""The oldest date of a zip. The time of an installation would change the archive."""


class Content(NamedTuple):
    """An archive, known without being read: 1.4 MB that most runs share with an earlier one."""

    digest: str
    """SHA-256, in hex."""
    size: int
    read: Callable[[], bytes]

    @classmethod
    def of(cls, content: bytes) -> Content:
        return cls(hashlib.sha256(content).hexdigest(), len(content), lambda: content)


def agent() -> Content:
    """agent.pyz."""
    empty = _pyc(compile("", "serried/__init__.py", "exec"), b"")
    package = [("serried/__init__.pyc", empty), ("serried/__init__.py", b"")]
    return _content(AGENT, lambda: [*_module("__main__.py", MAIN), *package])


def library() -> Content:
    """library.zip."""
    return _content(LIBRARY, lambda: [*_module("serried/__init__.py", PACKAGE), *_module("sitecustomize.py", STARTUP)])


def put(content: Content, path: Path, folder: Path, modes: files.Modes) -> None:
    """Store `content` in `folder` under a name with its digest, and let `path` be a link to that file.

    The link comes first. So a cleanup either sees the link, or deletes the file before this function checks for it. If
    another user owns `folder` or its parent, or can write there, `path` becomes a file instead.
    """
    stored = folder / f"{path.stem}-{content.digest[:16]}{path.suffix}"
    try:
        files.make_directory(folder.parent, modes.directory)
        files.check_ours_alone(folder.parent)
        files.make_ours_alone(folder, modes.directory)
        path.symlink_to(stored)
        if not _is_stored(stored, content.size):
            files.write_bytes(stored, content.read(), modes.file)
    except PermissionError:
        path.unlink(missing_ok=True)
        files.write_bytes(path, content.read(), modes.file)


def _is_stored(path: Path, size: int) -> bool:
    """The file exists. Sets its time to now, because sites and Serried delete files by age.

    A file that another user wrote or can write does not count: it would run as this user.
    """
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
            return False
        os.utime(path)
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _content(rooms: tuple[str, ...], entries: Callable[[], list[tuple[str, bytes]]]) -> Content:
    kept = state_directory(os.environ) / "cache" / f"{'-'.join(rooms)}-{_digest([str(HOUSE)]).hex()[:12]}.zip"
    before = _digest([*_states(rooms), _state(PACKAGE)])
    content = _kept(kept, before)
    if content is None:
        modules = [path for room in rooms for path in sorted((HOUSE / room).rglob("*.py")) if path != PACKAGE]
        packed = _packed([*entries(), *(entry for module in modules for entry in _module(_name(module), module))])
        content = Content.of(packed)
        with contextlib.suppress(OSError):  # a full home: the archive is packed each time
            files.make_directory(kept.parent)
            files.write_bytes(kept, packed + bytes.fromhex(content.digest) + before)
    return content


def _states(rooms: tuple[str, ...]) -> list[str]:
    """The state of each module (a program cannot set a ctime), and the version of its byte code."""
    known = [importlib.util.cache_from_source(""), importlib.util.MAGIC_NUMBER.hex()]
    folders = [str(HOUSE / room) for room in rooms]
    for folder in folders:  # grows meanwhile
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.endswith(".py"):
                    known.append(_state(entry))
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return known


def _state(module: Path | os.DirEntry[str]) -> str:
    state = module.stat()
    return f"{os.fspath(module)} {state.st_ino} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"


def _digest(lines: list[str]) -> bytes:
    return hashlib.sha256("\0".join(lines).encode("utf-8", "surrogateescape")).digest()


def _kept(path: Path, before: bytes) -> Content | None:
    """The archive of an earlier run, if its last bytes show that no module has changed since."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) - 2 * len(before)
            file.seek(max(size, 0))
            digest, known = file.read(len(before)), file.read()
    except OSError:
        return None
    return Content(digest.hex(), size, lambda: _read(path, size, digest)) if known == before else None


def _read(path: Path, size: int, digest: bytes) -> bytes:
    content = path.read_bytes()[:size]
    if hashlib.sha256(content).digest() != digest:  # another process has replaced it since
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
    return content


def _packed(entries: list[tuple[str, bytes]]) -> bytes:
    """Stored, not deflated: the files are small, and a node would have to inflate twenty modules.

    Compiling them would take longer than running them. A Python of another version ignores the byte code and reads the
    source.
    """
    import zipfile

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
    """The .pyc of a module. Python does not compare it with the source, because the zip never changes (PEP 552)."""
    code = SourceFileLoader(name, str(path)).get_code(name)  # compiled at most once: Python keeps the result
    return _pyc(code, source)


def _pyc(code: CodeType | None, source: bytes) -> bytes:
    return importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source) + marshal.dumps(code, MARSHAL)
