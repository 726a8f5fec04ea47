"""The kinds of launcher that start ranks in place of the agents: the command line of each, and how its ranks are known.

A node's agent starts a launcher once all agents have connected: on every node, or on the first node for all. A launcher
starts `context.rank` once per rank and knows nothing else. That program connects to the agent of its own node, which
sends it the rank's command, environment and log file. So logs, exit statuses, stop requests and the end are the same
under all kinds.

Ranks keep what a launcher adds to their environment. Variables that it does not forward, over ssh for example, come
from the agent. So no kind needs to name the variables to pass on.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.ranks import command
from serried.base import NamedTuple, files
from serried.schema import launchers, names
from serried.schema.command_lines import fill
from serried.schema.launchers import LauncherVariables


class LaunchContext(NamedTuple):
    """The values from which a kind builds the command of its launcher on `node`."""

    attempt: Attempt
    node: int
    hosts: Sequence[str]
    """The nodes' names in the scheduler's spelling, the first node's first; `localhost` on this machine."""
    master: str
    """The first node's address, as this node reaches it."""
    address: str
    """This node's own, as the others reach it."""
    port: int
    """On the first node, reserved for the rendezvous."""
    rank: Sequence[str]
    """The command that starts one rank: a program, not a Python script."""
    folder: Path
    """Private to this node and attempt, for files that the launcher reads."""
    remote: Sequence[str] = ()
    """The command of a remote shell, which takes `[-options] HOST COMMAND…` as ssh does."""

    @property
    def world_size(self) -> int:
        return self.attempt.nodes * self.attempt.ranks

    @property
    def options(self) -> List[str]:
        """The user's own options of the launcher, with the attempt's size filled in."""
        return [fill(option, self.attempt.shape) for option in self.attempt.plan.launch.options]

    def program(self, module: str, program: str) -> List[str]:
        """`module` in the Python that the plan's command names, such as `/opt/conda/bin/python3.11`; else `program`."""
        command = [] if self.attempt.plan.shell else self.attempt.command
        name = os.path.basename(command[0]) if command else ""  # noqa: PTH119 - a bare string
        if name.startswith("python") and not name[len("python") :].strip(".0123456789"):
            return [command[0], "-m", module]
        return [program]


class LaunchCommand(NamedTuple):
    argv: List[str]
    environment: Mapping[str, str] = {}
    """In addition to the agent's environment and the plan's `environment.env`."""
    without: Sequence[str] = ()
    """Variables that the launcher must not see; a name that ends in `*` is a prefix."""


class LauncherKind(NamedTuple):
    command: Callable[[LaunchContext], LaunchCommand]
    """Pure, except for files in `context.folder`."""
    everywhere: bool
    """One launcher on each node; else one on the first, for all."""
    sources: Tuple[LauncherVariables, ...]
    """The variables that identify its ranks, in the order of authority."""
    is_inside: bool = False
    """The launcher belongs to the ranks' Python. If ranks run in a container, so does the launcher."""


def torchrun(context: LaunchContext) -> LaunchCommand:
    """The node with the store, and each node's address, are options here instead of torchrun's guesses.

    torchrun compares host names, which fails if a node has several networks or if the scheduler calls it otherwise.

    The variable gives each round of ranks its own store. In torchrun's shared store, ranks meet under the number of
    restarts of their node. Each node counts its own restarts. After a failure that only one node saw as another rank's,
    the next round would hang.
    """
    attempt = context.attempt
    restarts = attempt.plan.launch.max_restarts
    return LaunchCommand(
        [
            *context.program("torch.distributed.run", "torchrun"),
            "--no-python",
            f"--nnodes={attempt.nodes}",
            f"--nproc-per-node={attempt.ranks}",
            f"--max-restarts={restarts}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={context.master}:{context.port}",
            f"--rdzv-id={names.elastic_id(attempt.plan.run + str(attempt.number))}",
            f"--rdzv-conf=is_host={'true' if context.node == 0 else 'false'}",
            f"--local-addr={context.address}",
            *context.options,
            *context.rank,
        ],
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if restarts and attempt.nodes > 1 else {},
    )


def srun(context: LaunchContext) -> LaunchCommand:
    """For programs that read Slurm's own variables or use PMI.

    All options are given, because Slurm's versions differ in the options that a step inherits. The step shares its
    job's CPUs and GPUs with the step of the agents, and the agents bind the ranks.
    """
    attempt = context.attempt
    site, allocation = attempt.plan.site, attempt.plan.allocation
    gpus = []
    if allocation.gpus:  # requested again, because the step of the agents takes none
        # Without `--gpu-bind=none`: with this option Slurm sets no CUDA_VISIBLE_DEVICES, and there is none to inherit.
        gpu_type = f"{allocation.gpu_type}:" if allocation.gpu_type else ""
        prefix = "gpu:" if site.gpu_option == "gres" else ""
        gpus = [f"--{site.gpu_option}={prefix}{gpu_type}{allocation.gpus}"]
    return LaunchCommand(
        [
            "srun",
            f"--nodes={attempt.nodes}",
            *(["--relative=0"] if site.inside else []),  # the agents are on the first nodes of the user's job
            f"--ntasks={context.world_size}",
            f"--ntasks-per-node={attempt.ranks}",
            "--whole" if attempt.plan.has_all_cpus else f"--cpus-per-task={max(1, allocation.cpus // attempt.ranks)}",
            "--distribution=block",
            "--cpu-bind=none",
            *gpus,
            "--overlap",
            "--export=ALL",
            "--kill-on-bad-exit=1",
            "--wait=0",
            "--input=none",
            "--unbuffered",
            "--job-name=serried-ranks",
            *context.options,
            *context.rank,
        ],
        without=("SLURM_CPU_BIND*", "SLURM_MEM_BIND*", "SLURM_STEP_*", "SLURM_TASKS_PER_NODE", "SLURM_DISTRIBUTION"),
    )


def mpirun(context: LaunchContext) -> LaunchCommand:
    """Open MPI 4 and 5, MPICH, Intel MPI and Cray's, whose names may be mpirun or mpiexec.

    Cray's needs no remote shell and gets its hosts from PBS. There `options = ["--ppn", "4"]` sets the ranks per node.
    """
    program = "mpirun" if shutil.which("mpirun") or not shutil.which("mpiexec") else "mpiexec"
    argv = [program, "-n", str(context.world_size), *context.options, *context.rank]
    # MPICH would pass SLURMD_NODENAME of the first node on to the ranks of all nodes.
    return LaunchCommand(argv, mpi_environment(context), without=(*command.OF_MPI, "SLURMD_NODENAME"))


HOROVODRUN_NEEDS = (
    "HOME", "LANG", "LC_ALL", "LOGNAME", "SHELL", "TMPDIR", "USER",
    "CONDA_PREFIX", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV",
)  # fmt: skip


def horovodrun(context: LaunchContext) -> LaunchCommand:
    """Uses MPI if horovodrun was built with MPI, else gloo, unless options select one.

    With gloo, horovodrun writes each of its variables into the command line of every rank, where all users of the node
    can read them. So it gets only those that it needs to run; ranks get theirs from the agents. It finds `ssh` on PATH.
    """
    hosts = ",".join(f"{host}:{context.attempt.ranks}" for host in context.hosts)
    argv = [
        *context.program("horovod.runner.launch", "horovodrun"),
        "--disable-cache",
        "-np",
        str(context.world_size),
        "-H",
        hosts,
        *context.options,
        *context.rank,
    ]
    known = {**os.environ, **context.attempt.plan.environment.env}
    own = {name: known[name] for name in known if name in HOROVODRUN_NEEDS or name.startswith("HOROVOD_")}
    path = os.pathsep.join([str(remote_shell(context).parent), known.get("PATH", os.defpath)])
    return LaunchCommand(argv, {**own, **mpi_environment(context), "PATH": path}, without=("*",))


KINDS = {
    "torchrun": LauncherKind(torchrun, everywhere=True, sources=(launchers.TORCHRUN,), is_inside=True),
    "srun": LauncherKind(srun, everywhere=False, sources=(launchers.SLURM,)),
    "mpirun": LauncherKind(
        mpirun, everywhere=False, sources=(launchers.OPEN_MPI, launchers.PMI, launchers.PALS, launchers.MVAPICH)
    ),
    "horovodrun": LauncherKind(
        horovodrun, everywhere=False, sources=(launchers.HOROVOD, launchers.OPEN_MPI, launchers.PMI, launchers.MVAPICH)
    ),
}
"""By the value of `launch.kind`."""

# The launchers of MPI read environment variables, which every implementation has. So Serried need not call
# `mpirun --version` first, a horovodrun that calls mpirun passes them on, and an option of the user wins. The host list
# replaces the scheduler's, because the plan decides how many ranks a node has; Slurm and PBS count tasks or CPUs.


def mpi_environment(context: LaunchContext) -> Dict[str, str]:
    """Write host lists and remote shell; the variables that lead each implementation there. The agents bind ranks.

    Open MPI's daemons stay children of the agents: mpirun never stops waiting for a daemon that detached itself and
    died. If mpirun itself gets TERM, ranks have the agents' time to save; by default it would kill them a second later.
    """
    shell = str(remote_shell(context))
    slots, machines = host_file(context, "slots", "{} slots={}"), host_file(context, "machines", "{}:{}")
    variables = {
        **private_tmpdir(context.folder / "launcher"),
        "OMPI_MCA_odls_base_sigkill_timeout": str(math.ceil(context.attempt.urgent_grace_seconds)),
        "OMPI_MCA_ras": "^slurm,tm,gridengine,lsf,loadleveler,alps",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_ras": "^slurm,pbs,tm,gridengine,lsf,flux",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        # MPICH and its descendants; Intel's variables have their own names.
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": shell,
        "HYDRA_RMK": "user",
        "HYDRA_HOST_FILE": machines,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": shell,
        "I_MPI_HYDRA_RMK": "user",
        "I_MPI_HYDRA_HOST_FILE": machines,
        "I_MPI_PIN": "0",
    }
    # Open MPI 4, and 5, whose launcher is PRRTE.
    for prefix, rsh, daemon in (("OMPI", "rsh", "orte"), ("PRTE", "ssh", "prte")):
        mca = f"{prefix}_MCA"
        variables[f"{mca}_plm"] = rsh
        variables[f"{mca}_plm_{rsh}_agent"] = f"/bin/sh {shell}"
        variables[f"{mca}_plm_{rsh}_no_tree_spawn"] = "1"
        # Each shell lasts as long as its daemon.
        variables[f"{mca}_plm_{rsh}_num_concurrent"] = str(max(128, len(context.hosts)))
        variables[f"{mca}_{daemon}_leave_session_attached"] = "1"
        variables[f"{mca}_{daemon}_default_hostfile"] = slots
        variables[f"{prefix}_ALLOW_RUN_AS_ROOT"] = variables[f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return variables


def private_tmpdir(folder: Path) -> Dict[str, str]:
    """A TMPDIR for the files of an mpirun or one of its daemons while it runs; ranks have another.

    In /tmp, Open MPI names its folder after the node and the job. If a node calls itself otherwise than the scheduler
    does, mpirun starts a daemon there beside itself. Both would share the folder, and the first to end would delete it.
    A killed mpirun deletes nothing, but this folder is deleted with the attempt.
    """
    files.make_directory(folder, 0o700)
    return {"TMPDIR": str(folder)}


def host_file(context: LaunchContext, name: str, line: str) -> str:
    """The path of a new file with a `line` for each node: its name and its number of ranks."""
    path = context.folder / name
    files.write_text(path, "".join(f"{line.format(host, context.attempt.ranks)}\n" for host in context.hosts))
    return str(path)


def remote_shell(context: LaunchContext) -> Path:
    """An `ssh` that goes through the agents: it needs no keys, and its processes belong to the attempt."""
    shell = context.folder / "bin" / "ssh"
    files.make_directory(shell.parent, 0o700)
    files.write_text(shell, f'#!/bin/sh\nexec {shlex.join(context.remote)} "$@"\n', 0o700)
    return shell


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
    attempt: Attempt, sources: Sequence[LauncherVariables], environ: Mapping[str, str], alive: Mapping[int, int]
) -> RankIdentity:
    """`alive`: the incarnations of this node's running ranks. Raises ValueError for a rank that is not in the plan."""
    name, world = attempt.plan.launch.kind, attempt.nodes * attempt.ranks
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


def launcher_environment(attempt: Attempt, place: command.RankPlace, launch: LaunchCommand) -> Dict[str, str]:
    """A rank's environment, without the variables that differ between ranks or nodes."""
    inherited = command.visible(attempt, system.environment())
    of_a_rank = command.environment(attempt, place._replace(submitters=""), inherited)
    changes = command.without(
        of_a_rank, (*command.IDENTITY, *command.slurm(attempt, place), names.NODE, "SLURM_TMPDIR")
    )
    environment = names.put(inherited, {**changes, **launch.environment})
    return {**command.without(environment, launch.without), **launch.environment}


def rank_environment(attempt: Attempt, environ: Mapping[str, str]) -> Dict[str, str]:
    """The environment that a rank's program inherits, from the `environ` of the process that the launcher started.

    If the launcher passes nothing on, over ssh for example, the program inherits the agent's environment and the
    variables that the launcher set.
    """
    own = command.visible(attempt, system.environment())
    environment = dict(environ)
    if environ.get(names.MARK) != attempt.process_tag:
        set_by_launcher = (name for name in environ if name.startswith(LAUNCHER_PREFIXES) or name in command.IDENTITY)
        environment = {**own, **{name: environ[name] for name in set_by_launcher}}
    if attempt.plan.launch.kind == "srun":  # each task has its own node's variables, and only its own GPUs
        return environment
    of_node = {name: own[name] for name in NODE_VARIABLES if name in own}
    return {**command.without(environment, NODE_VARIABLES), **of_node}
