"""Environment variables, exit codes and codes that both sides use."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping, Optional, Sequence

# From job.sh, for the agents.
RUN_DIR = "SERRIED_RUN_DIR"
TOKEN = "SERRIED_TOKEN"  # noqa: S105 - names a submission, opens nothing
JOB = "SERRIED_JOB"  # the local scheduler's job id; Slurm has its own variable
TASK = "SERRIED_TASK"  # the index of an array task
ATTEMPT = "SERRIED_ATTEMPT"
HEAD = "SERRIED_HEAD"  # host:port candidates, comma separated
KEY = "SERRIED_KEY"  # the attempt's key; never reaches a rank
MARK = "SERRIED_MARK"  # run/task/attempt: identifies processes of the attempt in /proc
IN_JOB = "SERRIED_IN_JOB"  # `SLURM_JOB_ID=17`: a job that a rank submits inherits this, and has another id
RESUME = "SERRIED_RESUME"  # the checkpoint to resume from, for the agents
SETUP = "SERRIED_SETUP"  # the result of setup.sh, for the agent after it; IN_SETUP in its processes
IN_SETUP = "running"
SIDE_COMMAND = "SERRIED_SIDE_COMMAND"  # set in the processes of `beside`, which may run as long as the ranks do
DETACHED = "detached"  # the mark of a launch whose ranks the scheduler starts outside of the script
HIDES_FAILURES = "hides-failures"  # the kind of a launch whose launcher exits with 0 whatever its ranks do
SCRIPT_UMASK = "SERRIED_SCRIPT_UMASK"  # from job.sh: the umask of the script after the user's profile
SCRIPT_LOGS = "SERRIED_SCRIPT_LOGS"  # from job.sh: where the user expects the output of the script, one path per line
LOG_SHARED = "SERRIED_LOG_SHARED"  # set for ranks that share a log
NODE = "SERRIED_NODE"  # the node's index, because several nodes of a lab share one /proc

# For a job script and all that it starts.
MEANT = "SERRIED_LAST"  # there, too: the run that `last` means where the command was typed
AT = "SERRIED_AT"  # on a login node, of a command that came from another machine: the cluster by its name there
SENT_SECRETS = "SERRIED_SENT_SECRETS"  # of such a command: the names in the other machine's `env_file`, with commas
SHIMS = "SERRIED_SHIMS"  # the folder with `bin/`, `rank` and `bash_env`
LAUNCHES = "SERRIED_LAUNCHES"  # the folder of the attempt's launches
SCRIPT_JOB = "SERRIED_SCRIPT_JOB"  # a variable and its value, `SLURM_JOB_ID=77`: in other jobs shims do nothing
STAND_INS = "SERRIED_STAND_INS"  # the launcher that Serried itself provides outside of the script's scheduler
USER_BASH_ENV = "SERRIED_USER_BASH_ENV"  # the user's own BASH_ENV
LAUNCH = "SERRIED_LAUNCH"  # in a rank of a launch: its id
LAUNCH_RANK = "SERRIED_LAUNCH_RANK"  # and the rank
LAUNCH_CALL = "SERRIED_LAUNCH_CALL"  # for a launcher that `timeout` or the like starts: the call of that
ADDED = "SERRIED_ADDED"  # JSON: the other variables that agents have set, see `put`

# From the local scheduler, for job.sh.
RESTARTS = "SERRIED_RESTART_COUNT"  # as SLURM_RESTART_COUNT
JOB_END = "SERRIED_JOB_END"  # as SLURM_JOB_END_TIME: the end of the job's time limit, in seconds since the epoch
TERMINAL = "SERRIED_TERMINAL"  # the terminal of `serried run`: the stdin of an only rank
LOCAL_JOB = "SERRIED_LOCAL_JOB"  # identifies a job's processes in /proc for the local scheduler

# For ranks, in addition to torch's own names.
RUN_ID = "SERRIED_RUN_ID"
DATA_DIR = "SERRIED_DATA_DIR"
CHECKPOINT_DIR = "SERRIED_CHECKPOINT_DIR"
RESUME_FROM = "SERRIED_RESUME_FROM"  # the checkpoint to resume from, as `{resume}`
BEGIN_FROM = "SERRIED_BEGIN_FROM"  # the checkpoint of `--resume`, for the library if its own are damaged
KEPT_DIR = "SERRIED_KEPT_CHECKPOINTS"  # the run directory's checkpoints, if CHECKPOINT_DIR is on the node's disk
RESULTS_DIR = "SERRIED_RESULTS_DIR"
CONFIG = "SERRIED_CONFIG"  # JSON: the experiment's `config` table with a sweep's values, for `serried.train.config`
TRACKER = "SERRIED_TRACKER"  # JSON of `schema.tracking.Tracking`, for the library
SMOKE = "SERRIED_SMOKE"  # in a smoke test: the number of steps after which to save, load and exit
PARALLEL = "SERRIED_PARALLEL"  # of a bench, for the library's `wrap`: `dp`, or `no-sync`
AFTER = "SERRIED_AFTER"  # the directories of the runs that this run depends on, one per line
DEADLINE = "SERRIED_DEADLINE"  # seconds since the epoch
REHEARSAL = "SERRIED_REHEARSAL"  # JSON: for each attempt of `check-resume`, the step at which ranks wait
PROFILE = "SERRIED_PROFILE"  # JSON of `serried profile`: the steps, the ranks, and whether with memory
ROUND = "SERRIED_ROUND"  # how often the ranks of the attempt have started, where they may start again
MEMORY = "SERRIED_MEMORY"  # paths of the memory for the copies of saves, by local rank: it outlives the ranks
MEMORY_FILE = "serried-checkpoint"  # its name in /proc
STOP_FILE = "SERRIED_STOP_FILE"  # appears, with the reason as content, when ranks should save and exit
FAILURE_REPORT = "SERRIED_FAILURE_REPORT"  # beside that file: see `schema.failure_report`
UNSAVED_SUFFIX = ".unsaved"  # of a file beside the stop file: what the library could not save, for the agent's report

JOB_VARIABLES = frozenset(
    value for value in tuple(globals().values()) if isinstance(value, str) and value.startswith("SERRIED_")
)
"""Variables that a job must not pass on to a job that it submits."""

COPY_BACK_SECONDS = 15
"""How much earlier ranks receive the stop notice and TERM if the agents copy files back afterwards."""

# Where a command of `beside` runs.
EVERY_NODE = "every"
FIRST_NODE = "first"

# Exit codes.
EXIT_SAVED = 85
"""Of a rank that saved: `agent.attempts.continuing` decides what follows. Of job.sh: the scheduler starts it again."""
EXIT_LEFT = 143
"""A rank that obeyed the stop notice without a save: the status of a program that TERM ended."""
OBEYED_STATUSES = (EXIT_SAVED, EXIT_LEFT)
"""Exit statuses of a rank that obeyed the stop notice; 85 counts only if something was saved."""
ROUND_BEGINS = "serried: round "
"""A line in a rank's output, with the number."""
ENDING_WITH_ABRT = "serried: ending this rank with ABRT; a Python program prints its stacks below"
"""The last line of the agent in a rank's log."""
EXIT_REFUSED = 75
"""The head agent may not begin an attempt. Then job.sh exits at once, with status 0."""

# States of attempts, tasks and runs.
PENDING = "PENDING"
RUNNING = "RUNNING"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
TIMEOUT = "TIMEOUT"
CANCELLED = "CANCELLED"
OUT_OF_MEMORY = "OUT_OF_MEMORY"
NODE_FAIL = "NODE_FAIL"
PREEMPTED = "PREEMPTED"
LAUNCH_FAILED = "LAUNCH_FAILED"
LOST = "LOST"
UNKNOWN = "UNKNOWN"
REQUEUED = "REQUEUED"  # of an attempt that another attempt continues; never a run's final state

EXIT_CODES = {TIMEOUT: 124, CANCELLED: 143, PREEMPTED: 143, OUT_OF_MEMORY: 137, NODE_FAIL: 71, LAUNCH_FAILED: 70}
"""The exit code of a run in one of these states, unless a rank's own status tells more."""

ENDED = frozenset({COMPLETED, FAILED, TIMEOUT, CANCELLED, OUT_OF_MEMORY, NODE_FAIL, PREEMPTED, LAUNCH_FAILED, LOST})

SMOKE_STEPS = 3
SMOKE_FILE = "smoke.json"
"""The file in the results with the report of a smoke test."""

RETURNED_FILE = "returned.pickle"
"""The file in the results with what a Python function has returned or raised."""

CONFIG_FILE = "config.json"
"""The file in the results with all settings of a training, and their hash."""

# How a run continues after an attempt.
REQUEUE = "requeue"  # the same job runs again
SUCCESSOR = "successor"  # a further job, submitted by the one before it as it begins
PREQUEUED = "prequeued"  # further jobs, all submitted with the first

PREFLIGHT_SECONDS = 90
"""The longest time that ranks wait for the checks of their nodes."""

# How a run must end before a dependent run begins.
AFTER_OK = "ok"  # completed
AFTER_ANY = "any"
AFTER_NOTOK = "notok"  # in any other way
AFTER_CONDITIONS = (AFTER_OK, AFTER_ANY, AFTER_NOTOK)

# The way to the servers of trackers.
TRACK_AUTO, TRACK_ONLINE, TRACK_OFFLINE, TRACK_OFF = "auto", "online", "offline", "off"

# Events of which people are notified.
EVENT_START = "start"
EVENT_FINISH = "finish"
EVENT_FAIL = "fail"
EVENT_STALL = "stall"
EVENT_ANOMALY = "anomaly"
EVENTS = (EVENT_START, EVENT_FINISH, EVENT_FAIL, EVENT_STALL, EVENT_ANOMALY)


class SubmissionState:
    """`state` of a submission in the record, and of a further job in the run directory."""

    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    FAILED = "failed"
    UNCERTAIN = "uncertain"


WITHDRAWN = "withdrawn"
"""The owner in the claim of a withdrawn submission: no job may run with its token."""

LAST_RUN = "last"
"""The word for the newest run of a project."""

RUNSCRIPT = "%runscript"
"""The command that stands for an Apptainer image's own program, which is a file in the image."""
RUNSCRIPT_FILE = "/.singularity.d/runscript"

SCRIPT_RANK = -1
"""In place of a rank's number: the user's job script, which a run with `script` has instead of ranks."""


def rank_name(number: Optional[int]) -> str:
    """`rank 3`, or `the script`, whose number is None in exit.json."""
    return "the script" if number in (None, SCRIPT_RANK) else f"rank {number}"


PLACEHOLDERS = (
    "data",
    "results",
    "checkpoints",
    "resume",
    "after",
    "seed",
    "repeat",
    "task",
    "run",
    "attempt",
    "rank",
    "local_rank",
    "world_size",
    "local_world_size",
    "nodes",
    "gpus",
    "ranks",
)
"""Names in braces in a command, in addition to settings of the training."""

OF_LAUNCHERS = ("PMI_", "PMIX_")
"""Prefixes of variables by which every scheduler's launcher, and MPI's, identify a rank."""


PATHS = ("PATH", "PYTHONPATH")
"""Variables of which only the folders that agents have added are removed."""
MOST_RECORDED = 1000
"""Longer values are recorded as None, because the kernel limits a variable to 128 KiB."""


def put(environment: Mapping[str, str], changes: Mapping[str, str]) -> Dict[str, str]:
    """`environment` with `changes`, and with a record of these for `without_run`."""
    record = _record(environment)
    for name, value in changes.items():
        before = environment.get(name)
        if name in JOB_VARIABLES or before == value:
            continue
        known = record.get(name)
        if name in PATHS:
            others = [*(before or "").split(os.pathsep), *(known or ())]
            record[name] = [*(known or ()), *(part for part in value.split(os.pathsep) if part not in others)]
        else:
            first = known[0] if known and known[1] in (None, before) else before
            record[name] = [first, value if len(value) <= MOST_RECORDED else None]
    return {**environment, **changes, **({ADDED: json.dumps(record)} if record else {})}


def without_run(environment: Mapping[str, str]) -> Dict[str, str]:
    """`environment` without what the agents of a run have put there. What its program has set since then remains."""
    own = {name: value for name, value in environment.items() if name not in JOB_VARIABLES}
    for name, record in _record(environment).items():
        if name not in own:
            continue
        if name in PATHS:
            own[name] = os.pathsep.join(part for part in own[name].split(os.pathsep) if part not in record)
        elif record[1] in (None, own[name]):
            own[name] = record[0] or ""
        if not own[name] and (name in PATHS or record[0] is None):
            del own[name]
    return own


def _record(environment: Mapping[str, str]) -> Dict[str, Any]:
    try:
        record = json.loads(environment.get(ADDED, "{}"))
    except ValueError:
        return {}
    return dict(record) if isinstance(record, dict) else {}


def scrub(environment: Mapping[str, str], prefixes: Sequence[str], selectors: Sequence[str]) -> Dict[str, str]:
    """`environment` without the variables of the job and the run that this process may run in.

    `prefixes` and `selectors` are those of the schedulers' dialects.
    """
    foreign = (*OF_LAUNCHERS, *prefixes)
    return {
        name: value
        for name, value in without_run(environment).items()
        if name in selectors or not name.startswith(foreign)
    }


def is_in_another_job(environ: Mapping[str, str]) -> bool:
    """Whether another job inherited these variables: one that a program of the attempt submitted."""
    variable, _, job = environ.get(IN_JOB, "").partition("=")
    return bool(variable) and environ.get(variable, job) != job


def elastic_id(run: str) -> str:
    """The TORCHELASTIC_RUN_ID of a run: a number, because programs for torchrun parse it with `int`."""
    return str(int.from_bytes(run.encode(), "big"))


FETCHED = "# Copies by `serried fetch`, which snapshots leave out. Delete this file to include them.\n*\n"
"""The `.gitignore` of a folder that `serried fetch` creates in a project."""
