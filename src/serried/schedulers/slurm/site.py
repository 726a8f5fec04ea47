"""Facts of a Slurm cluster, as a profile's table, and of the job around us. Parsers are pure: text in, values out."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serried.base.errors import SchedulerUnreachable, UsageError
from serried.base.hosts import expand_hosts
from serried.base.text import clock_seconds
from serried.schedulers.clusters import machine
from serried.schedulers.clusters.machine import Command
from serried.schedulers.slurm import is_here
from serried.schedulers.survey import ASKING_SECONDS, ArrayLimits, Ask, Inside, Learnt, asker, changed_at

SINFO = ("sinfo", "--all", "--noheader", "--exact", "--format=%P|%l|%G|%c|%m|%s")
"""A line for each kind of node in each partition: name, time limit, GPUs, CPUs, memory in MiB, least and most nodes."""
PARTITIONS = ("scontrol", "show", "partition", "--oneliner")
CONFIG = ("scontrol", "show", "config")
QOS = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=Name,MaxWall,MaxJobsPU")
ACCOUNTS = ("sacctmgr", "--noheader", "--parsable2", "show", "assoc", "format=Account,User")
"""Followed by `user=NAME`."""

LAB_RECORD = "lab.json"
"""Beside the slurm.conf of a lab."""

KEPT = frozenset({
    "SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_PARTITION", "SLURM_JOB_ACCOUNT", "SLURM_JOB_USER", "SLURM_JOB_UID", "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_NODELIST", "SLURM_NNODES", "SLURM_TMPDIR", "SLURMD_NODENAME",
})  # fmt: skip
"""Variables that steps need. The rest are the user's options for `salloc`, which would change the steps."""

TO_NODE = (
    *("srun", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--gres=none", "--overlap", "--export=ALL"),
    *("--input=none", "--unbuffered", "--job-name=serried"),
)

_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=(\S+)(?:.*?\bGRES=(\S*))?")

_NO_LIMIT = {"infinite", "n/a", "", "UNLIMITED", "NONE"}


def describe(environ: Mapping[str, str], command: Command = machine.run) -> dict[str, Any]:
    """What Slurm says about its partitions, as a profile's table; empty when it does not answer."""
    ask = asker_of(environ, command)
    found = partitions(ask(SINFO))
    return with_sizes(found, ask(PARTITIONS)) if found else {}


def own_name(environ: Mapping[str, str], command: Command = machine.run, *, seconds: float = ASKING_SECONDS) -> str:
    """ClusterName. Empty where it is not known."""
    return (cluster_name(asker_of(environ, command, seconds)(CONFIG)) or "") if is_here(environ) else ""


def array_limits(environ: Mapping[str, str], command: Command = machine.run) -> ArrayLimits:
    if not is_here(environ):
        return ArrayLimits()
    below, jobs = limits(asker_of(environ, command)(CONFIG))
    return ArrayLimits(below=below, jobs=jobs)


def is_throwaway(environ: Mapping[str, str]) -> bool:
    """Whether it is a lab's: a cluster of this machine alone."""
    return Path(environ.get("SLURM_CONF") or os.devnull).with_name(LAB_RECORD).is_file()


def learn(environ: Mapping[str, str], user: str, command: Command = machine.run) -> Learnt | None:
    """All that a profile may hold; None when Slurm does not answer."""

    def ask(*argv: str) -> str:
        return command([*argv], ASKING_SECONDS, _without_formats(environ)) or ""

    table = partitions(ask(*SINFO))
    if not table:
        return None
    config = ask(*CONFIG)
    shown = ask(*PARTITIONS)
    # Not every site lets its users read the accounts.
    qos = ask(*QOS)
    listed = accounts(ask(*ACCOUNTS, f"user={user}"))
    table = with_sizes(table, shown)
    narrowed = with_qos(table, shown, qos)
    has_qos = narrowed != table
    table = {**narrowed, **configured(config)}
    sources = dict.fromkeys(table, "`sinfo`") | {"kill_wait": "`scontrol show config`"}
    sources["partitions"] += ", `sacctmgr show qos`" if has_qos else ""
    if listed:
        table["accounts"] = listed
        sources["accounts"] = "`sacctmgr show assoc`"
    return Learnt(cluster_name(config) or "slurm", table, {key: sources[key] for key in table})


def asker_of(environ: Mapping[str, str], command: Command, seconds: float = ASKING_SECONDS) -> Ask:
    """A slurm.conf that was written anew is another Slurm."""
    configured = environ.get("SLURM_CONF", "")
    identity = (configured, changed_at(configured), environ.get("SLURM_CLUSTERS", ""))
    return asker(_without_formats(environ), command, identity, seconds)


def _without_formats(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the user's own formats for `sinfo`."""
    return {name: value for name, value in environ.items() if not name.startswith("SINFO_")}


def partitions(listed: str) -> dict[str, Any]:
    """The profile's table from what `SINFO` printed; later columns may be missing."""
    found: dict[str, dict[str, Any]] = {}
    types: set[str] = set()
    default = None
    for line in listed.splitlines():
        name, limit, gres, cpus, memory, nodes = (*line.split("|"), *[""] * 6)[:6]
        if not limit:
            continue
        default = name.rstrip("*") if name.endswith("*") else default
        partition = found.setdefault(name.rstrip("*"), {"gpus": 0})
        if limit not in _NO_LIMIT:
            partition["time"] = limit
        most = nodes.rpartition("-")[2]
        if most.isdecimal() and int(most):
            partition["nodes"] = int(most)
        counted = _gres(gres)
        _raise(partition, "gpus", sum(count for _, count in counted))
        _raise(partition, "cpus", _number(cpus))
        _raise(partition, "mem", _number(memory))
        types |= {kind for kind, _ in counted if kind}
    if not found:
        return {}
    for partition in found.values():
        if "mem" in partition:
            partition["mem"] = f"{partition['mem']}M"
    most_cpus = max(partition.get("cpus", 0) for partition in found.values())
    return {
        "partitions": found,
        "gpus_per_node": max(partition["gpus"] for partition in found.values()),
        "gpu_types": sorted(types),
        **({"cpus_per_node": most_cpus} if most_cpus else {}),
        **({"default_partition": default} if default else {}),
    }


def _raise(partition: dict[str, Any], key: str, amount: int) -> None:
    if amount > partition.get(key, 0):
        partition[key] = amount


def _number(text: str) -> int:
    """`64` of `64` and `64+`."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def _gres(text: str) -> list[tuple[str, int]]:
    """Type and count of each kind of GPU in `gpu:v100:4(S:0-1),gpu:2,shard:8`."""
    found = re.findall(r"(?:^|,)gpu(?::([A-Za-z_][\w.-]*|\d+[A-Za-z_][\w.-]*))?:(\d+)", text)
    return [(kind, int(count)) for kind, count in found]


def configured(config: str) -> dict[str, Any]:
    """The profile's table from what `CONFIG` printed."""
    wait = re.match(r"\d+", setting(config, "KillWait"))
    return {"kill_wait": f"{wait[0]}s"} if wait else {}


def cluster_name(config: str) -> str | None:
    return setting(config, "ClusterName") or None


def limits(config: str) -> tuple[int | None, int | None]:
    """MaxArraySize, one more than the highest index of an array, and MaxJobCount."""
    size, jobs = setting(config, "MaxArraySize"), setting(config, "MaxJobCount")
    return (int(size) if size.isdecimal() else None), (int(jobs) if jobs.isdecimal() else None)


def setting(config: str, name: str) -> str:
    found = re.search(rf"^{name}\s*= *(.*)$", config, re.MULTILINE)
    return found[1].strip() if found else ""


def with_sizes(table: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """The table, with how many nodes each partition has at all: what `PARTITIONS` printed.

    Not by counting what `sinfo` lists: it leaves out nodes of a cloud that are switched off.
    """
    sized = {name: dict(partition) for name, partition in table.get("partitions", {}).items()}
    for name, partition in shown_partitions(shown).items():
        own, total = sized.get(name), partition.get("TotalNodes", "")
        if own is not None and total.isdecimal() and int(total):
            own["nodes"] = min(int(total), own.get("nodes", int(total)))
    return {**table, "partitions": sized} if sized else dict(table)


def with_qos(table: Mapping[str, Any], shown: str, qos: str) -> dict[str, Any]:
    """The table, its partitions narrowed by the QoS that each has: what `PARTITIONS` and `QOS` printed."""
    known = {name: (wall, jobs) for name, wall, jobs in rows(qos, 3)}
    narrowed = {name: dict(partition) for name, partition in table.get("partitions", {}).items()}
    for name, partition in shown_partitions(shown).items():
        own = narrowed.get(name)
        wall, jobs = known.get(partition.get("QoS", ""), ("", ""))
        if own is None:
            continue
        if wall and (own.get("time") is None or (clock_seconds(wall) or 0) < (clock_seconds(own["time"]) or 0)):
            own["time"] = wall
        if jobs.isdecimal():
            own["jobs"] = int(jobs)
    return {**table, "partitions": narrowed}


def accounts(listed: str) -> list[str]:
    """The accounts in what `ACCOUNTS` printed."""
    return sorted({account for account, _ in rows(listed, 2) if account})


def rows(text: str, columns: int) -> Iterator[tuple[str, ...]]:
    for line in text.splitlines():
        cells = tuple(line.split("|"))
        if len(cells) == columns:
            yield cells


def shown_partitions(text: str) -> dict[str, dict[str, str]]:
    """The settings of each partition in what `PARTITIONS` printed."""
    settings = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in text.splitlines()]
    return {one["PartitionName"]: one for one in settings if "PartitionName" in one}


def inside(environ: Mapping[str, str]) -> Inside:
    """The job around us. `scontrol` reports it: the environment differs with the way into the job."""
    from serried.schedulers.client import query

    job, task = environ["SLURM_JOB_ID"], environ.get("SLURM_PROCID", "0")
    if task != "0":
        raise UsageError(
            f"this is task {task} of a step, and each of them would start all ranks",
            hint="start it once, without `srun`",
        )
    result = query(("scontrol", "show", "job", "--details", "--oneliner", job), {**environ, "LC_ALL": "C"})
    if result.status:
        raise SchedulerUnreachable(f"Slurm does not report the resources of job {job}", details=result.stderr)
    return described_job(result.stdout, environ, time.time(), os.uname().nodename)


def described_job(text: str, environ: Mapping[str, str], now: float, here: str) -> Inside:
    """The job in `scontrol show job --details --oneliner`. Pure."""
    hosts = tuple(expand_hosts(environ["SLURM_JOB_NODELIST"]))
    nodes = _NODES.findall(text)
    given = environ.get("SLURM_NTASKS_PER_NODE", "")
    is_here = environ.get("SLURMD_NODENAME", here.partition(".")[0]) == hosts[0]
    return Inside(
        scheduler="slurm",
        job=environ["SLURM_JOB_ID"],
        hosts=hosts,
        cpus=min((_count(cpus) for _, cpus, _ in nodes), default=1),
        gpus=min((sum(count for _, count in _gres(gres)) for _, _, gres in nodes), default=0),
        tasks=int(given) if given.isdecimal() else 1,
        seconds=_seconds_left(text, now),
        is_here=is_here,
        variables={name: environ[name] for name in KEPT if name in environ},
        to_first_node=() if is_here else (*TO_NODE, f"--nodelist={hosts[0]}"),
    )


def _count(ids: str) -> int:
    """How many CPUs are in `0-3,8`."""
    return sum(int(last or first) - int(first) + 1 for first, last in re.findall(r"(\d+)(?:-(\d+))?", ids))


def _seconds_left(text: str, now: float) -> int | None:
    match = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", text)
    return max(1, int(time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) - now)) if match else None
