"""Slurm's part of job.sh, and the step that starts one agent on each node."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace

from serried.plan import Plan
from serried.protocol import binds
from serried.schedulers.fragment import OF_THIS_MACHINE, Fragment

FRAGMENT = Fragment(
    cleanup="""
# Options for sbatch or srun in the submitting shell must not change the steps of this job.
for name in ${!SBATCH_@} ${!SRUN_@} ${!SLURM_CPU_BIND@} ${!SLURM_MEM_BIND@} SLURM_EXPORT_ENV; do unset "$name"; done
""",
    job='"${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"',
    element='"$SLURM_ARRAY_TASK_ID"',
    head_options='--hosts "$SLURM_JOB_NODELIST" --node-variable SLURM_NODEID --end "${SLURM_JOB_END_TIME:-}"',
    functions="""
# The last act: Slurm ends this script soon after saying yes. A controller that is away is tried again. `incomplete`:
# a job that was cancelled meanwhile stays so, though scontrol says yes to that too; only `Restarts` tells the truth.
run_again() {
  local id=$SLURM_JOB_ID next=$((${SLURM_RESTART_COUNT:-0} + 1)) try
  [[ -n ${SLURM_ARRAY_JOB_ID:-} ]] && id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  trap '' TERM USR1
  final=limit
  for ((try = 0; try < 60; try++)); do
    [[ $(scontrol show job "$id" 2>/dev/null) == *" Restarts=$next "* ]] && sleep 60 && exit 0
    case $(squeue --noheader --jobs="$id" --format=%T 2>/dev/null) in
      RUNNING) scontrol requeue incomplete "$id" && continue ;;
      COMPLETING | CANCELLED) final=ended && return ;;
    esac
    sleep 5
  done
}
""",
    again="""\
  run_again
  conclude
""",
    index="SLURM_ARRAY_TASK_ID",
    index_variable="SLURM_ARRAY_TASK_ID",
    own_log="""
exec >>"scheduler-$index.log" 2>&1
""",
)

INSIDE = replace(OF_THIS_MACHINE, cleanup=FRAGMENT.cleanup, head_options=FRAGMENT.head_options)
SHELL = FRAGMENT.cleanup


def launcher(plan: Plan) -> str:
    """Everything is said here: what a step inherits from its job changed in Slurm 22.05 and again in 23.11."""
    nodes = str(plan.allocation.nodes)
    words = (
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        *(_of_the_job(plan) if plan.site.inside else ()),
        f"--cpus-per-task={plan.allocation.cpus}",
        *_gpus(plan),
        "--overlap",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        "--wait=0",
        "--input=none",
        "--unbuffered",
        "--job-name=serried",
        *_pyxis(plan),
    )
    return shlex.join(words)


def _pyxis(plan: Plan) -> tuple[str, ...]:
    """A container for the whole agent: pyxis is a part of Slurm. Its Python is the image's, and not the head's."""
    if plan.container is None or plan.container.runtime != "pyxis":
        return ()
    of_project = os.path.dirname(os.path.dirname(plan.directory))  # noqa: PTH120 - where another run's checkpoints are too
    mounts = [of_project, plan.source.directory, *plan.container.binds]
    said = plan.environment
    named = ",".join(("PYTHONPATH", *said.env, *said.secrets, *said.env_file))
    return (
        f"--container-image={plan.container.image}",
        f"--container-mounts={','.join(_mount(text) for text in dict.fromkeys(mounts))}",
        f"--container-env={named}",
        *(["--container-writable"] if plan.container.writable else []),
        *plan.container.options,
        "/bin/sh",
        "-c",
        'shift; exec python3 "$@"',
        "sh",
    )


def _mount(text: str) -> str:
    bind = binds.parse(text)
    return f"{bind.source}:{bind.destination}" + (":ro" if bind.is_read_only else "")


def _gpus(plan: Plan) -> tuple[str, ...]:
    """Steps that overlap share CPUs, and no GPUs: where the ranks are a step of their own, the agents' takes none."""
    if not plan.allocation.gpus:
        return ()
    return ("--gres=none",) if plan.launch.kind == "srun" else ("--gpu-bind=none",)


def _of_the_job(plan: Plan) -> tuple[str, ...]:
    """Of a job that may have more nodes the first ones, as the head is on the first.

    Of GPUs all that each node has, also where the job was asked for with some for each task.
    """
    gpus = plan.allocation.gpus
    return ("--relative=0", *((f"--gres=gpu:{gpus}",) if gpus else ()))
