"""Unpacks archives into folders with the tools that pack them, and never writes outside the folder.

GNU tar 1.34 handles hostile members (absolute names, `..`, links to write through): it drops the slash, refuses the
member, and creates links last. Tests hold this. `zipfile` drops such parts of a name, which may put two members into
one file, so this module refuses them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import time
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

from serried.agent.node_disk.folder import unmount

if TYPE_CHECKING:
    import subprocess
    import zipfile

DECOMPRESSORS: Dict[str, Tuple[Tuple[str, ...], ...]] = {
    "tar": (),
    "tar.gz": (("pigz", "-dc"), ("gzip", "-dc")),
    "tar.zst": (("zstd", "-dc", "-T0"), ("zstdmt", "-dc")),
}
"""For each kind of tar, the programs that decompress it, the fastest first."""
REPORT_END = ("--block-number",) if sys.platform == "linux" else ()
CUT_SHORT = b"** End of File **"
"""GNU tar prints this for an archive that was cut between two members, but exits with 0."""
CHUNK = 1 << 20
TOP = (".", "./")
"""Names of the folder itself in a zip."""
LONGEST_MESSAGE = 300
MOST_COMPLAINTS = 1 << 16
"""Bytes of a decompressor's stderr that are read."""
RUNNING: "Set[subprocess.Popen[bytes]]" = set()
"""Programs that unpack, or have unpacked."""
MOUNT_SECONDS = 20.0
"""Until the mount must show."""
POLL_SECONDS = 0.02


class ArchiveError(Exception):
    """The archive cannot be unpacked. `str` says why, without its name."""


class Reading:
    """How far an archive is read: the program that reads it shares the position in the file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    @property
    def at(self) -> int:
        try:
            return os.lseek(self._file.fileno(), 0, os.SEEK_CUR)
        except (OSError, ValueError):  # the file is closed
            return self.size


OnReading = Callable[[Reading], None]


def unpack(archive: Path, kind: str, target: Path, on_reading: OnReading = lambda _: None) -> None:
    """Create the folder `target` from `archive`, with times, modes and links as they are.

    `on_reading` is called with the progress, except for a squashfs. Raises ArchiveError, or OSError if the disk is
    full; `target` is incomplete then.
    """
    target.mkdir(mode=0o700)
    if kind == "zip":
        _unzip(archive, target, on_reading)
    elif kind == "squashfs":
        _unsquash(archive, target)
    else:
        _untar(archive, kind, target, on_reading)
    for folder, _, names in os.walk(target):  # devices, pipes and sockets are no data, and opening one may block
        for name in names:
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                raise ArchiveError(f"the archive has {name!r}, which is neither a file nor a folder nor a link")


def mount(image: Path, folder: Path) -> Callable[[], None]:
    """Mount a squashfs on `folder`, and return the function that unmounts it. Raises ArchiveError: then use `unpack`.

    The server stays a child of this process: in the background it would count as a process that ranks have left. It
    inherits ignored signals, because ranks that save need their data.
    """
    import subprocess

    program = _program("squashfuse_ll", "squashfuse")
    if program is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise ArchiveError("this node cannot mount a squashfs: it has no squashfuse, or no /dev/fuse")
    folder.mkdir(mode=0o700, exist_ok=True)
    null = subprocess.DEVNULL
    process = subprocess.Popen([program, "-f", str(image), str(folder)], stdin=null, stdout=null, stderr=null)
    until = time.monotonic() + MOUNT_SECONDS
    while True:
        is_mounted = os.path.ismount(folder)  # a dead server may leave its mount behind
        has_ended = process.poll() is not None
        if is_mounted and not has_ended:
            return lambda: _unmount(folder, process)
        if has_ended or time.monotonic() > until:
            _unmount(folder, process)
            raise ArchiveError("squashfuse mounted nothing")
        time.sleep(POLL_SECONDS)


def _unmount(folder: Path, process: "subprocess.Popen[bytes]") -> None:
    """Works whether the server is dead, hung or in use. A mount that is left is unmounted with the node's folder."""
    unmount(folder)
    process.kill()
    process.wait()
    unmount(folder)  # the server may have mounted just then


def _untar(archive: Path, kind: str, target: Path, on_reading: OnReading) -> None:
    tar = _program("tar")
    if tar is None:
        raise ArchiveError("this node has no `tar`")
    command = [tar, "-x", "-p", "--no-same-owner", *REPORT_END, "-f", "-", "-C", str(target)]
    import tempfile

    with archive.open("rb") as packed, tempfile.TemporaryFile(dir=target.parent) as complaints:
        on_reading(Reading(packed))
        reader = None
        choices = DECOMPRESSORS[kind]
        if choices:
            choice = next((choice for choice in choices if _program(choice[0])), None)
            if choice is None:
                raise ArchiveError(f"this node has no `{choices[-1][0]}`, which a .{kind} needs")
            reader = _start(list(choice), packed, complaints)  # not a pipe: no thread would read it beside tar's
        process = _start(command, reader.stdout if reader else packed)
        if reader and reader.stdout:
            reader.stdout.close()  # only tar reads the pipe now, so the decompressor gets SIGPIPE if tar exits
        end, stderr = process.communicate()
        problem = ""
        if reader and reader.wait() > 0:
            complaints.seek(0)
            problem = _words(complaints.read(MOST_COMPLAINTS)) or f"status {reader.returncode}"
    if process.returncode or problem:
        if _is_full(stderr) or not problem:
            problem = _words(stderr) or f"status {process.returncode}"
        raise _failure("tar", problem)
    if CUT_SHORT in end:
        raise ArchiveError("the archive is incomplete: it was cut short, or is still being written")


def _unsquash(image: Path, target: Path) -> None:
    program = _program("unsquashfs")
    if program is None:
        raise ArchiveError("this node has neither a `squashfuse` that can mount the image nor `unsquashfs`")
    import subprocess

    process = _start([program, "-no-progress", "-force", "-dest", str(target), str(image)], subprocess.DEVNULL)
    stderr = process.communicate()[1]
    if process.returncode:
        raise _failure("unsquashfs", _words(stderr) or f"status {process.returncode}")


def _unzip(archive: Path, target: Path, on_reading: OnReading) -> None:
    import zipfile
    import zlib

    try:
        with archive.open("rb") as file, zipfile.ZipFile(file) as packed:
            on_reading(Reading(file))
            _unzip_members(packed, target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ArchiveError(f"not a complete zip file: {error}") from None
    except RuntimeError as error:  # `zipfile` needs a password
        raise ArchiveError(str(error)) from None


def _unzip_members(packed: "zipfile.ZipFile", target: Path) -> None:
    """Create links after files, so that no file is written through a link; set the times of folders last."""
    seen = set()
    links: List[Tuple[Path, str]] = []
    folders: List[Tuple[Path, "zipfile.ZipInfo"]] = []
    for info in packed.infolist():
        if info.filename in TOP:
            continue
        inner = PurePosixPath(info.filename)
        if not inner.parts or ".." in inner.parts or inner.is_absolute() or "\0" in info.filename:
            raise ArchiveError(f"the archive has {info.filename!r}, which leads out of its folder")
        path = target / inner
        if path in seen and not info.is_dir():
            raise ArchiveError(f"the archive has {info.filename!r} twice")
        seen.add(path)
        mode = info.external_attr >> 16
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if info.is_dir():
                path.mkdir(exist_ok=True)
                folders.append((path, info))
            elif stat.S_ISLNK(mode):
                links.append((path, packed.read(info).decode("utf-8", "surrogateescape")))
            else:
                with packed.open(info) as source, path.open("xb") as written:
                    shutil.copyfileobj(source, written, CHUNK)
                _date(path, info)
        except (FileExistsError, NotADirectoryError):
            raise ArchiveError(f"the archive has {info.filename!r} in the place of another member") from None
    for path, goal in links:
        path.symlink_to(goal)
    for path, info in reversed(folders):
        _date(path, info)


def _date(path: Path, info: "zipfile.ZipInfo") -> None:
    mode = stat.S_IMODE(info.external_attr >> 16)
    if mode:
        path.chmod(mode & 0o777)
    with contextlib.suppress(OverflowError, ValueError):  # some packers write no date
        when = time.mktime((*info.date_time, 0, 0, -1))
        os.utime(path, (when, when))


def _start(command: List[str], source: Any, complaints: Any = None) -> "subprocess.Popen[bytes]":
    """Start with `source` as its stdin, and with messages in English, because this module reads them."""
    import subprocess

    environment = {**os.environ, "LC_ALL": "C"}
    pipe = subprocess.PIPE
    errors = pipe if complaints is None else complaints
    process = subprocess.Popen(command, stdin=source, stdout=pipe, stderr=errors, env=environment)
    RUNNING.add(process)
    return process


def end() -> None:
    for process in list(RUNNING):
        process.kill()


def _failure(name: str, problem: str) -> Exception:
    if _is_full(problem.encode()):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return ArchiveError(f"{name}: {problem}")


def _is_full(stderr: bytes) -> bool:
    return any(words in stderr for words in (b"No space left", b"Disk quota exceeded", b"Wrote only"))


def _words(stderr: bytes) -> str:
    """The lines of `stderr` in one, without those of tar that say nothing about the problem."""
    lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    useful = [line for line in lines if "Removing leading" not in line and "Exiting with failure" not in line]
    return "; ".join(useful or lines)[:LONGEST_MESSAGE]


def _program(*names: str) -> Optional[str]:
    return next(filter(None, map(shutil.which, names)), None)
