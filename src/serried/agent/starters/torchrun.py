"""torchrun: one on each node, which meet at the first.

Which of them the store is on, and by which address the others see a node, is told and not left to torchrun's guess: it
compares host names, which fails where a node has several networks or its name is not what the scheduler calls it.
"""

from __future__ import annotations

from serried.agent.starters import Kind, Scene, Start, python_of
from serried.contract import sources


def start(scene: Scene) -> Start:
    work = scene.work
    python = None if work.plan.get("shell") else python_of(work.words)
    program = [python, "-m", "torch.distributed.run"] if python else ["torchrun"]
    return Start(
        [
            *program,
            "--no-python",
            f"--nnodes={work.nodes}",
            f"--nproc-per-node={work.ranks}",
            f"--max-restarts={work.plan['launch']['max_restarts']}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={scene.master}:{scene.port}",
            f"--rdzv-id={work.plan['run']}-{work.number}",
            f"--rdzv-conf=is_host={'true' if scene.node == 0 else 'false'}",
            f"--local-addr={scene.address}",
            *scene.options,
            *scene.rank,
        ]
    )


KIND = Kind(start, everywhere=True, sources=(sources.TORCHRUN,), is_inside=True)
