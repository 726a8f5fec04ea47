"""The reason that explains most about an end, and what to do. Data: new advice needs a new row."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from serried.protocol import names
from serried.protocol.reasons import Reason, parse


@dataclass(frozen=True)
class Ended:
    """What is known of an end."""

    state: str
    cause: str | None = None
    output: Sequence[str] = ()
    """The last lines of the rank that failed: the program's own words."""
    script: Sequence[str] = ()
    """The last lines of the job's script, or of the launcher."""
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    """How many attempts were allowed after the first."""
    attempt: int = 1
    is_here: bool = False
    """It was started by `serried run`."""

    @property
    def has_restarts(self) -> bool:
        return self.restarts > 0

    @property
    def has_used_restarts(self) -> bool:
        return self.has_restarts and self.attempt > self.restarts


SIGKILL, SIGBUS = 9, 7
CRASHES = frozenset({4, 6, 8, 11})  # ILL, ABRT, FPE, SEGV
NOT_EXECUTABLE = 126

GPU_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|HIP out of memory")
"""Agents call it out of memory like any other."""

OF_OUTPUT: Sequence[tuple[re.Pattern[str], Reason]] = (
    (
        re.compile(r"(?m)^FATAL: .*mount source .* doesn't exist|^ch-run\[\d+\]: error: can't (?:bind|mkdir)"),
        Reason.MOUNT,
    ),
    (re.compile(r"(?m)^FATAL: |^ch-run\[\d+\]: error: "), Reason.CONTAINER),
    (re.compile(r"(?m)^sh: \d*:? ?exec: .*: not found|^sh: .*exec: .* not found"), Reason.NOT_IN_IMAGE),
    (re.compile(r"killed by signal: Bus error|insufficient shared memory|/dev/shm|/torch_\d+_"), Reason.SHARED_MEMORY),
    (re.compile(r"DataLoader worker .* killed by signal: Killed"), Reason.OUT_OF_MEMORY),
    (GPU_MEMORY, Reason.GPU_MEMORY),
    (re.compile(r"ModuleNotFoundError|ImportError"), Reason.IMPORT_ERROR),
    (re.compile(r"MemoryError\b|Cannot allocate memory"), Reason.OUT_OF_MEMORY),
    (re.compile(r"No space left on device|Disk quota exceeded"), Reason.DISK_FULL),
    (re.compile(r"(?m)^\S*(?:ba|da|z)?sh: .*: Permission denied$"), Reason.NOT_EXECUTABLE),
    (re.compile(r"PermissionError|Permission denied"), Reason.PERMISSION),
    (re.compile(r"No such file or directory|FileNotFoundError"), Reason.FILE_MISSING),
    (
        re.compile(r"environment variable (?:RANK|WORLD_SIZE) expected|KeyError: '(?:LOCAL_)?(?:RANK|WORLD_SIZE)'"),
        Reason.NO_RANK,
    ),
    (re.compile(r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in"), Reason.NCCL_WITHOUT_GPU),
    (re.compile(r"NCCL (?:error|WARN)|ncclSystemError|ncclRemoteError|ncclUnhandledCudaError"), Reason.NCCL),
    (
        re.compile(
            r"no kernel image is available|CUDA driver version is insufficient|No CUDA GPUs|not compiled with CUDA"
        ),
        Reason.CUDA,
    ),
)
"""Tried from the top on the last lines of a rank that failed by itself."""

OF_SCRIPT: Sequence[tuple[re.Pattern[str], Reason]] = (
    (re.compile(r"No space left on device|Disk quota exceeded"), Reason.DISK_FULL),
    (re.compile(r"oom[-_ ]kill|Out Of Memory|Cannot allocate memory"), Reason.OUT_OF_MEMORY),
)
"""The same of the job's script, where nothing else says how it ended."""

OF_LAUNCH: Sequence[tuple[re.Pattern[str], Reason]] = ((re.compile(r"No module named"), Reason.NO_LAUNCHER),)
"""The same of a launcher that failed."""

_BY_STATE = {
    names.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    names.TIMEOUT: Reason.LIMIT,
    names.NODE_FAIL: Reason.NODE_LOST,
    names.PREEMPTED: Reason.PREEMPT,
    names.LAUNCH_FAILED: Reason.LAUNCH,
    names.LOST: Reason.LOST,
    names.CANCELLED: Reason.CANCEL,
    names.FAILED: Reason.UNRECORDED,
}
"""Where no cause is known, as in what earlier versions recorded."""


def closer(ended: Ended) -> Reason | None:
    """None where nothing is known but the state, and that explains itself."""
    reason = parse(ended.cause) or _BY_STATE.get(ended.state)
    for holds, better in _REFINED.get(reason, ()) if reason else ():
        if holds(ended):
            return better
    return _by_text(reason, ended)


_REFINED: Mapping[Reason, Sequence[tuple[Callable[[Ended], bool], Reason]]] = {
    Reason.LIMIT: (
        (lambda ended: ended.has_used_restarts, Reason.RESTARTS_USED),
        (lambda ended: ended.has_restarts, Reason.LIMIT_UNSAVED),
    ),
    Reason.PREEMPT: ((lambda ended: ended.has_used_restarts, Reason.RESTARTS_USED),),
    Reason.COMMAND_NOT_FOUND: ((lambda ended: ended.exit_code == NOT_EXECUTABLE, Reason.NOT_EXECUTABLE),),
    Reason.EXIT: ((lambda ended: ended.exit_code == names.EXIT_SAVED, Reason.SAVED_UNASKED),),
    Reason.SIGNAL: (
        (lambda ended: ended.signal == SIGKILL, Reason.KILLED),
        (lambda ended: ended.signal == SIGBUS, Reason.SHARED_MEMORY),
        (lambda ended: ended.signal in CRASHES, Reason.CRASH),
    ),
}
"""By codes and numbers alone: what else is known of the end explains more than its cause."""


def _by_text(reason: Reason | None, ended: Ended) -> Reason | None:
    """By what others printed: the program, Python, a shell, a launcher."""
    if reason is Reason.EXIT:
        return _first(OF_OUTPUT, ended.output) or reason
    if reason is Reason.UNRECORDED:
        return _first(OF_SCRIPT, ended.script) or reason
    if reason is Reason.LAUNCH:
        return _first(OF_LAUNCH, ended.script) or reason
    if reason is Reason.OUT_OF_MEMORY and GPU_MEMORY.search("\n".join(ended.output)):
        return Reason.GPU_MEMORY
    return reason


def _first(table: Sequence[tuple[re.Pattern[str], Reason]], lines: Sequence[str]) -> Reason | None:
    text = "\n".join(lines)
    return next((reason for pattern, reason in table if pattern.search(text)), None)


@dataclass(frozen=True)
class Advice:
    meaning: str
    """One sentence: what this kind of end is."""
    steps: tuple[str, ...]
    """What to do. Filled in are `{run}`, `{rank}`, `{host}`, `{attempt}`, `{verb}` (`submit`, or `run`), and, for the
    next try, `{time}`, `{restarts}` and `{here}`, the same command for `serried run`."""


ADVICE: Mapping[Reason, Advice] = {
    Reason.EXIT: Advice(
        "the program itself ended with an error",
        ("read all that the rank wrote: serried logs {run} --rank {rank}", "try it here: {here}"),
    ),
    Reason.SAVED_UNASKED: Advice(
        "85 says `I have saved, go on`, but nobody had asked the program to stop",
        (
            "leave with 0 when the work is done, and with 85 only when `$SERRIED_STOP_FILE` exists: see docs/ending.md",
            "read all that the rank wrote: serried logs {run} --rank {rank}",
        ),
    ),
    Reason.SIGNAL: Advice(
        "a signal ended the rank, and Serried did not send it",
        ("read what it wrote before: serried logs {run} --rank {rank}",),
    ),
    Reason.KILLED: Advice(
        "signal 9 (SIGKILL) ended the rank: almost always because the node ran out of memory",
        (
            "ask for more memory: --set resources.mem=20G (for each GPU; for each rank without GPUs), or `all`",
            "use fewer data loading workers: each holds its own copy of what it loads",
            "read what it wrote before: serried logs {run} --rank {rank}",
        ),
    ),
    Reason.CRASH: Advice(
        "compiled code crashed: torch, a CUDA library, or an extension of the program's",
        (
            "find the Python line in what the rank wrote: serried logs {run} --rank {rank}",
            "compare the versions of what it loads: extensions must be built for this torch and this CUDA",
        ),
    ),
    Reason.SHARED_MEMORY: Advice(
        "shared memory (/dev/shm) was full; data loading workers pass batches through it",
        (
            "use fewer data loading workers, or smaller batches; see how large it is there: df -h /dev/shm",
            'or pass batches through files: torch.multiprocessing.set_sharing_strategy("file_system")',
        ),
    ),
    Reason.OUT_OF_MEMORY: Advice(
        "it needed more main memory (not GPU memory) than it had asked for",
        (
            "ask for more: --set resources.mem=20G (for each GPU; for each rank without GPUs), or `all`",
            "use fewer data loading workers: each holds its own copy of what it loads",
        ),
    ),
    Reason.GPU_MEMORY: Advice(
        "a GPU's own memory was full",
        (
            "use a smaller batch, or let it be accumulated over several steps",
            "use a GPU with more memory: --set resources.gpu_type=TYPE (serried clusters lists them)",
        ),
    ),
    Reason.LIMIT: Advice(
        "it reached its time limit",
        (
            "ask for more: serried {verb} --time {time} …",
            "or let it go on by itself: save at `limit.warn_before` before the end, exit 85, and set `limit.restarts`",
        ),
    ),
    Reason.LIMIT_UNSAVED: Advice(
        "it reached its time limit and did not go on, though `limit.restarts` allows it",
        (
            "save within `limit.warn_before` before the end, and exit 85: see docs/ending.md",
            "resume from its newest checkpoint, if it has one: serried rerun {run}",
            "or ask for more: serried {verb} --time {time} …",
        ),
    ),
    Reason.RESTARTS_USED: Advice(
        "it has used all of its attempts (`limit.restarts`)",
        (
            "resume from its newest checkpoint: serried rerun {run}",
            "or allow more attempts: serried submit --chain {restarts} …, or a longer --time",
        ),
    ),
    Reason.NO_PROGRESS: Advice(
        "it would have gone on, but the attempt got no further than it began: the next would do the same",
        (
            "save more often, so that an attempt reaches a checkpoint before it is asked to stop",
            "or give each attempt more time: serried submit --time 4h …",
            "see what it was doing: serried logs {run} --attempt {attempt}",
        ),
    ),
    Reason.NODE_LOST: Advice(
        "a node failed under it; that is the cluster's fault, not the program's",
        (
            "submit it again",
            "leave the node out if it fails again; on Slurm: --set 'resources.extra=[\"--exclude={host}\"]'",
        ),
    ),
    Reason.SUPERVISOR_GONE: Advice(
        "this machine was restarted, or somebody killed the process that looked after the job",
        ("resume from its newest checkpoint, or begin again: serried rerun {run}",),
    ),
    Reason.AGENT_KILLED: Advice(
        "Serried's own process on a node was killed, by the node's memory limit or by somebody",
        (
            "read what the job's script said: serried logs {run} --attempt {attempt}",
            "ask for more memory if this happens again: --set resources.mem=20G",
        ),
    ),
    Reason.JOB_SCRIPT_KILLED: Advice(
        "the job's script was killed on the first node, by the node's memory limit or by somebody",
        ("submit it again", "ask for more memory if this happens again: --set resources.mem=20G"),
    ),
    Reason.IMPORT_ERROR: Advice(
        "Python did not find a module in the environment of the job",
        (
            "install the module, or activate the environment that has it, and submit again from there",
            "or name the environment in `environment.venv` or `environment.conda`: see docs/environments.md",
        ),
    ),
    Reason.COMMAND_NOT_FOUND: Advice(
        "the program to run does not exist on the node",
        ("name it by its whole path, or load its module before you submit", "see the command: serried show {run}"),
    ),
    Reason.NOT_EXECUTABLE: Advice(
        "the file to run may not be executed",
        ("allow it: chmod +x FILE, then submit again", "or name what reads it: `python FILE`, `bash FILE`"),
    ),
    Reason.PERMISSION: Advice(
        "the program may not read or write a file",
        (
            "find the path in what the rank wrote: serried logs {run} --rank {rank}",
            "look at it on the node: serried shell {run}, then ls -ld PATH",
        ),
    ),
    Reason.WORKDIR_MISSING: Advice(
        "the folder to start in does not exist in the snapshot",
        (
            "correct `workdir`; it is relative to the project's folder",
            "is it ignored by git? then add it to `project.link`",
        ),
    ),
    Reason.MOUNT: Advice(
        "a folder that the container is to see is not on the node, or has no place in the image",
        (
            "look at `container.binds`: is each there on compute nodes too?",
            "in a `.sqfs` or with Charliecloud the image needs a folder to mount it on: see docs/containers.md",
        ),
    ),
    Reason.CONTAINER: Advice(
        "the container runtime could not start the rank",
        (
            "try the image where it failed: serried shell {run}",
            "where nodes cannot mount a `.sif` (no FUSE), a folder as image can do: apptainer build --sandbox",
        ),
    ),
    Reason.NOT_IN_IMAGE: Advice(
        "the program to run is not in the container's image",
        (
            "name it as it is called inside: `python3` perhaps, or by its whole path",
            "a program of the host's needs its folder in `container.binds`, and all that it needs itself",
        ),
    ),
    Reason.FILE_MISSING: Advice(
        "a file that the program wanted is not there",
        (
            "see where it ran: serried show {run}; `serried config show` says where its command comes from",
            "a job runs in a copy of the code, where `../data` leads nowhere: use absolute paths, or `--stage` them",
            "what git ignores is linked to only at the project's top, and in `workdir`: see `project.link`",
        ),
    ),
    Reason.DISK_FULL: Advice(
        "a disk or a quota was full",
        (
            "look at your quotas; many sites count files as well as bytes: serried du, then serried clean",
            "see where the run writes: serried show {run}",
        ),
    ),
    Reason.NO_RANK: Advice(
        "the program wants to be one of several ranks; one process on CPUs is started without RANK and WORLD_SIZE",
        ("ask for several: --ranks 2, or --gpus 2", "or have the variables for one rank: --launch agent"),
    ),
    Reason.NCCL_WITHOUT_GPU: Advice(
        "the program wants NCCL, which needs GPUs, and the rank has none",
        (
            "ask for GPUs: --gpus 1",
            "or use the backend `gloo` on CPUs",
            "a program that trains alone unless it finds RANK: --launch single",
        ),
    ),
    Reason.NCCL: Advice(
        "GPUs could not talk to each other; often another rank failed first, or the network interface is wrong",
        (
            "look at the other ranks: serried logs {run}",
            'set `environment.env = {{NCCL_DEBUG = "INFO"}}` and submit again',
        ),
    ),
    Reason.CUDA: Advice(
        "the GPU, its driver and this build of torch do not fit together, or the rank sees no GPU",
        ("compare `nvidia-smi` on the node with torch.version.cuda", "did you ask for GPUs? serried show {run}"),
    ),
    Reason.PEER_LOST: Advice(
        "ranks failed because they lost another one, which left no failure of its own",
        (
            "did one leave its loop too early, or hang? serried logs {run}",
            "look at the network of the nodes, with --debug",
        ),
    ),
    Reason.SILENCE: Advice(
        "no rank wrote anything for `limit.output_timeout`, so it was taken for hung",
        (
            "see where each rank stopped: serried logs {run}",
            "ranks that wait for each other for ever often differ in their number of batches",
            "if it is only quiet, let it print now and then, or raise `limit.output_timeout`",
        ),
    ),
    Reason.LEFT_RUNNING: Advice(
        "every rank ended well, but something that it had started in the background still ran and was ended",
        ("wait for what you start, or start it as a rank's own thread", "see what it was: serried logs {run}"),
    ),
    Reason.USER: Advice("somebody stopped it with `serried stop`", ()),
    Reason.CANCEL: Advice(
        "it was cancelled by Ctrl-C, by scancel or by an administrator",
        ("ask the site if it was not you",),
    ),
    Reason.AFTER: Advice(
        "it was to begin after another run, and that did not end as it should have; nothing of it ever ran",
        (
            "see what became of the other: serried ps",
            "submit both again, or this one with `--after RUN:any`, or by itself: --set 'after=[]'",
        ),
    ),
    Reason.PREEMPT: Advice(
        "a job of higher priority took its nodes",
        ("submit it again", "let it go on by itself: set `limit.restarts`, and save when asked to"),
    ),
    Reason.LAUNCHER: Advice(
        "what starts the ranks (`launch.kind`) ended before they did, or did not start them as planned",
        (
            "read all that it said: serried logs {run} --launcher",
            "leave it out, if the program does not need it: serried submit --launch agent …",
        ),
    ),
    Reason.LAUNCH: Advice(
        "no rank ever started; that is not the program's fault",
        (
            "read what the job's script said: serried logs {run}; and with `--launch`, the launcher: --launcher",
            "submit it again if a node or the network was at fault",
        ),
    ),
    Reason.NO_LAUNCHER: Advice(
        "what should start the ranks (`launch.kind`) is not where the job looks for it",
        (
            "install it in what `serried env` shows, or name the module that has it in `environment.modules`",
            "leave it out, if the program does not need it: serried submit --launch agent …",
        ),
    ),
    Reason.NO_DATA: Advice(
        "a node could not have the data that the ranks need, so none of them started",
        (
            "see what that is, and how far it came: serried show {run}",
            "see what it takes on a node's disk: serried stage EXPERIMENT, or PATHS",
            "a path that is not there for the node, but here, is on a file system that it does not have",
        ),
    ),
    Reason.UNRECORDED: Advice(
        "the job's script could not write why: it was killed, a disk is full, or its folder is gone",
        (
            "see what is known, and what is left: serried show {run}",
            "look at the disk and at your quotas, then submit it again",
        ),
    ),
    Reason.SUBMISSION: Advice(
        "no job exists: `serried submit` ended, or was given up, before the scheduler had it",
        ("submit it again: serried rerun {run}",),
    ),
    Reason.LOST: Advice(
        "the job is over and nothing says how: a file system or a node may have failed, or the folder was purged",
        ("ask the scheduler: sacct -j JOB", "look at what is left: serried show {run}"),
    ),
    Reason.UNCERTAIN: Advice(
        "whether the scheduler has the job is not known; do not submit it again yet",
        (
            "the next serried command that reaches the scheduler finds out by the job's name",
            "serried forget {run} gives it up",
        ),
    ),
    Reason.UNREACHABLE: Advice(
        "the scheduler does not answer", ("try again in a minute; the run does not need this command",)
    ),
    Reason.UNREADABLE: Advice("its record cannot be read", ("upgrade Serried, or look at the file that is named",)),
}


HERE: Mapping[Reason, Advice] = {
    Reason.EXIT: Advice(
        "the program itself ended with an error", ("read all that the rank wrote: serried logs {run} --rank {rank}",)
    ),
    Reason.KILLED: Advice(
        "signal 9 (SIGKILL) ended the rank: almost always because this machine ran out of memory",
        (
            "look at the memory that is left while it runs: free -h",
            "use fewer ranks or data loading workers: each holds its own copy of what it loads",
            "read what it wrote before: serried logs {run} --rank {rank}",
        ),
    ),
    Reason.OUT_OF_MEMORY: Advice(
        "it needed more main memory (not GPU memory) than this machine had left",
        (
            "look at the memory that is left while it runs: free -h",
            "use fewer ranks or data loading workers: each holds its own copy of what it loads",
        ),
    ),
    Reason.IMPORT_ERROR: Advice(
        "Python did not find a module in the environment of the ranks",
        (
            "install the module, or activate the environment that has it",
            "or name the environment in `environment.venv` or `environment.conda`: see docs/environments.md",
        ),
    ),
    Reason.FILE_MISSING: Advice(
        "a file that the program wanted is not there",
        ("relative paths begin in the folder where ranks start: see `source` in serried show {run}, and `workdir`",),
    ),
}
"""What differs for an end of `serried run` on this machine."""


def advice_for(ended: Ended) -> tuple[Reason, Advice] | None:
    """The reason that explains most, and its advice; None where there is nothing to say."""
    reason = closer(ended)
    if reason is None or reason not in ADVICE:
        return None
    return reason, HERE.get(reason, ADVICE[reason]) if ended.is_here else ADVICE[reason]
