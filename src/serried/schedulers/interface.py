"""The duties of a scheduler: its traits, its part of job.sh, its commands. One contract suite tests them all."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from serried.base import NamedTuple
from serried.base.files import MODES
from serried.schema import names
from serried.schema.layout import RunDirectory, plain
from serried.schema.plan import Array, Dialect, Plan, UserScript
from serried.schema.reasons import Reason
from serried.schema.successor_commands import Commands

ERRAND_SECONDS = 3600
ERRAND_MEMORY_MB = 1024
"""The time and memory of a job that fetches or deletes files on one node."""

LONGEST_NAME = 64
"""Longer job names break the prologs of some sites, and subjects of mails."""


class Traits(NamedTuple):
    title: str
    """As its makers write it."""
    is_here: Callable[[Mapping[str, str]], bool]
    """Whether jobs can be submitted to it from this machine."""
    is_around: Callable[[Mapping[str, str]], bool]
    """Whether the environment is that of one of its jobs."""
    dialect: Dialect
    """The facts about its jobs that agents need."""
    has_wrappers: bool = False
    """Whether other schedulers come with wrappers of its commands: such a cluster is the other scheduler's."""
    survey: str = ""
    """The commands that list its partitions, for messages."""
    survey_command: str = ""
    """The program of the first of these commands."""
    command: str = ""
    """A program whose presence alone, without a cluster, deserves a note: packages on a laptop."""
    is_this_machine: bool = False
    """One node without a scheduler of its own: no defaults or limits apply, except those that the user sets."""
    assigns_gpus: bool = True
    """Whether it gives each job GPUs of its own. Otherwise two jobs on one node would both use the first."""
    has_node_disk: bool = False
    """Whether sites commonly give each job a folder on its nodes' disks."""
    cluster_variable: str = ""
    """In its jobs, the variable that holds the cluster's name."""
    option_prefixes: tuple[str, ...] = ()
    """Its submission commands read options from variables with one of these prefixes: `SBATCH_ACCOUNT`."""
    cpu_variables: tuple[str, ...] = ()
    """Variables of its jobs that look like the user's wish for a number of CPUs."""
    programs: tuple[str, ...] = ()
    """Programs that job.sh calls; their folders stay on PATH."""
    parts: tuple[str, ...] = ()
    """Kinds of `launch.kind`, and container runtimes, that need it."""
    hold_options: tuple[str, ...] = ()
    """Options for a job that does not start until its user releases it."""
    sets_exports_last: bool = False
    """Whether variables that a script exports win over those of a login in the job."""


class Job(NamedTuple):
    """A job, or one task of an array job, as the scheduler sees it just now."""

    id: str
    """The scheduler's own id, `123`; the task's index is apart."""
    task: int | None
    state: str
    """One of `serried.schema.names`: PENDING, RUNNING, COMPLETED, FAILED, …, UNKNOWN."""
    raw: str = ""
    """The scheduler's own word for it."""
    reason: str = ""
    """Why it waits or ended, in the scheduler's word (`QOSMaxJobsPerUserLimit`)."""
    exit_code: int | None = None
    signal: int | None = None
    ended: float | None = None
    """Seconds since the epoch."""
    starts: float | None = None
    """When the scheduler expects to start it; seconds since the epoch."""
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    name: str = ""
    """Its name at the submission; empty if unknown."""


Variables = Mapping[str, str]
"""Names and values in an environment."""

WaitReasons = Sequence[tuple[str, Reason, str]]
"""Patterns of the scheduler's reasons for waiting (`*` matches anything), each with its code and its sentence.

Rows are tried from the top. `{rest}` in a sentence stands for the words after the second `: `, or else the first.
"""


class SubmitCommand(NamedTuple):
    """What is handed over: `argv` run with `environment` is exactly what --dry-run prints."""

    argv: tuple[str, ...]
    environment: Variables
    umask: int = MODES["user"].umask
    """For the command, and through it for the job."""
    handover: Path | None = None
    """A private file with `environment` for the job, if the scheduler would show variables to everybody."""


class Scheduler(Protocol):
    name: str

    @property
    def calls(self) -> Mapping[str, int]:
        """How often each of the scheduler's commands was started by this object: what a question costs, for tests."""

    def submission(
        self, plan: Plan, token: str, environment: Variables, *, after: str = "", task: str = "", held: bool = False
    ) -> SubmitCommand:
        """The command that submits `plan`'s job.sh under `token`. Pure.

        `after` is a job (`123`) or task (`123_4`) that must have ended before, however it did, or several with `:`
        between; `task` makes it a job for that one task of the array. A `held` job waits for `release`.
        """

    def commands(self, plan: Plan, environment: Variables) -> Commands:
        """What a job of `plan` needs to submit the next one; `environment` is what the first is submitted with."""

    def interactive(
        self, plan: Plan, token: str, environment: Variables, *, now: bool, has_terminal: bool
    ) -> SubmitCommand:
        """The command that runs `plan`'s job.sh on the first node of an allocation, on our own terminal. Pure.

        `now` is to fail at once where nothing is free, as far as the scheduler can be asked that.

        Raises UsageError where it cannot be without a terminal.
        """

    def join(self, job: str, host: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:
        """The command that runs `words` on a node of a job or task that runs, on our own terminal. Pure."""

    def errand(self, plan: Plan, host: str, words: Sequence[str]) -> tuple[str, ...]:
        """The command that runs `words` on `host` in a small job of its own, for an hour at most. Pure.

        It waits until the node has room for it, and until it has ended; its output is nobody's. It is paid for and
        queued as `plan` is.
        """

    def submit(self, submission: SubmitCommand) -> str:
        """Hand it over; return the job id.

        Raises:
            SubmissionRefused: it was read and refused; no job exists.
            SchedulerUnreachable: it was not delivered; no job exists.
            SubmissionUncertain: a job may exist.
        """

    def find(self, token: str, since: float | None = None) -> str | None:
        """The id of the job submitted under `token`; None when the scheduler knows of none.

        `since` (seconds since the epoch) is when it may have been submitted at the earliest.

        Raises SchedulerUnreachable when it cannot tell.
        """

    def poll(self, ids: Sequence[str], since: float | None = None) -> Mapping[tuple[str, int | None], Job]:
        """How these jobs stand: one question for all of them. A job that it no longer knows is absent.

        Keys are (id, task). An id `123` asks for the job and what is known of its tasks; `123_4` insists on
        that task: what the queue forgot of it is looked up in the accounts. `since` is when the oldest of them
        was submitted. Raises SchedulerUnreachable.
        """

    def poll_others(self, users: Sequence[str]) -> Mapping[tuple[str, int | None], Job]:
        """The queued and running jobs of other users, as far as the scheduler shows them, in one query for all users.

        Raises SchedulerUnreachable.
        """

    def split(self, job: str) -> tuple[str, int | None]:
        """The key of a job or task, `123_4`, in what `poll` returns. Pure."""

    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs (`123`) or tasks (`123_4`); ended or unknown ones are no error."""

    def release(self, ids: Sequence[str]) -> None:
        """Let jobs that were submitted `held` begin; for others it does nothing. Raises SchedulerUnreachable."""

    def explain(self, reason: str) -> str:
        """The scheduler's reason for waiting as a sentence that a user understands."""

    def classify(self, reason: str) -> Reason | None:
        """The code for the scheduler's reason for waiting; None for a reason that this scheduler does not know."""


class Fragment(NamedTuple):
    cleanup: str
    """Lines that remove what the submitting shell may have left and would change this job."""
    job: str
    """A word of bash: the job's id, for an array the array's."""
    task: str
    """A word of bash: the index of the task of an array."""
    head_options: str
    """More words for the head agent."""
    functions: str
    """What `again` needs."""
    again: str
    """Lines that run this job again. Where that cannot be they go on, with another $serried_word to obey."""
    script_ended: str = ""
    """Lines after a job script: they set $serried_final to `requeue` if the scheduler will run this job again."""
    check: str = ""
    """Lines that end a job which cannot begin."""
    task_index: str = ""
    """A parameter of bash, without the `$`: the scheduler's own index of the task."""
    index_variable: str = ""
    """Where programs look for it."""
    own_log: str = ""
    """A line that gives the task of an array in parts a log of its own."""
    of_part: str = ""
    """Lines that set the task index in one part of a split array."""
    cancel_idle: str = ""
    """Lines that cancel jobs of the array that still wait, `idle 3-7,9` in `serried_answer`. Without them, the jobs
    start and end."""


class Script(Protocol):
    """Its part of job.sh, in the module `commands` of a scheduler."""

    @property
    def FRAGMENT(self) -> Fragment: ...  # noqa: N802 - a constant of the module

    @property
    def INSIDE(self) -> Fragment:  # noqa: N802
        """In the foreground of somebody's job: nothing is queued, but nodes and their launcher are the scheduler's."""

    @property
    def SHELL(self) -> str:  # noqa: N802
        """What comes before an interactive shell: only the cleanup."""

    def script_lines(self, plan: Plan, script: UserScript) -> str:
        """Lines of bash that restore the variables of a job script which a job of Serried has otherwise."""

    def stand_in(self, plan: Plan, script: UserScript) -> str:
        """Lines of bash that set the variables of this scheduler for its script on a machine without it."""

    def whole_array(self, array: Array) -> str:
        """Lines of bash that set the variables about the array, which is several jobs for the scheduler."""

    def launcher(self, plan: Plan) -> str:
        """Words of bash that start the words after them once on each node; empty where the head does that itself."""

    def required_options(self, extra: Sequence[str]) -> tuple[str, ...]:
        """The options among `resources.extra` that a site may demand of every job, also of small jobs for a run."""


OF_THIS_MACHINE = Fragment(
    cleanup="",
    job='"${SERRIED_JOB:?}"',
    task='"${SERRIED_TASK:?}"',
    head_options='--end "${SERRIED_JOB_END:-}"',
    functions="",
    again="  exit 85\n",
    task_index=names.TASK,
    index_variable=names.TASK,
)
"""Where the job is a process of ours: its supervisor says by variables who it is."""


def job_name(name: str, token: str) -> str:
    """`name` made harmless, a dash, `token`: letters, digits, `.`, `_` and `-`, at most 64, no leading dash."""
    return f"{plain(name, LONGEST_NAME - len(token) - 1) or 'serried'}-{token}"


def submit_folder(plan: Plan, task: str) -> str:
    """`plan.submitted_from` as a word of bash. `task` is a word of bash, too: the index of the array's task."""
    if not (plan.source.snapshot and plan.source.tree_per_task):
        return shlex.quote(plan.submitted_from)
    within = os.path.relpath(plan.submitted_from, plan.directory)
    return f"{shlex.quote(str(RunDirectory(Path(plan.directory)).tasks))}/{task}/{shlex.quote(within)}"


def script_logs(*words: str) -> str:
    """A line of bash that sets where the user expects the logs of a script. `words` are paths as words of bash."""
    paths = [word for word in words if word]
    return f"export {names.SCRIPT_LOGS}={NEXT_LINE.join(paths)}\n" if paths else ""


NEXT_LINE = r"$'\n'"
"""A line break as a word of bash."""


def names_token(name: str, token: str) -> bool:
    """Whether the job called `name` was submitted under `token`."""
    return name == token or name.endswith(f"-{token}")
