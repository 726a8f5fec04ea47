"""A copy of the container image on the node's own disk: shared by all jobs there, and deleted with the last of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.containers.container import COPY
from serried.agent.loop import Loop
from serried.agent.node_disk import shared_cache
from serried.agent.node_disk.folder import IMAGES, Folder, remove_empty
from serried.base import files, locks
from serried.schema.events import JournalEvent

ANSWER = "image.json"
SPARE = 1.05
"""The disk must have room for so many times the image's size."""
CHUNK = 4 << 20


class ImageCopy:
    """Copies in a process of its own, from the start on: it may take minutes, and the agent must stay responsive."""

    def __init__(self, loop: Loop, work: Attempt, folder: Folder, log_event: Callable[..., None]) -> None:
        self._loop = loop
        self._private = folder.path
        self._log_event = log_event
        self._waiting: List[Callable[[], None]] = []
        self._locks: List[int] = []
        self._is_resolved = True
        container = work.plan.container
        if not container or not container.local:
            return
        if folder.room is None or not folder.has_disk:
            log_event(JournalEvent.IMAGE, problem="this node has no disk of its own")
            return
        self._is_resolved = False
        reader, writer = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        system.spawn(
            system.agent_command("copy-image", container.image, str(folder.room), str(folder.path)),
            system.environment(),
            (null, writer, 2),
            directory="/",
            parent_death=signal.SIGKILL,
        )
        os.close(null)
        os.close(writer)
        self._end = os.fdopen(reader, "rb", 0)
        """At its end of file the process has exited."""
        loop.watch(self._end, self._on_exit)

    def when_ready(self, action: Callable[[], None]) -> None:
        """Call `action` once the image is copied, or cannot be."""
        if self._is_resolved:
            action()
        else:
            self._waiting.append(action)

    def _on_exit(self) -> None:
        self._loop.forget(self._end)
        self._end.close()
        answer = files.read_json(self._private / ANSWER) or {"problem": "the process that copies the image was killed"}
        self._log_event(JournalEvent.IMAGE, **answer)
        copies = [Path(answer["path"])] if "path" in answer else []
        shared_cache.hold(self._loop.after, copies, lambda held: self._resolve(copies, held))

    def _resolve(self, copies: List[Path], held: List[int]) -> None:
        self._locks = held
        if held and copies[0].exists():
            (self._private / COPY).symlink_to(copies[0])
        self._is_resolved = True
        for action in self._waiting:
            action()

    def release(self) -> None:
        """Delete the copy, unless another job uses it."""
        copy = self._private / COPY
        if self._locks and copy.is_symlink():
            os.close(self._locks.pop())
            path = Path(os.readlink(copy))  # noqa: PTH115
            if locks.remove_unused(path, shared_cache.remove_image):
                remove_empty(path.parent)


def main(arguments: List[str]) -> int:
    """`copy-image IMAGE ROOM PRIVATE`: writes the result to a file in PRIVATE."""
    image, room, private = map(Path, arguments)
    began_at = time.monotonic()
    try:
        answer = _copy(image, room)
    except shared_cache.NoRoomError as error:
        answer = {"problem": str(error)}
    except shared_cache.SilentError:
        answer = {"problem": "another job that copies the image to this node shows no sign of life"}
    except OSError as error:
        answer = {"problem": f"{error.strerror or error}: {error.filename or image}"}
    files.write_json(private / ANSWER, {**answer, "seconds": round(time.monotonic() - began_at, 1)})
    return 0


def _copy(image: Path, room: Path) -> Dict[str, Any]:
    import hashlib

    folder = files.make_ours_alone(files.make_ours_alone(room) / IMAGES)
    state = image.stat()
    identity = f"{image}\0{state.st_size}\0{state.st_mtime_ns}".encode("utf-8", "surrogateescape")
    path = folder / (hashlib.sha256(identity).hexdigest()[:16] + image.suffix)
    shared_cache.tidy_images(folder, keep=path)
    lock = shared_cache.lock(path)
    part = locks.part_of(path)
    try:
        if path.exists():
            return {"path": str(path), "bytes": 0}
        shared_cache.check_room(folder, int(state.st_size * SPARE), 1)
        with image.open("rb", 0) as source, part.open("wb") as target:
            while chunk := source.read(CHUNK):
                target.write(chunk)
                locks.live(path)
        if image.stat().st_mtime_ns != state.st_mtime_ns:
            return {"problem": f"{image} was changed while it was copied"}
        part.replace(path)
        return {"path": str(path), "bytes": state.st_size}
    finally:
        part.unlink(missing_ok=True)
        os.close(lock)
