"""Files with one writer, safe on shared file systems: write aside and rename, append a line, claim by link.

No locks, because NFS and Lustre break them. Every reader here tolerates the remains of a killed writer.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Tuple

from serried.base import NamedTuple

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
RESERVE_BYTES = 65_536
LARGEST_BYTES = 1 << 28
"""No document or journal of Serried is larger; a damaged file may claim any size."""
_LARGEST_OF_OTHERS = 1 << 25
FULL = (errno.ENOSPC, errno.EDQUOT)


class Modes(NamedTuple):
    directory: int
    file: int
    umask: int
    """For files that the processes of a job create themselves."""


MODES = {"user": Modes(0o700, 0o600, 0o077), "group": Modes(0o750, 0o640, 0o027)}
"""The modes of a run's files, by `Plan.share`."""
GROUP_FILE, GROUP_DIRECTORY = MODES["group"].file, MODES["group"].directory
"""Modes of the files that ranks write. Their umask removes the rights of the group unless the run is shared."""

_OWNERS: Dict[Path, int] = {}
"""Owners of the folders of other users that this process reads."""


def trust_only(folder: Path, owner: int) -> None:
    """From now on, open a file below `folder` only if it belongs to `owner`.

    A link there may lead to a file of this user, who would then print or copy that file.
    """
    _OWNERS[folder] = owner


def _owner_of(path: Path) -> Optional[int]:
    """The user who must own the file; None for any user."""
    return next((_OWNERS[folder] for folder in path.parents if folder in _OWNERS), None) if _OWNERS else None


def check_ours_alone(folder: Path) -> None:
    """Raise PermissionError unless `folder` is a directory, no link, that only this user can write to; or OSError.

    Otherwise another user could replace data, an image or a socket in /tmp.
    """
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "not ours alone", str(folder))


def is_ours_alone(folder: Path) -> bool:
    try:
        check_ours_alone(folder)
    except OSError:
        return False
    return True


def user_name(uid: int) -> str:
    import pwd  # seldom needed

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def own_folder(folder: str) -> str:
    """`folder`, or `folder/USER` if another user owns `folder` or can write to it. We own a folder that we create."""
    is_missing = not os.path.exists(folder)  # noqa: PTH110 - Path raises without permission
    is_ours = is_missing or is_ours_alone(Path(os.path.realpath(folder)))
    return folder if is_ours else os.path.join(folder, user_name(os.getuid()))  # noqa: PTH118 - both are text


def make_ours_alone(folder: Path, mode: int = PRIVATE_DIRECTORY) -> Path:
    """Create `folder`, unless it exists. Raises OSError if another user could write there.

    Create its parents by this function first if they are where others can write, or a link may lead elsewhere.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=mode)
    check_ours_alone(folder)
    return folder


def make_directory(path: Path, mode: int = PRIVATE_DIRECTORY) -> None:
    """Create `path` and its parents with `mode`; existing directories stay unchanged.

    Without chmod, which drops setgid of a directory, and with it the group's quota.
    """
    if not path.parent.exists():
        make_directory(path.parent, mode)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode)


def write_text(path: Path, text: str, mode: int = PRIVATE_FILE) -> None:
    """Replace `path` by `text` in one step, durable on return."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"), mode)


def write_unsynced(path: Path, content: bytes, mode: int = PRIVATE_FILE) -> None:
    """Replace `path` by `content` in one step, not durable: for a file that its one writer soon replaces again.

    A killed writer leaves one file beside it at most.
    """
    aside = path.with_name(f".{path.name}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    aside.replace(path)


def write_bytes(path: Path, content: bytes, mode: int = PRIVATE_FILE, *, durable: bool = True) -> None:
    """Replace `path` by `content` in one step, durable on return unless the file is a cache."""
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def write_reserve(path: Path, mode: int = PRIVATE_FILE) -> None:
    """Occupy space that deleting `path` gives back, unless the disk is full already."""
    with contextlib.suppress(OSError):
        write_bytes(path, os.urandom(RESERVE_BYTES), mode, durable=False)


def give_back(reserve: Path, error: OSError) -> None:
    """Delete the reserve if `error` says that the disk is full; after other errors its absence would mislead."""
    if error.errno in FULL:
        reserve.unlink(missing_ok=True)


def write_json(path: Path, value: Any, mode: int = PRIVATE_FILE) -> None:
    """Replace `path` by `value` as JSON in one step, durable on return."""
    write_text(path, text_of(value), mode)


def text_of(value: Any) -> str:
    """Encode `value` as JSON, indented, with a final newline."""
    return json.dumps(value, indent=1) + "\n"


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for anything else: a FIFO would block, and a device never ends.

    A path with a NUL, which a damaged document may name, is an OSError too.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its path has a NUL", str(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if _owner_of(path) not in (None, state.st_uid):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "not a file of the run's owner", str(path))
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """The content of a document or journal. Raises OSError, also if it is no regular file or far too large."""
    with open_regular(path) as file:
        largest = LARGEST_BYTES if _owner_of(path) is None else _LARGEST_OF_OTHERS
        if os.fstat(file.fileno()).st_size > largest:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


def read_json(path: Path) -> Optional[Dict[str, Any]]:
    """The JSON object in `path`; None if the file is missing, damaged or another JSON value."""
    try:
        return json_object(read_bytes(path))
    except OSError:
        return None


def write_environment(path: Path, environment: Mapping[str, str]) -> None:
    """Replace `path`, which only its user can read, by `NAME=value` entries, each ended by a NUL."""
    write_text(path, "".join(f"{name}={value}\0" for name, value in environment.items()))


def read_environment(path: Path) -> Dict[str, str]:
    """Read a file of `write_environment`. Raises OSError."""
    entries = read_bytes(path).decode("utf-8", "surrogateescape").split("\0")
    return dict(entry.partition("=")[::2] for entry in entries if "=" in entry)


def forget_environment(folder: str, run: str) -> None:
    """Delete the stored environment of the jobs of `run`, if it exists, and the folder if it is the run's own."""
    with contextlib.suppress(OSError):
        (Path(folder) / run).unlink()
        if Path(folder).parent.name == run:
            os.rmdir(folder)  # noqa: PTH106 - `folder` is text


def numbers(folder: Path) -> List[int]:
    """The names in `folder` that are numbers, in order; none if the folder is missing."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are enough
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


class Journal:
    """Appends JSON objects to a file, one per line, each by a single write.

    Entries that a full disk refuses stay in memory, and the next write begins with them.
    """

    def __init__(self, path: Path, mode: int = PRIVATE_FILE) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, mode)
        self._unwritten = b""

    def append(self, entry: Dict[str, Any]) -> None:
        """Raises OSError if the entry is not completely written yet."""
        self._unwritten += (json.dumps(entry) + "\n").encode()
        self.write()

    def write(self) -> None:
        """Write the rest. Raises OSError."""
        while self._unwritten:
            self._unwritten = self._unwritten[os.write(self._descriptor, self._unwritten) :]

    def close(self) -> None:
        os.close(self._descriptor)


def read_journal(path: Path) -> List[Dict[str, Any]]:
    """The complete entries of a journal. Skips torn lines; returns none if the file cannot be read."""
    try:
        return entries(path)
    except OSError:
        return []


def entries(path: Path) -> List[Dict[str, Any]]:
    """`read_journal` for callers that must tell an unreachable file system from an empty journal. Raises OSError."""
    try:
        text = read_bytes(path)
    except FileNotFoundError:
        return []
    objects = map(json_object, text.split(b"\n"))
    return [entry for entry in objects if entry is not None and isinstance(entry.get("event", ""), str)]


def json_object(text: bytes) -> Optional[Dict[str, Any]]:
    """The JSON object in `text`; None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def claim(path: Path, owner: str) -> str:
    """Make `owner` the owner of `path` unless it has an owner; return its owner.

    A hard link is exclusive and appears with its content, also on NFS. The group may read the file if it may read the
    folder.
    """
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    mode = PRIVATE_FILE | path.parent.stat().st_mode & stat.S_IRGRP
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(owner)
        os.link(aside, path)
    except FileExistsError:
        return path.read_text(encoding="utf-8")
    finally:
        aside.unlink()
    return owner


_ENDS = rb"[\r\n]"
"""A progress bar ends each of its states with a carriage return."""


class TailReader:
    """Reads the lines that a file got since the last call. Of very many it reads the newest."""

    def __init__(self, path: Path, most: int) -> None:
        """`most` is the number of bytes that one call reads."""
        self._path = path
        self._most = most
        self._file: Tuple[int, int] = (0, 0)
        """The device and the number of the file, which may be replaced by another."""
        self._offset = 0
        self._rest = b""
        self.changed_at = 0.0
        """When the file last changed, by the clock of its file system, in seconds since the epoch."""

    @property
    def size(self) -> int:
        return self._offset

    def lines(self) -> List[bytes]:
        """The new lines without their ends, and without a last line that is incomplete. None of a missing file."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return []
        try:
            return self._read(descriptor)
        except OSError:
            return []
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int) -> List[bytes]:
        state = os.fstat(descriptor)
        self.changed_at = state.st_mtime
        if (state.st_dev, state.st_ino) != self._file or state.st_size < self._offset:
            self._file, self._offset, self._rest = (state.st_dev, state.st_ino), 0, b""
        is_cut = state.st_size - self._offset > self._most
        if is_cut:
            self._offset, self._rest = state.st_size - self._most, b""
        text = os.pread(descriptor, state.st_size - self._offset, self._offset)
        self._offset += len(text)
        *lines, self._rest = re.split(_ENDS, self._rest + text)
        self._rest = self._rest[-self._most :]
        return lines[1:] if is_cut else lines


def find_on_path(name: str, path: str, without: Optional[Path]) -> Optional[str]:
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder or ".", name)  # noqa: PTH118 - PATH may hold anything
        if without is not None and Path(folder or ".") == without:
            continue
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):  # noqa: PTH113
            return candidate
    return None


def find_program(word: str) -> Optional[str]:
    if "/" in word:
        return word if os.access(word, os.X_OK) else None
    return find_on_path(word, os.environ.get("PATH", os.defpath), None)
