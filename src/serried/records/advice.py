"""The reason that explains most about an end, and what to do. Data: new advice needs a new row."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from serried.schema import names
from serried.schema.reasons import Reason, parse


@dataclass(frozen=True)
class Ended:
    """The known facts of an end."""

    state: str
    cause: str | None = None
    output: Sequence[str] = ()
    """The last lines of the rank that failed."""
    script: Sequence[str] = ()
    """The last lines of the job's script, or of the launcher."""
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    """The number of attempts that were allowed after the first."""
    attempt: int = 1
    on_full_disk: bool = False
    """The disk of its run directory was full."""
    has_stray_checkpoint: bool = False
    """It did not continue for want of a checkpoint, and wrote one outside of `{checkpoints}`."""
    has_staged_data: bool = False
    lacks_module: bool = False
    """Its snapshot lacks the module, which exists in the project: git ignores it."""
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

GPU_MEMORY = re.compile(r"OutOfMemoryError|(?:CUDA|HIP)(?: error:)? out of memory")
"""Agents report it as out of memory, without a distinction."""

NO_ADDRESS = re.compile(r"network addresses of \(.*\) cannot be retrieved|socket\.gaierror: |Name or service not known")

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
    (re.compile(r"arguments are required: .*--local[-_]rank\b|Missing option '--local[-_]rank'"), Reason.NO_LOCAL_RANK),
    (
        re.compile(r"environment variable (?:RANK|WORLD_SIZE) expected|KeyError: '(?:LOCAL_)?(?:RANK|WORLD_SIZE)'"),
        Reason.NO_RANK,
    ),
    (NO_ADDRESS, Reason.NAME_UNRESOLVED),
    (re.compile(r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in"), Reason.NCCL_WITHOUT_GPU),
    (re.compile(r"NCCL (?:error|WARN)|ncclSystemError|ncclRemoteError|ncclUnhandledCudaError"), Reason.NCCL),
    (
        re.compile(
            r"no kernel image is available|CUDA driver version is insufficient|No CUDA GPUs|not compiled with CUDA"
            r"|module 'torch\._C' has no attribute '_cuda|Found no NVIDIA driver|torch\.cuda\.is_available\(\) is False"
            r"|Cannot get CUDA generator|requires CUDA support|no CUDA-capable device|dummy base class (?:Event|Stream)"
            r"|accelerator device when none is available"
        ),
        Reason.CUDA,
    ),
    (
        re.compile(r"device-side assert triggered|illegal memory access was encountered|unspecified launch failure"),
        Reason.CUDA_KERNEL,
    ),
    (re.compile(r"\b(?:UnboundLocalError|NameError): "), Reason.UNSET_AFTER_STOP),
)
"""Tried from the top on the last lines of a rank that failed by itself."""

OF_SCRIPT: Sequence[tuple[re.Pattern[str], Reason]] = (
    (re.compile(r"No space left on device|Disk quota exceeded"), Reason.DISK_FULL),
    (re.compile(r"oom[-_ ]kill|Out Of Memory|Cannot allocate memory"), Reason.OUT_OF_MEMORY),
)
"""The same for the output of the job script, if nothing else explains the end."""

OF_LAUNCH: Sequence[tuple[re.Pattern[str], Reason]] = ((re.compile(r"No module named"), Reason.NO_LAUNCHER),)
"""The same for a launcher that failed."""

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
"""For an end without a cause."""


def closer(ended: Ended) -> Reason | None:
    """None if only the state is known, and that explains itself."""
    reason = parse(ended.cause) or _BY_STATE.get(ended.state)
    for holds, better in _REFINED.get(reason, ()) if reason else ():
        if holds(ended):
            return better
    reason = _by_text(reason, ended)
    return Reason.MODULE_IGNORED if reason is Reason.IMPORT_ERROR and ended.lacks_module else reason


_REFINED: Mapping[Reason, Sequence[tuple[Callable[[Ended], bool], Reason]]] = {
    Reason.NO_PROGRESS: ((lambda ended: ended.has_stray_checkpoint, Reason.CHECKPOINT_ELSEWHERE),),
    Reason.LIMIT: (
        (lambda ended: ended.has_stray_checkpoint, Reason.CHECKPOINT_ELSEWHERE),
        (lambda ended: ended.has_used_restarts, Reason.RESTARTS_USED),
        (lambda ended: ended.has_restarts, Reason.LIMIT_UNSAVED),
    ),
    Reason.PREEMPT: (
        (lambda ended: ended.has_stray_checkpoint, Reason.CHECKPOINT_ELSEWHERE),
        (lambda ended: ended.has_used_restarts, Reason.RESTARTS_USED),
    ),
    Reason.COMMAND_NOT_FOUND: ((lambda ended: ended.exit_code == NOT_EXECUTABLE, Reason.NOT_EXECUTABLE),),
    Reason.EXIT: ((lambda ended: ended.exit_code == names.EXIT_SAVED, Reason.SAVED_UNASKED),),
    Reason.SIGNAL: (
        (lambda ended: ended.signal == SIGKILL, Reason.KILLED),
        (lambda ended: ended.signal == SIGBUS, Reason.SHARED_MEMORY),
        (lambda ended: ended.signal in CRASHES, Reason.CRASH),
    ),
}
"""By codes and numbers alone: other facts of the end explain more than its cause."""


def _by_text(reason: Reason | None, ended: Ended) -> Reason | None:
    """By the output of others: the program, Python, a shell, a launcher."""
    if reason is Reason.EXIT:
        found = _first(OF_OUTPUT, ended.output)
        if found is Reason.FILE_MISSING and ended.has_staged_data:
            return Reason.STAGED_ELSEWHERE
        if found is Reason.UNSET_AFTER_STOP and ended.attempt == 1:
            found = None
        return found or (Reason.DISK_FULL if ended.on_full_disk else reason)
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
    """One sentence about this kind of end."""
    steps: tuple[str, ...]
    """Next steps, with the placeholders `{run}`, `{rerun}`, `{rank}`, `{host}`, `{attempt}`, `{command}` (`submit`, or
    `run`), and `{time}`, `{memory}`, `{restarts}` and `{here}` (the same command for `serried run`) for the next try;
    for a checkpoint outside of `{checkpoints}`: `{checkpoint}`, `{checkpoint_path}`, `{options}`, `{page}`,
    `{watch}`."""


ADVICE: Mapping[Reason, Advice] = {
    Reason.EXIT: Advice(
        "the program itself ended with an error",
        ("read the whole output: serried logs {run} --rank {rank}", "try it here: {here}"),
    ),
    Reason.SAVED_UNASKED: Advice(
        "exit status 85 means `saved, please continue`, but no stop was requested",
        (
            "exit with 0 when the work is done, and with 85 only if `$SERRIED_STOP_FILE` exists: serried docs ending",
            "read the whole output: serried logs {run} --rank {rank}",
        ),
    ),
    Reason.SIGNAL: Advice(
        "a signal ended the rank, and Serried did not send it",
        ("read its output before that: serried logs {run} --rank {rank}",),
    ),
    Reason.KILLED: Advice(
        "signal 9 (SIGKILL) ended the rank: almost always because the node has too little memory",
        (
            "request more memory: {memory}",
            "use fewer data loading workers: each holds its own copy of the data",
            "read its output before that: serried logs {run} --rank {rank}",
        ),
    ),
    Reason.CRASH: Advice(
        "compiled code crashed: torch, a CUDA library, or an extension of the program",
        (
            "find the Python line in the rank's output: serried logs {run} --rank {rank}",
            "compare the versions of its libraries: extensions must be built for this torch and this CUDA",
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
        "it needed more main memory (not GPU memory) than it requested",
        (
            "request more: {memory}",
            "use fewer data loading workers: each holds its own copy of the data",
        ),
    ),
    Reason.GPU_MEMORY: Advice(
        "a GPU's own memory was full",
        (
            "use a smaller batch, or accumulate gradients over several steps",
            "use a GPU with more memory: --set resources.gpu_type=TYPE (serried clusters lists them)",
        ),
    ),
    Reason.LIMIT: Advice(
        "it reached its time limit",
        (
            "request more: serried {command} --time {time} …",
            "or let it continue: save at `limit.warn_before` before the end, exit with 85, and set `limit.restarts`",
        ),
    ),
    Reason.LIMIT_UNSAVED: Advice(
        "it reached its time limit and did not continue, though `limit.restarts` allows it",
        (
            "save within `limit.warn_before` before the end, and exit with 85: serried docs ending",
            "resume from its newest checkpoint, if it has one: {rerun}",
            "or request more: serried {command} --time {time} …",
        ),
    ),
    Reason.CHECKPOINT_ELSEWHERE: Advice(
        "its checkpoints are not in `{checkpoints}`, the only folder in which an attempt looks for them",
        (
            "resume from {checkpoint}: serried {command} --resume {checkpoint_path} …",
            "save where the next attempt looks: {options} in the command; serried docs {page}",
            "or have them copied there: --set 'checkpoint.watch=[\"{watch}\"]', with `{{resume}}` in the command",
            "or request more: serried {command} --time {time} …",
        ),
    ),
    Reason.RESTARTS_USED: Advice(
        "it used all of its attempts (`limit.restarts`)",
        (
            "resume from its newest checkpoint: {rerun}",
            "or allow more attempts: serried submit --chain {restarts} …, or a longer --time",
        ),
    ),
    Reason.NO_PROGRESS: Advice(
        "not continued: the attempt got no further than the checkpoint that it started from",
        (
            "save more often, so that an attempt reaches a checkpoint before its stop notice",
            "or give each attempt more time: serried submit --time 4h …",
            "see its output: serried logs {run} --attempt {attempt}",
        ),
    ),
    Reason.NODE_LOST: Advice(
        "a node failed while it ran; the program is not at fault",
        (
            "submit it again",
            "exclude the node if it fails again; on Slurm: --set 'resources.extra=[\"--exclude={host}\"]'",
        ),
    ),
    Reason.SUPERVISOR_GONE: Advice(
        "this machine restarted, or the supervisor of the job was killed",
        ("resume from its newest checkpoint, or from the start: {rerun}",),
    ),
    Reason.AGENT_KILLED: Advice(
        "Serried's own process on a node was killed, by the node's memory limit or by a person",
        (
            "read the output of the job script: serried logs {run} --attempt {attempt}",
            "request more memory if this happens again: {memory}",
        ),
    ),
    Reason.JOB_SCRIPT_KILLED: Advice(
        "the job's script was killed on the first node, by the node's memory limit or by a person",
        ("submit it again", "request more memory if this happens again: {memory}"),
    ),
    Reason.IMPORT_ERROR: Advice(
        "Python did not find a module in the environment of the job",
        (
            "install the module, or activate the environment that has it, and submit again from there",
            "or name the environment in `environment.venv` or `environment.conda`: serried docs environments",
        ),
    ),
    Reason.MODULE_IGNORED: Advice(
        "the snapshot lacks a module that the project has: git ignores it",
        (
            'link it: `link = ["{module}"]` under `[project]` in `serried.toml`, then submit again',
            "or let git track it: git add -f {module}",
        ),
    ),
    Reason.COMMAND_NOT_FOUND: Advice(
        "the program to run does not exist on the node",
        ("use its full path, or load its module before you submit", "see the command: serried show {run}"),
    ),
    Reason.NOT_EXECUTABLE: Advice(
        "the file to run is not executable",
        ("make it executable: chmod +x FILE, then submit again", "or name its interpreter: `python FILE`, `bash FILE`"),
    ),
    Reason.PERMISSION: Advice(
        "the program may not read or write a file",
        (
            "find the path in the rank's output: serried logs {run} --rank {rank}",
            "look at it on the node: serried shell {run}, then ls -ld PATH",
        ),
    ),
    Reason.WORKDIR_MISSING: Advice(
        "the folder to start in does not exist in the snapshot",
        (
            "correct `workdir`, which is relative to the project's folder",
            "if git ignores the folder, add it to `project.link`",
        ),
    ),
    Reason.MOUNT: Advice(
        "a folder for the container is not on the node, or the image has no mount point for it",
        (
            "check that each of `container.binds` exists on compute nodes too",
            "with a `.sqfs` image or Charliecloud, the folder must already exist in the image: serried docs containers",
        ),
    ),
    Reason.CONTAINER: Advice(
        "the container runtime could not start the rank",
        (
            "try the image where it failed: serried shell {run}",
            "if nodes cannot mount a `.sif` (no FUSE), use a folder as the image: apptainer build --sandbox",
        ),
    ),
    Reason.NOT_IN_IMAGE: Advice(
        "the program to run is not in the container's image",
        (
            "use its name inside the image: perhaps `python3`, or its full path",
            "to run a program of the host, add its folder and its libraries' folders to `container.binds`",
        ),
    ),
    Reason.FILE_MISSING: Advice(
        "a file that the program needs does not exist",
        (
            "see where it ran: serried show {run}; `serried config show` shows the origin of its command",
            "in a copy of the code `../data` leads nowhere: use absolute paths, or `--stage` them",
            "files that git ignores are linked only at the project's top, and in `workdir`: see `project.link`",
        ),
    ),
    Reason.STAGED_ELSEWHERE: Advice(
        "a file that the program needs does not exist; staged data is in `{data}`, and not in `$SLURM_TMPDIR`",
        (
            "use the staged data: `{{data}}/PATH` in the command, or `$SERRIED_DATA_DIR` in the program",
            "see what was staged, and where it ran: serried show {run}",
            "in a copy of the code `../data` leads nowhere: use absolute paths, or `--stage` them",
        ),
    ),
    Reason.DISK_FULL: Advice(
        "a disk or a quota was full",
        (
            "look at your quotas; many sites count files as well as bytes: serried du, then serried clean",
            "see where the run writes its files: serried show {run}",
        ),
    ),
    Reason.UNSET_AFTER_STOP: Advice(
        "a variable has no value in an attempt that continues; after a stop at the end of an epoch the loop is empty",
        (
            "give the variable a value before the loop: serried docs train-data",
            "read the whole output: serried logs {run} --rank {rank}",
        ),
    ),
    Reason.NO_LOCAL_RANK: Advice(
        "the program expects its local rank as an option, as `torch.distributed.launch` passes it",
        (
            "pass it in the command: `--local_rank={{local_rank}}`",
            'or read it in the program: int(os.environ["LOCAL_RANK"])',
        ),
    ),
    Reason.NO_RANK: Advice(
        "the program expects to be one of several ranks; a single process on CPUs has no RANK and WORLD_SIZE",
        ("request several: --ranks 2, or --gpus 2", "or set the variables for one rank: --launch agent"),
    ),
    Reason.NAME_UNRESOLVED: Advice(
        "a rank looks up the name of a host, and the name has no address on the rank's node",
        (
            "check MASTER_ADDR and other names of hosts: `getent hosts NAME` in the job prints the address",
            "or use an address instead of the name",
        ),
    ),
    Reason.NCCL_WITHOUT_GPU: Advice(
        "the program uses NCCL, which needs GPUs, and the rank has none",
        (
            "request GPUs: --gpus 1",
            "or use the backend `gloo` on CPUs",
            "if the program trains as one process when RANK is not set: --launch single",
        ),
    ),
    Reason.NCCL: Advice(
        "communication between GPUs failed; often another rank failed first, or the network interface is wrong",
        (
            "look at the other ranks: serried logs {run}",
            'set `environment.env = {{NCCL_DEBUG = "INFO"}}` and submit again',
        ),
    ),
    Reason.CUDA: Advice(
        "the GPU, its driver and this build of torch are not compatible, or the rank sees no GPU",
        (
            "request GPUs, if the run has none (serried show {run}): --gpus 1",
            "many programs use a CPU only as one process, with an option such as `--device=cpu`: --nodes 1 --ranks 1",
            "compare `nvidia-smi` on the node with torch.version.cuda",
        ),
    ),
    Reason.CUDA_KERNEL: Advice(
        "a kernel failed on the GPU, and CUDA reports such an error late: the stack may be that of a later call",
        (
            'set `environment.env = {{CUDA_LAUNCH_BLOCKING = "1"}}` and submit again, for the stack of the kernel',
            "or run a step on a CPU: an index or a label out of range is an error there",
        ),
    ),
    Reason.PEER_LOST: Advice(
        "ranks failed because they lost another rank, which recorded no failure",
        (
            "check whether a rank left its loop too early, or hangs: serried logs {run}",
            "check the network of the nodes, with --debug",
        ),
    ),
    Reason.SILENCE: Advice(
        "no rank wrote any output for `limit.output_timeout`, so it counts as hung",
        (
            "see where each rank stopped: serried logs {run}",
            "ranks that wait for each other forever often differ in their number of batches",
            "if it only prints rarely, print more often, or raise `limit.output_timeout`",
        ),
    ),
    Reason.LEFT_RUNNING: Advice(
        "every rank succeeded, but a background process of one still ran and was ended",
        (
            "wait for the process before you exit, or use a thread of the rank",
            "find the process's name in: serried logs {run}",
        ),
    ),
    Reason.USER: Advice("it was stopped with `serried stop`", ()),
    Reason.CANCEL: Advice(
        "it was cancelled by Ctrl-C, by scancel or by an administrator",
        ("ask the site, if it was not you",),
    ),
    Reason.AFTER: Advice(
        "it depends on another run, which did not end as required; it never ran",
        (
            "see how the other run ended: serried ps",
            "submit both again, or this one with `--after RUN:any`, or by itself: --set 'after=[]'",
        ),
    ),
    Reason.PREEMPT: Advice(
        "a job of higher priority took its nodes",
        ("submit it again", "let it continue: set `limit.restarts`, and save at the stop notice"),
    ),
    Reason.LAUNCHER: Advice(
        "the launcher (`launch.kind`) ended before the ranks, or did not start them as planned",
        (
            "read all its output: serried logs {run} --launcher",
            "do without it, if the program does not need it: serried submit --launch agent …",
        ),
    ),
    Reason.LAUNCH: Advice(
        "no rank started; the program is not at fault",
        (
            "read the output of the job script: serried logs {run}",
            "with `--launch`, read that of the launcher: serried logs {run} --launcher",
            "submit it again if a node or the network was at fault",
        ),
    ),
    Reason.NO_LAUNCHER: Advice(
        "the job cannot find the launcher (`launch.kind`)",
        (
            "install it in the environment of `serried env show`, or add its module to `environment.modules`",
            "do without it, if the program does not need it: serried submit --launch agent …",
        ),
    ),
    Reason.NO_DATA: Advice(
        "a node could not get the data that the ranks need, so no rank started",
        (
            "see the data, and how far it came: serried show {run}",
            "see how much of a node's disk it needs: serried stage EXPERIMENT, or PATHS",
            "a path that exists here but not on the node is on a file system that the node lacks",
        ),
    ),
    Reason.UNRECORDED: Advice(
        "the job script could not record why: it was killed, a disk is full, or its folder is gone",
        (
            "see the known facts and the files that are left: serried show {run}",
            "look at the disk and at your quotas, then submit it again",
        ),
    ),
    Reason.SUBMISSION: Advice(
        "no job exists: the submission ended or was dropped before the scheduler accepted it",
        ("submit it again: {rerun}{all}",),
    ),
    Reason.LOST: Advice(
        "the job left no record of its end: a file system or a node may have failed, or the folder was purged",
        ("ask the scheduler: sacct -j JOB", "look at the files that are left: serried show {run}"),
    ),
    Reason.UNCERTAIN: Advice(
        "the scheduler may have the job or not; do not submit it again yet",
        (
            "the next serried command that reaches the scheduler looks up the job's name",
            "give it up: serried forget {run}",
        ),
    ),
    Reason.UNREACHABLE: Advice("the scheduler does not answer", ("retry in a minute; the run continues meanwhile",)),
    Reason.UNREADABLE: Advice("its record cannot be read", ("upgrade Serried, or look at the named file",)),
}


HERE: Mapping[Reason, Advice] = {
    Reason.EXIT: Advice(
        "the program itself ended with an error", ("read the whole output: serried logs {run} --rank {rank}",)
    ),
    Reason.KILLED: Advice(
        "signal 9 (SIGKILL) ended the rank: almost always because this machine has too little memory",
        (
            "watch the free memory while it runs: free -h",
            "use fewer ranks or data loading workers: each holds its own copy of the data",
            "read its output before that: serried logs {run} --rank {rank}",
        ),
    ),
    Reason.OUT_OF_MEMORY: Advice(
        "it needed more main memory (not GPU memory) than this machine had left",
        (
            "watch the free memory while it runs: free -h",
            "use fewer ranks or data loading workers: each holds its own copy of the data",
        ),
    ),
    Reason.IMPORT_ERROR: Advice(
        "Python did not find a module in the environment of the ranks",
        (
            "install the module, or activate the environment that has it",
            "or name the environment in `environment.venv` or `environment.conda`: serried docs environments",
        ),
    ),
    Reason.FILE_MISSING: Advice(
        "a file that the program needs does not exist",
        ("relative paths begin in the folder where ranks start: see `source` in serried show {run}, and `workdir`",),
    ),
}
"""Advice that differs for an end of `serried run` on this machine."""


def advice_for(ended: Ended) -> tuple[Reason, Advice] | None:
    """The reason that explains most, and its advice; None without advice."""
    reason = closer(ended)
    if reason is None or reason not in ADVICE:
        return None
    return reason, HERE.get(reason, ADVICE[reason]) if ended.is_here else ADVICE[reason]
