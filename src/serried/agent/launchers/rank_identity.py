"""The rank, world size and environment of a process that a launcher started."""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Optional, Sequence

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import kinds
from serried.agent.ranks import command
from serried.schema import names
from serried.schema.launcher_env import LauncherVariables

LAUNCHER_PREFIXES = (
    "OMPI_", "OPAL_", "ORTE_", "PRTE_", "PMIX_", "PMI_", "PALS_", "MPI_", "MPICH_", "HYDRA_", "HYDI_", "I_MPI_", "MV2_",
    "MPISPAWN_", "HOROVOD_", "SLURM_", "FLUX_", "JSM_", "TORCHELASTIC_",
)  # fmt: skip
"""Prefixes of the variables that launchers set for a rank."""

NODE_VARIABLES = (
    "SLURMD_NODENAME", "TMPDIR", "SLURM_TMPDIR", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK",
)  # fmt: skip
"""Taken from the node and not from a launcher. MPICH passes on the first node's."""


class RankIdentity(NamedTuple):
    rank: int
    world_size: Optional[int]
    local_rank: Optional[int]
    """None if the launcher does not set it."""
    incarnation: int
    """How often this rank was started before in this attempt."""


def identify(
    work: Attempt, sources: Sequence[LauncherVariables], environ: Mapping[str, str], alive: Mapping[int, int]
) -> RankIdentity:
    """Raises ValueError for a rank that is not in the plan.

    `alive` has the running ranks of this node, and their incarnations.
    """
    name, world = work.launcher, work.nodes * work.ranks
    identity = read(sources, environ, world)
    if identity is None:
        variables = ", ".join(source.rank[0] for source in sources)
        raise ValueError(f"`{name}` has started a rank without a number: {variables} is not set")
    if identity.world_size not in (None, world) or identity.rank >= world:
        size = identity.world_size or "?"
        raise ValueError(f"`{name}` has started rank {identity.rank} of {size}, and the plan has {world}")
    if alive.get(identity.rank) == identity.incarnation:
        raise ValueError(f"`{name}` has started rank {identity.rank} twice")
    return identity


def read(sources: Sequence[LauncherVariables], environ: Mapping[str, str], world: int) -> Optional[RankIdentity]:
    """From the first source whose variables are all set. Some launchers set none for the only rank of all."""
    for source in sources:
        rank = _number(source.rank, environ)
        if rank is not None and all(environ.get(name) for name in source.markers):
            return RankIdentity(
                rank,
                _number(source.world_size, environ),
                _number(source.local_rank, environ),
                _number(("TORCHELASTIC_RESTART_COUNT",), environ) or 0,
            )
    return RankIdentity(0, 1, 0, 0) if world == 1 else None


def _number(variables: Sequence[str], environ: Mapping[str, str]) -> Optional[int]:
    value = next((environ[name] for name in variables if environ.get(name)), "")
    return int(value) if value.isdigit() else None


def is_needed(environ: Mapping[str, str]) -> bool:
    """Whether torchrun on other nodes waits forever for this rank if it fails: it has no restart left."""
    groups, most = (_number((name,), environ) for name in ("GROUP_WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS"))
    return (groups or 1) > 1 and most is not None and (_number(("TORCHELASTIC_RESTART_COUNT",), environ) or 0) >= most


def launcher_environment(work: Attempt, place: command.RankPlace, launch: kinds.LaunchCommand) -> Dict[str, str]:
    """A rank's environment, without the variables that differ between ranks or nodes."""
    inherited = command.visible(work, system.environment())
    of_a_rank = command.environment(work, place._replace(submitters=""), inherited)
    changes = command.without(of_a_rank, (*command.IDENTITY, *command.slurm(work, place), names.NODE, "SLURM_TMPDIR"))
    environment = names.put(inherited, {**changes, **launch.environment})
    return {**command.without(environment, launch.without), **launch.environment}


def rank_environment(work: Attempt, environ: Mapping[str, str]) -> Dict[str, str]:
    """The environment that a rank's program inherits, from the `environ` of the process that the launcher started.

    If the launcher passes nothing on, over ssh for example, the program inherits the agent's environment and the
    variables that the launcher set.
    """
    own = command.visible(work, system.environment())
    environment = dict(environ)
    if environ.get(names.MARK) != work.process_tag:
        set_by_launcher = (name for name in environ if name.startswith(LAUNCHER_PREFIXES) or name in command.IDENTITY)
        environment = {**own, **{name: environ[name] for name in set_by_launcher}}
    if work.launcher == "srun":  # each task has its own node's variables, and only its own GPUs
        return environment
    return {
        **command.without(environment, NODE_VARIABLES),
        **{name: own[name] for name in NODE_VARIABLES if name in own},
    }
