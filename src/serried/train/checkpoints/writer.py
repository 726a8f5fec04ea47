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
passes for the checksums, and would write and take them in turns. Sizes and offsets are always zip64: one form to test.
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
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from serried.base import linux
from serried.base.channel import Channel, Message
from serried.base.files import make_directory, read_json, write_json
from serried.schema.checkpoints import COMPLETE, directory_of
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

PIECE = 1 << 20
"""How many bytes a thread takes the checksum of at a time. Of smaller tensors it is taken at the end."""
FLUSH = 128 << 20
"""After how many bytes what was written is sent to the disk."""

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
_POLYNOMIAL = 0xEDB88320  # of CRC-32, bits reversed
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
    rank = Channel(os.fdopen(0, "rb", buffering=0), os.fdopen(1, "wb", buffering=0))
    for command in _commands(rank, parent):
        rank.send(_rate(command) if "rate" in command else _save(command, memory, parent))


def _commands(rank: Channel, parent: int) -> Iterator[Message]:
    """Commands until the rank closes the pipe or exits: forked data workers hold the pipe open too."""
    while os.getppid() == parent:
        received = rank.receive_within(1.0)
        if received is None:
            return
        yield from received


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
        return write_archive(descriptor, view[start : start + size], tensors)
    finally:
        os.close(descriptor)


def write_archive(descriptor: int, pickle: Buffer, tensors: Iterable[Buffer]) -> File:
    """Write a file for `torch.load`, durably. `pickle` names the tensors by their numbers."""
    archive = _Archive(descriptor)
    try:
        archive.add("data.pkl", pickle)
        archive.add("byteorder", sys.byteorder.encode())
        for key, data in enumerate(tensors):
            archive.add(f"data/{key}", data)
        archive.add("version", b"3\n")
        return archive.finish()
    finally:
        archive.close()


class _Archive:
    """A zip of stored records. While one is written, threads take checksums and flush what was written before."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = 0
        self._records: List[Tuple[bytes, int, Buffer, Iterator[int]]] = []
        self._checksums = ThreadPoolExecutor(2)
        self._flushes = ThreadPoolExecutor(1)
        self._flush: "Optional[Future[None]]" = None
        self._flush_at = FLUSH

    def add(self, name: str, data: Buffer) -> None:
        """Write a record. `finish` adds its header, which has the checksum."""
        path = f"{FOLDER}/{name}".encode()
        in_threads = len(data) >= PIECE
        checksums = (self._checksums.map if in_threads else map)(zlib.crc32, _pieces(data, PIECE))
        self._records.append((path, self._size, data, checksums))
        self._size += len(_local_header(path, 0, len(data), self._size))
        for chunk in _pieces(data, CHUNK):
            self._write(chunk, self._size)
            self._size += len(chunk)
            if self._size >= self._flush_at and (self._flush is None or self._flush.done()):
                self._await_flush()
                self._flush = self._flushes.submit(os.fdatasync, self._descriptor)
                self._flush_at = self._size + FLUSH

    def finish(self) -> File:
        """Write the headers and the directory, and wait for the disk."""
        crc32, entries = 0, []
        for path, offset, data, checksums in self._records:
            own = 0
            for piece, checksum in zip(_pieces(data, PIECE), checksums):  # noqa: B905 - Python 3.9
                own = joined_crc32(own, checksum, len(piece))
            header = _local_header(path, own, len(data), offset)
            self._write(header, offset)
            crc32 = joined_crc32(zlib.crc32(header, crc32), own, len(data))
            entries.append(_central_header(path, own, len(data), offset))
        directory = b"".join(entries)
        tail = directory + _end(len(entries), self._size, len(directory))
        self._write(tail, self._size)
        self._await_flush()
        os.fsync(self._descriptor)
        return {"size": self._size + len(tail), "crc32": store.spelled(zlib.crc32(tail, crc32))}

    def close(self) -> None:
        for pool in (self._checksums, self._flushes):
            pool.shutdown(cancel_futures=True)

    def _write(self, data: Buffer, offset: int) -> None:
        rest = memoryview(data)
        while rest:
            count = os.pwrite(self._descriptor, rest[:CHUNK], offset)
            rest, offset = rest[count:], offset + count

    def _await_flush(self) -> None:
        """Raise the error of the last flush, because the kernel reports an error of the disk only once."""
        if self._flush is not None:
            self._flush.result()


def _pieces(data: Buffer, size: int) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[start : start + size] for start in range(0, len(view), size))


def joined_crc32(first: int, second: int, size: int) -> int:
    """The CRC-32 of two texts one after the other, by those of each and the second one's size in bytes.

    A CRC is the remainder of a polynomial over GF(2): `first` moves up by 8 * `size` powers (RFC 1952, section 8).
    """
    return _product(_power(size), first) ^ second


@lru_cache
def _power(size: int) -> int:
    """The remainder of x to the power of 8 * `size`. The highest of its 32 bits belongs to x to the power of 0."""
    result, square = 1 << 31, 1 << 23
    while size:
        if size & 1:
            result = _product(square, result)
        square = _product(square, square)
        size >>= 1
    return result


def _product(one: int, other: int) -> int:
    result = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            result ^= other
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return result


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
