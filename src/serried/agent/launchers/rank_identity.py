"""The rank, world size and environment of a process that a launcher started."""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Optional, Sequence

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import kinds
from serried.agent.ranks import command
from serried.protocol import names
from serried.protocol.launcher_env import Source

LAUNCHER_PREFIXES = (
    "OMPI_", "OPAL_", "ORTE_", "PRTE_", "PMIX_", "PMI_", "PALS_", "MPI_", "MPICH_", "HYDRA_", "HYDI_", "I_MPI_", "MV2_",
    "MPISPAWN_", "HOROVOD_", "SLURM_", "FLUX_", "JSM_", "TORCHELASTIC_",
)  # fmt: skip
"""How the variables begin that launchers set for a rank."""

NODE_VARIABLES = (
    "SLURMD_NODENAME", "TMPDIR", "SLURM_TMPDIR", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK",
)  # fmt: skip
"""Never by a launcher's word: MPICH's hands down the first node's, DeepSpeed's counts GPUs from 0 wherever it is."""


class RankIdentity(NamedTuple):
    rank: int
    world_size: Optional[int]
    local_rank: Optional[int]
    """None where the launcher does not say."""
    incarnation: int
    """How often it was started before in this attempt."""


def read(sources: Sequence[Source], environ: Mapping[str, str], world: int) -> Optional[RankIdentity]:
    """By the first source that is all there; None where none is. Some launchers tell the only rank of all nothing."""
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


def problem_with(
    work: Attempt, sources: Sequence[Source], identity: Optional[RankIdentity], alive: Mapping[int, int]
) -> Optional[str]:
    """Why a rank cannot be what it says, if so; `alive` are ranks of this node that run, and their incarnations."""
    name, world = work.launcher, work.nodes * work.ranks
    if identity is None:
        variables = ", ".join(source.rank[0] for source in sources)
        return f"`{name}` has started a rank that is not told which it is: no {variables}"
    if identity.world_size not in (None, world) or identity.rank >= world:
        return f"`{name}` has started rank {identity.rank} of {identity.world_size or '?'}, and the plan has {world}"
    if alive.get(identity.rank) == identity.incarnation:
        return f"`{name}` has started rank {identity.rank} twice"
    return None


def _number(variables: Sequence[str], environ: Mapping[str, str]) -> Optional[int]:
    value = next((environ[name] for name in variables if environ.get(name)), "")
    return int(value) if value.isdigit() else None


def launcher_environment(work: Attempt, place: command.RankPlace, start: kinds.LaunchCommand) -> Dict[str, str]:
    """The launcher's environment: a rank's, but for what tells one rank, or one node, from another."""
    inherited = command.visible(work, system.environment())
    environment = command.environment(work, place, inherited)
    own = {
        name: value
        for name, value in environment.items()
        if name not in (*command.IDENTITY, names.NODE, "SLURM_TMPDIR")
    }
    return {**kinds.without({**inherited, **own}, start.without), **start.environment}


def rank_environment(work: Attempt, environ: Mapping[str, str]) -> Dict[str, str]:
    """What a rank has from its launcher, from the `environ` that it came with.

    Where a launcher passes nothing on, over ssh say, that is the agent's environment, and what the launcher has set.
    """
    own = command.visible(work, system.environment())
    environment = dict(environ) if environ.get(names.MARK) == work.process_tag else {**own, **_of_launcher(environ)}
    if work.launcher == "srun":  # its tasks are told by their own node, and the GPUs are theirs alone
        return environment
    of_the_node = {name: own[name] for name in NODE_VARIABLES if name in own}
    return {**{name: value for name, value in environment.items() if name not in NODE_VARIABLES}, **of_the_node}


def _of_launcher(environ: Mapping[str, str]) -> Dict[str, str]:
    set_by_it = (name for name in environ if name.startswith(LAUNCHER_PREFIXES) or name in command.IDENTITY)
    return {name: environ[name] for name in set_by_it}
