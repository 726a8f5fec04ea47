"""The use of a job from `qstat -x -f`: CPU time and memory over all nodes. PBS records nothing of GPUs. Pure."""

from __future__ import annotations

import re

from serried.protocol import names
from serried.schedulers.accounts import JobAccount, NodeAccount, RequestOptions
from serried.schedulers.pbs import parse

OPTIONS = RequestOptions(memory="-l mem={}b", time="-l walltime={}", gpus="ngpus={}", nodes="select={}")
_MEMORY_OF_CHUNK = re.compile(r"\bmem=\w+")
_AMOUNT = re.compile(r"(\d+)(b|kb|mb|gb|tb)?", re.IGNORECASE)
_FACTORS = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+)")


def jobs(stdout: str) -> list[JobAccount]:
    """The jobs and tasks in `qstat -x -t -f -w`, without the arrays around tasks."""
    states = {job.id if job.task is None else job.id.replace("[]", f"[{job.task}]"): job for job in parse.jobs(stdout)}
    found = []
    for identity, attributes in parse.attributes_of(stdout):
        job = states.get(identity)
        if job is not None:
            found.append(_job(identity, attributes, job.state, job.nodes, job.ended))
    return found


def _job(
    identity: str, attributes: parse.Attributes, state: str, hosts: tuple[str, ...], ended: float | None
) -> JobAccount:
    requested, used = (
        {name.partition(".")[2]: value for name, value in attributes.items() if name.startswith(prefix)}
        for prefix in ("Resource_List.", "resources_used.")
    )
    nodes = max(_integer(requested.get("nodect", "")), 1)
    cpus, memory = _integer(requested.get("ncpus", "")), _bytes(used.get("mem", ""))
    cpu_seconds = _clock(used.get("cput", ""))
    measured = NodeAccount(
        host="",
        cpus=cpus / nodes or None,
        cpu_seconds=None if cpu_seconds is None else cpu_seconds / nodes,
        memory=None if memory is None else memory / nodes,
    )
    is_known = cpu_seconds is not None or memory is not None
    return JobAccount(
        id=identity,
        name=attributes.get("Job_Name", ""),
        state=state,
        options=_options(requested.get("select", "")),
        started=parse.epoch(attributes.get("stime", "")),
        ended=ended if state in names.ENDED else None,
        seconds=_clock(used.get("walltime", "")),
        limit_seconds=_clock(requested.get("walltime", "")),
        nodes=nodes,
        node_names=hosts,
        gpus=_integer(requested.get("ngpus", "")),
        cpus=cpus,
        memory=_bytes(requested.get("mem", "")),
        used=(measured,) if is_known else (),
        source="the scheduler's accounts" if is_known else "",
        missing="" if is_known else "the job has not started, or its history was deleted",
    )


def _options(select: str) -> RequestOptions:
    """With the whole `select`, of which a chunk's memory is a part."""
    chunk, count = _MEMORY_OF_CHUNK.subn("mem={}b", select)
    return OPTIONS._replace(memory=f"-l select={chunk}") if count == 1 else OPTIONS


def _integer(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _bytes(text: str) -> float | None:
    match = _AMOUNT.fullmatch(text)
    return float(match[1]) * _FACTORS[(match[2] or "b").lower()] if match else None


def _clock(text: str) -> float | None:
    """Seconds of `12:00:00`."""
    match = _CLOCK.fullmatch(text)
    return 3600 * int(match[1] or 0) + 60 * int(match[2]) + int(match[3]) if match else None
