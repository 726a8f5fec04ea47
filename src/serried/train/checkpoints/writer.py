"""The process that writes checkpoints: one per rank, niced, ends with the rank. Imports no torch.

It reads one command per line and answers each with a line. The data is in memory that it shares with the rank:

  {"step": 100, "root": "…", "rank": 0, "world_size": 2, "token": "…", "capacity": bytes of shared memory,
   "files": [{"name": "replicated.pt", "start": offset, "pickle": bytes, "table": [offset, tensors]}],
   "sharded": ["__0_0.distcp"], "document": {…}, "keep": 3, "best": null}
  {"step": 100, "seconds": 0.2, "files": {"replicated.pt": {"size": 209715200, "crc32": "…"}}}
  {"step": 100, "error": "No space left on device"}
  {"carry": {"replicated.pt": {"size": …, "crc32": …}}, "from": "…", "step": 100, …}    copies files from a node's disk
  {"rate": 100, "root": "…", "metric": 0.93, …}          adds a metric to an existing checkpoint

`start` is that of the file's image (`archive`). A table holds the tensors' sizes in bytes, 64-bit numbers. Ranks above
0 write a `rank-R.part` with their file names, or a `rank-R.failed`; rank 0's writer waits for all and commits. The
ranks coordinate by these files only, without collectives. With a node's own disk (`"local": "…"`), the answer has the
files' sizes and checksums, and a second such process copies them to the root while the next save begins.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional

from serried.base import linux
from serried.base.channel import Channel
from serried.base.files import GROUP_DIRECTORY, GROUP_FILE, make_directory, read_json, write_json
from serried.schema.checkpoints import COMPLETE, directory_of
from serried.train.checkpoints import archive, store

NICENESS = 10
PATIENCE_SECONDS = 120.0
"""How long to wait for the other ranks' parts, beyond ten times the own part's duration."""

IGNORED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Slurm sends TERM and USR1 to every process of a step. The rank handles them, and may still need this process."""

File = Dict[str, Any]
"""`size` and `crc32` of a file, as in COMPLETE."""

SIZE = struct.Struct("=Q")


class MappedMemory:
    """The memory that the rank shares with this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map: Optional[mmap.mmap] = None

    def view(self, capacity: int) -> memoryview:
        if self._map is None or len(self._map) != capacity:
            self._map = mmap.mmap(self._descriptor, capacity, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        return memoryview(self._map)


def main() -> None:
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    linux.die_with_parent(signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    memory = MappedMemory(descriptor)
    rank = Channel(os.fdopen(0, "rb", buffering=0), os.fdopen(1, "wb", buffering=0))
    while os.getppid() == parent:  # forked data workers hold the pipe open too
        commands = rank.receive_within(1.0)
        if commands is None:
            return
        for command in commands:
            rank.send(_rate(command) if "rate" in command else _save(command, memory, parent))


def _save(command: Dict[str, Any], memory: MappedMemory, parent: int) -> Dict[str, Any]:
    began = time.monotonic()
    root, step = Path(command["root"]), command["step"]
    try:
        store.check_owner(root)
        aside = store.prepare(Path(command["local"] or root), step)
        files = _carry(aside, command) if "carry" in command else _write_files(aside, command, memory)
        if not command["local"]:
            _commit(aside, command, files, parent, began)
    except OSError as error:
        give_up(root, step, command["rank"])
        return {"step": step, "error": error.strerror or str(error)}
    seconds = time.monotonic() - began
    if command["rank"] == 0 and not command["local"]:
        store.apply_retention(root, command["keep"], command["best"])
    return {"step": step, "seconds": seconds, "files": files}


def _commit(aside: Path, command: Dict[str, Any], files: Dict[str, File], parent: int, began: float) -> None:
    rank = command["rank"]
    if rank > 0:
        write_json(_part(aside, rank), {"token": command["token"], "files": files}, GROUP_FILE)
        return
    parts = _await_parts(aside, command, parent, time.monotonic() - began)
    document = {**command["document"], "files": dict(sorted({**files, **parts}.items()))}
    store.commit(aside.parent, command["step"], document)


def _carry(aside: Path, command: Dict[str, Any]) -> Dict[str, File]:
    """Move files from the node's own disk to `aside`, durably."""
    source, files = Path(command["from"]), command["carry"]
    if any("/" in name for name in files):
        make_directory(aside / store.SHARDED, GROUP_DIRECTORY)
    for name, file in files.items():
        if store.copy(source / name, aside / name) != file["crc32"]:
            raise OSError(0, f"`{source / name}` has changed since it was written")
    if any("/" in name for name in files):
        store.sync(aside / store.SHARDED)
    shutil.rmtree(source, ignore_errors=True)
    return dict(files)


def _write_files(aside: Path, command: Dict[str, Any], memory: MappedMemory) -> Dict[str, File]:
    view = memory.view(command["capacity"])
    files = {}
    for file in command["files"]:
        start, count = file["table"]
        sizes = [size for (size,) in SIZE.iter_unpack(view[start : start + count * SIZE.size])]
        image = view[file["start"] :]
        files[file["name"]] = archive.write_archive(aside / file["name"], image, sizes, file["pickle"])
    for shard in command["sharded"]:  # written and synced by torch.distributed.checkpoint
        name = f"{store.SHARDED}/{shard}"
        files[name] = {"size": (aside / name).stat().st_size, "crc32": store.checksum(aside / name)}
    if command["sharded"]:
        store.sync(aside / store.SHARDED)
    return files


def _part(aside: Path, rank: int) -> Path:
    return aside / f"rank-{rank}.part"


def _failed(aside: Path, rank: int) -> Path:
    """The marker of a rank that cannot write its part. Empty, so that it fits on a full disk."""
    return aside / f"rank-{rank}.failed"


def _await_parts(aside: Path, command: Dict[str, Any], parent: int, own_seconds: float) -> Dict[str, File]:
    """Wait for the files of the other ranks, and remove their markers."""
    missing = set(range(1, command["world_size"]))
    files: Dict[str, File] = {}
    patience = PATIENCE_SECONDS + 10 * own_seconds
    began, pause = time.monotonic(), 0.002
    while missing:
        present = {entry.name for entry in aside.iterdir()}
        for rank in sorted(missing):
            if _failed(aside, rank).name in present:
                raise OSError(0, f"rank {rank} could not write its part")
            part = read_json(_part(aside, rank)) if _part(aside, rank).name in present else None
            if part is not None and part["token"] == command["token"]:
                files.update(part["files"])
                missing.discard(rank)
                _part(aside, rank).unlink()
        if not missing:
            break
        if time.monotonic() - began > patience or os.getppid() != parent:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            ranks = ("rank " if len(missing) == 1 else "ranks ") + ", ".join(map(str, sorted(missing)[:5])) + more
            raise OSError(0, f"no part from {ranks} within {patience:.0f} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)
    return files


def give_up(root: Path, step: int, rank: int) -> None:
    """Free space at once, because most saves fail on a full disk; and keep rank 0's writer from waiting."""
    if rank == 0:
        shutil.rmtree(store.partial_directory(root, step), ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        aside = store.prepare(root, step)
        with contextlib.suppress(OSError):
            (aside / store.rank_file(rank)).unlink()
        _failed(aside, rank).touch()


def _rate(command: Dict[str, Any]) -> Dict[str, Any]:
    root = Path(command["root"])
    checkpoint = store.open_checkpoint(directory_of(root, command["rate"]))
    if checkpoint is None:
        return {"rate": command["rate"], "error": "no such checkpoint"}
    try:
        store.check_owner(root)
        write_json(checkpoint.path / COMPLETE, {**checkpoint.document, "metric": command["metric"]}, GROUP_FILE)
    except OSError as error:
        return {"rate": command["rate"], "error": error.strerror or str(error)}
    store.apply_retention(root, command["keep"], command["best"])
    return {"rate": command["rate"]}
