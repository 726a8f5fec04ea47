"""The reason that explains most about an end: by reason codes first, then by what the program itself printed."""

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
