"""How full a Slurm cluster is, by one `sinfo` and one `squeue`. Partitions are asked less often."""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from serried.base.errors import MissingProgramError, SchedulerUnreachable
from serried.base.text import clock_seconds, memory_bytes
from serried.schedulers import missing_command, scrub
from serried.schedulers.client import query
from serried.schedulers.clusters import machine
from serried.schedulers.occupancy import NodeUse, Occupancy, PartitionUse, QueuedJob
from serried.schedulers.slurm import site
from serried.schedulers.survey import GLANCE_SECONDS, Ask, changed_at, together


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


SEPARATOR = "\x1f"
NODE_FIELDS = (
    "NodeList", "Partition", "StateLong", "StateComplete", "CPUsState", "Gres", "GresUsed", "Memory", "AllocMem",
    "Available", "Time",
)  # fmt: skip
SINFO = (
    *("sinfo", "--all", "--noheader", "--Node"),
    "--Format=" + ",".join(f"{name}:{SEPARATOR}" for name in NODE_FIELDS),
)
"""A line for each node in each of its partitions."""
JOB_FIELDS = (
    "ArrayJobID", "ArrayTaskID", "State", "UserName", "Partition", "PriorityLong", "NumNodes", "NumCPUs", "NumTasks",
    "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-task", "TimeLimit", "StartTime", "EndTime", "Reason",
)  # fmt: skip
SQUEUE = (
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


def ask(environ: Mapping[str, str], user: str, seconds: float) -> dict[str, str]:
    deadline = time.monotonic() + seconds
    ours = {**scrub(environ), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
    ours = {name: value for name, value in ours.items() if not name.startswith("SINFO_")}
    texts = {argv[0]: _answer(argv, ours, deadline) for argv in (SINFO, SQUEUE)}
    if not any(SEPARATOR in text for text in (texts["sinfo"], texts["squeue"])):
        raise SchedulerUnreachable("this `sinfo` cannot divide its fields; Slurm 20.11 or later is needed")
    glance = site.asker_of(environ, together(GLANCE_SECONDS, machine.run), GLANCE_SECONDS)
    return {**texts, **_asked_rarely(user, glance)}


def _asked_rarely(user: str, glance: Ask) -> dict[str, str]:
    """Answers of five minutes serve. Not every site lets its users read the accounts."""
    names = []
    for group in os.getgroups():
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(group).gr_name)
    return {
        "partitions": glance(site.PARTITIONS),
        "config": glance(site.CONFIG),
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


def read(texts: Mapping[str, str], user: str) -> Occupancy:
    shown = site.shown_partitions(texts.get("partitions", ""))
    associations = [*site.rows(texts.get("assoc", ""), 2)]
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
    return "jobs" in site.setting(config, "PrivateData").split(",")


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
