"""The folder of checkpoints: its layout, completeness and retention. Standard library only: the writer uses it too.

<directory>/
  step-N.tmp/          partial: being written, or left by a writer that died; `step-N.A-R.tmp` in round R of attempt A
  step-N/              N: steps of the training
    replicated.pt      state that is the same on all ranks: a file for `torch.load`
    rank-R.pt          state of rank R alone: its random states, its position in the data
    sharded/           sharded state, by torch.distributed.checkpoint
    COMPLETE           written last: sizes and checksums of the files above
  step-N.corrupt/      has its COMPLETE, but the files no longer match it

A directory is renamed to `step-N` once its files are durable, COMPLETE too.

Where ranks may start again, `.owner` names the round that writes. A rank of an earlier round may only have been
stopped: it must neither publish a checkpoint nor delete one. A round takes the directory by `take`, and deletes the
partial checkpoints of others after that. A writer checks the owner before it renames its own, so either the check or
the rename fails.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from serried.base.files import GROUP_DIRECTORY, GROUP_FILE, make_directory, read_json, write_json
from serried.schema import names
from serried.schema.checkpoints import COMPLETE, OWNER, complete, directory_of, step_of, steps

SHARDED = "sharded"
CHUNK = 1 << 20
"""Bytes: small enough that a chunk is still in the processor's cache when it is written after its checksum."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: COMPLETE is readable, and every file has the size in it."""

    path: Path
    step: int
    document: Dict[str, Any]

    @property
    def world_size(self) -> int:
        return int(self.document["world_size"])

    @property
    def attempt(self) -> int:
        return int(self.document["attempt"])

    @property
    def metric(self) -> Optional[float]:
        value = self.document.get("metric")
        return None if value is None else float(value)

    @property
    def sharded(self) -> List[str]:
        """Names of the objects whose state is sharded."""
        return list(self.document.get("sharded", ()))

    @property
    def shared(self) -> List[str]:
        """Names of the optimizers that are saved as one shard per rank."""
        return list(self.document.get("shared", ()))

    @property
    def files(self) -> Dict[str, Dict[str, Any]]:
        return dict(self.document["files"])


def owner() -> Optional[Dict[str, Any]]:
    """What `.owner` says while these ranks write; None where ranks do not start again within an attempt."""
    if names.ROUND not in os.environ:
        return None
    run = f"{os.environ.get(names.RUN_ID)}/{os.environ.get(names.TASK)}"
    return {"run": run, "attempt": int(os.environ.get(names.ATTEMPT) or 1), "round": int(os.environ[names.ROUND])}


def take(root: Path) -> bool:
    """Make these ranks the owner of `root`. False if it belongs to a later round of the same run."""
    own, found = owner(), read_json(root / OWNER)
    if own is None:
        (root / OWNER).unlink(missing_ok=True)
    elif found is not None and found["run"] == own["run"] and _started(found) > _started(own):
        return False
    elif found != own:
        try:
            write_json(root / OWNER, own, GROUP_FILE)
        except OSError:  # a full disk keeps no training from its start
            (root / OWNER).unlink(missing_ok=True)
    return True


def is_ours(root: Path) -> bool:
    """Whether `root` belongs to no others."""
    own = owner()
    return own is None or read_json(root / OWNER) in (None, own)


def check_owner(root: Path) -> None:
    """Raises OSError if `root` belongs to others by now."""
    if not is_ours(root):
        raise OSError(0, "the ranks have started again without this one")


def _started(owner_: Dict[str, Any]) -> Tuple[int, int]:
    return owner_["attempt"], owner_["round"]


def _suffix() -> str:
    """Of the partial checkpoints of these ranks."""
    own = owner()
    return f".{own['attempt']}-{own['round']}.tmp" if own else ".tmp"


def partial_directory(root: Path, step: int) -> Path:
    return root / f"step-{step}{_suffix()}"


def rank_file(rank: int) -> str:
    return f"rank-{rank}.pt"


def open_checkpoint(path: Path) -> Optional[Checkpoint]:
    """The checkpoint in `path`; None if it is partial. Does not read the files: `find_damage` does."""
    document = complete(path)
    try:
        if document is None:
            return None
        checkpoint = Checkpoint(path, int(document["step"]), document)
        _ = checkpoint.world_size, checkpoint.attempt, checkpoint.metric
    except (KeyError, TypeError, ValueError):
        return None
    return checkpoint


def whole(root: Path) -> List[Checkpoint]:
    """The complete checkpoints in `root`, newest first."""
    found = (open_checkpoint(directory_of(root, step)) for step in steps(root))
    return [checkpoint for checkpoint in found if checkpoint is not None]


def find_damage(checkpoint: Checkpoint, names: Optional[Iterable[str]] = None) -> Optional[str]:
    """Compare files (all, or `names`) with their checksums. Returns a description of the first damage, or None."""
    for name in checkpoint.files if names is None else names:
        try:
            found = checksum(checkpoint.path / name)
        except OSError as error:
            return f"`{name}` cannot be read: {error.strerror}"
        if found != checkpoint.files[name]["crc32"]:
            return f"`{name}` has changed since it was written"
    return None


def checksum(path: Path) -> str:
    value = 0
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while True:
            count = file.readinto(buffer)
            if not count:
                return spelled(value)
            value = zlib.crc32(view[:count], value)


def copy(source: Path, target: Path) -> str:
    """Copy `source` to `target` durably. Returns the checksum of the bytes read."""
    value = 0
    with source.open("rb") as reading:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, GROUP_FILE)
        with os.fdopen(descriptor, "wb", buffering=0) as writing:
            while True:
                chunk = reading.read(CHUNK)
                value = zlib.crc32(chunk, value)
                if not chunk:
                    break
                while chunk:
                    chunk = chunk[writing.write(chunk) or 0 :]
            os.fsync(writing.fileno())
    return spelled(value)


def spelled(crc32: int) -> str:
    return f"{crc32:08x}"


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prepare(root: Path, step: int) -> Path:
    """Create the directory to write `step` into; any rank may be the first."""
    path = partial_directory(root, step)
    make_directory(path, GROUP_DIRECTORY)
    return path


def rank_folder(local: Path, root: Path, rank: int) -> Path:
    """A rank's empty folder on its node's disk. Files of a killed attempt are deleted."""
    name = hashlib.sha256(os.fsencode(root.absolute())).hexdigest()[:12]
    folder = local / f"serried-checkpoints-{name}" / f"rank-{rank}"
    shutil.rmtree(folder, ignore_errors=True)
    make_directory(folder, GROUP_DIRECTORY)
    return folder


def commit(root: Path, step: int, document: Dict[str, Any]) -> Checkpoint:
    """Turn the partial checkpoint, whose files are durable, into a complete one. Raises OSError if it is not ours."""
    aside, path = partial_directory(root, step), directory_of(root, step)
    write_json(aside / COMPLETE, document, GROUP_FILE)
    sync(aside)
    check_owner(root)
    try:
        aside.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        doomed = root / f"step-{step}.torn.tmp"  # an incomplete one, whose deletion was interrupted
        path.rename(doomed)
        shutil.rmtree(doomed)
        aside.rename(path)
    sync(root)
    return Checkpoint(path, step, document)


def best_of(checkpoints: List[Checkpoint], best: Optional[str]) -> Optional[Checkpoint]:
    rated = [checkpoint for checkpoint in checkpoints if checkpoint.metric is not None]
    if best is None or not rated:
        return None
    sign = 1 if best == "max" else -1
    return max(rated, key=lambda checkpoint: (sign * (checkpoint.metric or 0.0), checkpoint.step))


def apply_retention(root: Path, keep: int, best: Optional[str]) -> None:
    """Delete checkpoints beyond `keep`, and partial ones older than the newest complete one.

    COMPLETE is deleted first: an interrupted deletion leaves an incomplete checkpoint, not a wrong one.
    """
    checkpoints = whole(root)
    if not checkpoints or not is_ours(root):
        return
    best_checkpoint = best_of(checkpoints, best)
    staying = {checkpoint.step for checkpoint in (*checkpoints[:keep], best_checkpoint) if checkpoint is not None}
    for step in steps(root):
        if step not in staying and step < checkpoints[0].step:
            path = directory_of(root, step)
            with contextlib.suppress(OSError):
                (path / COMPLETE).unlink()
            shutil.rmtree(path, ignore_errors=True)
    remove_partial(root, before=checkpoints[0].step)


def remove_partial(root: Path, before: Optional[int] = None) -> None:
    """Delete the partial checkpoints of all dead writers; those of these ranks alone, of steps before `before`."""
    for path in root.glob("step-*.tmp" if before is None else f"step-*{_suffix()}"):
        step = step_of(path.name.partition(".")[0])
        if step is not None and (before is None or step < before):
            shutil.rmtree(path, ignore_errors=True)
