"""Which advice fits an end: chosen by reason codes first, then by what the program itself wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from serried.protocol import names


@dataclass(frozen=True)
class Ended:
    """What is known of an end."""

    state: str
    cause: str | None = None
    output: Sequence[str] = ()
    """The last lines of the rank that failed: the program's own words."""
    said: Sequence[str] = ()
    """Those of the job's script or of the launcher, and how the end was summed up."""
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

OF_OUTPUT: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"(?m)^FATAL: .*mount source .* doesn't exist|^ch-run\[\d+\]: error: can't (?:bind|mkdir)"), "mount"),
    (re.compile(r"(?m)^FATAL: |^ch-run\[\d+\]: error: "), "container"),
    (re.compile(r"(?m)^sh: \d*:? ?exec: .*: not found|^sh: .*exec: .* not found"), "not-in-image"),
    (re.compile(r"killed by signal: Bus error|insufficient shared memory|/dev/shm|/torch_\d+_"), "shared-memory"),
    (re.compile(r"DataLoader worker .* killed by signal: Killed"), "out-of-memory"),
    (GPU_MEMORY, "gpu-memory"),
    (re.compile(r"ModuleNotFoundError|ImportError"), "import-error"),
    (re.compile(r"MemoryError\b|Cannot allocate memory"), "out-of-memory"),
    (re.compile(r"No space left on device|Disk quota exceeded"), "disk-full"),
    (re.compile(r"(?m)^\S*(?:ba|da|z)?sh: .*: Permission denied$"), "not-executable"),
    (re.compile(r"PermissionError|Permission denied"), "permission"),
    (re.compile(r"No such file or directory|FileNotFoundError"), "file-missing"),
    (
        re.compile(r"environment variable (?:RANK|WORLD_SIZE) expected|KeyError: '(?:LOCAL_)?(?:RANK|WORLD_SIZE)'"),
        "no-rank",
    ),
    (re.compile(r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in"), "nccl-without-gpu"),
    (re.compile(r"NCCL (?:error|WARN)|ncclSystemError|ncclRemoteError|ncclUnhandledCudaError"), "nccl"),
    (
        re.compile(
            r"no kernel image is available|CUDA driver version is insufficient|No CUDA GPUs|not compiled with CUDA"
        ),
        "cuda",
    ),
)
"""Tried from the top on the last lines of a rank that failed by itself."""

OF_SCRIPT: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"No space left on device|Disk quota exceeded"), "disk-full"),
    (re.compile(r"oom[-_ ]kill|Out Of Memory|Cannot allocate memory"), "out-of-memory"),
)
"""The same of the job's script, where nothing else says how it ended."""

OF_LAUNCH: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"(?m)^\S+: data: "), "no-data"),
    (re.compile(r"(?m)No module named|^`[^`]*` on \S+ cannot be started: no such file"), "no-launcher"),
)
"""The same of a launch that failed: an agent's word on data, a launcher's, or the sentence on one."""

_BY_STATE = {
    names.OUT_OF_MEMORY: "out-of-memory",
    names.TIMEOUT: "limit",
    names.NODE_FAIL: "node-lost",
    names.PREEMPTED: "preempt",
    names.LAUNCH_FAILED: "launch",
    names.LOST: "lost",
    names.CANCELLED: "cancel",
    names.FAILED: "untold",
}


def key_of(ended: Ended, known: Container[str]) -> str | None:
    """The key of the advice for it. `known` are the causes that have advice of their own."""
    key = _key_of(ended, known)
    here = f"{key}-here"
    return here if ended.is_here and here in known else key


def _key_of(ended: Ended, known: Container[str]) -> str | None:
    key = ended.cause if ended.cause in known else _BY_STATE.get(ended.state)
    for holds, better in _REFINED.get(key or "", ()):
        if holds(ended):
            return better
    return _by_text(key, ended)


_REFINED: Mapping[str, Sequence[tuple[Callable[[Ended], bool], str]]] = {
    "limit": (
        (lambda ended: ended.has_used_restarts, "restarts-used"),
        (lambda ended: ended.has_restarts, "limit-unsaved"),
    ),
    "preempt": ((lambda ended: ended.has_used_restarts, "restarts-used"),),
    "command-not-found": ((lambda ended: ended.exit_code == NOT_EXECUTABLE, "not-executable"),),
    "exit": ((lambda ended: ended.exit_code == names.EXIT_SAVED, "saved-unasked"),),
    "signal": (
        (lambda ended: ended.signal == SIGKILL, "killed"),
        (lambda ended: ended.signal == SIGBUS, "shared-memory"),
        (lambda ended: ended.signal in CRASHES, "crash"),
    ),
}
"""By reason codes alone: what else is known of the end says which advice is the better one."""


def _by_text(key: str | None, ended: Ended) -> str | None:
    if key == "exit":
        return _first(OF_OUTPUT, ended.output) or key
    if key == "untold":
        return _first(OF_SCRIPT, ended.said) or key
    if key == "launch":
        return _first(OF_LAUNCH, ended.said) or key
    if key == "out-of-memory" and GPU_MEMORY.search("\n".join(ended.output)):
        return "gpu-memory"
    return key


def _first(table: Sequence[tuple[re.Pattern[str], str]], lines: Sequence[str]) -> str | None:
    text = "\n".join(lines)
    return next((key for pattern, key in table if pattern.search(text)), None)
