"""The command and environment of a rank, in its container if it has one."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Set

from serried.agent import containers, system
from serried.agent.attempt import Attempt
from serried.base import NamedTuple
from serried.schema import command_lines, failure_report, names, tracking
from serried.schema.command_lines import OF_ENVIRONMENT, used_variables

NOT_FOR_RANKS = (
    names.KEY, names.HEAD, names.TOKEN, names.JOB, names.TASK, names.RESUME, names.TERMINAL, names.SCRIPT_LOGS,
    names.SCRIPT_UMASK, "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_MAX_RESTARTS",
)  # fmt: skip
"""Variables of the agents alone, and of a torchrun around the job: rank 0 would look for that torchrun's store."""

PLACE_IN_WORLD = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
IDENTITY = (*PLACE_IN_WORLD, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
"""Variables that identify a rank, under torchrun's names."""

MPI_LAUNCHERS = ("mpirun", "horovodrun")
"""Kinds whose options may number the ranks of a node in any order."""
OF_THE_STEP = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_GTIDS", "SLURM_STEP*")
"""Tell frameworks that there is only one task. A program that starts its own ranks must not see them."""
OF_AN_SRUN = (
    *OF_THE_STEP, "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_DISTRIBUTION", "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND*", "SLURM_MEM_*", "SLURM_SRUN_*", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_MPI_TYPE", "SLURM_OPEN_MODE",
    "SRUN_DEBUG",
)  # fmt: skip
"""Set by the `sbatch` and the `srun` that start the agents. An `srun` in another job would take them for options."""
SUBMITTERS = ("sbatch", "salloc", "qsub")
"""Commands that pass their environment on to another job, where nothing of this run belongs."""
OF_MPI = (
    "PMI_*", "PMI2_*", "PMIX_*", "OMPI_COMM_WORLD_*", "OMPI_UNIVERSE_SIZE", "OMPI_MCA_ess*", "OMPI_MCA_orte_hnp_uri",
    "OMPI_MCA_orte_local_daemon_uri", "MPI_LOCAL*", "PALS_*", "MV2_COMM_*",
)  # fmt: skip
"""Set by an `srun --mpi=…` or an mpirun around the agents. With them a rank would take itself for a node's agent."""

OF_A_RANK = ("rank", "local_rank")
"""Placeholders that only a rank's command has."""

SWITCHES = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
"""Defaults: output without delay, and stacks when a rank is aborted or crashes."""
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
BREAKPOINT_HOOK = "serried.base.breakpoints.enter"
"""The default of PYTHONBREAKPOINT. (To import that module would import `pdb`.)"""

DEBUG = {
    "NCCL_DEBUG": "INFO",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "TORCH_NCCL_DESYNC_DEBUG": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",  # for older torch; newer torch warns about the name
}
RECORD = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
}
"""Torch's record of collectives, its flight recorder."""
RECORD_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
"""The path of the record, under torch's new and old name for it, and of the pipe by which a record is requested.

Torch adds the rank to each. The folder must exist, or torch ends the program.
"""
RECORD_PREFIX = "nccl-trace-rank-"
"""Of the files in the folder of the node's disk. The agent copies them into the attempt's folder of the node."""

PRINT_AND_FAIL = ("/bin/sh", "-c", 'echo "$0" >&2; exit 78')
"""A command in place of one that cannot be filled: its message is in the rank's log. 78 is EX_CONFIG."""


class RankPlace(NamedTuple):
    """A rank's place in the attempt, and the values that it gets from its node."""

    node: int
    rank: int
    local_rank: int
    master: str
    """The host of the rendezvous."""
    port: int
    threads: int
    """The default number of threads for computing."""
    deadline: float
    """Seconds since the epoch; 0 is none."""
    stop_file: str
    local: str = ""
    """A folder of this node that is deleted with the attempt: SLURM_TMPDIR, unless the site sets it."""
    data: str = ""
    """The staged data on this node; empty without staged data."""
    results: str = ""
    """The folder on this node's disk for results, which are copied back; empty for the run directory."""
    checkpoints: str = ""
    """The folder for checkpoints, likewise."""
    round: int = 1
    """Counts how often the ranks of the attempt have started."""
    memory: str = ""
    """Paths of memory for the copies of the library's saves, which outlive a round; one for each rank of the node."""
    submitters: str = ""
    """A folder for PATH: `sbatch` and the like, which pass none of the run's variables on to other jobs."""


class Program(NamedTuple):
    argv: List[str]
    environment: Dict[str, str]


def program(
    attempt: Attempt, place: RankPlace, inherited: Optional[Mapping[str, str]] = None, *, is_inside: bool = False
) -> Program:
    """The process of one rank. `inherited` is the environment from a launcher; by default it is this process's.

    The launcher's variables that identify the rank and its rendezvous are kept. `is_inside`: the launcher itself runs
    in the container.
    """
    container_ = None if is_inside else container_of(attempt, place)
    known = visible(attempt, system.environment()) if inherited is None else dict(inherited)
    known = container_.inherited(known) if container_ else known
    changes = environment(attempt, place, known)
    if inherited is not None:
        kept = set(IDENTITY) & set(known) - set(attempt.plan.environment.env)
        changes.update((name, known.pop(name)) for name in kept)
    variables = with_record(attempt, known, changes)
    words = argv(attempt, place, variables)
    if container_ is not None:
        words, variables = container_.enter(words, variables)
    return Program(words, variables)


def with_record(attempt: Attempt, known: Mapping[str, str], changes: Mapping[str, str]) -> Dict[str, str]:
    """`known` with `changes`, and with a record of these. On the record is also what a launcher has set, the agents'
    `srun` too: a job that inherited its variables would take itself for a rank.
    """
    outside = known
    if not attempt.is_script:
        outside = {name: value for name, value in without(known, OF_AN_SRUN).items() if name in os.environ}
    return names.put(outside, {**{name: known[name] for name in known if name not in outside}, **changes})


def container_of(attempt: Attempt, place: RankPlace) -> Optional[containers.RankContainer]:
    return containers.of(attempt, Path(place.stop_file).parent)


def visible(attempt: Attempt, environment: Mapping[str, str]) -> Dict[str, str]:
    """The variables of `environment` that ranks and their launcher inherit."""
    kind = attempt.plan.launch.kind
    if attempt.is_script:
        return without(environment, NOT_FOR_RANKS)
    hidden = [*NOT_FOR_RANKS, "SLURM_TASK_PID", "OLDPWD"]  # of the agent, of job.sh
    hidden += () if kind == "agent" else IDENTITY
    hidden += OF_THE_STEP if kind == "single" else ()
    hidden += ["SLURM_GTIDS"] if kind in MPI_LAUNCHERS else () if kind == "srun" else OF_MPI
    return without(environment, hidden)


def without(environment: Mapping[str, str], variables: Sequence[str]) -> Dict[str, str]:
    """A name in `variables` that ends in `*` is a prefix."""
    prefixes = tuple(name[:-1] for name in variables if name.endswith("*"))
    return {name: environment[name] for name in environment if name not in variables and not name.startswith(prefixes)}


def side_program(attempt: Attempt, place: RankPlace, words: Sequence[str], *, is_shell: bool) -> Program:
    """The process of a command of `beside`: in the ranks' environment, but without the variables of a rank."""
    alone = attempt.with_launcher("single")
    container_ = container_of(attempt, place)
    known = visible(alone, system.environment())
    known = container_.inherited(known) if container_ else known
    own = {**environment(alone, place, known), names.SIDE_COMMAND: "1", names.FAILURE_REPORT: ""}
    variables = with_record(attempt, known, own)
    values = {name: value for name, value in placeholders(attempt, place).items() if name not in OF_A_RANK}
    argv = _filled(words, values, variables, is_shell=is_shell)
    return Program(*(container_.enter(argv, variables) if container_ else (argv, variables)))


def argv(attempt: Attempt, place: RankPlace, variables: Mapping[str, str]) -> List[str]:
    """The rank's program and arguments, with all placeholders filled. `variables` are its environment."""
    script = attempt.plan.script
    if script:
        return [*script.interpreter, str(attempt.run.script), *attempt.command[1:]]  # no placeholders: it has `$1`
    values = placeholders(attempt, place)
    words = _filled(attempt.command, values, variables, is_shell=attempt.plan.shell)
    return [names.RUNSCRIPT_FILE, *words[1:]] if words[:1] == [names.RUNSCRIPT] else words


def _filled(
    words: Sequence[str], values: Mapping[str, str], variables: Mapping[str, str], *, is_shell: bool
) -> List[str]:
    shell = ["/bin/bash", "-c"] if is_shell else []
    if not any("{" in word for word in words):  # as in most commands
        return [*shell, *words]
    used = used_variables(words)
    unset = [name for name in used if name not in variables]
    if unset:
        return [*PRINT_AND_FAIL, f"serried: the command has {{env.{unset[0]}}}, and {unset[0]} is not set here"]
    values = {**values, **{f"{OF_ENVIRONMENT}{name}": variables[name] for name in used}}
    if is_shell:
        return [*shell, *(command_lines.fill_shell(word, values) for word in words)]
    return command_lines.fill_words(list(words), values)


def placeholders(attempt: Attempt, place: RankPlace) -> Dict[str, str]:
    return {
        "data": place.data or str(attempt.tree / "data"),
        "results": place.results or str(attempt.directory.results),
        "checkpoints": place.checkpoints or str(attempt.directory.checkpoints),
        "resume": _resume(attempt),
        "after": next(iter(attempt.dependencies), ""),
        "seed": str(attempt.seed),
        "repeat": "" if attempt.repeat is None else str(attempt.repeat),
        "task": "" if attempt.task is None else str(attempt.task),
        "run": attempt.plan.run,
        "attempt": str(attempt.number),
        "rank": str(place.rank),
        "local_rank": str(place.local_rank),
        **attempt.shape,
        **{f"config.{name}": command_lines.spelled(value) for name, value in attempt.config.items()},
    }


def environment(attempt: Attempt, place: RankPlace, inherited: Mapping[str, str]) -> Dict[str, str]:
    """The variables that a rank gets in addition to inherited ones: torch's, Serried's, the plan's.

    A job script gets no variable that could change what it does.
    """
    own = {**torch(attempt, place), **_serried(attempt, place)}
    if attempt.tracking is not None:
        own[names.TRACKER] = attempt.tracking.encode()
    if not attempt.is_script:
        # As in ammunk/hpc, where data and results of a project are in `$SCRATCH/PROJECT`.
        scratch, project = attempt.plan.site.scratch or inherited.get("SCRATCH", ""), attempt.plan.project
        own["source_dir"], own["project_name"], own["exp_name"] = str(attempt.tree), project, attempt.plan.name
        has_scratch = scratch.startswith("/")
        own["scratch_dir"] = f"{scratch.rstrip('/')}/{project}" if has_scratch else str(attempt.run.path.parents[1])
    own.update(attempt.plan.environment.env)
    known = {**inherited, **own}
    defaults = dict(SWITCHES)
    if not attempt.is_script:
        defaults.update(OMP_NUM_THREADS=str(place.threads), PYTHONBREAKPOINT=BREAKPOINT_HOOK)
        if attempt.plan.debug:
            defaults.update(DEBUG)
        has_gpus = attempt.plan.allocation.gpus or any(map(os.path.exists, GPU_DRIVERS))
        if attempt.plan.debug or (has_gpus and attempt.world_size > 1 and attempt.plan.launch.kind != "single"):
            prefix = os.path.join(os.path.dirname(place.stop_file), RECORD_PREFIX)  # noqa: PTH118, PTH120 - as above
            defaults.update({**RECORD, **dict.fromkeys(RECORD_FILES, prefix)})
        if attempt.plan.launch.kind == "agent" and attempt.world_size > 1 and not has_gpus:
            defaults["ACCELERATE_USE_CPU"] = "1"  # without it, Accelerate does not join ranks on CPUs
    own.update((name, value) for name, value in defaults.items() if name not in known)
    if not attempt.is_script:
        own.update(
            (name, value) for name, value in slurm(attempt, place).items() if name in inherited and name not in own
        )
        if place.local and not known.get("SLURM_TMPDIR"):
            own["SLURM_TMPDIR"] = place.local
        path = known.get("PATH", os.defpath)
        if place.submitters and place.submitters not in path.split(os.pathsep):
            own["PATH"] = os.pathsep.join([place.submitters, path])
    own.update(_of_wandb(attempt, None if attempt.is_script else place.rank, known))
    # The run's own library first, so that ranks import the version with which the run was submitted.
    folders = [str(attempt.run.library), *(str(attempt.tree / folder) for folder in attempt.plan.source.python_path)]
    others = [path for path in known.get("PYTHONPATH", "").split(os.pathsep) if path not in folders]
    own["PYTHONPATH"] = os.pathsep.join([*folders, *(others if known.get("PYTHONPATH") else [])])
    return own


def variables_of_node(attempt: Attempt, place: RankPlace) -> Dict[str, str]:
    """For a rank that a job script starts on another node: the variables that differ between nodes."""
    return {name: value for name, value in _serried(attempt, place).items() if name not in _SAME_ON_ALL_NODES}


_SAME_ON_ALL_NODES = (names.RUN_ID, names.RUN_DIR, names.ATTEMPT, names.MARK, names.IN_JOB, names.TRACKER)


def torch(attempt: Attempt, place: RankPlace) -> Dict[str, str]:
    """The variables that `init_method="env://"` and libraries on top of torch read, under torchrun's names.

    None for a single process, which may start its own ranks and must not take itself for one of many.
    """
    if attempt.plan.launch.kind == "single" or attempt.is_script:
        return {}
    group = place.rank // attempt.ranks
    own = {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(attempt.nodes * attempt.ranks),
        "LOCAL_WORLD_SIZE": str(attempt.ranks),
        "GROUP_RANK": str(group),
        "NODE_RANK": str(group),
        "MASTER_ADDR": place.master,
        "MASTER_PORT": str(place.port),
    }
    if attempt.plan.launch.kind == "agent":
        own.update(
            TORCHELASTIC_RUN_ID=names.elastic_id(attempt.plan.run),
            TORCHELASTIC_RESTART_COUNT=str(attempt.number + place.round - 2),
        )
    return own


def slurm(attempt: Attempt, place: RankPlace) -> Dict[str, str]:
    """The variables of a Slurm task, as `srun` sets them if it starts the ranks itself.

    Without them a rank would read those of its agent, the only task of its node in a step of the same nodes. None for a
    single process, which has the whole node.
    """
    if attempt.plan.launch.kind in ("srun", "single"):
        return {}
    first = place.rank - place.rank % attempt.ranks
    size = str(attempt.world_size)
    layout = f"{attempt.ranks}(x{attempt.nodes})" if attempt.nodes > 1 else str(attempt.ranks)
    return {
        "SLURM_PROCID": str(place.rank),
        "SLURM_LOCALID": str(place.local_rank),
        "SLURM_GTIDS": ",".join(map(str, range(first, first + attempt.ranks))),
        "SLURM_NTASKS": size,
        "SLURM_NPROCS": size,
        "SLURM_STEP_NUM_TASKS": size,
        "SLURM_NTASKS_PER_NODE": str(attempt.ranks),
        "SLURM_TASKS_PER_NODE": layout,
        "SLURM_STEP_TASKS_PER_NODE": layout,
        "SLURM_DISTRIBUTION": "block",
        "SLURM_NODEID": str(first // attempt.ranks),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), str(attempt.nodes)),
        "SLURM_CPUS_PER_TASK": str(max(1, attempt.plan.allocation.cpus // attempt.ranks)),
    }


def of_a_task(attempt: Attempt, place: RankPlace) -> Set[str]:
    """Variables that a shell leaves as they are, so that an `srun` typed there starts the tasks of the whole job."""
    return slurm(attempt, place).keys() - {"SLURM_CPUS_PER_TASK"}


def _of_wandb(attempt: Attempt, rank: Optional[int], known: Mapping[str, str]) -> Dict[str, str]:
    """The variables of wandb, for programs that call wandb themselves. A variable of the user wins, except on ranks
    that are not runs.

    An empty variable counts as unset: wandb fails on an empty mode.
    """
    tracker = attempt.tracking
    if tracker is None or tracking.WANDB not in tracker.sinks:
        return {}
    if not tracker.has_run(rank or 0):
        return {"WANDB_MODE": "disabled"}
    variables = tracking.wandb_variables(tracker, rank, known.get("WANDB_MODE") or _wandb_mode(tracker.mode))
    return {name: value for name, value in variables.items() if not known.get(name)}


@functools.lru_cache(maxsize=None)
def _wandb_mode(mode: str) -> str:
    """Decided once for all ranks of a node: the answer may take a second."""
    return tracking.wandb_mode(mode, os.environ)


def _serried(attempt: Attempt, place: RankPlace) -> Dict[str, str]:
    job = next((name for name in attempt.plan.site.dialect.job_variables[:1] if name in os.environ), None)
    unless_empty = {
        names.LOG_SHARED: "1" if attempt.plan.shares_logs else "",
        names.IN_JOB: f"{job}={os.environ[job]}" if job else "",
        names.TASK: "" if attempt.task is None else str(attempt.task),
        names.CONFIG: json.dumps(attempt.config) if attempt.config else "",
        names.SMOKE: str(attempt.plan.smoke or ""),
        names.KEPT_DIR: str(attempt.directory.checkpoints) if place.checkpoints else "",
        names.RESUME_FROM: _resume(attempt),
        names.BEGIN_FROM: attempt.resume_from or "",
        names.AFTER: "\n".join(attempt.dependencies),
        names.ROUND: str(place.round) if attempt.plan.limit.rounds else "",
        names.MEMORY: place.memory,
        names.DEADLINE: str(int(place.deadline)) if place.deadline else "",
    }
    return {
        names.RUN_ID: attempt.plan.run,
        names.RUN_DIR: str(attempt.run.path),
        names.ATTEMPT: str(attempt.number),
        names.DATA_DIR: place.data or str(attempt.tree / "data"),
        names.CHECKPOINT_DIR: place.checkpoints or str(attempt.directory.checkpoints),
        names.RESULTS_DIR: place.results or str(attempt.directory.results),
        names.STOP_FILE: place.stop_file,
        names.FAILURE_REPORT: failure_report.place_of(place.stop_file, place.rank),
        names.MARK: attempt.process_tag,
        names.NODE: str(place.node),
        **{name: value for name, value in unless_empty.items() if value},
    }


def _resume(attempt: Attempt) -> str:
    """The checkpoint from which the attempt resumes. The head chooses it once for all nodes."""
    return os.environ.get(names.RESUME) or attempt.resume_from or ""
