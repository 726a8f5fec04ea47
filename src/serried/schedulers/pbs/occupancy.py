"""How full a PBS cluster is, by `pbsnodes` and `qstat`. Queues are asked less often."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from serried.base.errors import MissingProgramError, SchedulerUnreachable
from serried.base.text import clock_seconds
from serried.schedulers import missing_command, scrub
from serried.schedulers.client import query
from serried.schedulers.clusters import machine
from serried.schedulers.occupancy import NodeUse, Occupancy, PartitionUse, QueuedJob
from serried.schedulers.pbs import parse, site
from serried.schedulers.pbs.site import Attributes, blocks, first
from serried.schedulers.survey import GLANCE_SECONDS, together
from serried.schema import names
from serried.schema.reasons import Reason

NODES = ("pbsnodes", "-av")
JOBS = ("qstat", "-a", "-s", "-w")
"""A line for each job and each array, and one with its comment. All attributes of a job (`-f`) would be some kB."""
OWN = ("qstat", "-f", "-w")
"""Followed by the user's jobs that wait."""
MOST_OWN = 50

_UP = {"free", "job-busy", "job-exclusive"}
_ROW = re.compile(
    r"(?P<id>\d+(?:\[\d*\])?\.\S+)\s+(?P<user>\S+)\s+(?P<queue>\S+)\s+\S+\s+\S+\s+(?P<nodes>\S+)\s+(?P<cpus>\S+)"
    r"\s+(?P<memory>\S+)\s+(?P<limit>\S+)\s+(?P<state>[A-Z])\s+\S+"
)
_CUT = 15
"""Characters of a user's name that a line has room for."""


def identity(environ: Mapping[str, str]) -> tuple[str, ...]:
    return site.identity(environ)


def ask(environ: Mapping[str, str], user: str, seconds: float) -> dict[str, str]:
    deadline = time.monotonic() + seconds
    ours = {**scrub(environ), "LC_ALL": "C"}
    texts = {"nodes": _answer(NODES, ours, deadline), "jobs": _answer(JOBS, ours, deadline), "own": ""}
    if waiting := [job.id for job in _jobs(texts["jobs"], "", user) if job.is_mine and not job.is_running]:
        # A job that has ended meanwhile changes the exit status alone.
        texts["own"] = _answer((*OWN, *waiting[:MOST_OWN]), ours, deadline, is_strict=False)
    glance = site.asker_of(environ, together(GLANCE_SECONDS, machine.run), GLANCE_SECONDS)
    return {**texts, "queues": glance(site.QUEUES), "server": glance(site.SERVER)}


def _answer(argv: tuple[str, ...], environ: Mapping[str, str], deadline: float, *, is_strict: bool = True) -> str:
    try:
        result = query(argv, environ, max(deadline - time.monotonic(), 1.0))
    except MissingProgramError as error:
        raise missing_command("pbs", argv[0]) from error
    if result.status and is_strict:
        raise SchedulerUnreachable(f"the PBS server does not answer `{argv[0]}`", details=result.stderr)
    return result.stdout


def read(texts: Mapping[str, str], user: str) -> Occupancy:
    queues = dict(blocks(texts.get("queues", ""), r"Queue: (\S+)"))
    server = next((attributes for _, attributes in blocks(texts.get("server", ""), r"Server: (\S+)")), {})
    hosts = dict(blocks(texts.get("nodes", ""), r"(\S+)"))
    own = {name: set(map(id, site.hosts_of(name, hosts))) for name in queues}
    return Occupancy(
        nodes=tuple(
            _node(name, host, [queue for queue in queues if id(host) in own[queue]]) for name, host in hosts.items()
        ),
        partitions=tuple(
            _partition(name, queue, is_default=name == first(server, "default_queue"))
            for name, queue in queues.items()
            if site.is_execution(queue)
        ),
        jobs=tuple(_jobs(texts.get("jobs", ""), texts.get("own", ""), user)),
        sees_all_jobs=first(server, "query_other_jobs") != "False",
    )


def _partition(name: str, queue: Attributes, *, is_default: bool) -> PartitionUse:
    limit = clock_seconds(first(queue, "resources_max.walltime"))
    return PartitionUse(name, first(queue, "started") == "True", is_default, limit)


def _node(name: str, host: Attributes, queues: Sequence[str]) -> NodeUse:
    states = set(first(host, "state").split(","))
    is_up = states <= _UP
    has_room = is_up and "job-exclusive" not in states
    kind = first(host, "resources_available.gpu_type")
    cpus, free_cpus = _amounts(host, "ncpus", has_room=has_room)
    gpus, free_gpus = _amounts(host, "ngpus", has_room=has_room)
    memory, used = (site.memory_mb(first(host, f"resources_{what}.mem")) for what in ("available", "assigned"))
    return NodeUse(
        name=name,
        partitions=tuple(queues),
        state=first(host, "state"),
        is_up=is_up,
        is_planned=False,
        cpus=cpus,
        free_cpus=free_cpus,
        memory_mb=memory,
        free_memory_mb=max(memory - used, 0) if has_room else 0,
        gpus={kind: gpus} if gpus else {},
        free_gpus={kind: free_gpus} if gpus and free_cpus else {},
    )


def _amounts(host: Attributes, resource: str, *, has_room: bool) -> tuple[int, int]:
    """All of a resource, and the free part."""
    available, assigned = (_number(first(host, f"resources_{what}.{resource}")) for what in ("available", "assigned"))
    return available, max(available - assigned, 0) if has_room else 0


def _jobs(listed: str, own: str, user: str) -> Iterator[QueuedJob]:
    """`own` has all attributes of the user's jobs that wait, in `qstat -f`."""
    known = dict(parse.attributes_of(own))
    lines = listed.splitlines()
    for line, comment in zip(lines, [*lines[1:], ""], strict=False):
        if row := _ROW.match(line):
            reason = comment.strip().strip("-").strip() if comment.startswith(" ") else ""
            job = _job(row.groupdict(), reason, user)
            yield _with_attributes(job, known[job.id]) if job.id in known else job


def _job(row: Mapping[str, str], reason: str, user: str) -> QueuedJob:
    is_running = parse.STATES.get(row["state"]) == names.RUNNING
    return QueuedJob(
        id=row["id"],
        is_running=is_running,
        is_mine=row["user"] == user[:_CUT],
        partitions=(row["queue"],),
        waits_for_resources=row["state"] == "Q" and _is_for_resources(reason),
        nodes=max(_number(row["nodes"]), 1),
        cpus=_number(row["cpus"]),
        memory_mb=site.memory_mb(row["memory"]),
        limit_seconds=_limit(row["limit"]),
        reason="" if is_running else reason,
    )


@functools.lru_cache(maxsize=4096)
def _is_for_resources(reason: str) -> bool:
    """Whether a job with this comment starts once enough is free."""
    patterns = ((pattern.replace("[", "[[]"), code) for pattern, code, _ in parse.REASONS)
    return next((code for pattern, code in patterns if fnmatchcase(reason, pattern)), None) is Reason.QUEUED


def _with_attributes(job: QueuedJob, attributes: Mapping[str, str]) -> QueuedJob:
    """With the GPUs, the reason of a held job, and the scheduler's estimate."""
    own = parse.jobs_of({job.id: attributes})
    return job._replace(
        gpus=_number(attributes.get("Resource_List.ngpus", "")),
        reason=own[0].reason if own else job.reason,
        starts=parse.epoch(attributes.get("estimated.start_time", "")),
    )


def _limit(text: str) -> int | None:
    """Seconds of `12:30`, hours and minutes."""
    return clock_seconds(f"{text}:00") if ":" in text else None


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
