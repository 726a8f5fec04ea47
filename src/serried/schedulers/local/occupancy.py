"""How full this machine is: its GPUs and CPUs, and the queue of local jobs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serried.base import files
from serried.schedulers.clusters import machine
from serried.schedulers.local import jobs
from serried.schedulers.local.jobs import SlotClaim, SlotTable
from serried.schedulers.occupancy import NodeUse, Occupancy, PartitionUse, QueuedJob

BUSY_MB = 1024
"""More memory in use on a GPU belongs to a program."""
PARTITION = "local"


def identity(environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(environ.get(name, "") for name in (jobs.DIRECTORY, machine.SLOTS, machine.GPUS, machine.VISIBLE))


def ask(environ: Mapping[str, str], user: str, seconds: float) -> dict[str, str]:  # noqa: ARG001 - all jobs are the user's
    """Facts of this machine as JSON, and the table of slots as it is written."""

    def command(argv: list[str], limit: float, variables: Mapping[str, str]) -> str | None:
        return machine.run(argv, min(limit, seconds), variables)

    return {
        "machine": json.dumps(
            {
                "host": os.uname().nodename,
                "cpus": machine.cpus(environ),
                "load": os.getloadavg()[0],
                "gpus": [device.id for device in machine.gpus(environ, command)],
                "used_mb": machine.used_mb(environ, command),
            }
        ),
        "memory": _memory(),
        "slots": json.dumps(_slots()),
    }


def _slots() -> dict[str, Any]:
    """The table without the claims of dead processes. The next job that needs slots removes those for good."""
    written = files.read_json(jobs.root() / "slots.json") or {}
    table = SlotTable(*([*map(SlotClaim.from_json, written.get(name, ()))] for name in ("waiting", "taken")))
    table.drop_dead(lambda holder: holder.is_alive)
    return asdict(table)


def _memory() -> str:
    try:
        return Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return ""


def read(texts: Mapping[str, str], user: str) -> Occupancy:  # noqa: ARG001
    facts, slots = json.loads(texts["machine"]), json.loads(texts["slots"])
    waiting, taken = (slots.get(name) or [] for name in ("waiting", "taken"))
    return Occupancy(
        nodes=(_node(facts, taken, texts["memory"]),),
        partitions=(PartitionUse(PARTITION, is_open=True, is_default=True),),
        jobs=(*(_job(claim) for claim in sorted(waiting, key=_turn)), *(_job(one, is_running=True) for one in taken)),
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


def _turn(claim: Mapping[str, Any]) -> tuple[float, int]:
    return claim["since"], claim["job"]
