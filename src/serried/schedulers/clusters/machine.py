"""This machine: the GPUs and CPUs that jobs may use here."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from serried.base.errors import UsageError

Command = Callable[[list[str], float, Mapping[str, str]], str | None]
"""Runs a command for at most so many seconds and returns its output; None if it failed."""

SLOTS = "SERRIED_LOCAL_SLOTS"
"""The number of CPUs that local jobs share."""
GPUS = "SERRIED_LOCAL_GPUS"
"""The ids of this machine's GPUs, `0,1`, instead of the driver's answer; empty for none."""
VISIBLE = "CUDA_VISIBLE_DEVICES"

PROC = Path("/proc/driver/nvidia/gpus")


def run(argv: list[str], seconds: float, environ: Mapping[str, str]) -> str | None:
    from serried.base import shell
    from serried.base.errors import SerriedError

    try:
        result = shell.run(argv, timeout=seconds, env={**environ, "LC_ALL": "C"})
    except (SerriedError, OSError):
        return None
    return result.stdout if result.status == 0 else None


@dataclass(frozen=True)
class Device:
    """A GPU."""

    id: str
    """Its name in CUDA_VISIBLE_DEVICES."""
    uuid: str = ""
    """Empty if the driver does not report it."""


def gpus(environ: Mapping[str, str], command: Command = run) -> tuple[Device, ...]:
    """The NVIDIA GPUs that this process may use, in the order of CUDA_VISIBLE_DEVICES if that is set.

    Does not load CUDA, which takes seconds.
    """
    visible, given = environ.get(VISIBLE), environ.get(GPUS)
    named = None if visible is None else _names(visible)
    if named == []:
        return ()
    here = _of_the_driver(environ, command) if given is None else tuple(map(Device, _names(given)))
    if named is None:
        return here
    devices = (_named(name, here) for name in named)
    # CUDA stops at the first name that it does not recognise.
    return tuple(device for device in itertools.takewhile(bool, devices) if device)


def _names(text: str) -> list[str]:
    """The names in a list that CUDA reads. It stops at a name that cannot be a device, such as `-1`."""
    names = (part.strip() for part in text.split(","))
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))


def _named(name: str, here: tuple[Device, ...]) -> Device | None:
    """The device with this index or UUID, or the beginning of a UUID. The driver does not list slices (MIG)."""
    for device in here:
        if name == device.id or (name.startswith("GPU-") and device.uuid.startswith(name)):
            return device
    has_no_uuid = name.startswith("GPU-") and any(not device.uuid for device in here)
    return Device(name) if "MIG-" in name or has_no_uuid else None


def _of_the_driver(environ: Mapping[str, str], command: Command) -> tuple[Device, ...]:
    """In the order of `nvidia-smi`: by address, as their folders are named."""
    with contextlib.suppress(OSError):
        return tuple(Device(str(number), _uuid(folder)) for number, folder in enumerate(sorted(PROC.iterdir())))
    if shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath)) is None:
        return ()
    listed = command(["nvidia-smi", "-L"], 10.0, environ) or ""
    return tuple(Device(*fields) for fields in re.findall(r"^GPU (\d+):.*\(UUID: (GPU-[^)]*)\)", listed, re.MULTILINE))


def _uuid(folder: Path) -> str:
    """Empty for `GPU-????????-…`, which a driver reports before it is initialised."""
    with contextlib.suppress(OSError):
        text = (folder / "information").read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)$", text, re.MULTILINE):
            return match[1]
    return ""


def used_mb(environ: Mapping[str, str], command: Command = run) -> dict[str, int]:
    """MiB of memory in use on each GPU, by index, as far as `nvidia-smi` reports it."""
    query = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
    rows = re.findall(r"^(\d+), (\d+)$", command(query, 60.0, environ) or "", re.MULTILINE)
    return {index: int(used) for index, used in rows}


def cpus(environ: Mapping[str, str]) -> int:
    """The number of CPUs that this process may use. A batch job, a container or the user may limit it.

    Raises UsageError if SERRIED_LOCAL_SLOTS is not a number.
    """
    slots = environ.get(SLOTS)
    if slots:
        if not slots.isdecimal() or not int(slots):
            raise UsageError(f"{SLOTS} is `{slots}`, not a number of slots")
        return int(slots)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
