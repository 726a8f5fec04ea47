"""A plan as a `salloc` command, with a step on the first node that is a shell. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serried.fs.files import MODES
from serried.plan import Plan
from serried.protocol.environment import scrub
from serried.schedulers.interface import ERRAND_MEMORY_MB, ERRAND_SECONDS, Submission
from serried.schedulers.job_name import job_name
from serried.schedulers.slurm import options


def submission(plan: Plan, token: str, environment: Mapping[str, str], *, now: bool, has_terminal: bool) -> Submission:
    """`salloc` has all nodes, and as many tasks on each as there are ranks, so that `srun` in it starts those."""
    allocation = plan.allocation
    tasks = allocation.ranks if allocation.cpus >= allocation.ranks else 1
    argv = (
        "salloc",
        "--quiet",
        f"--job-name={job_name(plan.name, token)}",
        *options.resources(plan, tasks=tasks),
        *options.queue(allocation),
        *(("--immediate",) if now else ()),
        *allocation.extra,
        *_step(allocation.cpus // tasks * tasks, has_terminal=has_terminal),
        "/bin/bash",
        plan.directory + "/job.sh",
        token,
    )
    return Submission(argv, scrub(environment), umask=MODES[plan.share].umask)


def join(job: str, host: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:
    """`words` on a node of a job that runs."""
    return (*_step(1, has_terminal=has_terminal, more=(f"--jobid={job}", f"--nodelist={host}")), *words)


def errand(plan: Plan, host: str, words: Sequence[str]) -> tuple[str, ...]:
    """`words` on that node, in a job that has one core and no GPU."""
    asked = plan.allocation._replace(exclusive=False, mail_type=(), mail_user=None, constraint=())
    size = ("--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--mem={ERRAND_MEMORY_MB}M", "--gres=none")
    where = (f"--nodelist={host}", f"--time={options.walltime(ERRAND_SECONDS)}", f"--chdir={plan.directory}")
    name = f"--job-name={job_name(plan.name, f'{plan.run}-errand')}"
    return ("srun", "--quiet", name, *size, *where, *options.queue(asked), "--export=ALL", *words)


def _step(
    cpus: int, *, has_terminal: bool, more: tuple[str, ...] = ("--relative=0", "--preserve-env")
) -> tuple[str, ...]:
    """With all that the job has on one node, and in nobody's way."""
    size = ("--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}")
    return ("srun", *more, *size, "--overlap", "--export=ALL", *(("--pty",) if has_terminal else ()))
