"""A plan as an `sbatch` command. Pure.

Everything is on argv: `#SBATCH` lines lose backslashes, are cut at `#`, and are overridden by
`SBATCH_*` variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from serried.fs.files import MODES
from serried.plan import Allocation, Plan
from serried.protocol import job_state_query, successor_commands
from serried.protocol.environment import scrub
from serried.protocol.layout import RunDirectory
from serried.protocol.successor_commands import Commands
from serried.schedulers import indices
from serried.schedulers.interface import Submission
from serried.schedulers.job_name import job_name
from serried.schedulers.slurm.traits import TRAITS

LONGEST_LEAD = 65535
"""What `--signal` can carry."""


CHANGED = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "TMPDIR")
"""Variables that Slurm, or a site's plug-in, sets in a job to what is true of that job alone."""


def submission(
    plan: Plan,
    token: str,
    environment: Mapping[str, str],
    *,
    after: str = "",
    element: str = "",
    held: bool = False,
) -> Submission:
    """The `sbatch` command that submits `plan`'s job.sh under `token`."""
    script = plan.directory + "/job.sh"
    waits = [f"--dependency=afterany:{after}"] if after else []
    hold = ("--hold",) if held else ()
    options = (*_options(plan, token, element), *waits, *hold, *plan.allocation.extra)
    argv = ("sbatch", "--parsable", *options, script, token)
    return Submission(argv, scrub(environment), umask=MODES[plan.share].umask)


def commands(plan: Plan, environment: Mapping[str, str]) -> Commands:
    """The same for the next job, and how it is cancelled and asked about, to be filled in by a job."""
    element = successor_commands.ELEMENT if plan.array else ""
    return Commands(
        submit=submission(plan, successor_commands.TOKEN, {}, after=successor_commands.JOB, element=element).argv,
        cancel=("scancel", successor_commands.JOB),
        ask=job_state_query.words(TRAITS.dialect.state_query, successor_commands.JOB),
        environment={name: environment.get(name) for name in CHANGED},
    )


def walltime(seconds: int) -> str:
    """Slurm's spelling of a limit, rounded up to the minutes that it counts in: `2:00:00`, `1-00:00:00`."""
    minutes = math.ceil(seconds / 60)
    days, rest = divmod(minutes, 24 * 60)
    hours, minutes = divmod(rest, 60)
    return f"{days}-{hours:02}:{minutes:02}:00" if days else f"{hours}:{minutes:02}:00"


def _options(plan: Plan, token: str, element: str) -> list[str]:
    allocation = plan.allocation
    return [
        f"--job-name={job_name(plan.name, token)}",
        f"--chdir={plan.directory}",
        f"--output={_log_pattern(plan)}",
        "--open-mode=append",
        *resources(plan, tasks=1),
        *_warning(plan),
        *queue(allocation),
        "--requeue" if plan.may_requeue else "--no-requeue",
        "--export=ALL",
        *_array(plan, element),
    ]


def resources(plan: Plan, *, tasks: int) -> list[str]:
    """What each node has to give, to so many tasks."""
    allocation = plan.allocation
    return [
        f"--nodes={allocation.nodes}",
        f"--ntasks-per-node={tasks}",
        f"--cpus-per-task={allocation.cpus // tasks}",
        *_memory(allocation),
        *_gpus(allocation, plan.site.gpu_option),
        *([f"--time={walltime(allocation.time_seconds)}"] if allocation.time_seconds is not None else ()),
    ]


def _log_pattern(plan: Plan) -> str:
    """Where job.sh's own output goes, in sbatch's escapes.

    A backslash anywhere switches `%` off for the whole pattern, so elements then share one file. They do too where
    Slurm's indices are not theirs: job.sh then writes to files of their own, and only Slurm's words are left.
    """
    log = str(RunDirectory(Path(plan.directory)).scheduler_log())
    if "\\" in log:
        return log.replace("\\", "\\\\")
    escaped = log.replace("%", "%%")
    return escaped if plan.array is None or plan.array.offsets else escaped.removesuffix(".log") + "-%a.log"


def _memory(allocation: Allocation) -> list[str]:
    if allocation.memory_mb is None:
        return []
    return [f"--mem={allocation.memory_mb}M" if allocation.memory_mb else "--mem=0"]


def _gpus(allocation: Allocation, option: str) -> list[str]:
    if not allocation.gpus:
        return []
    kind = f"{allocation.gpu_type}:" if allocation.gpu_type else ""
    if option == "gpus-per-node":
        return [f"--gpus-per-node={kind}{allocation.gpus}"]
    return [f"--gres=gpu:{kind}{allocation.gpus}"]


def _warning(plan: Plan) -> list[str]:
    lead = min(plan.lead_seconds, LONGEST_LEAD)
    return [f"--signal=B:USR1@{lead}"] if lead else []


def queue(allocation: Allocation) -> list[str]:
    """Where it queues, and what it says about itself; only what was asked for."""
    asked = {
        "account": allocation.account,
        "partition": allocation.partition,
        "qos": allocation.qos,
        "reservation": allocation.reservation,
        "constraint": "&".join(allocation.constraint),
        "licenses": ",".join(allocation.licenses),
        "comment": allocation.comment,
        "mail-user": allocation.mail_user,
        "mail-type": ",".join(allocation.mail_type),
    }
    options = [f"--{name}={value}" for name, value in asked.items() if value]
    return [*options, "--exclusive"] if allocation.exclusive else options


def _array(plan: Plan, element: str) -> list[str]:
    if element:
        return [f"--array={element}"]
    if plan.array is None:
        return []
    throttle = f"%{plan.array.parallel}" if plan.array.parallel else ""
    return [f"--array={indices.compress(plan.array.indices)}{throttle}"]
