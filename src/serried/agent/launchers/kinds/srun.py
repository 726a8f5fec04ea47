"""srun: one on the first node, and a Slurm task for each rank, for what looks at Slurm's own variables or speaks PMI.

Everything is said here, as what a step inherits differs between Slurms. It shares its job's CPUs and GPUs with the step
that the agents are, and the agents bind the ranks.
"""

from __future__ import annotations

from typing import List

from serried.agent.attempt import Attempt
from serried.agent.launchers.kinds import LaunchCommand, LaunchContext, LauncherKind
from serried.protocol import launcher_env


def start(scene: LaunchContext) -> LaunchCommand:
    work = scene.work
    allocation = work.plan["allocation"]
    return LaunchCommand(
        [
            "srun",
            f"--nodes={work.nodes}",
            *(["--relative=0"] if work.plan["site"].get("inside") else []),  # of somebody's job: where the agents are
            f"--ntasks={scene.world_size}",
            f"--ntasks-per-node={work.ranks}",
            f"--cpus-per-task={max(1, allocation['cpus'] // work.ranks)}",
            "--distribution=block",
            "--cpu-bind=none",
            *_gpus(work),
            "--overlap",
            "--export=ALL",
            "--kill-on-bad-exit=1",
            "--wait=0",
            "--input=none",
            "--unbuffered",
            "--job-name=serried-ranks",
            *scene.options,
            *scene.rank,
        ],
        without=("SLURM_CPU_BIND*", "SLURM_MEM_BIND*", "SLURM_STEP_*", "SLURM_TASKS_PER_NODE", "SLURM_DISTRIBUTION"),
    )


def _gpus(work: Attempt) -> List[str]:
    """All of each node's, for every rank; asked for again, as the agents' step has taken none.

    Without `--gpu-bind=none`: with it Slurm sets no CUDA_VISIBLE_DEVICES, and there is none to inherit.
    """
    allocation = work.plan["allocation"]
    if not allocation["gpus"]:
        return []
    kind = f"{allocation['gpu_type']}:" if allocation["gpu_type"] else ""
    option = work.plan["site"]["gpu_option"]
    return [f"--{option}={'gpu:' if option == 'gres' else ''}{kind}{allocation['gpus']}"]


KIND = LauncherKind(start, everywhere=False, sources=(launcher_env.SLURM,))
