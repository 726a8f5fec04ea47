"""A Slurm cluster: its partitions and limits, the job around us, what is free and who waits.

Functions that ask get the environment; the others are parsers: text in, values out.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import re
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from serried.base.errors import MissingProgramError, SchedulerUnreachable, UsageError
from serried.base.text import clock_seconds, expand_hosts, memory_bytes
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
    Greeting,
    Inside,
    Learnt,
    asker,
    changed_at,
    run_command,
    together,
)

SINFO = ("sinfo", "--all", "--noheader", "--exact", "--format=%P|%l|%G|%c|%m|%s")
"""A line for each kind of node in each partition: name, time limit, GPUs, CPUs, memory in MiB, least and most nodes."""
PARTITIONS = ("scontrol", "show", "partition", "--oneliner")
CONFIG = ("scontrol", "show", "config")
QOS = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=Name,MaxWall,MaxJobsPU")
ACCOUNTS = ("sacctmgr", "--noheader", "--parsable2", "show", "assoc", "format=Account,QOS")
"""Followed by `user=NAME`. Not every site lets its users read the accounts."""

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

_NO_LIMIT = {"infinite", "n/a", "", "UNLIMITED", "NONE", "NOT_SET"}
_TAKING_JOBS = {"idle", "mixed", "allocated", "completing", "planned"}
"""States of nodes that take jobs."""
_HARMLESS_FLAGS = {*_TAKING_JOBS, "cloud", "dynamic_norm", "powered_down", "powering_up", "power_up"}
"""Flags that do not change that. A node that is switched off starts for a job."""
_HARMLESS_MARKS = {"~", "#", "-"}
"""The same as the last character of a state: switched off, starting, planned."""
_FOR_RESOURCES = r"Priority|Resources|None|ReqNodeNotAvail|Nodes[_ ]required"
"""Reasons of jobs that start once enough is free."""


def identity(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The key of a cached answer: after a change of slurm.conf, cached answers are stale."""
    configured = environ.get("SLURM_CONF", "")
    return configured, str(changed_at(configured)), environ.get("SLURM_CLUSTERS", "")


def _asker(environ: Mapping[str, str], command: Command, seconds: float = ASKING_SECONDS) -> Ask:
    return asker(_without_formats(environ), command, identity(environ), seconds)


def _without_formats(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("SINFO_")}


def describe(environ: Mapping[str, str], command: Command = run_command) -> dict[str, Any]:
    """Slurm's partitions as a profile's table; empty if it does not answer."""
    ask = _asker(environ, command)
    table = partitions(ask(SINFO))
    return with_sizes(table, ask(PARTITIONS)) if table else {}


def own_name(environ: Mapping[str, str], command: Command = run_command, *, seconds: float = ASKING_SECONDS) -> str:
    """ClusterName; empty if it is not known."""
    return _setting(_asker(environ, command, seconds)(CONFIG), "ClusterName") if is_here(environ) else ""


def array_limits(environ: Mapping[str, str], command: Command = run_command) -> ArrayLimits:
    """MaxArraySize is one more than the highest index of an array."""
    config = _asker(environ, command)(CONFIG) if is_here(environ) else ""
    size, jobs = _setting(config, "MaxArraySize"), _setting(config, "MaxJobCount")
    return ArrayLimits(below=int(size) if size.isdecimal() else None, jobs=int(jobs) if jobs.isdecimal() else None)


def is_throwaway(environ: Mapping[str, str]) -> bool:
    """Whether it is a lab's: a cluster of this machine alone."""
    return Path(environ.get("SLURM_CONF") or os.devnull).with_name(LAB_RECORD).is_file()


def learn(environ: Mapping[str, str], user: str, command: Command | None = run_command) -> Learnt | None:
    """All that a profile may hold; None if Slurm does not answer."""
    ask = asker(_without_formats(environ), command, identity(environ), kept_seconds=0.0)
    table = partitions(ask(SINFO))
    if not table:
        return None
    config, shown, qos = ask(CONFIG), ask(PARTITIONS), ask(QOS)
    sized = with_sizes(table, shown)
    table = with_qos(sized, shown, qos)
    sources = dict.fromkeys(table, "`sinfo`")
    if table != sized:
        sources["partitions"] += ", `sacctmgr show qos`"
    if wait := re.match(r"\d+", _setting(config, "KillWait")):
        table["kill_wait"], sources["kill_wait"] = f"{wait[0]}s", "`scontrol show config`"
    if accounts := sorted({account for account, _ in _listed(ask((*ACCOUNTS, f"user={user}")), 2) if account}):
        table["accounts"], sources["accounts"] = accounts, "`sacctmgr show assoc`"
    return Learnt(_setting(config, "ClusterName") or "slurm", table, sources)


def greeting(user: str) -> tuple[tuple[str, ...], str]:
    return ("scontrol",), f"version\nshow assoc_mgr users={user} flags=users,assoc\n"  # one request to the controller


def read_greeting(text: str) -> Greeting:
    """Limits are written `MaxJobs=5(2)`, with the jobs that count against them in parentheses."""
    version, default = (
        match[1] if match else ""
        for match in (re.search(r"(?m)^slurm\S* (\S+)$", text), re.search(r"(?m)^UserName=.* DefAccount=(\S+)", text))
    )
    accounts, limits, is_full = [], [], False
    for record in re.split(r"(?m)^(?=ClusterName=)", text)[1:]:
        head = re.match(r"\S+ Account=(\S+) UserName=(\S*)", record)
        if head and head[2]:
            accounts.append(head[1])
        if not head or head[1] != default:
            continue
        whose = "your" if head[2] else "the account's"
        for key, most, used in re.findall(r"\b(\w+Jobs|GrpTRES=\S*gres/gpu)=(\d+)\((\d+)\)", record):
            if head[2] or key.startswith("Grp"):
                is_full |= "Submit" in key and int(used) >= int(most)
                what = "GPUs" if "gpu" in key else "submitted jobs" if "Submit" in key else "running jobs"
                limits.append((f"{whose} {what}", int(most), int(used)))
    return Greeting(version, default, tuple(sorted({*accounts})), tuple(limits), is_full)


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
        if most_nodes := _number(nodes.rpartition("-")[2]):
            partition["nodes"] = most_nodes
        gpus = gpus_in(gres)
        types |= gpus.keys() - {""}
        for key, amount in (("gpus", sum(gpus.values())), ("cpus", _number(cpus)), ("mem", _number(memory))):
            if amount > partition.get(key, 0):
                partition[key] = amount
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


def with_sizes(table: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """The table, with how many nodes each partition has at all: what `PARTITIONS` printed.

    Not by counting what `sinfo` lists: it leaves out nodes of a cloud that are switched off.
    """
    sized = {name: dict(partition) for name, partition in table.get("partitions", {}).items()}
    for name, settings in _shown_partitions(shown).items():
        total = _number(settings.get("TotalNodes", ""))
        if name in sized and total:
            sized[name]["nodes"] = min(total, sized[name].get("nodes", total))
    return {**table, "partitions": sized} if sized else dict(table)


def with_qos(table: Mapping[str, Any], shown: str, qos: str) -> dict[str, Any]:
    """The table, its partitions narrowed by the QoS that each has: what `PARTITIONS` and `QOS` printed."""
    limits = {name: (wall, jobs) for name, wall, jobs in _listed(qos, 3)}
    narrowed = {name: dict(partition) for name, partition in table.get("partitions", {}).items()}
    for name, settings in _shown_partitions(shown).items():
        own = narrowed.get(name)
        wall, jobs = limits.get(settings.get("QoS", ""), ("", ""))
        if own is None:
            continue
        if wall and (own.get("time") is None or (clock_seconds(wall) or 0) < (clock_seconds(own["time"]) or 0)):
            own["time"] = wall
        if jobs.isdecimal():
            own["jobs"] = int(jobs)
    return {**table, "partitions": narrowed}


def _setting(config: str, name: str) -> str:
    found = re.search(rf"^{name}\s*= *(.*)$", config, re.MULTILINE)
    return found[1].strip() if found else ""


def _listed(text: str, columns: int) -> Iterator[tuple[str, ...]]:
    for line in text.splitlines():
        cells = tuple(line.split("|"))
        if len(cells) == columns:
            yield cells


def _shown_partitions(text: str) -> dict[str, dict[str, str]]:
    settings = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in text.splitlines()]
    return {one["PartitionName"]: one for one in settings if "PartitionName" in one}


def inside(environ: Mapping[str, str]) -> Inside:
    """The job around us. `scontrol` reports it: the environment differs with the way into the job."""
    job, task = environ["SLURM_JOB_ID"], environ.get("SLURM_PROCID", "0")
    if task != "0":
        hint = "start it once, without `srun`"
        raise UsageError(f"this is task {task} of a step, and each of them would start all ranks", hint=hint)
    result = query(("scontrol", "show", "job", "--details", "--oneliner", job), {**environ, "LC_ALL": "C"})
    if result.status:
        raise SchedulerUnreachable(f"Slurm does not report the resources of job {job}", details=result.stderr)
    return described_job(result.stdout, environ, time.time(), os.uname().nodename)


def described_job(text: str, environ: Mapping[str, str], now: float, here: str) -> Inside:
    """The job in `scontrol show job --details --oneliner`. Pure."""
    hosts = tuple(expand_hosts(environ["SLURM_JOB_NODELIST"]))
    nodes = re.findall(r"\bNodes=\S+ CPU_IDs=(\S+)(?:.*?\bGRES=(\S*))?", text)
    tasks = environ.get("SLURM_NTASKS_PER_NODE", "")
    is_here = environ.get("SLURMD_NODENAME", here.partition(".")[0]) == hosts[0]
    end = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", text)
    return Inside(
        scheduler="slurm",
        job=environ["SLURM_JOB_ID"],
        hosts=hosts,
        cpus=min((_count(cpus) for cpus, _ in nodes), default=1),
        gpus=min((sum(gpus_in(gres).values()) for _, gres in nodes), default=0),
        tasks=int(tasks) if tasks.isdecimal() else 1,
        seconds=max(1, int(time.mktime(time.strptime(end[1], "%Y-%m-%dT%H:%M:%S")) - now)) if end else None,
        is_here=is_here,
        variables={name: environ[name] for name in KEPT if name in environ},
        to_first_node=() if is_here else (*TO_NODE, f"--nodelist={hosts[0]}"),
    )


def ask_occupancy(environ: Mapping[str, str], user: str, seconds: float) -> dict[str, str]:
    """One `sinfo` and one `squeue`; partitions, settings and accounts are asked less often."""
    deadline = time.monotonic() + seconds
    ours = {**scrub(_without_formats(environ)), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
    texts: dict[str, str] = {}
    for argv in (NODE_USE, QUEUED_JOBS):
        try:
            result = query(argv, ours, max(deadline - time.monotonic(), 1.0))
        except MissingProgramError as error:
            raise missing_command("slurm", argv[0]) from error
        if result.status:
            raise SchedulerUnreachable(f"Slurm's controller does not answer `{argv[0]}`", details=result.stderr)
        texts[argv[0]] = result.stdout
    if not any(SEPARATOR in text for text in texts.values()):
        raise SchedulerUnreachable("this `sinfo` cannot divide its fields; Slurm 20.11 or later is needed")
    glance = _asker(environ, together(GLANCE_SECONDS, run_command), GLANCE_SECONDS)
    groups = []
    for group in os.getgroups():
        with contextlib.suppress(KeyError):
            groups.append(grp.getgrgid(group).gr_name)
    return {
        **texts,
        "partitions": glance(PARTITIONS),
        "config": glance(CONFIG),
        "assoc": glance((*ACCOUNTS, f"user={user}")),
        "groups": "\n".join(groups),
    }


def read_occupancy(texts: Mapping[str, str], user: str) -> Occupancy:
    shown = _shown_partitions(texts.get("partitions", ""))
    associations = [*_listed(texts.get("assoc", ""), 2)]
    accounts, qos = ({name for row in associations for name in row[at].split(",") if name} for at in (0, 1))
    groups = {name for name in texts.get("groups", "").split("\n") if name}
    nodes: dict[str, NodeUse] = {}
    open_partitions: dict[str, PartitionUse] = {}
    for row in _rows(texts.get("sinfo", ""), len(NODE_FIELDS)):
        labelled, available, limit = row[1], row[-2], row[-1]
        label = labelled.rstrip("*")
        if label not in open_partitions:
            open_partitions[label] = PartitionUse(
                label,
                is_open=available in ("up", ""),
                is_default=labelled.endswith("*"),
                limit_seconds=_limit(limit),
                is_hidden=shown.get(label, {}).get("Hidden") == "YES",
                is_for_me=admits(shown.get(label, {}), accounts, qos, groups),
            )
        if node := nodes.get(row[0]):
            nodes[row[0]] = node._replace(partitions=(*node.partitions, label))
        else:
            nodes[row[0]] = _node(row, label)
    jobs = [_job(row, user) for row in _rows(texts.get("squeue", ""), len(JOB_FIELDS))]
    return Occupancy(
        nodes=tuple(nodes.values()),
        partitions=tuple(open_partitions.values()),
        jobs=tuple(sorted(jobs, key=lambda job: (job.is_running, -job.priority, _number(job.id)))),
        sees_all_jobs="jobs" not in _setting(texts.get("config", ""), "PrivateData").split(","),
    )


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


def _rows(text: str, width: int) -> Iterator[list[str]]:
    for line in text.split("\n"):
        fields = line.split(SEPARATOR)
        if len(fields) == width + 1:  # each field ends with a separator
            yield [field.strip() for field in fields[:width]]


def _node(row: list[str], partition: str) -> NodeUse:
    name, _, state, flags, cpus, gres, used, memory, taken, *_ = row
    is_up, is_planned = _standing(state.lower(), flags.lower())
    _, idle, _, total = map(_number, cpus.split("/")) if cpus.count("/") == 3 else (0, 0, 0, 0)
    return NodeUse(
        name=name,
        partitions=(partition,),
        state=state,
        is_up=is_up,
        is_planned=is_planned,
        cpus=total,
        free_cpus=idle if is_up else 0,
        memory_mb=_number(memory),
        free_memory_mb=max(_number(memory) - _number(taken), 0) if is_up else 0,
        gpus=gpus_in(gres),
        free_gpus=free_gpus(gres, used, is_idle=0 < total == idle) if is_up and idle else {},
    )


@functools.lru_cache(maxsize=512)
def _standing(state: str, flags: str) -> tuple[bool, bool]:
    """Whether the node takes jobs, and whether it is kept for one: `mixed-`, `idle~`, `idle+drain`."""
    base = state.rstrip("*~#!%$@^-+")
    mark = state[len(base) :].replace("+", "")
    names = {flag.rstrip("*~#!%$@^-") for flag in flags.split("+") if flag}
    is_up = base in _TAKING_JOBS and set(mark) <= _HARMLESS_MARKS and names <= _HARMLESS_FLAGS
    return is_up, base == "planned" or "-" in mark or "planned" in names


def _job(row: list[str], user: str) -> QueuedJob:
    job, index, state, owner, partition, priority, nodes, cpus, tasks, total, *rest = row
    per_job, per_node, per_task, limit, start, end, reason = rest
    is_running = state == "RUNNING"
    count = max(_number(nodes), 1)
    gpus, kind = job_gpus(total, ((per_job, 1), (per_node, count), (per_task, max(_number(tasks), 1))))
    amounts = amounts_of(total)
    return QueuedJob(
        id=job,
        is_running=is_running,
        is_mine=owner == user,
        partitions=tuple(partition.split(",")),
        tasks=max(_count(index.partition("%")[0]), 1),
        waits_for_resources=not is_running and re.match(_FOR_RESOURCES, reason) is not None,
        priority=_number(priority),
        nodes=count,
        gpus=gpus,
        gpu_type=kind,
        cpus=_number(amounts.get("cpu", cpus)),
        memory_mb=memory_mb(amounts.get("mem", "")),
        limit_seconds=_limit(limit),
        reason="" if reason == "None" or is_running else reason,
        starts=float(_number(start)) or None if not is_running else None,
        ends=float(_number(end)) or None if is_running else None,
    )


# Amounts. A queue has thousands of jobs with the same few texts, so what these yield is cached.


@functools.lru_cache(maxsize=4096)
def gpus_in(text: str) -> dict[str, int]:
    """GPUs by type in `gpu:a100:4(S:0-1),gpu:2(IDX:0,3)`, `gres:gpu:4` or `gres/gpu:a100=2`."""
    return {kind: count for (name, kind), count in _gres(text).items() if name == "gpu"}


@functools.lru_cache(maxsize=4096)
def _gres(text: str) -> dict[tuple[str, str], int]:
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
    total, taken = gpus_in(gres), _gres(used)
    if not any(name == "gpu" for name, _ in taken):
        return dict(total) if is_idle else {}
    free = {kind: max(count - taken.get(("gpu", kind), 0), 0) for kind, count in total.items()}
    untyped = taken.get(("gpu", ""), 0) if "" not in total else 0
    shards, shards_used = (sum(n for (name, _), n in what.items() if name == "shard") for what in (_gres(gres), taken))
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


@functools.lru_cache(maxsize=512)
def _count(indices: str) -> int:
    """How many numbers are in `0-3,8` or `[0-98:2]`."""
    spans = re.findall(r"(\d+)(?:-(\d+)(?::(\d+))?)?", indices)
    return sum((int(last or first) - int(first)) // int(step or 1) + 1 for first, last, step in spans)


@functools.lru_cache(maxsize=512)
def _limit(text: str) -> int | None:
    return None if text in _NO_LIMIT else clock_seconds(text)


def _number(text: str) -> int:
    """`64` of `64+`; 2048 of `2K`; 0 without digits."""
    if text.isdecimal():
        return int(text)
    match = re.match(r"(\d+)(K?)", text)
    return int(match[1]) * (1024 if match[2] else 1) if match else 0
