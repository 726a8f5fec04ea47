"""What is common to the launchers that speak MPI's tongues: told by environment variables, which every dialect has.

So nobody needs to ask `mpirun --version` first, a horovodrun that calls mpirun tells it the same, and an option that
the user gives wins. The host list replaces what a dialect would take from the scheduler: how many ranks go where is the
plan's, while Slurm and PBS count tasks or CPUs.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Dict

from serried.agent.launchers.kinds import LaunchContext
from serried.fs import files

OF_ANOTHER_STEP = (
    "PMI_*", "PMI2_*", "PMIX_*", "OMPI_COMM_WORLD_*", "OMPI_UNIVERSE_SIZE", "MPI_LOCAL*", "PALS_*", "MV2_COMM_*",
)  # fmt: skip
"""What an `srun --mpi=…` around the agents sets: an MPI would take itself for a rank of theirs."""
OF_THE_FIRST_NODE = ("SLURMD_NODENAME",)
"""MPICH would pass it on to the ranks of all nodes."""


def lay_out(scene: LaunchContext) -> Dict[str, str]:
    """Write host lists and remote shell into the folder; the variables that lead each dialect there."""
    shell = remote_shell(scene)
    return {
        **temporary(scene.folder / "launcher"),
        **open_mpi(f"/bin/sh {shell}", host_file(scene, "slots", "{} slots={}"), scene),
        **hydra(str(shell), host_file(scene, "machines", "{}:{}")),
    }


def temporary(folder: Path) -> Dict[str, str]:
    """A folder of its own for what an mpirun or one of its daemons leaves on a node while it runs; ranks have theirs.

    In /tmp Open MPI's take one by the node's name and the job's: a daemon beside its mpirun, which is what becomes of
    a node that calls itself otherwise than the scheduler does, shares it, and removes it under the other's feet. And
    what is killed removes nothing; this goes with the attempt.
    """
    files.make_directory(folder, 0o700)
    return {"TMPDIR": str(folder)}


def host_file(scene: LaunchContext, name: str, line: str) -> str:
    """The path of a new file in the folder with a `line` for each node: its name, and how many ranks it has."""
    path = scene.folder / name
    files.write_text(path, "".join(f"{line.format(host, scene.work.ranks)}\n" for host in scene.hosts))
    return str(path)


def remote_shell(scene: LaunchContext) -> Path:
    """An `ssh` that asks our agents: there are no keys and no passwords, and what it starts belongs to the attempt."""
    shell = scene.folder / "bin" / "ssh"
    files.make_directory(shell.parent, 0o700)
    files.write_text(shell, f'#!/bin/sh\nexec {" ".join(map(shlex.quote, scene.remote))} "$@"\n', 0o700)
    return shell


def open_mpi(shell: str, hosts: str, scene: LaunchContext) -> Dict[str, str]:
    """For Open MPI 4 (OMPI_…) and 5, whose launcher is PRRTE. The agents bind the ranks.

    Its daemons stay children of our agents: mpirun would wait for ever for one that has detached itself and died.
    Where TERM comes to it too, ranks have the time to save that agents give; by default it kills them a second later.
    """
    shells = str(max(128, len(scene.hosts)))  # each lasts as long as its daemon
    return {
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": shell,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_plm_rsh_num_concurrent": shells,
        "OMPI_MCA_orte_leave_session_attached": "1",
        "OMPI_MCA_odls_base_sigkill_timeout": str(math.ceil(scene.work.urgent_grace_seconds)),
        "OMPI_MCA_ras": "^slurm,tm,gridengine,lsf,loadleveler,alps",
        "OMPI_MCA_orte_default_hostfile": hosts,
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": shell,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_num_concurrent": shells,
        "PRTE_MCA_prte_leave_session_attached": "1",
        "PRTE_MCA_ras": "^slurm,pbs,tm,gridengine,lsf,flux",
        "PRTE_MCA_prte_default_hostfile": hosts,
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def hydra(shell: str, hosts: str) -> Dict[str, str]:
    """For MPICH and what is made of it; Intel's has names of its own."""
    return {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": shell,
        "HYDRA_RMK": "user",
        "HYDRA_HOST_FILE": hosts,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": shell,
        "I_MPI_HYDRA_RMK": "user",
        "I_MPI_HYDRA_HOST_FILE": hosts,
        "I_MPI_PIN": "0",
    }
