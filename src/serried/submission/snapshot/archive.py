"""One tar archive for each content: the same files give the same bytes, at any time and for any user."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serried.base.errors import UsageError
from serried.base.files import MODES, Modes, make_directory
from serried.submission.snapshot.listing import Survey

EPOCH = 315_532_800
"""The time of every member, 1980-01-01: times are not content, and zip files have no earlier ones."""


@dataclass(frozen=True)
class Archive:
    path: Path
    digest: str
    """SHA-256 of the tar, in hex."""
    bytes: int


def store(survey: Survey, folder: Path, modes: Modes = MODES["user"]) -> Archive:
    """Pack the survey's files into `folder`/<digest>.tar, unless that archive exists.

    A file that disappears meanwhile is left out. A file that cannot be read raises UsageError, and no archive remains.
    """
    make_directory(folder, modes.directory)
    aside = folder / f".{os.urandom(4).hex()}.tar"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, modes.file)
    try:
        with os.fdopen(descriptor, "wb") as file:
            writer = _DigestWriter(file)
            # GNU's format allows names of any bytes and any length.
            with tarfile.open(fileobj=writer, mode="w", format=tarfile.GNU_FORMAT) as archive:
                for member, content in _members(survey):
                    archive.addfile(member, content)
            digest = writer.digest.hexdigest()
            path = folder / f"{digest[:16]}.tar"
            if not _is_whole(path, writer.position):
                file.flush()
                os.fsync(file.fileno())
                aside.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
    return Archive(path, digest, writer.position)


def _is_whole(path: Path, size: int) -> bool:
    """Whether the archive exists. Renews its time, because sites and `serried clean` delete files by age."""
    try:
        os.utime(path)
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


class _DigestWriter(io.RawIOBase):
    """Writes bytes and computes their digest, so that files are read once."""

    def __init__(self, file: io.BufferedWriter) -> None:
        super().__init__()
        self._file = file
        self.digest = hashlib.sha256()
        self.position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.digest.update(data)
        self.position += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self.position


def _members(survey: Survey) -> Iterator[tuple[tarfile.TarInfo, io.BytesIO | None]]:
    root = survey.project.resolve()
    for path in survey.files:
        whole = root / path
        member = tarfile.TarInfo(path)
        member.mtime = EPOCH
        try:
            status = whole.lstat()
            if stat.S_ISLNK(status.st_mode):
                member.type = tarfile.SYMTYPE
                member.mode = 0o777
                member.linkname = _target(root, path)
                yield member, None
            elif stat.S_ISREG(status.st_mode):
                content = whole.read_bytes()
                member.mode = stat.S_IMODE(status.st_mode) & 0o777
                member.size = len(content)
                yield member, io.BytesIO(content)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            raise UsageError(
                f"cannot read `{path}`: {error.strerror}",
                hint=f"make it readable, or leave it out of the snapshot by a line `/{path}` in `.gitignore`",
            ) from error


def _target(root: Path, path: str) -> str:
    """The target of a symbolic link in the unpacked tree.

    A link into the project leads to the same place in the tree. Any other link leads to the same target as before.
    """
    link = root / path
    written = link.readlink()
    absolute = os.path.normpath(link.parent / written)
    if not Path(absolute).is_relative_to(root):
        return absolute
    return os.path.relpath(absolute, link.parent) if written.is_absolute() else str(written)
