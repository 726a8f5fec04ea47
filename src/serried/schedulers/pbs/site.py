"""Facts of a PBS cluster, as a profile's table, and of the job around us. Parsers are pure: text in, values out.

The input is text, because the JSON of some versions is invalid as soon as one value is odd.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from serried.base.errors import SchedulerUnreachable, UsageError
from serried.base.text import clock_seconds, memory_bytes
from serried.schedulers import scrub
from serried.schedulers.clusters import machine
from serried.schedulers.clusters.machine import Command
from serried.schedulers.pbs import parse
from serried.schedulers.survey import ASKING_SECONDS, ArrayLimits, Ask, Inside, Learnt, asker

QUEUES = ("qstat", "-Q", "-f")
SERVER = ("qstat", "-B", "-f")
NODES = ("pbsnodes", "-a")

MEMORY = "resources_available.mem"

Attributes = dict[str, list[str]]
"""An attribute may have several lines: `max_run`."""


def describe(environ: Mapping[str, str], command: Command = machine.run) -> dict[str, Any]:
    """PBS's queues and nodes as a profile table; empty if PBS does not answer."""
    ask = asker_of(environ, command)
    queues = ask(QUEUES)
    return described(queues, ask(SERVER), ask(NODES)) if queues else {}


def own_name(
    environ: Mapping[str, str],  # noqa: ARG001 - its job ids hold the server's name
    command: Command = machine.run,  # noqa: ARG001
    *,
    seconds: float = ASKING_SECONDS,  # noqa: ARG001
) -> str:
    return ""


def array_limits(environ: Mapping[str, str], command: Command = machine.run) -> ArrayLimits:
    return ArrayLimits(tasks=array_limit(asker_of(environ, command)(SERVER)), in_ranges=True)


def is_throwaway(environ: Mapping[str, str]) -> bool:  # noqa: ARG001 - no lab starts a PBS
    return False


def learn(environ: Mapping[str, str], user: str, command: Command = machine.run) -> Learnt | None:  # noqa: ARG001 - queues are everybody's
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
