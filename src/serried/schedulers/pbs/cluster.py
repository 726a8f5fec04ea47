"""A PBS cluster: its queues and limits, the job around us, what is free and who waits.

Functions that ask get the environment; the others are parsers: text in, values out. The input is text, because the
JSON of some versions is invalid as soon as one value is odd.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
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
    Command,
    Greeting,
    Inside,
    Learnt,
    asker,
    run_command,
    together,
)
from serried.schema import names
from serried.schema.reasons import Reason

QUEUES = ("qstat", "-Q", "-f")
SERVER = ("qstat", "-B", "-f")
NODES = ("pbsnodes", "-a")
NODE_USE = ("pbsnodes", "-av")
QUEUED_JOBS = ("qstat", "-a", "-s", "-w")
"""A line for each job and each array, and one with its comment. All attributes of a job (`-f`) would be some kB."""
OWN_JOBS = ("qstat", "-f", "-w")
"""Followed by the user's jobs that wait."""
MOST_OWN = 50

Attributes = dict[str, list[str]]
"""An attribute may have several lines: `max_run`."""

_UP = {"free", "job-busy", "job-exclusive"}
_ROW = re.compile(
    r"(?P<id>\d+(?:\[\d*\])?\.\S+)\s+(?P<user>\S+)\s+(?P<queue>\S+)\s+\S+\s+\S+\s+(?P<nodes>\S+)\s+(?P<cpus>\S+)"
    r"\s+(?P<memory>\S+)\s+(?P<limit>\S+)\s+(?P<state>[A-Z])\s+\S+"
)
_CUT = 15
"""Characters of a user's name that a line has room for."""


def identity(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The settings that select a server."""
    return tuple(environ.get(name, "") for name in ("PBS_SERVER", "PBS_CONF_FILE"))


def describe(environ: Mapping[str, str], command: Command = run_command) -> dict[str, Any]:
    """PBS's queues and nodes as a profile table; empty if PBS does not answer."""
    ask = asker(environ, command, identity(environ))
    queues = ask(QUEUES)
    return described(queues, ask(SERVER), ask(NODES)) if queues else {}


def own_name(environ: Mapping[str, str], command: Command = run_command, *, seconds: float = ASKING_SECONDS) -> str:
    return ""


def array_limits(environ: Mapping[str, str], command: Command = run_command) -> ArrayLimits:
    _, server = _server(asker(environ, command, identity(environ))(SERVER))
    size = first(server, "max_array_size")
    return ArrayLimits(tasks=int(size) if size.isdecimal() else None, in_ranges=True)


def is_throwaway(environ: Mapping[str, str]) -> bool:
    return False


def learn(environ: Mapping[str, str], user: str, command: Command | None = run_command) -> Learnt | None:
    """All that a profile may hold; None when PBS does not answer."""
    queues, server, nodes = map(asker(environ, command, identity(environ), kept_seconds=0.0), (QUEUES, SERVER, NODES))
    table = described(queues, server, nodes)
    if "partitions" not in table:
        return None
    sources = {
        "partitions": "`qstat -Q -f` and `pbsnodes -a`",
        "gpus_per_node": "`pbsnodes -a`",
        "cpus_per_node": "`pbsnodes -a`",
        "default_partition": "`qstat -B -f`",
    }
    return Learnt(_server(server)[0] or "pbs", table, {key: sources[key] for key in table})


def greeting(user: str) -> tuple[tuple[str, ...], str]:
    return SERVER, ""


def read_greeting(text: str) -> Greeting:
    _, server = _server(text)
    keys = {"max_queued": "your submitted jobs", "max_run": "your running jobs"}
    most = {key: re.findall(r"u:PBS_GENERIC=(\d+)", "\n".join(server.get(key, []))) for key in keys}
    limits = tuple((what, int(most[key][0]), None) for key, what in keys.items() if most[key])
    return Greeting(first(server, "pbs_version"), limits=limits)


def described(queues: str, server: str, nodes: str) -> dict[str, Any]:
    """The profile's table from what `QUEUES`, `SERVER` and `NODES` printed."""
    hosts = dict(blocks(nodes, r"(\S+)"))
    table: dict[str, Any] = {}
    found = {name: _queue(name, queue, hosts) for name, queue in blocks(queues, r"Queue: (\S+)") if is_execution(queue)}
    if found and all(found.values()):  # a queue of which nothing is known would seem not to be there
        table["partitions"] = found
    if hosts:
        table["gpus_per_node"] = max(amount_of(host, "ngpus") for host in hosts.values())
        if cpus := max(amount_of(host, "ncpus") for host in hosts.values()):
            table["cpus_per_node"] = cpus
    if default := first(_server(server)[1], "default_queue"):
        table["default_partition"] = default
    return table


def is_execution(queue: Attributes) -> bool:
    """A routing queue is a door to others, whose limits count."""
    return first(queue, "queue_type") == "Execution" and first(queue, "enabled") == "True"


def _queue(name: str, queue: Attributes, hosts: Mapping[str, Attributes]) -> dict[str, Any]:
    """Its limits. What a job may have in all is no limit for a node."""
    own = hosts_of(name, hosts)
    limits: dict[str, Any] = {}
    if own:
        limits["gpus"] = max(amount_of(host, "ngpus") for host in own)
        limits["cpus"] = max(amount_of(host, "ncpus") for host in own)
        limits["mem"] = f"{max(memory_mb(first(host, 'resources_available.mem')) for host in own)}M"
        limits["nodes"] = len({first(host, "resources_available.host") or id(host) for host in own})
    if walltime := first(queue, "resources_max.walltime"):
        limits["time"] = walltime
    for key, resource in (("nodes", "nodect"), ("total_gpus", "ngpus")):
        most = first(queue, f"resources_max.{resource}")
        if most.isdecimal():
            limits[key] = min(int(most), limits.get(key, int(most)))
    # Jobs of one user that run: `max_run = [u:PBS_GENERIC=2]`, or the older `max_user_run = 2`.
    jobs = re.findall(r"u:PBS_GENERIC=(\d+)", "\n".join(queue.get("max_run", [])))
    jobs += re.findall(r"^\d+$", first(queue, "max_user_run"))
    if most_jobs := min(map(int, jobs), default=0):
        limits["jobs"] = most_jobs
    return limits


def hosts_of(queue: str, hosts: Mapping[str, Attributes]) -> list[Attributes]:
    """The nodes that belong to the queue, in the old way or the new one; if none does, those that belong to none."""
    tied = [
        (host, {first(host, "queue"), *map(str.strip, first(host, "resources_available.Qlist").split(","))} - {""})
        for host in hosts.values()
    ]
    return [host for host, queues in tied if queue in queues] or [host for host, queues in tied if not queues]


def amount_of(host: Attributes, resource: str, state: str = "available") -> int:
    return _number(first(host, f"resources_{state}.{resource}"))


def memory_mb(text: str) -> int:
    """MiB of `24684084kb`, rounded down."""
    return int((memory_bytes(text) or 0) / 1024**2)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def first(attributes: Attributes, name: str) -> str:
    return attributes.get(name, [""])[0]


def _server(text: str) -> tuple[str, Attributes]:
    """Its name and attributes in what `SERVER` printed; empty if it did not answer."""
    return next(blocks(text, r"Server: (\S+)"), ("", {}))


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
    job, task = environ["PBS_JOBID"], environ.get("PBS_TASKNUM", "1")
    if task.lstrip("0") != "1":
        hint = "start it once, without `pbsdsh`; `--cluster local` uses this node alone"
        raise UsageError(f"this is task {task} of job {job}, and each of them would start all ranks", hint=hint)
    try:
        lines = Path(environ.get("PBS_NODEFILE", "")).read_text(encoding="utf-8").split()
    except OSError as error:
        hint = "only the job's first node has it; `--cluster local` uses this node alone"
        raise UsageError(f"the node file of job {job} cannot be read here: {error.strerror}", hint=hint) from None
    programs = environ.get("PBS_EXEC", "/opt/pbs") + "/bin"
    path = os.pathsep.join((environ.get("PATH", os.defpath), programs))
    asked = {**scrub(environ), "PATH": path, "LC_ALL": "C"}
    result = query(("qstat", "-f", "-w", job), asked)
    if result.status:
        raise SchedulerUnreachable(f"PBS does not report the resources of job {job}", details=result.stderr)
    own = {name: value for name, value in environ.items() if name.startswith("PBS_")}
    return described_job(result.stdout, job, lines, time.time())._replace(variables=own)


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


def ask_occupancy(environ: Mapping[str, str], user: str, seconds: float) -> dict[str, str]:
    """`pbsnodes` and `qstat`; queues and server are asked less often."""
    deadline = time.monotonic() + seconds
    ours = {**scrub(environ), "LC_ALL": "C"}

    def answer(argv: tuple[str, ...], *, is_strict: bool = True) -> str:
        try:
            result = query(argv, ours, max(deadline - time.monotonic(), 1.0))
        except MissingProgramError as error:
            raise missing_command("pbs", argv[0]) from error
        if result.status and is_strict:
            raise SchedulerUnreachable(f"the PBS server does not answer `{argv[0]}`", details=result.stderr)
        return result.stdout

    texts = {"nodes": answer(NODE_USE), "jobs": answer(QUEUED_JOBS), "own": ""}
    if waiting := [job.id for job in _queued_jobs(texts["jobs"], "", user) if job.is_mine and not job.is_running]:
        # A job that has ended meanwhile changes the exit status alone.
        texts["own"] = answer((*OWN_JOBS, *waiting[:MOST_OWN]), is_strict=False)
    glance = asker(environ, together(GLANCE_SECONDS, run_command), identity(environ), GLANCE_SECONDS)
    return {**texts, "queues": glance(QUEUES), "server": glance(SERVER)}


def read_occupancy(texts: Mapping[str, str], user: str) -> Occupancy:
    queues = dict(blocks(texts.get("queues", ""), r"Queue: (\S+)"))
    _, server = _server(texts.get("server", ""))
    hosts = dict(blocks(texts.get("nodes", ""), r"(\S+)"))
    own = {name: set(map(id, hosts_of(name, hosts))) for name in queues}
    return Occupancy(
        nodes=tuple(
            _node(name, host, tuple(queue for queue in queues if id(host) in own[queue]))
            for name, host in hosts.items()
        ),
        partitions=tuple(
            PartitionUse(
                name,
                is_open=first(queue, "started") == "True",
                is_default=name == first(server, "default_queue"),
                limit_seconds=clock_seconds(first(queue, "resources_max.walltime")),
            )
            for name, queue in queues.items()
            if is_execution(queue)
        ),
        jobs=tuple(_queued_jobs(texts.get("jobs", ""), texts.get("own", ""), user)),
        sees_all_jobs=first(server, "query_other_jobs") != "False",
    )


def _node(name: str, host: Attributes, queues: tuple[str, ...]) -> NodeUse:
    states = set(first(host, "state").split(","))
    is_up = states <= _UP
    has_room = is_up and "job-exclusive" not in states
    cpus, gpus = amount_of(host, "ncpus"), amount_of(host, "ngpus")
    free_cpus = max(cpus - amount_of(host, "ncpus", "assigned"), 0) if has_room else 0
    free_gpus = max(gpus - amount_of(host, "ngpus", "assigned"), 0) if free_cpus else 0
    memory, used = (memory_mb(first(host, f"resources_{state}.mem")) for state in ("available", "assigned"))
    kind = first(host, "resources_available.gpu_type")
    return NodeUse(
        name=name,
        partitions=queues,
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


def _queued_jobs(listed: str, own: str, user: str) -> Iterator[QueuedJob]:
    """`own` has all attributes of the user's jobs that wait, in `qstat -f`: GPUs, why a job is held, an estimate."""
    known = dict(parse.attributes_of(own))
    lines = listed.splitlines()
    for line, comment in zip(lines, [*lines[1:], ""]):
        row = _ROW.match(line)
        if row is None:
            continue
        is_running = parse.STATES.get(row["state"]) == names.RUNNING
        reason = comment.strip().strip("-").strip() if comment.startswith(" ") else ""
        job = QueuedJob(
            id=row["id"],
            is_running=is_running,
            is_mine=row["user"] == user[:_CUT],
            partitions=(row["queue"],),
            waits_for_resources=row["state"] == "Q" and _is_for_resources(reason),
            nodes=max(_number(row["nodes"]), 1),
            cpus=_number(row["cpus"]),
            memory_mb=memory_mb(row["memory"]),
            # Hours and minutes.
            limit_seconds=clock_seconds(f"{row['limit']}:00") if ":" in row["limit"] else None,
            reason="" if is_running else reason,
        )
        if job.id in known:
            attributes = known[job.id]
            described = parse.jobs_of({job.id: attributes})
            job = job._replace(
                gpus=_number(attributes.get("Resource_List.ngpus", "")),
                reason=described[0].reason if described else job.reason,
                starts=parse.epoch(attributes.get("estimated.start_time", "")),
            )
        yield job


@functools.lru_cache(maxsize=4096)
def _is_for_resources(reason: str) -> bool:
    """Whether a job with this comment starts once enough is free."""
    patterns = ((pattern.replace("[", "[[]"), code) for pattern, code, _ in parse.REASONS)
    return next((code for pattern, code in patterns if fnmatchcase(reason, pattern)), None) is Reason.QUEUED
