"""deepspeed: one on each node, which asks nobody for ssh. The host list says how many ranks each has."""

from __future__ import annotations

from serried.agent.launchers.kinds import LaunchCommand, LaunchContext, LauncherKind, mpi, python_of
from serried.protocol import launcher_env


def start(scene: LaunchContext) -> LaunchCommand:
    work = scene.work
    python = None if work.plan.get("shell") else python_of(work.command)
    return LaunchCommand(
        [
            *([python, "-m", "deepspeed.launcher.runner"] if python else ["deepspeed"]),
            f"--hostfile={mpi.host_file(scene, 'slots', '{} slots={}')}",
            "--no_ssh",
            f"--node_rank={scene.node}",
            f"--master_addr={scene.master}",
            f"--master_port={scene.port}",
            *scene.options,
            "--no_local_rank",
            "--no_python",
            *scene.rank,
        ]
    )


KIND = LauncherKind(start, everywhere=True, sources=(launcher_env.GENERIC,), is_inside=True)
