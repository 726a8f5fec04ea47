"""What this machine has to give: a private folder, GPUs, and a number of CPU slots."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serried import shell
from serried.clusters.machine import GPUS, SLOTS, VISIBLE, cpus
from serried.contract.files import make_directory
from serried.errors import MissingProgramError, UsageError

DIRECTORY = "SERRIED_LOCAL_DIR"

CPU, GPU, NOTHING = "cpu", "gpu", "nothing"

_QUERY = ("--query-gpu=index,uuid,memory.used", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Device:
    id: str
    uuid: str = ""
    used_mb: int = 0


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


def gpus(environment: Mapping[str, str]) -> tuple[Device, ...]:
    """The GPUs that we may use, in the order of CUDA_VISIBLE_DEVICES where that is set."""
    given = environment.get(GPUS)
    devices = _ask_driver() if given is None else tuple(Device(name) for name in _items(given))
    visible = environment.get(VISIBLE)
    if visible is None:
        return devices
    by_name = {device.id: device for device in devices} | {device.uuid: device for device in devices if device.uuid}
    # CUDA itself ignores what follows the first name that it does not know; a MIG slice is not in the driver's list.
    return tuple(by_name.get(name) or Device(name) for name in _items(visible) if name in by_name or "MIG-" in name)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _ask_driver() -> tuple[Device, ...]:
    program = shell.which("nvidia-smi")
    if program is None:
        return ()
    try:
        result = shell.run((program, *_QUERY), timeout=60)
    except (MissingProgramError, shell.TimedOut):
        return ()
    return devices_in(result.stdout) if result.status == 0 else ()


def devices_in(stdout: str) -> tuple[Device, ...]:
    """What `nvidia-smi --query-gpu=index,uuid,memory.used --format=csv,noheader,nounits` printed."""
    rows = [[field.strip() for field in line.split(",")] for line in stdout.splitlines()]
    return tuple(
        Device(row[0], row[1], int(row[2]) if row[2].isdigit() else 0)
        for row in rows
        if len(row) == 3 and row[0].isdigit()
    )
