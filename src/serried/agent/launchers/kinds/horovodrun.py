"""horovodrun: one on the first node. It takes MPI where it was built with it, else gloo, unless options say otherwise.

With gloo it writes every variable that it has itself onto the command line of every rank, for all users of the node to
see. So it gets none but those that it needs to run; ranks get theirs from the agents. It finds its `ssh` on PATH.
"""

from __future__ import annotations

import os

from serried.agent.launchers.kinds import LaunchCommand, LaunchContext, LauncherKind, mpi, python_of
from serried.protocol import launcher_env

NEEDED = (
    "HOME", "LANG", "LC_ALL", "LOGNAME", "SHELL", "TMPDIR", "USER",
    "CONDA_PREFIX", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV",
)  # fmt: skip
ITS_OWN = "HOROVOD_"


def start(scene: LaunchContext) -> LaunchCommand:
    words = scene.work.command
    python = None if scene.work.plan.get("shell") else python_of(words)
    hosts = ",".join(f"{host}:{scene.work.ranks}" for host in scene.hosts)
    argv = [
        *([python, "-m", "horovod.runner.launch"] if python else ["horovodrun"]),
        "--disable-cache",
        "-np",
        str(scene.world_size),
        "-H",
        hosts,
        *scene.options,
        *scene.rank,
    ]
    told = {**os.environ, **scene.work.plan["environment"]["env"]}
    kept = {name: value for name, value in told.items() if name in NEEDED or name.startswith(ITS_OWN)}
    path = os.pathsep.join([str(mpi.remote_shell(scene).parent), told.get("PATH", os.defpath)])
    return LaunchCommand(argv, {**kept, **mpi.lay_out(scene), "PATH": path}, without=("*",))


KIND = LauncherKind(
    start,
    everywhere=False,
    sources=(launcher_env.HOROVOD, launcher_env.OPEN_MPI, launcher_env.PMI, launcher_env.MVAPICH),
)
