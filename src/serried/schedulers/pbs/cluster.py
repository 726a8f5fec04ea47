"""Facts of a PBS cluster, as a profile's table, and of the job around us. Parsers are pure: text in, values out.

The input is text, because the JSON of some versions is invalid as soon as one value is odd.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from serried.base.errors import MissingProgramError, SchedulerUnreachable, UsageError
from serried.base.text import clock_seconds, memory_bytes
from serried.schedulers import missing_command, scrub
from serried.schedulers.client import query
from serried.schedulers.occupancy import NodeUse, Occupancy, PartitionUse, QueuedJob
from serried.schedulers.pbs import parse
from serried.schedulers.survey import (
    ASKING_SECONDS,
    GLANCE_SECONDS,
    ArrayLimits,
    Ask,
    Command,
    Inside,
    Learnt,
    asker,
    run_command,
    together,
)
from serried.schema import names
from serried.schema.reasons import Reason

NODE_USE = ("pbsnodes", "-av")
QUEUED_JOBS = ("qstat", "-a", "-s", "-w")
"""A line for each job and each array, and one with its comment. All attributes of a job (`-f`) would be some kB."""
OWN_JOBS = ("qstat", "-f", "-w")
"""Followed by the user's jobs that wait."""
MOST_OWN = 50

_UP = {"free", "job-busy", "job-exclusive"}
_ROW = re.compile(
    r"(?P<id>\d+(?:\[\d*\])?\.\S+)\s+(?P<user>\S+)\s+(?P<queue>\S+)\s+\S+\s+\S+\s+(?P<nodes>\S+)\s+(?P<cpus>\S+)"
    r"\s+(?P<memory>\S+)\s+(?P<limit>\S+)\s+(?P<state>[A-Z])\s+\S+"
)
_CUT = 15
"""Characters of a user's name that a line has room for."""


def ask_occupancy(environ: Mapping[str, str], user: str, seconds: float) -> dict[str, str]:
    deadline = time.monotonic() + seconds
    ours = {**scrub(environ), "LC_ALL": "C"}
    texts = {"nodes": _answer(NODE_USE, ours, deadline), "jobs": _answer(QUEUED_JOBS, ours, deadline), "own": ""}
    if waiting := [job.id for job in _queued_jobs(texts["jobs"], "", user) if job.is_mine and not job.is_running]:
        # A job that has ended meanwhile changes the exit status alone.
        texts["own"] = _answer((*OWN_JOBS, *waiting[:MOST_OWN]), ours, deadline, is_strict=False)
    glance = asker_of(environ, together(GLANCE_SECONDS, run_command), GLANCE_SECONDS)
    return {**texts, "queues": glance(QUEUES), "server": glance(SERVER)}


def _answer(argv: tuple[str, ...], environ: Mapping[str, str], deadline: float, *, is_strict: bool = True) -> str:
    try:
        result = query(argv, environ, max(deadline - time.monotonic(), 1.0))
    except MissingProgramError as error:
        raise missing_command("pbs", argv[0]) from error
    if result.status and is_strict:
        raise SchedulerUnreachable(f"the PBS server does not answer `{argv[0]}`", details=result.stderr)
    return result.stdout


def read_occupancy(texts: Mapping[str, str], user: str) -> Occupancy:
    queues = dict(blocks(texts.get("queues", ""), r"Queue: (\S+)"))
    server = next((attributes for _, attributes in blocks(texts.get("server", ""), r"Server: (\S+)")), {})
    hosts = dict(blocks(texts.get("nodes", ""), r"(\S+)"))
    own = {name: set(map(id, hosts_of(name, hosts))) for name in queues}
    return Occupancy(
        nodes=tuple(
            _node(name, host, [queue for queue in queues if id(host) in own[queue]]) for name, host in hosts.items()
        ),
        partitions=tuple(
            _partition(name, queue, is_default=name == first(server, "default_queue"))
            for name, queue in queues.items()
            if is_execution(queue)
        ),
        jobs=tuple(_queued_jobs(texts.get("jobs", ""), texts.get("own", ""), user)),
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
    memory, used = (memory_mb(first(host, f"resources_{what}.mem")) for what in ("available", "assigned"))
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


def _queued_jobs(listed: str, own: str, user: str) -> Iterator[QueuedJob]:
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
        memory_mb=memory_mb(row["memory"]),
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


QUEUES = ("qstat", "-Q", "-f")
SERVER = ("qstat", "-B", "-f")
NODES = ("pbsnodes", "-a")

MEMORY = "resources_available.mem"

Attributes = dict[str, list[str]]
"""An attribute may have several lines: `max_run`."""


def describe(environ: Mapping[str, str], command: Command = run_command) -> dict[str, Any]:
    """PBS's queues and nodes as a profile table; empty if PBS does not answer."""
    ask = asker_of(environ, command)
    queues = ask(QUEUES)
    return described(queues, ask(SERVER), ask(NODES)) if queues else {}


def own_name(
    environ: Mapping[str, str],  # noqa: ARG001 - its job ids hold the server's name
    command: Command = run_command,  # noqa: ARG001
    *,
    seconds: float = ASKING_SECONDS,  # noqa: ARG001
) -> str:
    return ""


def array_limits(environ: Mapping[str, str], command: Command = run_command) -> ArrayLimits:
    return ArrayLimits(tasks=array_limit(asker_of(environ, command)(SERVER)), in_ranges=True)


def is_throwaway(environ: Mapping[str, str]) -> bool:  # noqa: ARG001 - no lab starts a PBS
    return False


def learn(environ: Mapping[str, str], user: str, command: Command = run_command) -> Learnt | None:  # noqa: ARG001 - queues are everybody's
    """All that a profile may hold; None when PBS does not answer."""
    queues, server, nodes = (command([*argv], ASKING_SECONDS, environ) or "" for argv in (QUEUES, SERVER, NODES))
    table = described(queues, server, nodes)
    if "partitions" not in table:
        return None
    sources = {
        "partitions": "`qstat -Q -f` and `pbsnodes -a`",
        "gpus_per_node": "`pbsnodes -a`",
        "cpus_per_node": "`pbsnodes -a`",
        "default_partition": "`qstat -B -f`",
    }
    return Learnt(server_name(server) or "pbs", table, {key: sources[key] for key in table})


def asker_of(environ: Mapping[str, str], command: Command, seconds: float = ASKING_SECONDS) -> Ask:
    return asker(environ, command, identity(environ), seconds)


def identity(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The settings that select a server."""
    return tuple(environ.get(name, "") for name in ("PBS_SERVER", "PBS_CONF_FILE"))


def described(queues: str, server: str, nodes: str) -> dict[str, Any]:
    """The profile's table from what `QUEUES`, `SERVER` and `NODES` printed."""
    hosts = dict(blocks(nodes, r"(\S+)"))
    table: dict[str, Any] = {}
    found = {name: _queue(name, queue, hosts) for name, queue in blocks(queues, r"Queue: (\S+)") if is_execution(queue)}
    if all(found.values()):  # a queue of which nothing is known would seem not to be there
        table["partitions"] = found
    if hosts:
        table["gpus_per_node"] = max(amount_of(host, "ngpus") for host in hosts.values())
        table["cpus_per_node"] = max(amount_of(host, "ncpus") for host in hosts.values())
    for _, attributes in blocks(server, r"Server: (\S+)"):
        if default := first(attributes, "default_queue"):
            table["default_partition"] = default
    return {key: value for key, value in table.items() if value or key == "gpus_per_node"}


def server_name(server: str) -> str | None:
    return next((name for name, _ in blocks(server, r"Server: (\S+)")), None)


def array_limit(server: str) -> int | None:
    """How many tasks an array may have."""
    sizes = (first(attributes, "max_array_size") for _, attributes in blocks(server, r"Server: (\S+)"))
    return next((int(size) for size in sizes if size.isdecimal()), None)


def is_execution(queue: Attributes) -> bool:
    """A routing queue is a door to others, whose limits count."""
    return first(queue, "queue_type") == "Execution" and first(queue, "enabled") == "True"


def _queue(name: str, queue: Attributes, hosts: dict[str, Attributes]) -> dict[str, Any]:
    """Its limits. What a job may have in all is no limit for a node."""
    own = hosts_of(name, hosts)
    found: dict[str, Any] = {}
    if own:
        found["gpus"] = max(amount_of(host, "ngpus") for host in own)
        found["cpus"] = max(amount_of(host, "ncpus") for host in own)
        found["mem"] = f"{max(memory_mb(first(host, 'resources_available.mem')) for host in own)}M"
        found["nodes"] = len({first(host, "resources_available.host") or id(host) for host in own})
    if time := first(queue, "resources_max.walltime"):
        found["time"] = time
    for key, resource in (("nodes", "nodect"), ("total_gpus", "ngpus")):
        most = first(queue, f"resources_max.{resource}")
        if most.isdecimal():
            found[key] = min(int(most), found.get(key, int(most)))
    jobs = _jobs(queue)
    return {**found, **({"jobs": jobs} if jobs else {})}


def hosts_of(queue: str, hosts: dict[str, Attributes]) -> list[Attributes]:
    """The nodes that belong to the queue; where none does, those that belong to none."""
    tied = {name: _queues(host) for name, host in hosts.items()}
    own = [host for name, host in hosts.items() if queue in tied[name]]
    return own or [host for name, host in hosts.items() if not tied[name]]


def _queues(host: Attributes) -> set[str]:
    """The queues that a node is tied to, in the old way or the new one."""
    told = [first(host, "queue"), *first(host, "resources_available.Qlist").split(",")]
    return {name.strip() for name in told if name.strip()}


def _jobs(queue: Attributes) -> int | None:
    """How many jobs of one user run: `max_run = [u:PBS_GENERIC=2]`, or the older `max_user_run = 2`."""
    generic = [found[1] for line in queue.get("max_run", []) if (found := re.search(r"u:PBS_GENERIC=(\d+)", line))]
    older = first(queue, "max_user_run")
    told = [*generic, *([older] if older.isdecimal() else [])]
    return min(map(int, told)) if told else None


def amount_of(host: Attributes, resource: str) -> int:
    text = first(host, f"resources_available.{resource}")
    return int(text) if text.isdecimal() else 0


def memory_mb(text: str) -> int:
    """MiB of `24684084kb`, rounded down."""
    return int((memory_bytes(text) or 0) / 1024**2)


def first(attributes: Attributes, name: str) -> str:
    return attributes.get(name, [""])[0]


def blocks(text: str, head: str) -> Iterator[tuple[str, Attributes]]:
    """Yield (name, attributes) of each object. Attributes are indented; a leading tab continues a line."""
    name, attributes = "", Attributes()
    for line in text.replace("\n\t", "").splitlines():
        if found := re.fullmatch(head, line):
            if name:
                yield name, attributes
            name, attributes = found[1], Attributes()
        elif name and line.startswith("    "):
            key, equals, value = line.strip().partition(" = ")
            if equals:
                attributes.setdefault(key, []).append(value)
    if name:
        yield name, attributes


def inside(environ: Mapping[str, str]) -> Inside:
    """The job around us: its hosts are in the node file, `qstat` reports the rest."""
    from serried.schedulers.client import query

    job, task = environ["PBS_JOBID"], environ.get("PBS_TASKNUM", "1")
    if task.lstrip("0") != "1":
        raise UsageError(
            f"this is task {task} of job {job}, and each of them would start all ranks",
            hint="start it once, without `pbsdsh`; `--cluster local` uses this node alone",
        )
    try:
        lines = Path(environ.get("PBS_NODEFILE", "")).read_text(encoding="utf-8").split()
    except OSError as error:
        raise UsageError(
            f"the node file of job {job} cannot be read here: {error.strerror}",
            hint="only the job's first node has it; `--cluster local` uses this node alone",
        ) from None
    programs = environ.get("PBS_EXEC", "/opt/pbs") + "/bin"
    path = os.pathsep.join((environ.get("PATH", os.defpath), programs))
    asked = {**scrub(environ), "PATH": path, "LC_ALL": "C"}
    result = query(("qstat", "-f", "-w", job), asked)
    if result.status:
        raise SchedulerUnreachable(f"PBS does not report the resources of job {job}", details=result.stderr)
    own = {name: value for name, value in environ.items() if name.startswith("PBS_")}
    return replace(described_job(result.stdout, job, lines, time.time()), variables=own)


def described_job(text: str, job: str, lines: list[str], now: float) -> Inside:
    """The job in `qstat -f -w`, whose node file has `lines`. Pure."""
    attributes = dict(next(parse.attributes_of(text), ("", {}))[1])
    tasks = Counter(lines)
    chunks = attributes.get("Resource_List.select", "")
    gpus = [int(count) for count in re.findall(r"(?:^|:)ngpus=(\d+)", chunks.replace("+", ":"))]
    cpus = Counter[str]()
    for host, _, rest in (part.partition("/") for part in attributes.get("exec_host", "").split("+")):
        cpus[host] += int(rest.partition("*")[2] or 1)
    limit, used = (
        clock_seconds(attributes.get(f"{name}.walltime", "")) for name in ("Resource_List", "resources_used")
    )
    # What it has used is up to two minutes old.
    began = parse.epoch(attributes.get("stime", ""))
    used = max(used or 0, int(now - began) if began else 0)
    return Inside(
        scheduler="pbs",
        job=job,
        hosts=tuple(tasks),
        cpus=min(cpus.values(), default=1),
        gpus=min(gpus) if len(gpus) == chunks.count("+") + 1 else 0,
        tasks=min(tasks.values(), default=1),
        seconds=None if limit is None else max(1, limit - used),
        is_here=True,
        has_private_file=True,
    )
