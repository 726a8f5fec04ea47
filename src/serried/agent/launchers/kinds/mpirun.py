"""mpirun (or mpiexec): one on the first node, for programs that speak MPI. Open MPI 4 and 5, MPICH, Intel MPI.

Cray's has no use for a remote shell and is told of the hosts by PBS; there `options = ["--ppn", "4"]` says how many
ranks a node has.
"""

from __future__ import annotations

import shutil

from serried.agent.launchers.kinds import LaunchCommand, LaunchContext, LauncherKind, mpi
from serried.protocol import launcher_env


def start(scene: LaunchContext) -> LaunchCommand:
    program = "mpirun" if shutil.which("mpirun") or not shutil.which("mpiexec") else "mpiexec"
    argv = [program, "-n", str(scene.world_size), *scene.options, *scene.rank]
    return LaunchCommand(argv, mpi.lay_out(scene), without=(*mpi.OF_ANOTHER_STEP, *mpi.OF_THE_FIRST_NODE))


KIND = LauncherKind(
    start, everywhere=False, sources=(launcher_env.OPEN_MPI, launcher_env.PMI, launcher_env.PALS, launcher_env.MVAPICH)
)
