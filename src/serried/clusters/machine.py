"""What can be found out about a cluster by looking: GPUs and CPUs here, partitions there."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.clusters import pbs as pbs_says
from serried.clusters import slurm as slurm_says
from serried.errors import UsageError
from serried.fs import files
from serried.protocol.layout import state_directory
from serried.protocol.slug import slug

LAB_RECORD = "lab.json"
"""Beside the slurm.conf of a lab."""

Command = Callable[[list[str], float, Mapping[str, str]], str | None]
"""Runs a command for at most so many seconds and returns what it printed; None when it failed."""

SLOTS = "SERRIED_LOCAL_SLOTS"
"""How many CPUs local jobs share."""
GPUS = "SERRIED_LOCAL_GPUS"
"""The ids of this machine's GPUs, `0,1`, where the driver should not be asked; empty for none."""
VISIBLE = "CUDA_VISIBLE_DEVICES"

PROC = Path("/proc/driver/nvidia/gpus")
ASKING_SECONDS = 45.0
"""What a job asks for hangs on the answer. A client of Slurm's gives up by itself after 10 or 18 s."""
GLANCE_SECONDS = 4.0
"""Where it is enough to know it next time."""
KEPT_SECONDS = 300.0
_SLURM_FILES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


def run(argv: list[str], seconds: float, environ: Mapping[str, str]) -> str | None:
    from serried import shell
    from serried.errors import SerriedError

    try:
        result = shell.run(argv, timeout=seconds, env={**environ, "LC_ALL": "C"})
    except (SerriedError, OSError):
        return None
    return result.stdout if result.status == 0 else None


def scheduler(environ: Mapping[str, str]) -> str | None:
    """Which scheduler jobs can be submitted to from here. Where Slurm is, `qsub` may be its own wrapper."""
    if has_slurm(environ):
        return "slurm"
    path = environ.get("PATH", os.defpath)
    return "pbs" if shutil.which("qsub", path=path) and shutil.which("pbsnodes", path=path) else None


def is_lab(environ: Mapping[str, str]) -> bool:
    """Whether the Slurm here is a lab's: a cluster of this machine alone."""
    return Path(environ.get("SLURM_CONF") or os.devnull).with_name(LAB_RECORD).is_file()


def has_slurm(environ: Mapping[str, str]) -> bool:
    """Whether jobs can be submitted to a Slurm from here.

    A distribution's packages alone are no cluster: they are on many a laptop that rehearses in the lab.
    """
    sbatch = shutil.which("sbatch", path=environ.get("PATH", os.defpath))
    if sbatch is None or sbatch != "/usr/bin/sbatch":
        return sbatch is not None
    named = environ.get("SLURM_CONF") or environ.get("SLURM_CONF_SERVER")
    return bool(named) or any(Path(path).exists() for path in _SLURM_FILES)


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


def local(environ: Mapping[str, str], command: Command = run) -> dict[str, Any]:
    """This machine, as a profile's table."""
    return {"gpus_per_node": len(gpus(environ, command)), "cpus_per_node": cpus(environ)}


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


def slurm(environ: Mapping[str, str], command: Command = run) -> dict[str, Any]:
    """What Slurm says of its partitions, as a profile's table; empty when it does not answer."""
    found = slurm_says.partitions(_kept(slurm_says.SINFO, environ, command))
    return slurm_says.with_sizes(found, _kept(slurm_says.PARTITIONS, environ, command)) if found else {}


def site(scheduler: str, environ: Mapping[str, str], command: Command = run, *, seconds: float = ASKING_SECONDS) -> str:
    """What the scheduler here calls itself, where its job ids do not say so. Empty: unknown.

    ClusterName of Slurm, and the machine's own name of its own queue: another one that sees the record has none of it.
    """
    if scheduler == "local":
        return os.uname().nodename
    if scheduler != "slurm" or not has_slurm(environ):
        return ""
    return slurm_says.cluster_name(_kept(slurm_says.CONFIG, environ, command, seconds)) or ""


@dataclass(frozen=True)
class ArrayLimits:
    """None: no such limit is known."""

    below: int | None = None
    """What the indices of a job have to stay below."""
    elements: int | None = None
    """How many elements a job may have."""
    jobs: int | None = None
    """What the number of all users' jobs stays below; each element is one."""


def array_limits(scheduler: str, environ: Mapping[str, str], command: Command = run) -> ArrayLimits:
    if scheduler == "slurm" and has_slurm(environ):
        below, jobs = slurm_says.limits(_kept(slurm_says.CONFIG, environ, command))
        return ArrayLimits(below=below, jobs=jobs)
    if scheduler == "pbs":
        return ArrayLimits(elements=pbs_says.array_limit(_kept(pbs_says.SERVER, environ, command)))
    return ArrayLimits()


def pbs(environ: Mapping[str, str], command: Command = run) -> dict[str, Any]:
    """What PBS says of its queues and nodes, as a profile's table; empty when it does not answer."""
    queues = _kept(pbs_says.QUEUES, environ, command)
    if not queues:
        return {}
    server, nodes = (_kept(argv, environ, command) for argv in (pbs_says.SERVER, pbs_says.NODES))
    return pbs_says.described(queues, server, nodes)


def _kept(argv: tuple[str, ...], environ: Mapping[str, str], command: Command, seconds: float = ASKING_SECONDS) -> str:
    """What a command says, or has said within minutes: the scheduler has more to do than to tell each submission."""
    if shutil.which(argv[0], path=environ.get("PATH", os.defpath)) is None:
        return ""
    kept = _keeping_place(argv, environ)
    with contextlib.suppress(OSError):
        if 0 <= time.time() - kept.stat().st_mtime < KEPT_SECONDS:
            return kept.read_text(encoding="utf-8")
    listed = command([*argv], seconds, without_formats(environ)) or ""
    if listed:
        with contextlib.suppress(OSError):
            files.make_directory(kept.parent)
            files.write_text(kept, listed)
    return listed


def without_formats(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the user's own ideas of what `sinfo` is to print."""
    return {name: value for name, value in environ.items() if not name.startswith("SINFO_")}


def _keeping_place(argv: tuple[str, ...], environ: Mapping[str, str]) -> Path:
    """One file for each question, scheduler and host that asks. A slurm.conf that was written anew is another Slurm."""
    configured = environ.get("SLURM_CONF", "")
    changed = 0
    with contextlib.suppress(OSError):
        changed = Path(configured).stat().st_mtime_ns if configured else 0
    chosen = (environ.get(name, "") for name in ("PATH", "SLURM_CLUSTERS", "PBS_SERVER", "PBS_CONF_FILE"))
    identity = (os.uname().nodename, configured, changed, argv, *chosen)
    return state_directory(environ) / "cache" / slug(f"{argv[0]} {identity}")
