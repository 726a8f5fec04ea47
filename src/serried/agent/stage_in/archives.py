"""Archives become folders: by the tools that people pack them with, and never outside the folder.

What tar does with hostile members (absolute names, `..`, links to write through) was tried with GNU tar 1.34 and is
tested: it leaves the slash out, refuses, and makes links last. `zipfile` leaves such parts of names out, which may put
two members into one file, so we refuse them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import time
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

from serried.agent.node_disk import mounts

if TYPE_CHECKING:
    import subprocess
    import zipfile

DECOMPRESSORS: Dict[str, Tuple[Tuple[str, ...], ...]] = {
    "tar": (),
    "tar.gz": (("pigz", "-dc"), ("gzip", "-dc")),
    "tar.zst": (("zstd", "-dc", "-T0"), ("zstdmt", "-dc")),
}
"""For each kind of tar the programs that can read it, the fastest first."""
SAYS_HOW_IT_ENDS = ("--block-number",) if sys.platform == "linux" else ()
CUT_SHORT = b"** End of File **"
"""What GNU tar says then of one that was cut between two of its members, and takes it for whole."""
CHUNK = 1 << 20
TOP = (".", "./")
"""What a zip may call the folder itself."""
LONGEST_SAID = 300
MOST_COMPLAINTS = 1 << 16
RUNNING: "Set[subprocess.Popen[bytes]]" = set()
"""What unpacks now, or did."""
NEVER_MOUNTED = 20.0
"""Seconds that a mount may take to show."""
MOUNT_LOOK = 0.02


class ArchiveError(Exception):
    """It cannot be unpacked. `str()` is a sentence that begins with what is wrong, and names no archive."""


class Reading:
    """How far an archive is read: whoever reads it shares our place in the file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    @property
    def at(self) -> int:
        try:
            return os.lseek(self._file.fileno(), 0, os.SEEK_CUR)
        except (OSError, ValueError):  # it is closed
            return self.size


Reads = Callable[[Reading], None]


def unpack(archive: Path, kind: str, target: Path, reads: Reads = lambda _: None) -> None:
    """Make `target`, which must not be there yet, the folder of what is in `archive`, times and modes kept.

    Links are made as they are. `reads` hears by what one can see how far it is (not of a squashfs).
    Raises ArchiveError, or OSError where the disk is full; `target` is incomplete then.
    """
    target.mkdir(mode=0o700)
    if kind == "zip":
        _unzip(archive, target, reads)
    elif kind == "squashfs":
        _unsquash(archive, target)
    else:
        _untar(archive, kind, target, reads)
    _refuse_special(target)


def mount(image: Path, folder: Path) -> Callable[[], None]:
    """Mount a squashfs on `folder`, and return what takes it off again.

    Its program stays our child: in the background it would be one that ranks have left running. Where we are deaf to a
    signal so is it, as ranks that save need their data. Raises ArchiveError where it cannot be done: `unpack` then.
    """
    import subprocess

    program = _program("squashfuse_ll", "squashfuse")
    if program is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise ArchiveError("squashfs cannot be mounted here: no squashfuse, or no /dev/fuse")
    folder.mkdir(mode=0o700, exist_ok=True)
    null = subprocess.DEVNULL
    process = subprocess.Popen([program, "-f", str(image), str(folder)], stdin=null, stdout=null, stderr=null)
    until = time.monotonic() + NEVER_MOUNTED
    while True:
        is_mounted = os.path.ismount(folder)  # also of a dead one, as long as the kernel remembers it
        has_ended = process.poll() is not None
        if is_mounted and not has_ended:
            return lambda: _take_off(folder, process)
        if has_ended or time.monotonic() > until:
            _take_off(folder, process)
            raise ArchiveError("squashfuse mounted nothing")
        time.sleep(MOUNT_LOOK)


def _take_off(folder: Path, process: "subprocess.Popen[bytes]") -> None:
    """Works on a server that is dead, hung or in use; a mount that survives goes with the node's folder."""
    mounts.unmount(folder)
    process.kill()
    process.wait()
    mounts.unmount(folder)  # it was mounting just then


def _untar(archive: Path, kind: str, target: Path, reads: Reads) -> None:
    tar = _program("tar")
    if tar is None:
        raise ArchiveError("there is no `tar` on this node")
    command = [tar, "-x", "-p", "--no-same-owner", *SAYS_HOW_IT_ENDS, "-f", "-", "-C", str(target)]
    import tempfile

    with archive.open("rb") as packed, tempfile.TemporaryFile(dir=target.parent) as complaints:
        reads(Reading(packed))
        reader = _decompress(kind, packed, complaints)
        process = _start(command, reader.stdout if reader else packed)
        if reader and reader.stdout:
            reader.stdout.close()  # tar alone has it now: if tar ends, the other is told
        end, said = process.communicate()
        trouble = _ended(reader, complaints) if reader else None
    if process.returncode or trouble:
        told = trouble if trouble and not _is_full(said) else _words(said)
        raise _failed(told or f"status {process.returncode}", "tar")
    if CUT_SHORT in end:
        raise ArchiveError("it has no end: it was cut short, or is still being written")


def _decompress(kind: str, packed: IO[bytes], complaints: IO[bytes]) -> Optional[Any]:
    """What reads it. Its complaints go to a file: nobody could read a pipe of them and feed tar at the same time."""
    choices = DECOMPRESSORS[kind]
    if not choices:
        return None
    for name, *options in choices:
        program = _program(name)
        if program:
            return _start([program, *options], packed, complaints)
    raise ArchiveError(f"there is no `{choices[-1][0]}` on this node, which a .{kind} needs")


def _ended(reader: Any, complaints: IO[bytes]) -> Optional[str]:
    """What the decompressor had to complain of; None where all was well, or where its reader left first."""
    status = reader.wait()
    complaints.seek(0)
    return None if status <= 0 else _words(complaints.read(MOST_COMPLAINTS)) or f"status {status}"


def _unsquash(image: Path, target: Path) -> None:
    program = _program("unsquashfs")
    if program is None:
        raise ArchiveError("there is neither a `squashfuse` that can mount it nor an `unsquashfs` on this node")
    _run([program, "-no-progress", "-force", "-dest", str(target), str(image)], "unsquashfs")


def _unzip(archive: Path, target: Path, reads: Reads) -> None:
    import zipfile
    import zlib

    try:
        with archive.open("rb") as file, zipfile.ZipFile(file) as packed:
            reads(Reading(file))
            _unzip_members(packed, target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ArchiveError(f"it is no whole zip: {error}") from None
    except RuntimeError as error:  # what zipfile says of passwords
        raise ArchiveError(str(error)) from None


def _unzip_members(packed: "zipfile.ZipFile", target: Path) -> None:
    """Folders, then files, then links, so that nothing can be written through a link; times of folders last."""
    seen = set()
    links: List[Tuple[Path, str]] = []
    folders: List[Tuple[Path, "zipfile.ZipInfo"]] = []
    for info in packed.infolist():
        if info.filename in TOP:
            continue
        path = target.joinpath(*_inner(info.filename))
        if path in seen and not info.is_dir():
            raise ArchiveError(f"it holds {info.filename!r} twice")
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
            raise ArchiveError(f"it holds {info.filename!r} in the place of something else") from None
    for path, goal in links:
        path.symlink_to(goal)
    for path, info in reversed(folders):
        _date(path, info)


def _inner(name: str) -> Tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\0" in name:
        raise ArchiveError(f"it holds {name!r}, which leads out of its folder")
    return parts


def _date(path: Path, info: "zipfile.ZipInfo") -> None:
    mode = stat.S_IMODE(info.external_attr >> 16)
    if mode:
        path.chmod(mode & 0o777)
    with contextlib.suppress(OverflowError, ValueError):  # some packers write no date
        when = time.mktime((*info.date_time, 0, 0, -1))
        os.utime(path, (when, when))


def _refuse_special(target: Path) -> None:
    """Devices, pipes and sockets are no data, and opening one may block for ever."""
    for folder, _, names in os.walk(target):
        for name in names:
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                raise ArchiveError(f"it holds {name!r}, which is neither a file nor a folder nor a link")


def _run(command: List[str], name: str) -> None:
    import subprocess

    process = _start(command, subprocess.DEVNULL)
    said = process.communicate()[1]
    if process.returncode:
        raise _failed(_words(said) or f"status {process.returncode}", name)


def _start(command: List[str], source: Any, complaints: Any = None) -> "subprocess.Popen[bytes]":
    """With `source` as its stdin; in English, as we read what it says."""
    import subprocess

    environment = {**os.environ, "LC_ALL": "C"}
    pipe = subprocess.PIPE
    errors = pipe if complaints is None else complaints
    process = subprocess.Popen(command, stdin=source, stdout=pipe, stderr=errors, env=environment)
    RUNNING.add(process)
    return process


def end() -> None:
    """Nobody wants what is being unpacked any more."""
    for process in list(RUNNING):
        process.kill()


def _failed(said: str, name: str) -> Exception:
    if _is_full(said.encode()):
        import errno

        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return ArchiveError(f"{name} says: {said}")


def _is_full(said: bytes) -> bool:
    return any(words in said for words in (b"No space left", b"Disk quota exceeded", b"Wrote only"))


def _words(said: bytes) -> str:
    """The lines that say something, in one; the last of tar's only says that there were others."""
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in lines if "Removing leading" not in line and "Exiting with failure" not in line]
    return "; ".join(told or lines)[:LONGEST_SAID]


def _program(*names: str) -> Optional[str]:
    return next((found for found in map(shutil.which, names) if found), None)
