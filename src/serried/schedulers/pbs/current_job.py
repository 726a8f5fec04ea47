"""The PBS job that we are in: its hosts are in the node file, the rest `qstat` says."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from serried.errors import SchedulerUnreachable, UsageError
from serried.protocol.environment import scrub
from serried.schedulers.client import Calls
from serried.schedulers.current_job import Inside
from serried.schedulers.pbs import parse


def inside(environ: Mapping[str, str]) -> Inside:
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
    result = Calls(None).ask(("qstat", "-f", "-w", job), asked)
    if result.status:
        raise SchedulerUnreachable(f"PBS does not say what job {job} has", details=result.stderr)
    own = {name: value for name, value in environ.items() if name.startswith("PBS_")}
    return replace(described(result.stdout, job, lines, time.time()), variables=own)


def described(text: str, job: str, lines: list[str], now: float) -> Inside:
    """The job in `qstat -f -w`, whose node file has `lines`. Pure."""
    attributes = dict(next(parse.attributes_of(text), ("", {}))[1])
    tasks = Counter(lines)
    chunks = attributes.get("Resource_List.select", "")
    gpus = [int(count) for count in re.findall(r"(?:^|:)ngpus=(\d+)", chunks.replace("+", ":"))]
    cpus = Counter[str]()
    for host, _, rest in (part.partition("/") for part in attributes.get("exec_host", "").split("+")):
        cpus[host] += int(rest.partition("*")[2] or 1)
    limit, used = (_seconds(attributes.get(f"{name}.walltime", "")) for name in ("Resource_List", "resources_used"))
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
    )


def _seconds(text: str) -> int | None:
    if not re.fullmatch(r"[\d:]+", text):
        return None
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds
