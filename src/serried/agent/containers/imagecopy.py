"""The image on the node's own disk: copied once by whoever comes first, shared by all jobs there, gone with the last.

Locks (flock) are to be trusted here, as the disk is the node's own; and a lock goes with its process, however that
ends. What nobody holds any more is removed by the next who comes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from serried.agent import system
from serried.agent.containers.container import COPY
from serried.agent.launch import agent_command
from serried.agent.loop import Loop
from serried.agent.work import Work
from serried.contract import files

ANSWER = "image.json"
HOLD_TRIES, HOLD_SECONDS = 100, 0.05
WAIT_SECONDS = 0.1
ROOM = 1.05
"""Of the image's size, must be free."""


class Copy:
    """Started at once, in a process of its own, as it may take minutes and an agent has to go on talking."""

    def __init__(self, loop: Loop, work: Work, private: Path, note: Callable[..., None]) -> None:
        self._loop = loop
        self._private = private
        self._note = note
        self._then: List[Callable[[], None]] = []
        self._held: Optional[int] = None
        self._end: Any = None
        self._is_settled = False
        folder = _folder(work)
        if folder is None:
            self._is_settled = True
            return
        image = str(work.plan["container"]["image"])
        reader, writer = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        words = [*agent_command("image"), image, str(folder), str(private)]
        system.spawn(
            [system.encode(word) for word in words],
            dict(os.environb),
            b"/",
            (null, writer, 2),
            parent_death=signal.SIGKILL,
        )
        os.close(null)
        os.close(writer)
        self._end = os.fdopen(reader, "rb", 0)
        loop.watch(self._end, self._done)

    def then(self, action: Callable[[], None]) -> None:
        """Call `action` once the image is where it shall be: at once, if it is."""
        if self._is_settled:
            action()
        else:
            self._then.append(action)

    def _done(self) -> None:
        """Its end of the pipe is closed: it has ended, well or not."""
        self._loop.forget(self._end)
        self._end.close()
        self._end = None
        answer = files.read_json(self._private / ANSWER) or {"problem": "the copying ended without a word"}
        self._note("image", **answer)
        if "path" in answer:
            self._hold(Path(answer["path"]), HOLD_TRIES)
        else:
            self._go_on()

    def _hold(self, path: Path, tries: int) -> None:
        """As long as this process lives nobody removes it. Who only looks whether it is there holds it for a moment."""
        try:
            self._held = _lock(path, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if tries:
                self._loop.after(HOLD_SECONDS, lambda: self._hold(path, tries - 1))
                return
        except OSError:
            pass
        if self._held is not None and path.exists():
            (self._private / COPY).symlink_to(path)
        self._go_on()

    def _go_on(self) -> None:
        self._is_settled = True
        for action in self._then:
            action()

    def release(self) -> None:
        """Remove it, if nobody else has it in use."""
        copy = self._private / COPY
        if self._held is not None and copy.is_symlink():
            os.close(self._held)
            _remove_unused(Path(os.readlink(copy)))  # noqa: PTH115


def _folder(work: Work) -> Optional[Path]:
    """Where copies are on this node; None where none is wanted."""
    said = work.plan.get("container")
    if not said or not said["local"]:
        return None
    disk = os.path.expandvars(str(work.plan["site"]["local_disk"]))
    return Path(disk) / f"serried-{os.getuid()}" / "images"


def main(arguments: List[str]) -> int:
    """`image IMAGE FOLDER PRIVATE`: what became of it is in PRIVATE afterwards."""
    image, folder, private = map(Path, arguments)
    began = time.monotonic()
    try:
        answer = _copy(image, folder)
    except OSError as error:
        answer = {"problem": f"{error.strerror or error}: {error.filename or image}"}
    files.write_json(private / ANSWER, {**answer, "seconds": round(time.monotonic() - began, 1)})
    return 0


def _copy(image: Path, folder: Path) -> Dict[str, Any]:
    import hashlib
    import shutil

    for place in (folder.parent, folder):
        place.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(place):
            return {"problem": f"{place} is not ours alone"}
    state = image.stat()
    said = f"{image}\0{state.st_size}\0{state.st_mtime_ns}".encode("utf-8", "surrogateescape")
    path = folder / (hashlib.sha256(said).hexdigest()[:16] + image.suffix)
    _tidy(folder, path)
    lock = _await(path)
    try:
        if path.exists():
            return {"path": str(path), "bytes": 0}
        free = shutil.disk_usage(folder).free
        if free < state.st_size * ROOM:
            return {"problem": f"no room on {folder}: {free >> 20} MiB free, {state.st_size >> 20} MiB needed"}
        aside = path.with_name(f"{path.name}.part")
        try:
            shutil.copyfile(image, aside)
            if image.stat().st_mtime_ns != state.st_mtime_ns:
                return {"problem": f"{image} was changed meanwhile"}
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        return {"path": str(path), "bytes": state.st_size}
    finally:
        os.close(lock)


def _is_ours(folder: Path) -> bool:
    """In a /tmp of everybody's, who could put another image there could run programs as us."""
    state = folder.lstat()
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022


def _await(path: Path) -> int:
    """Hold the lock of a copy that is not there, or do not wait for one that is: whoever uses it holds it for hours."""
    while True:
        is_there = path.exists()
        try:
            lock = _lock(path, fcntl.LOCK_NB | (fcntl.LOCK_SH if is_there else fcntl.LOCK_EX))
        except BlockingIOError:
            time.sleep(WAIT_SECONDS)
            continue
        if path.exists() or not is_there:
            return lock
        os.close(lock)


def _tidy(folder: Path, mine: Path) -> None:
    """Remove the copies that nobody holds: whoever made them was killed."""
    for lock in folder.glob("*.lock"):
        path = lock.with_name(lock.name[: -len(".lock")])
        if path != mine:
            _remove_unused(path)


def _lock(path: Path, kind: int) -> int:
    """Hold the lock of a copy, and be sure that it is still the one that others see. Raises OSError."""
    name = path.with_name(f"{path.name}.lock")
    while True:
        held = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, kind)
            if name.exists() and os.fstat(held).st_ino == name.stat().st_ino:
                return held
        except OSError:
            os.close(held)
            raise
        os.close(held)


def _remove_unused(path: Path) -> None:
    with contextlib.suppress(OSError):
        held = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in (path, path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.lock")):
            name.unlink(missing_ok=True)
        os.close(held)
