"""What a local job is asked to be: the command line of its supervisor, both ways. Pure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serried.plan import Plan
from serried.schedulers import indices
from serried.schedulers.job_name import job_name
from serried.schedulers.local.machine import CPU, GPU
from serried.schedulers.local.state import WHOLE

PROGRAM = Path(__file__).with_name("main.py")
COMMAND = (sys.executable, "-I", str(PROGRAM))
"""-I: what the job's environment says to Python is for the job."""


@dataclass(frozen=True)
class Request:
    name: str
    directory: str
    pool: str
    need: int
    command: tuple[str, ...]
    time_seconds: int | None = None
    lead_seconds: int = 0
    kill_wait_seconds: int = 30
    elements: tuple[str, ...] = (WHOLE,)
    parallel: int | None = None
    requeue: bool = False
    after: str = ""
    """Jobs (`123`, or `123_4`) that must have ended before, with `:` between."""
    umask: int = -1
    """For job.sh; -1 is its supervisor's."""

    def argv(self) -> tuple[str, ...]:
        """The command that supervises this job, and prints its id."""
        limit = [] if self.time_seconds is None else [f"--time={self.time_seconds}", f"--lead={self.lead_seconds}"]
        return (
            *COMMAND,
            f"--job-name={self.name}",
            f"--chdir={self.directory}",
            f"--{self.pool}s={self.need}",
            *limit,
            f"--kill-wait={self.kill_wait_seconds}",
            *self._array(),
            *(["--requeue"] if self.requeue else []),
            *([f"--after={self.after}"] if self.after else []),
            "--",
            *self.command,
        )

    def _array(self) -> list[str]:
        if self.elements == (WHOLE,):
            return []
        if len(self.elements) == 1:
            return [f"--array={self.elements[0]}"]
        throttle = f"%{self.parallel}" if self.parallel else ""
        return [f"--array={indices.compress(map(int, self.elements))}{throttle}"]


def of_plan(plan: Plan, token: str, *, after: str = "", element: str = "") -> Request:
    allocation = plan.allocation
    elements = (element,) if element else _elements(plan)
    return Request(
        name=job_name(plan.name, token),
        directory=plan.directory,
        pool=GPU if allocation.gpus else CPU,
        need=allocation.gpus or allocation.cpus,
        command=("/bin/bash", f"{plan.directory}/job.sh", token),
        time_seconds=allocation.time_seconds,
        lead_seconds=plan.lead_seconds,
        kill_wait_seconds=plan.site.kill_wait_seconds,
        elements=elements,
        parallel=plan.array.parallel if plan.array else None,
        requeue=plan.may_requeue,
        after=after,
    )


def _elements(plan: Plan) -> tuple[str, ...]:
    return tuple(map(str, sorted(set(plan.array.indices)))) if plan.array else (WHOLE,)


def parse(words: Sequence[str]) -> Request:
    """The request that `Request.argv` spelled, without the interpreter's part."""
    parser = argparse.ArgumentParser(prog="main.py", description="Supervise one job on this machine.")
    parser.add_argument("--job-name", required=True)
    parser.add_argument("--chdir", required=True)
    slots = parser.add_mutually_exclusive_group(required=True)
    slots.add_argument("--gpus", type=int)
    slots.add_argument("--cpus", type=int)
    parser.add_argument("--time", type=int)
    parser.add_argument("--lead", type=int, default=0)
    parser.add_argument("--kill-wait", type=int, default=30)
    parser.add_argument("--array")
    parser.add_argument("--requeue", action="store_true")
    parser.add_argument("--after", default="")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(words)
    listed, _, throttle = (given.array or "").partition("%")
    return Request(
        name=given.job_name,
        directory=given.chdir,
        pool=CPU if given.gpus is None else GPU,
        need=given.cpus if given.gpus is None else given.gpus,
        command=tuple(given.command),
        time_seconds=given.time,
        lead_seconds=given.lead,
        kill_wait_seconds=given.kill_wait,
        elements=tuple(map(str, indices.expand(listed))) if listed else (WHOLE,),
        parallel=int(throttle) if throttle else None,
        requeue=given.requeue,
        after=given.after,
    )
