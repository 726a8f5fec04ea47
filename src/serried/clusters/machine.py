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

from serried.errors import UsageError

Command = Callable[[list[str], float, Mapping[str, str]], str | None]
"""Runs a command for at most so many seconds and returns what it printed; None when it failed."""

SLOTS = "SERRIED_LOCAL_SLOTS"
"""How many CPUs local jobs share."""
GPUS = "SERRIED_LOCAL_GPUS"
"""The ids of this machine's GPUs, `0,1`, where the driver should not be asked; empty for none."""
VISIBLE = "CUDA_VISIBLE_DEVICES"

PROC = Path("/proc/driver/nvidia/gpus")


def run(argv: list[str], seconds: float, environ: Mapping[str, str]) -> str | None:
    from serried import shell
    from serried.errors import SerriedError

    try:
        result = shell.run(argv, timeout=seconds, env={**environ, "LC_ALL": "C"})
    except (SerriedError, OSError):
        return None
    return result.stdout if result.status == 0 else None


@dataclass(frozen=True)
class Device:
    """A GPU."""

    id: str
    """By which CUDA_VISIBLE_DEVICES names it."""
    uuid: str = ""
    """Empty where the driver does not tell."""


def gpus(environ: Mapping[str, str], command: Command = run) -> tuple[Device, ...]:
    """The NVIDIA GPUs that we may use, in the order of CUDA_VISIBLE_DEVICES where that is set.

    Asks no CUDA: importing that takes seconds.
    """
    visible, given = environ.get(VISIBLE), environ.get(GPUS)
    named = None if visible is None else _names(visible)
    if named == []:
        return ()
    here = _of_the_driver(environ, command) if given is None else tuple(map(Device, _names(given)))
    if named is None:
        return here
    found = (_named(name, here) for name in named)
    # CUDA stops at the first that it does not know.
    return tuple(device for device in itertools.takewhile(bool, found) if device)


def _names(text: str) -> list[str]:
    """What CUDA reads of a list: it stops at what names no device, `-1` say."""
    names = (part.strip() for part in text.split(","))
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))


def _named(name: str, here: tuple[Device, ...]) -> Device | None:
    """The device that `name` is: an index, or a UUID or what it begins with. The driver lists no slices (MIG)."""
    for device in here:
        if name == device.id or (name.startswith("GPU-") and device.uuid.startswith(name)):
            return device
    is_not_told = name.startswith("GPU-") and any(not device.uuid for device in here)
    return Device(name) if "MIG-" in name or is_not_told else None


def _of_the_driver(environ: Mapping[str, str], command: Command) -> tuple[Device, ...]:
    """As `nvidia-smi` numbers them: in the order of their addresses, by which their folders are called."""
    with contextlib.suppress(OSError):
        return tuple(Device(str(number), _uuid(folder)) for number, folder in enumerate(sorted(PROC.iterdir())))
    if shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath)) is None:
        return ()
    listed = command(["nvidia-smi", "-L"], 10.0, environ) or ""
    return tuple(Device(*found) for found in re.findall(r"^GPU (\d+):.*\(UUID: (GPU-[^)]*)\)", listed, re.MULTILINE))


def _uuid(folder: Path) -> str:
    """A driver that has not begun yet says `GPU-????????-…`."""
    with contextlib.suppress(OSError):
        told = (folder / "information").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)$", told, re.MULTILINE):
            return found[1]
    return ""


def used_mb(environ: Mapping[str, str], command: Command = run) -> dict[str, int]:
    """MiB of memory in use on each GPU, by index, as far as `nvidia-smi` reports it."""
    query = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
    rows = re.findall(r"^(\d+), (\d+)$", command(query, 60.0, environ) or "", re.MULTILINE)
    return {index: int(used) for index, used in rows}


def cpus(environ: Mapping[str, str]) -> int:
    """The CPUs that we may use, which a batch job or container may have narrowed, or the user.

    Raises UsageError where SERRIED_LOCAL_SLOTS is no number.
    """
    slots = environ.get(SLOTS)
    if slots:
        if not slots.isdecimal() or not int(slots):
            raise UsageError(f"{SLOTS} is `{slots}`, not a number of slots")
        return int(slots)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
