"""This machine as a cluster of one node: its GPUs and CPUs, and how many of them local jobs have."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serried.base import NamedTuple
from serried.base.errors import UsageError
from serried.schedulers.local import jobs
from serried.schedulers.local.jobs import SlotTable
from serried.schedulers.occupancy import NodeUse, Occupancy, PartitionUse, QueuedJob
from serried.schedulers.survey import ASKING_SECONDS, ArrayLimits, Command, Learnt, run_command

SLOTS = "SERRIED_LOCAL_SLOTS"
"""The number of CPUs that local jobs share."""
GPUS = "SERRIED_LOCAL_GPUS"
"""The ids of this machine's GPUs, `0,1`, instead of the driver's answer; empty for none."""
VISIBLE = "CUDA_VISIBLE_DEVICES"

PROC = Path("/proc/driver/nvidia/gpus")


class Device(NamedTuple):
    id: str
    """Its name in CUDA_VISIBLE_DEVICES."""
    uuid: str = ""
    """Empty if the driver does not report it."""


def gpus(environ: Mapping[str, str], command: Command = run_command) -> tuple[Device, ...]:
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
        texts = [_text(folder / "information") for folder in sorted(PROC.iterdir())]
        # Before it is initialised, a driver reports `GPU-????????-…`.
        uuids = [re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)$", text, re.MULTILINE) for text in texts]
        return tuple(Device(str(number), uuid[1] if uuid else "") for number, uuid in enumerate(uuids))
    if shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath)) is None:
        return ()
    listed = command(["nvidia-smi", "-L"], 10.0, environ) or ""
    return tuple(Device(*fields) for fields in re.findall(r"^GPU (\d+):.*\(UUID: (GPU-[^)]*)\)", listed, re.MULTILINE))


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def used_mb(environ: Mapping[str, str], command: Command = run_command) -> dict[str, int]:
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


BUSY_MB = 1024
"""More memory in use on a GPU belongs to a program."""
PARTITION = "local"


def identity(environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(environ.get(name, "") for name in (jobs.DIRECTORY, SLOTS, GPUS, VISIBLE))


def ask_occupancy(environ: Mapping[str, str], user: str, seconds: float) -> dict[str, str]:
    """Facts of this machine as JSON, and the table of slots as it is written."""

    def command(argv: list[str], limit: float, variables: Mapping[str, str]) -> str | None:
        return run_command(argv, min(limit, seconds), variables)

    # Without the claims of dead processes, which the next job that needs slots removes for good.
    slots = SlotTable.read(jobs.root())
    slots.drop_dead(lambda holder: holder.is_alive)
    return {
        "machine": json.dumps(
            {
                "host": os.uname().nodename,
                "cpus": cpus(environ),
                "load": os.getloadavg()[0],
                "gpus": [device.id for device in gpus(environ, command)],
                "used_mb": used_mb(environ, command),
            }
        ),
        "memory": _text(Path("/proc/meminfo")),
        "slots": json.dumps(slots.to_json()),
    }


def read_occupancy(texts: Mapping[str, str], user: str) -> Occupancy:
    facts, slots = json.loads(texts["machine"]), json.loads(texts["slots"])
    waiting, taken = (slots.get(name) or [] for name in ("waiting", "taken"))
    return Occupancy(
        nodes=(_node(facts, taken, texts["memory"]),),
        partitions=(PartitionUse(PARTITION, is_open=True, is_default=True),),
        jobs=(
            *(_job(claim) for claim in sorted(waiting, key=lambda claim: (claim["since"], claim["job"]))),
            *(_job(claim, is_running=True) for claim in taken),
        ),
    )


def _node(facts: Mapping[str, Any], taken: list[dict[str, Any]], memory: str) -> NodeUse:
    busy = {slot for claim in taken if claim["pool"] == "gpu" for slot in claim["slots"]}
    busy |= {index for index, used in facts["used_mb"].items() if used > BUSY_MB}
    slots = sum(claim["need"] for claim in taken if claim["pool"] == "cpu")
    gpus = facts["gpus"]
    amounts = {name: int(kb) // 1024 for name, kb in re.findall(r"^(Mem\w+):\s+(\d+) kB", memory, re.MULTILINE)}
    return NodeUse(
        name=facts["host"],
        partitions=(PARTITION,),
        state="",
        is_up=True,
        is_planned=False,
        cpus=facts["cpus"],
        free_cpus=max(facts["cpus"] - max(slots, round(facts["load"])), 0),
        memory_mb=amounts.get("MemTotal", 0),
        free_memory_mb=amounts.get("MemAvailable", 0),
        gpus={"": len(gpus)} if gpus else {},
        free_gpus={"": sum(gpu not in busy for gpu in gpus)} if gpus else {},
    )


def _job(claim: Mapping[str, Any], *, is_running: bool = False) -> QueuedJob:
    return QueuedJob(
        id=str(claim["job"]),
        is_running=is_running,
        is_mine=True,
        partitions=(PARTITION,),
        waits_for_resources=not is_running,
        gpus=claim["need"] if claim["pool"] == "gpu" else 0,
        cpus=claim["need"] if claim["pool"] == "cpu" else 0,
        reason="" if is_running else "Resources",
    )


def describe(environ: Mapping[str, str], command: Command = run_command) -> dict[str, Any]:
    return {"gpus_per_node": len(gpus(environ, command)), "cpus_per_node": cpus(environ)}


def own_name(environ: Mapping[str, str], command: Command = run_command, *, seconds: float = ASKING_SECONDS) -> str:
    return os.uname().nodename


def array_limits(environ: Mapping[str, str], command: Command = run_command) -> ArrayLimits:
    return ArrayLimits()


def learn(environ: Mapping[str, str], user: str, command: Command = run_command) -> Learnt | None:
    return None


def is_throwaway(environ: Mapping[str, str]) -> bool:
    return False
