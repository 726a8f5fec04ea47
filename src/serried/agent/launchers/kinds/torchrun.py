"""torchrun: one on each node, which meet at the first.

Which of them the store is on, and by which address the others see a node, is told and not left to torchrun's guess: it
compares host names, which fails where a node has several networks or its name is not what the scheduler calls it.
"""

from __future__ import annotations

from serried.agent.launchers.kinds import LaunchCommand, LaunchContext, LauncherKind, python_of
from serried.protocol import launcher_env

OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""A store for each round of ranks. In torchrun's own they meet under how often their node has started them again, which
nodes count each for itself: where one rank's failure was another's on one node alone, the next round hangs."""


def start(scene: LaunchContext) -> LaunchCommand:
    work = scene.work
    python = None if work.plan.get("shell") else python_of(work.command)
    program = [python, "-m", "torch.distributed.run"] if python else ["torchrun"]
    restarts = int(work.plan["launch"]["max_restarts"])
    return LaunchCommand(
        [
            *program,
            "--no-python",
            f"--nnodes={work.nodes}",
            f"--nproc-per-node={work.ranks}",
            f"--max-restarts={restarts}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={scene.master}:{scene.port}",
            f"--rdzv-id={launcher_env.elastic_id(work.plan['run'] + str(work.number))}",
            f"--rdzv-conf=is_host={'true' if scene.node == 0 else 'false'}",
            f"--local-addr={scene.address}",
            *scene.options,
            *scene.rank,
        ],
        OWN_STORE if restarts and work.nodes > 1 else {},
    )


KIND = LauncherKind(start, everywhere=True, sources=(launcher_env.TORCHRUN,), is_inside=True)
