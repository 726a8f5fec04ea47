"""The image on the node's own disk: copied once by whoever comes first, shared by all, gone with the last."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.containers.container import COPY
from serried.agent.loop import Loop
from serried.agent.node_disk import Folder, base_dirs, shared_cache
from serried.fs import files, locks
from serried.protocol.events import JournalEvent

ANSWER = "image.json"
HOLD_TRIES, HOLD_SECONDS = 100, 0.05
ROOM = 1.05
"""Of the image's size, must be free."""
STUCK_SECONDS = 120.0
"""Another job of ours that copies it and does not go on for so long, as it is suspended, is not waited for."""


class ImageCopy:
    """Started at once, in a process of its own, as it may take minutes and an agent has to go on talking."""

    def __init__(self, loop: Loop, work: Attempt, own: Folder, note: Callable[..., None]) -> None:
        self._loop = loop
        self._private = own.path
        self._log_event = note
        self._then: List[Callable[[], None]] = []
        self._held: Optional[int] = None
        self._end: Any = None
        self._is_settled = False
        said = work.plan.get("container")
        if not said or not said["local"]:
            self._is_settled = True
            return
        if own.room is None or not own.has_disk:
            self._is_settled = True
            note(JournalEvent.IMAGE, problem="this node's own disk cannot be used")
            return
        reader, writer = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        words = [*system.agent_command("copy-image"), str(said["image"]), str(own.room), str(own.path)]
        system.spawn(
            words,
            system.environment(),
            (null, writer, 2),
            directory="/",
            parent_death=signal.SIGKILL,
        )
        os.close(null)
        os.close(writer)
        self._end = os.fdopen(reader, "rb", 0)
        loop.watch(self._end, self._done)

    def when_ready(self, action: Callable[[], None]) -> None:
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
        self._log_event(JournalEvent.IMAGE, **answer)
        if "path" in answer:
            self._hold(Path(answer["path"]), HOLD_TRIES)
        else:
            self._go_on()

    def _hold(self, path: Path, tries: int) -> None:
        """As long as this process lives nobody removes it. Who only looks whether it is there holds it for a moment."""
        try:
            self._held = locks.hold(path, locks.SHARED | locks.AT_ONCE)
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
            path = Path(os.readlink(copy))  # noqa: PTH115
            if locks.remove_unused(path, shared_cache.remove_image):
                base_dirs.remove_empty(path.parent)


def main(arguments: List[str]) -> int:
    """`image IMAGE ROOM PRIVATE`: what became of it is in PRIVATE afterwards."""
    image, own, private = map(Path, arguments)
    began = time.monotonic()
    try:
        answer = _copy(image, own)
    except OSError as error:
        answer = {"problem": f"{error.strerror or error}: {error.filename or image}"}
    files.write_json(private / ANSWER, {**answer, "seconds": round(time.monotonic() - began, 1)})
    return 0


def _copy(image: Path, own: Path) -> Dict[str, Any]:
    import hashlib
    import shutil

    folder = base_dirs.sub(base_dirs.sub(own.parent, own.name), base_dirs.IMAGES)
    state = image.stat()
    said = f"{image}\0{state.st_size}\0{state.st_mtime_ns}".encode("utf-8", "surrogateescape")
    path = folder / (hashlib.sha256(said).hexdigest()[:16] + image.suffix)
    shared_cache.tidy_images(folder, path)
    aside = path.with_name(f"{path.name}{locks.PART}")
    try:
        lock = locks.hold_or_make(path, waits=_Other(aside).look)
    except StuckError:
        return {"problem": "another job that copies it there does not go on"}
    try:
        if path.exists():
            return {"path": str(path), "bytes": 0}
        free = shutil.disk_usage(folder).free
        if free < state.st_size * ROOM:
            return {"problem": f"no room on {folder}: {free >> 20} MiB free, {state.st_size >> 20} MiB needed"}
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


class StuckError(Exception):
    """Who copies it does not go on."""


class _Other:
    """A job that copies the same there."""

    def __init__(self, aside: Path) -> None:
        self._aside = aside
        self._size, self._since = -1, time.monotonic()

    def look(self) -> None:
        """Raises StuckError."""
        try:
            size = self._aside.stat().st_size
        except OSError:
            size = 0
        if size != self._size:
            self._size, self._since = size, time.monotonic()
        elif time.monotonic() - self._since > STUCK_SECONDS:
            raise StuckError
