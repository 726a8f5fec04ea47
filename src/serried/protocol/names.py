"""Environment variables, exit codes and words that both sides use."""

from __future__ import annotations

from typing import Dict, Mapping

# What job.sh gives to the agents.
RUN_DIR = "SERRIED_RUN_DIR"
TOKEN = "SERRIED_TOKEN"  # noqa: S105 - names a submission, opens nothing
JOB = "SERRIED_JOB"  # the local scheduler's job id; Slurm has its own variable
TASK = "SERRIED_TASK"  # the index of an array task
FORMER_TASK = "SERRIED_ELEMENT"  # the former name of TASK: ranks still get it
ATTEMPT = "SERRIED_ATTEMPT"
HEAD = "SERRIED_HEAD"  # host:port candidates, comma separated
KEY = "SERRIED_KEY"  # the attempt's key; never reaches a rank
MARK = "SERRIED_MARK"  # run/task/attempt: how leftovers are known in /proc
RESUME = "SERRIED_RESUME"  # what this attempt goes on from: for the agents, which tell ranks
SETUP = "SERRIED_SETUP"  # how setup.sh ended, for the agent that goes on after it; IN_SETUP for what runs in it
IN_SETUP = "running"
NODE = "SERRIED_NODE"  # the node's index: several nodes of a lab share one /proc

# What else the local scheduler gives to job.sh.
RESTARTS = "SERRIED_RESTART_COUNT"  # as SLURM_RESTART_COUNT
JOB_END = "SERRIED_JOB_END"  # as SLURM_JOB_END_TIME: when it ends the job, seconds since the epoch
TERMINAL = "SERRIED_TERMINAL"  # where `serried run` was typed: the stdin of an only rank
LOCAL_JOB = "SERRIED_LOCAL_JOB"  # how the local scheduler knows a job's leftovers in /proc

# What ranks read besides torch's own names.
RUN_ID = "SERRIED_RUN_ID"
DATA_DIR = "SERRIED_DATA_DIR"
CHECKPOINT_DIR = "SERRIED_CHECKPOINT_DIR"
RESUME_FROM = "SERRIED_RESUME_FROM"  # what this attempt goes on from, as `{resume}`
BEGIN_FROM = "SERRIED_BEGIN_FROM"  # what `--resume` named: for the training library, where all of its own are damaged
KEPT_DIR = "SERRIED_KEPT_CHECKPOINTS"  # where those of CHECKPOINT_DIR are brought, if it is the node's: for the library
RESULTS_DIR = "SERRIED_RESULTS_DIR"
CONFIG = "SERRIED_CONFIG"  # JSON: the experiment's `config` table with a sweep's values, for `serried.train.config`
THREADS = "SERRIED_NUM_THREADS"  # the OMP_NUM_THREADS that Serried chose, to tell it from the user's
SMOKE = "SERRIED_SMOKE"  # this is a smoke test: after how many steps to save, load and leave
AFTER = "SERRIED_AFTER"  # the directories of the runs that this one comes after, one a line
DEADLINE = "SERRIED_DEADLINE"  # seconds since the epoch
REHEARSAL = "SERRIED_REHEARSAL"  # JSON: the steps, one for each attempt, at which a rehearsal's ranks wait to be asked
STOP_FILE = "SERRIED_STOP_FILE"  # appears, holding the reason, when ranks should save and leave
UNSAVED_SUFFIX = ".unsaved"  # of a file beside it: what the library could not save, for the agent to tell

JOB_VARIABLES = frozenset(
    {RUN_DIR, TOKEN, TASK, FORMER_TASK, ATTEMPT, HEAD, KEY, MARK, NODE, SETUP, RESUME, JOB, RESTARTS, LOCAL_JOB}
    | {RUN_ID, DATA_DIR, CHECKPOINT_DIR, RESUME_FROM, BEGIN_FROM, KEPT_DIR, RESULTS_DIR, AFTER, CONFIG, SMOKE}
    | {DEADLINE, REHEARSAL, TERMINAL, STOP_FILE, THREADS, JOB_END}
)
"""What a job that submits another must not pass on to it."""

BRING_SECONDS = 15
"""So much earlier ranks are asked and ended at the limit where agents have to copy something back afterwards."""

# Exit codes.
EXIT_SAVED = 85
"""A rank's "saved, please continue"; a job.sh under the local scheduler asks for the next attempt with it."""
EXIT_LEFT = 143
"""A rank's "I was asked to leave, and have nothing saved": as if TERM had ended it."""
EXIT_REFUSED = 75
"""The head agent's "this attempt is not to be": job.sh then leaves at once, with 0."""

# How an attempt, a task or a run stands.
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
REQUEUED = "REQUEUED"  # an attempt that ended well enough for the next one; never a run's last state

EXIT_CODES = {TIMEOUT: 124, CANCELLED: 143, PREEMPTED: 143, OUT_OF_MEMORY: 137, NODE_FAIL: 71, LAUNCH_FAILED: 70}
"""What a run in one of these states exits with, where no rank's own status tells more."""

ENDED = frozenset({COMPLETED, FAILED, TIMEOUT, CANCELLED, OUT_OF_MEMORY, NODE_FAIL, PREEMPTED, LAUNCH_FAILED, LOST})

SMOKE_STEPS = 3
SMOKE_FILE = "smoke.json"
"""Among the results: what a smoke test has tried."""

CONFIG_FILE = "config.json"
"""Among the results: all settings of a training, and their hash."""

# How a run goes on after an attempt.
REQUEUE = "requeue"  # the same job runs again
SUCCESSOR = "successor"  # a further job, submitted by the one before it as it begins
PREQUEUED = "prequeued"  # further jobs, all submitted with the first

# How a run has to end for another to begin after it.
AFTER_OK = "ok"  # completed
AFTER_ANY = "any"
AFTER_NOTOK = "notok"  # in any other way
AFTER_CONDITIONS = (AFTER_OK, AFTER_ANY, AFTER_NOTOK)

# What people are told of.
EVENT_START = "start"
EVENT_FINISH = "finish"
EVENT_FAIL = "fail"
EVENT_STALL = "stall"
EVENTS = (EVENT_START, EVENT_FINISH, EVENT_FAIL, EVENT_STALL)

WITHDRAWN = "withdrawn"
"""The owner that a tombstone names: no job may run under this token any more."""

RUNSCRIPT = "%runscript"
"""As a command: what an image of Apptainer's runs by itself, which is a file in it."""
RUNSCRIPT_FILE = "/.singularity.d/runscript"

PLACEHOLDERS = (
    "data",
    "results",
    "checkpoints",
    "resume",
    "after",
    "seed",
    "repeat",
    "task",
    "element",  # the former name of `task`
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
"""What may stand in braces in a command, beside settings of the training."""

CHOSEN_CLUSTER = "SLURM_CONF"
CHOICES = frozenset({CHOSEN_CLUSTER, "PBS_SERVER", "PBS_DEFAULT", "PBS_CONF_FILE", "PBS_EXEC"})
"""The variables that select a cluster, not a job."""

SCRUBBED = ("SBATCH_", "SLURM_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SCANCEL_", "PMI_", "PMIX_", "PBS_")
"""Prefixes of variables that would override the options of a submitted job, or identify it as the submitting job."""


def scrub(environment: Mapping[str, str]) -> Dict[str, str]:
    """`environment` without the variables of the job that this process may run in."""
    return {
        name: value
        for name, value in environment.items()
        if name in CHOICES or not (name.startswith(SCRUBBED) or name in JOB_VARIABLES)
    }
