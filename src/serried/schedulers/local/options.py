"""A plan as the command line of a job's supervisor, and that command line as a request. Pure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serried import schedulers
from serried.base.text import compress, expand
from serried.schedulers.interface import OF_THIS_MACHINE, job_name
from serried.schedulers.local.jobs import WHOLE
from serried.schema.plan import Array, Plan, UserScript

FRAGMENT = INSIDE = OF_THIS_MACHINE
SHELL = ""

COMMAND = (sys.executable, "-I", str(Path(__file__).with_name("main.py")))
"""-I: Python variables in the job's environment are for the job."""

CPU, GPU, NOTHING = "cpu", "gpu", "nothing"
"""Pools of slots."""


def script_lines(plan: Plan, script: UserScript) -> str:
    """The variables that the scheduler of the script's directives would set, as far as they have a meaning here."""
    return schedulers.script(script.dialect).stand_in(plan, script) if script.dialect else ""


def whole_array(array: Array) -> str:  # noqa: ARG001 - its arrays are one job
    return ""


def launcher(plan: Plan) -> str:  # noqa: ARG001 - the head starts the only agent
    return ""


def required_options(extra: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG001 - its jobs have no options
    return ()


def supervisor_command(plan: Plan, token: str, *, after: str = "", task: str = "") -> tuple[str, ...]:
    """The command that supervises the job and prints its id. `after` are jobs (`123`, or `123_4`), joined by `:`."""
    allocation = plan.allocation
    options = {
        "job-name": job_name(plan.name, token),
        "chdir": plan.directory,
        "gpus" if allocation.gpus else "cpus": allocation.gpus or allocation.cpus,
        "time": allocation.time_seconds,
        "lead": None if allocation.time_seconds is None else plan.lead_seconds,
        "kill-wait": plan.site.kill_wait_seconds,
        "array": task or _array(plan),
        "after": after or None,
    }
    return (
        *COMMAND,
        *(f"--{name}={value}" for name, value in options.items() if value is not None),
        *(["--requeue"] if plan.may_requeue else []),
        *("--", "/bin/bash", f"{plan.directory}/job.sh", token),
    )


def _array(plan: Plan) -> str | None:
    if plan.array is None:
        return None
    throttle = f"%{plan.array.parallel}" if plan.array.parallel else ""
    return compress(plan.array.indices) + throttle


@dataclass(frozen=True)
class JobRequest:
    """The options of `supervisor_command`."""

    name: str
    directory: str
    pool: str
    need: int
    command: tuple[str, ...]
    time_seconds: int | None
    lead_seconds: int
    kill_wait_seconds: int
    tasks: tuple[str, ...]
    parallel: int | None
    requeue: bool
    after: str
    umask: int = -1
    """For job.sh; -1 is that of its supervisor."""


def parse(command: Sequence[str]) -> JobRequest:
    """The request that a `supervisor_command` spells."""
    import argparse

    parser = argparse.ArgumentParser(prog="main.py", description="Supervise one job on this machine.")
    parser.add_argument("--job-name", required=True)
    parser.add_argument("--chdir", required=True)
    slots = parser.add_mutually_exclusive_group(required=True)
    slots.add_argument("--gpus", type=int)
    slots.add_argument("--cpus", type=int)
    parser.add_argument("--time", type=int)
    parser.add_argument("--lead", type=int, default=0)
    parser.add_argument("--kill-wait", type=int, default=30)
    parser.add_argument("--array", default="")
    parser.add_argument("--requeue", action="store_true")
    parser.add_argument("--after", default="")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(command[len(COMMAND) :])
    listed, _, throttle = given.array.partition("%")
    return JobRequest(
        name=given.job_name,
        directory=given.chdir,
        pool=CPU if given.gpus is None else GPU,
        need=given.cpus if given.gpus is None else given.gpus,
        command=tuple(given.command),
        time_seconds=given.time,
        lead_seconds=given.lead,
        kill_wait_seconds=given.kill_wait,
        tasks=tuple(map(str, expand(listed))) if listed else (WHOLE,),
        parallel=int(throttle) if throttle else None,
        requeue=given.requeue,
        after=given.after,
    )
