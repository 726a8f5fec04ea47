"""Launchers as data: the Python modules that are launchers, and the variables by which ranks know their launcher.

Launchers that take precedence come first. MPI's launchers and torchrun precede a Slurm step, because within Slurm they
start their daemons through `srun`: there SLURM_PROCID is that of the daemon.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

from serried.schema import names

Names = Tuple[str, ...]
"""Variables for one value; the first that is set counts."""

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner.launch": "horovodrun",
}
"""The launcher that `python -m MODULE` is."""


def elastic_id(run: str) -> str:
    """The TORCHELASTIC_RUN_ID of a run: a number, because programs for torchrun parse it with `int`."""
    return str(int.from_bytes(run.encode(), "big"))


class LauncherVariables(NamedTuple):
    name: str
    title: str
    markers: Names
    """Variables that are all set in a process of this launcher."""
    rank: Names
    world_size: Names
    local_rank: Names
    local_world_size: Names = ()
    node_rank: Names = ()
    nodes: Names = ()
    """The number of nodes, for a launcher without `local_world_size`."""
    tasks_per_node: Names = ()
    """In Slurm's format, `4(x2),2`, in place of `local_world_size`."""
    hosts: Names = ()
    """The nodes' names as a host list, that of rank 0 first."""
    launch: Names = ()
    """Together these identify one launch on all its nodes."""
    can_carry: bool = False
    """The launcher may have started another launcher on each node, which started this process."""


SERRIED = LauncherVariables(
    "serried",
    "Serried's agent",
    (names.MARK, names.RUN_ID, "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
    ("RANK",),
    ("WORLD_SIZE",),
    ("LOCAL_RANK",),
    ("LOCAL_WORLD_SIZE",),
    ("GROUP_RANK", "NODE_RANK"),
    launch=(names.MARK,),
    can_carry=True,
)
TORCHRUN = LauncherVariables(
    "torchrun",
    "torchrun",
    ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
    ("RANK",),
    ("WORLD_SIZE",),
    ("LOCAL_RANK",),
    ("LOCAL_WORLD_SIZE",),
    ("GROUP_RANK", "NODE_RANK"),
    launch=("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
)
HOROVOD = LauncherVariables(
    "horovod",
    "horovodrun",
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("HOROVOD_RANK",),
    ("HOROVOD_SIZE",),
    ("HOROVOD_LOCAL_RANK",),
    ("HOROVOD_LOCAL_SIZE",),
    ("HOROVOD_CROSS_RANK",),
    launch=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)
OPEN_MPI = LauncherVariables(
    "open-mpi",
    "Open MPI",
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK",),
    ("OMPI_COMM_WORLD_SIZE",),
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    launch=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
)
PMI = LauncherVariables(
    "pmi",
    "MPICH or Intel MPI",
    ("PMI_RANK", "PMI_SIZE"),
    ("PMI_RANK",),
    ("PMI_SIZE",),
    ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MPICH_LOCALRANKID"),
    ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    ("PALS_NODEID",),
    launch=("PMI_JOBID", "PALS_APID", "PMI_KVS_NAME"),
)
PALS = LauncherVariables(
    "pals",
    "PALS",
    ("PALS_RANKID",),
    ("PALS_RANKID",),
    ("PALS_SIZE", "PMI_SIZE"),
    ("PALS_LOCAL_RANKID",),
    ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
    ("PALS_NODEID",),
    launch=("PALS_APID",),
)
MVAPICH = LauncherVariables(
    "mvapich",
    "MVAPICH2",
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK",),
    ("MV2_COMM_WORLD_SIZE",),
    ("MV2_COMM_WORLD_LOCAL_RANK",),
    ("MV2_COMM_WORLD_LOCAL_SIZE",),
    launch=("MPISPAWN_ID", "PMI_ID"),
)
SLURM = LauncherVariables(
    "slurm",
    "a Slurm step",
    # The job's variables are also set in the batch shell, where a single process would take itself for rank 0 of many.
    ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("SLURM_PROCID",),
    ("SLURM_STEP_NUM_TASKS",),
    ("SLURM_LOCALID",),
    node_rank=("SLURM_NODEID",),
    tasks_per_node=("SLURM_STEP_TASKS_PER_NODE",),
    hosts=("SLURM_STEP_NODELIST",),
    launch=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    can_carry=True,
)
FLUX = LauncherVariables(
    "flux",
    "Flux",
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("FLUX_TASK_RANK",),
    ("FLUX_JOB_SIZE",),
    ("FLUX_TASK_LOCAL_ID",),
    nodes=("FLUX_JOB_NNODES",),
    launch=("FLUX_JOB_ID",),
    can_carry=True,
)
JSRUN = LauncherVariables(
    "jsrun",
    "jsrun",
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("JSM_NAMESPACE_RANK",),
    ("JSM_NAMESPACE_SIZE",),
    ("JSM_NAMESPACE_LOCAL_RANK",),
    ("JSM_NAMESPACE_LOCAL_SIZE",),
    launch=("LSB_JOBID", "JSM_NAMESPACE_ID"),
    can_carry=True,
)
GENERIC = LauncherVariables(
    "generic",
    "the environment",
    ("RANK", "WORLD_SIZE", "MASTER_ADDR"),
    ("RANK",),
    ("WORLD_SIZE",),
    ("LOCAL_RANK",),
    ("LOCAL_WORLD_SIZE",),
    ("GROUP_RANK", "NODE_RANK"),
)

SOURCES = (SERRIED, TORCHRUN, HOROVOD, OPEN_MPI, PMI, PALS, MVAPICH, SLURM, FLUX, JSRUN, GENERIC)
