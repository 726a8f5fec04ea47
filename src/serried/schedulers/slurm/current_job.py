"""The Slurm job that we are in. `scontrol` says it all: what is in the environment differs with how one got there."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from serried.errors import SchedulerUnreachable, UsageError
from serried.protocol import hostlist
from serried.schedulers.client import Calls
from serried.schedulers.current_job import Inside

KEPT = frozenset({
    "SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_PARTITION", "SLURM_JOB_ACCOUNT", "SLURM_JOB_USER", "SLURM_JOB_UID", "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_NODELIST", "SLURM_NNODES", "SLURM_TMPDIR", "SLURMD_NODENAME",
})  # fmt: skip
"""What steps need to know of their job. The rest is what the user said to `salloc`, and would change them."""

_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=(\S+)(?:.*?\bGRES=(\S*))?")


def inside(environ: Mapping[str, str]) -> Inside:
    job, task = environ["SLURM_JOB_ID"], environ.get("SLURM_PROCID", "0")
    if task != "0":
        raise UsageError(
            f"this is task {task} of a step, and each of them would start all ranks",
            hint="start it once, without `srun`",
        )
    result = Calls(None).ask(("scontrol", "show", "job", "--details", "--oneliner", job), {**environ, "LC_ALL": "C"})
    if result.status:
        raise SchedulerUnreachable(f"Slurm does not say what job {job} has", details=result.stderr)
    return described(result.stdout, environ, time.time(), os.uname().nodename)


def described(text: str, environ: Mapping[str, str], now: float, here: str) -> Inside:
    """The job in `scontrol show job --details --oneliner`. Pure."""
    hosts = tuple(hostlist.expand(environ["SLURM_JOB_NODELIST"]))
    nodes = _NODES.findall(text)
    given = environ.get("SLURM_NTASKS_PER_NODE", "")
    return Inside(
        scheduler="slurm",
        job=environ["SLURM_JOB_ID"],
        hosts=hosts,
        cpus=min((_count(cpus) for _, cpus, _ in nodes), default=1),
        gpus=min((_gpus(gres) for _, _, gres in nodes), default=0),
        tasks=int(given) if given.isdecimal() else 1,
        seconds=_seconds(text, now),
        variables={name: environ[name] for name in KEPT if name in environ},
        is_here=environ.get("SLURMD_NODENAME", here.partition(".")[0]) == hosts[0],
    )


def _count(ids: str) -> int:
    """How many CPUs are in `0-3,8`."""
    return sum(int(last or first) - int(first) + 1 for first, last in re.findall(r"(\d+)(?:-(\d+))?", ids))


def _gpus(gres: str) -> int:
    """How many in `gpu:v100:2(IDX:0-1),gpu:1(IDX:2)`."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:(,]+)?:(\d+)", gres))


def _seconds(text: str, now: float) -> int | None:
    match = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", text)
    return max(1, int(time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) - now)) if match else None
