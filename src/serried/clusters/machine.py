"""What can be found out about a cluster by looking: GPUs and CPUs here, partitions there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from serried.contract import files
from serried.contract.layout import state_directory
from serried.contract.slug import slug
from serried.errors import UsageError

Command = Callable[[list[str], float, Mapping[str, str]], str | None]
"""Runs a command for at most so many seconds and returns what it printed; None when it failed."""

SLOTS = "SERRIED_LOCAL_SLOTS"
"""How many CPUs local jobs share."""
GPUS = "SERRIED_LOCAL_GPUS"
"""The ids of this machine's GPUs, `0,1`, where the driver should not be asked; empty for none."""
VISIBLE = "CUDA_VISIBLE_DEVICES"

PROC = Path("/proc/driver/nvidia/gpus")
_SINFO_SECONDS = 4.0
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


def has_slurm(environ: Mapping[str, str]) -> bool:
    """Whether jobs can be submitted to a Slurm from here.

    A distribution's packages alone are no cluster: they are on many a laptop that rehearses in the lab.
    """
    sbatch = shutil.which("sbatch", path=environ.get("PATH", os.defpath))
    if sbatch is None or sbatch != "/usr/bin/sbatch":
        return sbatch is not None
    named = environ.get("SLURM_CONF") or environ.get("SLURM_CONF_SERVER")
    return bool(named) or any(Path(path).exists() for path in _SLURM_FILES)


def gpus(environ: Mapping[str, str], command: Command = run) -> int:
    """How many NVIDIA GPUs this machine lets us use. Asks no CUDA: importing that takes seconds."""
    given = environ.get(GPUS)
    visible = environ.get(VISIBLE)
    if visible is not None and not _devices(visible):
        return 0
    here = _count(environ, command) if given is None else len(_devices(given))
    if visible is None:
        return here
    slices = sum("MIG-" in device for device in _devices(visible))
    return min(here, len(_devices(visible)) - slices) + slices


def _count(environ: Mapping[str, str], command: Command) -> int:
    try:
        return len(list(PROC.iterdir()))
    except OSError:
        pass
    if shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath)) is None:
        return 0
    listed = command(["nvidia-smi", "-L"], 10.0, environ) or ""
    return len(re.findall(r"^GPU \d+:", listed, re.MULTILINE))


def _devices(visible: str) -> list[str]:
    """CUDA stops reading at the first device that is none."""
    found: list[str] = []
    for device in (part.strip() for part in visible.split(",")):
        if not device or device.startswith("-"):
            break
        found.append(device)
    return found


def local(environ: Mapping[str, str], command: Command = run) -> dict[str, Any]:
    """This machine, as a profile's table."""
    return {"gpus_per_node": gpus(environ, command), "cpus_per_node": cpus(environ)}


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
    if shutil.which("sinfo", path=environ.get("PATH", os.defpath)) is None:
        return {}
    return partitions(_listed(environ, command))


def _listed(environ: Mapping[str, str], command: Command) -> str:
    """What `sinfo` says, or has said within minutes: the controller has more to do than to tell each submission."""
    kept = _keeping_place(environ)
    with contextlib.suppress(OSError):
        if 0 <= time.time() - kept.stat().st_mtime < KEPT_SECONDS:
            return kept.read_text(encoding="utf-8")
    clean = {name: value for name, value in environ.items() if not name.startswith("SINFO_")}
    listed = command(["sinfo", "--all", "--noheader", "--format=%P|%l|%G"], _SINFO_SECONDS, clean) or ""
    if listed:
        with contextlib.suppress(OSError):
            files.make_directory(kept.parent)
            files.write_text(kept, listed)
    return listed


def _keeping_place(environ: Mapping[str, str]) -> Path:
    """One file for each Slurm and each host that asks it. A slurm.conf that was written anew is another Slurm."""
    configured = environ.get("SLURM_CONF", "")
    changed = 0
    with contextlib.suppress(OSError):
        changed = Path(configured).stat().st_mtime_ns if configured else 0
    identity = (os.uname().nodename, environ.get("PATH", ""), configured, environ.get("SLURM_CLUSTERS", ""), changed)
    return state_directory(environ) / "cache" / slug(f"sinfo {identity}")


def partitions(listed: str) -> dict[str, Any]:
    """The profile's table from `sinfo --all --format=%P|%l|%G`: one line for each kind of node in each partition."""
    found: dict[str, dict[str, Any]] = {}
    types: list[str] = []
    default = None
    for line in listed.splitlines():
        name, limit, gres = (*line.split("|"), "", "")[:3]
        if not limit:
            continue
        default = name.rstrip("*") if name.endswith("*") else default
        partition = found.setdefault(name.rstrip("*"), {"gpus": 0})
        if limit not in {"infinite", "n/a"}:
            partition["time"] = limit
        counted = _gres(gres)
        partition["gpus"] = max(partition["gpus"], sum(count for _, count in counted))
        types += [kind for kind, _ in counted if kind]
    if not found:
        return {}
    most = max(partition["gpus"] for partition in found.values())
    profile = {"partitions": found, "gpus_per_node": most, "gpu_types": sorted(set(types))}
    return profile | ({"default_partition": default} if default else {})


def _gres(text: str) -> list[tuple[str, int]]:
    """Type and count of each kind of GPU in `gpu:v100:4(S:0-1),gpu:2,shard:8`."""
    found = re.findall(r"(?:^|,)gpu(?::([A-Za-z_][\w.-]*|\d+[A-Za-z_][\w.-]*))?:(\d+)", text)
    return [(kind, int(count)) for kind, count in found]
