"""The process that writes checkpoints: one per rank, niced, ends with the rank. Imports no torch.

It reads one command per line and answers each with a line. The data is in memory that it shares with the rank:

  {"step": 100, "root": "…", "rank": 0, "world_size": 2, "token": "…", "capacity": bytes of shared memory,
   "files": [{"name": "replicated.pt", "pickle": [offset, bytes], "table": [offset, tensors]}],
   "sharded": ["__0_0.distcp"], "document": {…}, "keep": 3, "best": null}
  {"step": 100, "seconds": 0.2, "files": {"replicated.pt": {"size": 209715200, "crc32": "…"}}}
  {"step": 100, "error": "No space left on device"}
  {"carry": {"replicated.pt": {"size": …, "crc32": …}}, "from": "…", "step": 100, …}    copies files from a node's disk
  {"rate": 100, "root": "…", "metric": 0.93, …}          adds a metric to an existing checkpoint

A table holds pairs of 64-bit numbers: offset and size of a tensor in bytes. Ranks above 0 write a `rank-R.part` with
their file names, or a `rank-R.failed`; rank 0's writer waits for all and commits. The ranks coordinate by these files
only, without collectives. With a node's own disk (`"local": "…"`), the answer has the files' sizes and checksums, and
a second such process copies them to the root while the next save begins.

Files are in torch's own format (`torch.serialization`, format 3), written without torch: a zip of stored records, each
at a multiple of 64 bytes. `data.pkl` names tensors, `data/K` holds their bytes. The zipfile module would need two
passes for the bytes and the checksum of the whole file. Sizes and offsets are always zip64: one form to test.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import shutil
import signal
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from serried.fs.files import make_directory, read_json, write_json
from serried.process import linux
from serried.protocol import json_lines
from serried.protocol.checkpoints import COMPLETE, directory_of
from serried.train.checkpoints import store
from serried.train.checkpoints.store import CHUNK

NICENESS = 10
PATIENCE_SECONDS = 120.0
"""How long to wait for the other ranks' parts, beyond ten times the own part's duration."""

IGNORED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Slurm sends TERM and USR1 to every process of a step. The rank handles them, and may still need this process."""

Buffer = Union[bytes, memoryview]
File = Dict[str, Any]
"""`size` and `crc32` of a file, as in COMPLETE."""

ALIGNMENT = 64
FOLDER = "archive"

_PAIR = struct.Struct("=QQ")
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_VERSION = 45
_FLAGS = 0x800  # names are UTF-8
_DAY = 0x21  # 1 January 1980: equal states give equal files
_MAXIMUM = 0xFFFFFFFF
_PADDING = 0x4246  # the id that torch gives to its padding


class PartError(OSError):
    """Another rank could not write its part."""


class CopyError(OSError):
    """A file on the node's own disk changed after it was written."""


class MappedMemory:
    """The memory that the rank shares with this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map: Optional[mmap.mmap] = None

    def view(self, capacity: int) -> memoryview:
        if self._map is None or len(self._map) != capacity:
            self._map = mmap.mmap(self._descriptor, capacity, prot=mmap.PROT_READ)
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
    for command in _commands(parent):
        answer = _rate(command) if "rate" in command else _save(command, memory, parent)
        os.write(1, json_lines.encode(answer))


def _commands(parent: int) -> Iterator[json_lines.Message]:
    """Commands until the rank closes the pipe or exits: forked data workers hold the pipe open too."""
    buffer = json_lines.LineBuffer()
    while os.getppid() == parent:
        if not select.select([0], [], [], 1.0)[0]:
            continue
        received = os.read(0, 1 << 16)
        if not received:
            return
        yield from buffer.messages(received)


def _save(command: Dict[str, Any], memory: MappedMemory, parent: int) -> Dict[str, Any]:
    began = time.monotonic()
    root, step = Path(command["root"]), command["step"]
    try:
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
        write_json(_part(aside, rank), {"token": command["token"], "files": files})
        return
    parts = _await_parts(aside, command, parent, time.monotonic() - began)
    document = {**command["document"], "files": dict(sorted({**files, **parts}.items()))}
    store.commit(aside.parent, command["step"], document)


def _carry(aside: Path, command: Dict[str, Any]) -> Dict[str, File]:
    """Move files from the node's own disk to `aside`, durably."""
    source, files = Path(command["from"]), command["carry"]
    if any("/" in name for name in files):
        make_directory(aside / store.SHARDED)
    for name, file in files.items():
        if store.copy(source / name, aside / name) != file["crc32"]:
            raise CopyError(0, f"`{source / name}` has changed since it was written")
    if any("/" in name for name in files):
        store.sync(aside / store.SHARDED)
    shutil.rmtree(source, ignore_errors=True)
    return dict(files)


def _write_files(aside: Path, command: Dict[str, Any], memory: MappedMemory) -> Dict[str, File]:
    view = memory.view(command["capacity"])
    files = {file["name"]: _write_file(aside / file["name"], file, view) for file in command["files"]}
    for shard in command["sharded"]:  # written and synced by torch.distributed.checkpoint
        name = f"{store.SHARDED}/{shard}"
        files[name] = {"size": (aside / name).stat().st_size, "crc32": store.checksum(aside / name)}
    if command["sharded"]:
        store.sync(aside / store.SHARDED)
    return files


def _write_file(path: Path, file: Dict[str, Any], view: memoryview) -> File:
    start, size = file["pickle"]
    table, count = file["table"]
    pairs = _PAIR.iter_unpack(view[table : table + count * _PAIR.size])
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        tensors = (view[offset : offset + length] for offset, length in pairs)
        written = write_archive(descriptor, view[start : start + size], tensors)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return written


def write_archive(descriptor: int, pickle: Buffer, tensors: Iterable[Buffer]) -> File:
    """Write a file for `torch.load`: `pickle` names the tensors by their numbers."""
    sink = _Sink(descriptor)
    records = [
        ("data.pkl", pickle),
        ("byteorder", sys.byteorder.encode()),
        *((f"data/{key}", data) for key, data in enumerate(tensors)),
        ("version", b"3\n"),
    ]
    entries: List[Tuple[bytes, int, int, int]] = []
    for name, data in records:
        entry = (f"{FOLDER}/{name}".encode(), _checksum(data), len(data), sink.size)
        entries.append(entry)
        sink.write(_local_header(*entry))
        sink.write(data)
    start = sink.size
    for entry in entries:
        sink.write(_central_header(*entry))
    sink.write(_end(len(entries), start, sink.size - start))
    return {"size": sink.size, "crc32": store.spelled(sink.crc32)}


class _Sink:
    """A file that is only appended to, with its size and checksum so far."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = 0
        self.crc32 = 0

    def write(self, buffer: Buffer) -> None:
        view = memoryview(buffer)
        for start in range(0, len(view), CHUNK):
            chunk = view[start : start + CHUNK]
            self.crc32 = zlib.crc32(chunk, self.crc32)
            while chunk:
                chunk = chunk[os.write(self._descriptor, chunk) :]
        self.size += len(view)


def _checksum(data: Buffer) -> int:
    """In chunks: zlib releases the interpreter's lock for long buffers only."""
    value = 0
    view = memoryview(data)
    for start in range(0, len(view), CHUNK):
        value = zlib.crc32(view[start : start + CHUNK], value)
    return value


def _local_header(name: bytes, crc32: int, size: int, offset: int) -> bytes:
    wide = struct.pack("<HHQQ", 1, 16, size, size)
    padding = -(offset + _LOCAL.size + len(name) + len(wide) + 4) % ALIGNMENT
    extra = wide + struct.pack("<HH", _PADDING, padding) + b"Z" * padding
    head = (b"PK\3\4", _VERSION, _FLAGS, 0, 0, _DAY, crc32, _MAXIMUM, _MAXIMUM, len(name), len(extra))
    return _LOCAL.pack(*head) + name + extra


def _central_header(name: bytes, crc32: int, size: int, offset: int) -> bytes:
    extra = struct.pack("<HHQQQ", 1, 24, size, size, offset)
    head = (b"PK\1\2", _VERSION, _VERSION, _FLAGS, 0, 0, _DAY, crc32, _MAXIMUM, _MAXIMUM, len(name), len(extra))
    return _CENTRAL.pack(*head, 0, 0, 0, 0, _MAXIMUM) + name + extra


def _end(count: int, start: int, size: int) -> bytes:
    end64 = _END64.pack(b"PK\6\6", _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, size, start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
    short = min(count, 0xFFFF)
    return end64 + locator + _END.pack(b"PK\5\6", 0, 0, short, short, min(size, _MAXIMUM), min(start, _MAXIMUM), 0)


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
                raise PartError(0, f"rank {rank} could not write its part")
            part = read_json(_part(aside, rank)) if _part(aside, rank).name in present else None
            if part is not None and part["token"] == command["token"]:
                files.update(part["files"])
                missing.discard(rank)
                _part(aside, rank).unlink()
        if not missing:
            break
        if time.monotonic() - began > patience or os.getppid() != parent:
            raise PartError(0, f"no part from {_spell(sorted(missing))} within {patience:.0f} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)
    return files


def _spell(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - 5} more" if len(ranks) > 5 else ""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks[:5])) + more


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
        write_json(checkpoint.path / COMPLETE, {**checkpoint.document, "metric": command["metric"]})
    except OSError as error:
        return {"rate": command["rate"], "error": error.strerror or str(error)}
    store.apply_retention(root, command["keep"], command["best"])
    return {"rate": command["rate"]}
