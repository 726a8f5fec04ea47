"""What this machine has to give to its own queue: a private folder, CPU slots, and GPUs that are idle."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from serried.clusters import machine
from serried.clusters.machine import GPUS, SLOTS, VISIBLE, cpus
from serried.errors import UsageError
from serried.fs.files import make_directory

DIRECTORY = "SERRIED_LOCAL_DIR"

CPU, GPU, NOTHING = "cpu", "gpu", "nothing"

_QUERY = ("nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits")


def root() -> Path:
    """The folder of this user's local jobs on this machine: node-local, private, made if need be.

    Raises UsageError where somebody else has it.
    """
    given = os.environ.get(DIRECTORY)
    path = Path(given) if given else Path(f"/tmp/serried-{os.getuid()}") / "local"  # noqa: S108 - checked below
    make_directory(path)
    for folder in (path,) if given else (path.parent, path):
        entry = folder.lstat()
        if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != os.getuid() or entry.st_mode & 0o022:
            raise UsageError(
                f"`{folder}` is not a folder that only you can write to",
                hint=f"remove it, or name another with {DIRECTORY}",
            )
    return path


def settings() -> dict[str, str]:
    """What a supervisor must know of our environment, whatever its job inherits."""
    return {name: os.environ[name] for name in (DIRECTORY, SLOTS, GPUS, VISIBLE) if name in os.environ}


def cpu_slots(environment: Mapping[str, str]) -> tuple[str, ...]:
    """As many as SERRIED_LOCAL_SLOTS says, else one for each CPU that we may use. Raises UsageError."""
    return tuple(str(slot) for slot in range(cpus(environment)))


def used_mb(environment: Mapping[str, str]) -> dict[str, int]:
    """How much memory of each GPU is in use, by its index, as far as `nvidia-smi` tells."""
    told = machine.run([*_QUERY], 60.0, environment) or ""
    return {index: int(used) for index, used in re.findall(r"^(\d+), (\d+)$", told, re.MULTILINE)}
