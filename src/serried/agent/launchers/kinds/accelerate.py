"""accelerate launch: one on each node, and no `accelerate config` beforehand: what its file would say is said here.

`--multi_gpu` is its name for *several ranks*, on CPUs too; how they share the model is said by options, or by a file
that they name.
"""

from __future__ import annotations

from serried.agent.launchers.kinds import LaunchCommand, LaunchContext, LauncherKind, python_of
from serried.protocol import launcher_env

WAYS = ("--multi_gpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm", "--tpu", "--config_file")
"""Options that say, or lead to, how ranks share a model: no second one may be given."""


def start(scene: LaunchContext) -> LaunchCommand:
    work = scene.work
    python = None if work.plan.get("shell") else python_of(work.command)
    given = {option.partition("=")[0].replace("-", "_").replace("__", "--", 1) for option in scene.options}
    several = [] if given & set(WAYS) or scene.world_size == 1 else ["--multi_gpu"]
    return LaunchCommand(
        [
            *([python, "-m", "accelerate.commands.launch"] if python else ["accelerate", "launch"]),
            f"--num_machines={work.nodes}",
            f"--num_processes={scene.world_size}",
            f"--machine_rank={scene.node}",
            f"--main_process_ip={scene.master}",
            f"--main_process_port={scene.port}",
            *several,
            *scene.options,
            "--no_python",
            *scene.rank,
        ]
    )


KIND = LauncherKind(start, everywhere=True, sources=(launcher_env.TORCHRUN,), is_inside=True)
