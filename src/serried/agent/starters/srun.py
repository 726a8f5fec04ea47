"""srun: one on the first node, and a Slurm task for each rank, for what looks at Slurm's own variables or speaks PMI.

Everything is said here, as what a step inherits differs between Slurms. It shares its job's CPUs and GPUs with the step
that the agents are, and the agents bind the ranks.
"""

from __future__ import annotations

from serried.agent.starters import Kind, Scene, Start
from serried.contract import sources


def start(scene: Scene) -> Start:
    work = scene.work
    allocation = work.plan["allocation"]
    return Start(
        [
            "srun",
            f"--nodes={work.nodes}",
            f"--ntasks={scene.world_size}",
            f"--ntasks-per-node={work.ranks}",
            f"--cpus-per-task={max(1, allocation['cpus'] // work.ranks)}",
            "--distribution=block",
            "--cpu-bind=none",
            *(["--gpu-bind=none"] if allocation["gpus"] else []),
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


KIND = Kind(start, everywhere=False, sources=(sources.SLURM,))
