"""Facts of a Slurm cluster, as a profile's table, and of the job around us. Parsers are pure: text in, values out."""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from serried.base.errors import MissingProgramError, SchedulerUnreachable, UsageError
from serried.base.hosts import expand_hosts
from serried.base.text import clock_seconds, memory_bytes
from serried.schedulers import missing_command, scrub
from serried.schedulers.client import query
from serried.schedulers.occupancy import NodeUse, Occupancy, PartitionUse, QueuedJob
from serried.schedulers.slurm import is_here
from serried.schedulers.survey import (
    ASKING_SECONDS,
    GLANCE_SECONDS,
    ArrayLimits,
    Ask,
    Command,
    Inside,
    Learnt,
    asker,
    changed_at,
    run_command,
    together,
)


@functools.lru_cache(maxsize=4096)
def gpus_in(text: str) -> dict[str, int]:
    """GPUs by type in `gpu:a100:4(S:0-1),gpu:2(IDX:0,3)`, `gres:gpu:4` or `gres/gpu:a100=2`."""
    return {kind: count for (name, kind), count in _gres_counts(text).items() if name == "gpu"}


@functools.lru_cache(maxsize=4096)
def _gres_counts(text: str) -> dict[tuple[str, str], int]:
    """Counts by name and type. The parentheses hold indices, with commas; `(null)` is no type."""
    counts: dict[tuple[str, str], int] = {}
    for part in re.sub(r"\([^()]*\)", "", text.replace("(null)", "")).split(","):
        words = re.split("[:=]", re.sub(r"^gres[:/]", "", part.strip()))
        number = next((word for word in reversed(words[1:]) if word.isdecimal()), "1" if words[0] else "0")
        kind = words[1] if len(words) > 1 and words[1] != number and not words[1].isdecimal() else ""
        counts[words[0], kind] = counts.get((words[0], kind), 0) + int(number)
    return counts


@functools.lru_cache(maxsize=4096)
def free_gpus(gres: str, used: str, *, is_idle: bool) -> dict[str, int]:
    """Without the GPUs in use, nor those of which parts (shards) are. None of a busy node whose use is unknown."""
    total, taken = gpus_in(gres), _gres_counts(used)
    if not any(name == "gpu" for name, _ in taken):
        return dict(total) if is_idle else {}
    free = {kind: max(count - taken.get(("gpu", kind), 0), 0) for kind, count in total.items()}
    untyped = taken.get(("gpu", ""), 0) if "" not in total else 0
    shards, shards_used = (
        sum(n for (name, _), n in what.items() if name == "shard") for what in (_gres_counts(gres), taken)
    )
    shared = -(-shards_used * sum(total.values()) // shards) if shards else 0
    elsewhere = untyped + shared
    for kind, count in free.items():
        free[kind] = max(count - elsewhere, 0)
        elsewhere = max(elsewhere - count, 0)
    return free


@functools.lru_cache(maxsize=4096)
def amounts_of(text: str) -> dict[str, str]:
    """`cpu=4,mem=4G,node=1,gres/gpu=2` by name; empty where Slurm reports none."""
    return {name: value for name, _, value in (part.partition("=") for part in text.split(",")) if value}


@functools.lru_cache(maxsize=4096)
def job_gpus(total: str, requests: tuple[tuple[str, int], ...]) -> tuple[int, str]:
    """All GPUs of a job, and their type. `total` lacks them where a site does not account for GPUs.

    A request is a text and how often it counts: once for each node, say.
    """
    wanted = [(gpus_in(text), times) for text, times in requests]
    kind = next((kind for each, _ in wanted for kind in each if kind), "")
    counted = {name: count for name, count in gpus_in(total).items() if count}
    if counted:
        return counted.get("", sum(counted.values())), kind or next((name for name in counted if name), "")
    return next((sum(each.values()) * times for each, times in wanted if each), 0), kind


@functools.lru_cache(maxsize=4096)
def memory_mb(text: str) -> int:
    """MiB of `64G` or `4000M`."""
    return int((memory_bytes(text, "M") or 0) / 1024**2)


SEPARATOR = "\x1f"
NODE_FIELDS = (
    "NodeList", "Partition", "StateLong", "StateComplete", "CPUsState", "Gres", "GresUsed", "Memory", "AllocMem",
    "Available", "Time",
)  # fmt: skip
NODE_USE = (
    *("sinfo", "--all", "--noheader", "--Node"),
    "--Format=" + ",".join(f"{name}:{SEPARATOR}" for name in NODE_FIELDS),
)
"""A line for each node in each of its partitions."""
JOB_FIELDS = (
    "ArrayJobID", "ArrayTaskID", "State", "UserName", "Partition", "PriorityLong", "NumNodes", "NumCPUs", "NumTasks",
    "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-task", "TimeLimit", "StartTime", "EndTime", "Reason",
)  # fmt: skip
QUEUED_JOBS = (
    *("squeue", "--all", "--noheader", "--states=PENDING,RUNNING"),
    "--Format=" + ",".join(f"{name}:{SEPARATOR}" for name in JOB_FIELDS),
)

ASSOCIATIONS = ("sacctmgr", "--noheader", "--parsable2", "show", "assoc", "format=Account,QOS")
"""Followed by `user=NAME`."""

_BASES = {"idle", "mixed", "allocated", "completing", "planned"}
"""States of nodes that take jobs."""
_FLAGS = {*_BASES, "cloud", "dynamic_norm", "powered_down", "powering_up", "power_up"}
"""Flags that do not change that. A node that is switched off starts for a job."""
_MARKS = {"~", "#", "-"}
"""The same as the last character of a state: switched off, starting, planned."""
_RESOURCES = re.compile(r"Priority|Resources|None|ReqNodeNotAvail|Nodes[_ ]required")
_SPAN = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def identity(environ: Mapping[str, str]) -> tuple[str, ...]:
    configured = environ.get("SLURM_CONF", "")
    return configured, str(changed_at(configured)), environ.get("SLURM_CLUSTERS", "")


def ask_occupancy(environ: Mapping[str, str], user: str, seconds: float) -> dict[str, str]:
    deadline = time.monotonic() + seconds
    ours = {**scrub(environ), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
    ours = {name: value for name, value in ours.items() if not name.startswith("SINFO_")}
    texts = {argv[0]: _answer(argv, ours, deadline) for argv in (NODE_USE, QUEUED_JOBS)}
    if not any(SEPARATOR in text for text in (texts["sinfo"], texts["squeue"])):
        raise SchedulerUnreachable("this `sinfo` cannot divide its fields; Slurm 20.11 or later is needed")
    glance = asker_of(environ, together(GLANCE_SECONDS, run_command), GLANCE_SECONDS)
    return {**texts, **_asked_rarely(user, glance)}


def _asked_rarely(user: str, glance: Ask) -> dict[str, str]:
    """Answers of five minutes serve. Not every site lets its users read the accounts."""
    names = []
    for group in os.getgroups():
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(group).gr_name)
    return {
        "partitions": glance(PARTITIONS),
        "config": glance(CONFIG),
        "assoc": glance((*ASSOCIATIONS, f"user={user}")),
        "groups": "\n".join(names),
    }


def _answer(argv: tuple[str, ...], environ: Mapping[str, str], deadline: float) -> str:
    try:
        result = query(argv, environ, max(deadline - time.monotonic(), 1.0))
    except MissingProgramError as error:
        raise missing_command("slurm", argv[0]) from error
    if result.status:
        raise SchedulerUnreachable(f"Slurm's controller does not answer `{argv[0]}`", details=result.stderr)
    return result.stdout


def read_occupancy(texts: Mapping[str, str], user: str) -> Occupancy:
    shown = shown_partitions(texts.get("partitions", ""))
    associations = [*rows(texts.get("assoc", ""), 2)]
    accounts, qos = ({name for row in associations for name in row[at].split(",") if name} for at in (0, 1))
    groups = {name for name in texts.get("groups", "").split("\n") if name}
    nodes, partitions = _nodes(texts.get("sinfo", ""))
    return Occupancy(
        nodes=nodes,
        partitions=tuple(
            one._replace(
                is_hidden=shown.get(one.name, {}).get("Hidden") == "YES",
                is_for_me=admits(shown.get(one.name, {}), accounts, qos, groups),
            )
            for one in partitions
        ),
        jobs=tuple(sorted(_jobs(texts.get("squeue", ""), user), key=_order)),
        sees_all_jobs=not hides_jobs(texts.get("config", "")),
    )


def hides_jobs(config: str) -> bool:
    """Whether users see their own jobs alone."""
    return "jobs" in setting(config, "PrivateData").split(",")


def admits(
    partition: Mapping[str, str], accounts: AbstractSet[str], qos: AbstractSet[str], groups: AbstractSet[str]
) -> bool:
    """Whether a user with these may submit to the partition, as far as they are known."""
    for key, mine in (("AllowGroups", groups), ("AllowAccounts", accounts), ("AllowQos", qos)):
        allowed = partition.get(key, "ALL")
        if mine and allowed not in ("ALL", "N/A", "(null)", "") and not mine & set(allowed.split(",")):
            return False
    denied = set(partition.get("DenyAccounts", "").split(","))
    return not accounts or bool(accounts - denied)


def _order(job: QueuedJob) -> tuple[bool, float, int]:
    return job.is_running, -job.priority, _whole(job.id)


def _rows(text: str, width: int) -> Iterator[list[str]]:
    for line in text.split("\n"):
        fields = line.split(SEPARATOR)
        if len(fields) == width + 1:  # each field ends with a separator
            yield [field.strip() for field in fields[:width]]


def _nodes(text: str) -> tuple[tuple[NodeUse, ...], tuple[PartitionUse, ...]]:
    nodes: dict[str, NodeUse] = {}
    partitions: dict[str, PartitionUse] = {}
    for row in _rows(text, len(NODE_FIELDS)):
        name, labelled, *rest, available, limit = row
        label = labelled.rstrip("*")
        if label not in partitions:
            is_open = available in ("up", "")
            partitions[label] = PartitionUse(label, is_open, labelled.endswith("*"), _limit(limit))
        known = nodes.get(name)
        if known is None:
            nodes[name] = _node(name, label, rest)
        else:
            nodes[name] = known._replace(partitions=(*known.partitions, label))
    return tuple(nodes.values()), tuple(partitions.values())


def _node(name: str, partition: str, fields: Sequence[str]) -> NodeUse:
    state, flags, cpus, gres, used, memory, taken = fields
    is_up, is_planned = _standing(state.lower(), flags.lower())
    idle, total = _cpus(cpus)
    gpus = gpus_in(gres)
    return NodeUse(
        name=name,
        partitions=(partition,),
        state=state,
        is_up=is_up,
        is_planned=is_planned,
        cpus=total,
        free_cpus=idle if is_up else 0,
        memory_mb=_whole(memory),
        free_memory_mb=max(_whole(memory) - _whole(taken), 0) if is_up else 0,
        gpus=gpus,
        free_gpus=free_gpus(gres, used, is_idle=0 < total == idle) if is_up and idle else {},
    )


@functools.lru_cache(maxsize=512)
def _standing(state: str, flags: str) -> tuple[bool, bool]:
    """Whether the node takes jobs, and whether it is kept for one: `mixed-`, `idle~`, `idle+drain`."""
    base = state.rstrip("*~#!%$@^-+")
    mark = state[len(base) :].replace("+", "")
    known = {flag.rstrip("*~#!%$@^-") for flag in flags.split("+") if flag}
    is_up = base in _BASES and set(mark) <= _MARKS and known <= _FLAGS
    return is_up, base == "planned" or "-" in mark or "planned" in known


@functools.lru_cache(maxsize=512)
def _cpus(text: str) -> tuple[int, int]:
    """Idle CPUs and all of `8/24/0/32`."""
    amounts = [_whole(part) for part in text.split("/")]
    return (amounts[1], amounts[3]) if len(amounts) == 4 else (0, 0)


def _jobs(text: str, user: str) -> Iterator[QueuedJob]:
    for row in _rows(text, len(JOB_FIELDS)):
        job, index, state, owner, partition, priority, nodes, cpus, tasks, total, *rest = row
        per_job, per_node, per_task, limit, start, end, reason = rest
        is_running = state == "RUNNING"
        count = max(_whole(nodes), 1)
        gpus, kind = job_gpus(total, ((per_job, 1), (per_node, count), (per_task, max(_whole(tasks), 1))))
        amounts = amounts_of(total)
        yield QueuedJob(
            id=job,
            is_running=is_running,
            is_mine=owner == user,
            partitions=tuple(partition.split(",")),
            tasks=_tasks(index),
            waits_for_resources=not is_running and _is_for_resources(reason),
            priority=_whole(priority),
            nodes=count,
            gpus=gpus,
            gpu_type=kind,
            cpus=_whole(amounts.get("cpu", cpus)),
            memory_mb=memory_mb(amounts.get("mem", "")),
            limit_seconds=_limit(limit),
            reason="" if reason == "None" or is_running else reason,
            starts=_time(start) if not is_running else None,
            ends=_time(end) if is_running else None,
        )


@functools.lru_cache(maxsize=512)
def _tasks(index: str) -> int:
    """How many tasks wait: `[1-9,20%4]` are ten. At least one."""
    spans = _SPAN.findall(index.partition("%")[0])
    return max(sum((int(last or first) - int(first)) // int(step or 1) + 1 for first, last, step in spans), 1)


@functools.lru_cache(maxsize=512)
def _limit(text: str) -> int | None:
    return None if text in ("infinite", "n/a", "UNLIMITED", "NOT_SET", "") else clock_seconds(text)


@functools.lru_cache(maxsize=512)
def _is_for_resources(reason: str) -> bool:
    """Whether a job that waits for this reason starts once enough is free."""
    return _RESOURCES.match(reason) is not None


def _whole(text: str) -> int:
    if text.isdecimal():
        return int(text)
    match = re.match(r"(\d+)(K?)", text)
    return int(match[1]) * (1024 if match[2] else 1) if match else 0


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() and int(text) else None


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


def describe(environ: Mapping[str, str], command: Command = run_command) -> dict[str, Any]:
    """What Slurm says about its partitions, as a profile's table; empty when it does not answer."""
    ask = asker_of(environ, command)
    found = partitions(ask(SINFO))
    return with_sizes(found, ask(PARTITIONS)) if found else {}


def own_name(environ: Mapping[str, str], command: Command = run_command, *, seconds: float = ASKING_SECONDS) -> str:
    """ClusterName. Empty where it is not known."""
    return (cluster_name(asker_of(environ, command, seconds)(CONFIG)) or "") if is_here(environ) else ""


def array_limits(environ: Mapping[str, str], command: Command = run_command) -> ArrayLimits:
    if not is_here(environ):
        return ArrayLimits()
    below, jobs = limits(asker_of(environ, command)(CONFIG))
    return ArrayLimits(below=below, jobs=jobs)


def is_throwaway(environ: Mapping[str, str]) -> bool:
    """Whether it is a lab's: a cluster of this machine alone."""
    return Path(environ.get("SLURM_CONF") or os.devnull).with_name(LAB_RECORD).is_file()


def learn(environ: Mapping[str, str], user: str, command: Command = run_command) -> Learnt | None:
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
    return asker(_without_formats(environ), command, identity(environ), seconds)


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
