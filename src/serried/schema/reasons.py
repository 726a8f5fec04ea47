"""Reasons: the codes that code decides on. A sentence for people travels beside each, and no code reads it.

They appear in journals, in exit.json (`cause`, and `code` of its `conditions`), in the output of `--json`, and in
errors. docs/reference/reasons.md lists them.
"""

from __future__ import annotations

import enum
from typing import Optional


class Reason(str, enum.Enum):
    COMPLETED = "completed"

    # A rank ended.
    EXIT = "exit"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out-of-memory"
    IMPORT_ERROR = "import-error"
    COMMAND_NOT_FOUND = "command-not-found"
    WORKDIR_MISSING = "workdir-missing"
    PEER_LOST = "peer-lost"
    LEFT_RUNNING = "left-running"

    # Ranks were stopped. The stop file contains these codes too.
    LIMIT = "limit"
    PREEMPT = "preempt"
    USER = "user"
    CANCEL = "cancel"
    SMOKE = "smoke"
    PRUNED = "pruned"
    PROFILED = "profiled"
    FAILURE = "failure"
    LOST = "lost"
    SILENCE = "silence"
    LAUNCHER = "launcher"

    # The cluster or a process of Serried failed.
    NODE_LOST = "node-lost"
    AGENT_KILLED = "agent-killed"
    JOB_SCRIPT_KILLED = "job-script-killed"
    SUPERVISOR_GONE = "supervisor-gone"
    UNRECORDED = "unrecorded"

    # No rank started.
    LAUNCH = "launch"
    NO_LAUNCHER = "no-launcher"
    NO_DATA = "no-data"
    CHECK_FAILED = "check-failed"
    AFTER = "after"
    SUBMISSION = "submission"

    # A run continues, or cannot.
    REQUEUE = "requeue"
    CONTINUES = "continues"
    RECOVERED = "recovered"
    BAD_NODE = "bad-node"
    RESTARTS_USED = "restarts-used"
    NO_PROGRESS = "no-progress"
    NO_NEXT_JOB = "no-next-job"

    # Further conditions in exit.json.
    UNSAVED = "unsaved"
    NO_CHECKPOINT = "no-checkpoint"
    RESULTS_MISSING = "results-missing"
    RESULTS_FETCHED = "results-fetched"
    RANKS_APART = "ranks-apart"
    SIDE_COMMAND_FAILED = "side-command-failed"
    LAUNCH_FAILED_UNSEEN = "launch-failed-unseen"
    GPUS_IN_USE = "gpus-in-use"

    # Warnings about a run that runs, from its progress.
    STALLED = "stalled"
    NO_OUTPUT = "no-output"
    HEAD_SILENT = "head-silent"
    NOT_FINITE = "not-finite"
    LIMIT_TOO_NEAR = "limit-too-near"
    WAITS_FOR_DATA = "waits-for-data"
    GPU_IDLE = "gpu-idle"
    GPU_LOST = "gpu-lost"
    DISK_NEARLY_FULL = "disk-nearly-full"
    SLOW_RANK = "slow-rank"
    RANK_FAILED = "rank-failed"

    # The head agent gave up a node.
    CONNECTION_ENDED = "connection-ended"
    LAUNCHER_ENDED = "launcher-ended"
    STEP_ENDED = "step-ended"
    NODE_SILENT = "node-silent"
    STOP_IGNORED = "stop-ignored"

    # Too little is known.
    UNCERTAIN = "uncertain"
    UNREACHABLE = "unreachable"
    ELSEWHERE = "elsewhere"
    UNREADABLE = "unreadable"

    # A job waits.
    QUEUED = "queued"
    DEPENDENCY = "dependency"
    DEPENDENCY_NEVER_SATISFIED = "dependency-never-satisfied"
    HELD = "held"
    HELD_BY_SITE = "held-by-site"
    SITE_LIMIT = "site-limit"
    ABOVE_SITE_LIMIT = "above-site-limit"
    NOT_ALLOWED = "not-allowed"
    UNAVAILABLE = "unavailable"

    # The diagnosis of `serried why`.
    SAVED_UNASKED = "saved-unasked"
    LIMIT_UNSAVED = "limit-unsaved"
    CHECKPOINT_ELSEWHERE = "checkpoint-elsewhere"
    KILLED = "killed"
    CRASH = "crash"
    SHARED_MEMORY = "shared-memory"
    GPU_MEMORY = "gpu-memory"
    DISK_FULL = "disk-full"
    FILE_MISSING = "file-missing"
    STAGED_ELSEWHERE = "staged-elsewhere"
    MODULE_IGNORED = "module-ignored"
    UNSET_AFTER_STOP = "unset-after-stop"
    PERMISSION = "permission"
    NOT_EXECUTABLE = "not-executable"
    MOUNT = "mount"
    CONTAINER = "container"
    NOT_IN_IMAGE = "not-in-image"
    NO_RANK = "no-rank"
    NO_LOCAL_RANK = "no-local-rank"
    NAME_UNRESOLVED = "name-unresolved"
    NCCL = "nccl"
    NCCL_WITHOUT_GPU = "nccl-without-gpu"
    CUDA = "cuda"
    CUDA_KERNEL = "cuda-kernel"

    # An error of a command.
    NO_SUCH_EXPERIMENT = "no-such-experiment"
    NOTHING_TO_RUN = "nothing-to-run"

    # A risk of a request: `submit` asks first.
    GPUS_UNKNOWN = "gpus-unknown"
    SHELL_SYNTAX = "shell-syntax"
    UNKNOWN_PLACEHOLDER = "unknown-placeholder"
    SCRIPT_AS_COMMAND = "script-as-command"
    SUBMITS_JOBS = "submits-jobs"
    NOT_IN_SNAPSHOT = "not-in-snapshot"
    VARIABLE_NOT_SET = "variable-not-set"
    NO_TASK_FAILED = "no-task-failed"

    # The plain string on every version of Python.
    __str__ = str.__str__
    __repr__ = str.__repr__
    __format__ = str.__format__  # type: ignore[assignment]


STOPS = (Reason.LIMIT, Reason.PREEMPT, Reason.USER, Reason.CANCEL)
"""Reasons of requests to stop an attempt, in ascending order of precedence."""

NOT_STARTED = frozenset({Reason.LAUNCH, Reason.NO_LAUNCHER, Reason.NO_DATA, Reason.CHECK_FAILED})
"""Causes of a launch that failed."""

NEVER_STARTS = frozenset({Reason.DEPENDENCY_NEVER_SATISFIED, Reason.ABOVE_SITE_LIMIT})
"""A job that waits for these never starts as it is."""
OF_DEPENDENCIES = frozenset({Reason.DEPENDENCY, Reason.DEPENDENCY_NEVER_SATISFIED})
"""A job that waits for these waits for other jobs."""
UP_TO_THE_SITE = frozenset({Reason.HELD_BY_SITE, Reason.SITE_LIMIT, Reason.ABOVE_SITE_LIMIT, Reason.NOT_ALLOWED})
"""A job that waits for these may be a question for the site's staff."""


def parse(word: object) -> Optional[Reason]:
    """The reason that a file names; None for a word that this version does not know."""
    try:
        return Reason(word)
    except ValueError:
        return None
