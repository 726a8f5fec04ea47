"""This machine as a cluster of one node: limits, warnings, requeue, arrays and a queue, without a daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serried import schedulers
from serried.base import processes, shell
from serried.base.errors import SubmissionRefused, SubmissionUncertain
from serried.base.files import MODES, PRIVATE_FILE
from serried.base.processes import Process
from serried.base.text import compress, expand
from serried.schedulers import scrub
from serried.schedulers.interface import OF_THIS_MACHINE, Job, SubmitCommand, Variables, job_name, names_token
from serried.schedulers.local import jobs
from serried.schedulers.local.cluster import GPUS, SLOTS, VISIBLE
from serried.schedulers.local.jobs import DIRECTORY, SUPERVISOR_GONE, WHOLE, JobFolder
from serried.schema import successor_commands
from serried.schema.plan import Array, Plan, UserScript
from serried.schema.reasons import Reason
from serried.schema.successor_commands import Commands

FRAGMENT = INSIDE = OF_THIS_MACHINE
SHELL = ""

COMMAND = (sys.executable, "-I", str(Path(__file__).with_name("main.py")))
"""-I: Python variables in the job's environment are for the job."""

CPU, GPU, NOTHING = "cpu", "gpu", "nothing"
"""Pools of slots."""


def script_lines(plan: Plan, script: UserScript) -> str:
    """The variables that the scheduler of the script's directives would set, as far as they have a meaning here."""
    return schedulers.script(script.dialect).stand_in(plan, script) if script.dialect else ""


def whole_array(array: Array) -> str:
    return ""


def launcher(plan: Plan) -> str:
    return ""


def required_options(extra: Sequence[str]) -> tuple[str, ...]:
    return ()


def supervisor_command(plan: Plan, token: str, *, after: str = "", task: str = "") -> tuple[str, ...]:
    """The command that supervises the job and prints its id. `after` are jobs (`123`, or `123_4`), joined by `:`."""
    allocation, array = plan.allocation, plan.array
    throttle = f"%{array.parallel}" if array and array.parallel else ""
    options = {
        "job-name": job_name(plan.name, token),
        "chdir": plan.directory,
        "gpus" if allocation.gpus else "cpus": allocation.gpus or allocation.cpus,
        "time": allocation.time_seconds,
        "warn-before": None if allocation.time_seconds is None else plan.warn_before_seconds,
        "kill-wait": plan.site.kill_wait_seconds,
        "array": task or (compress(array.indices) + throttle if array else None),
        "after": after or None,
    }
    return (
        *COMMAND,
        *(f"--{name}={value}" for name, value in options.items() if value is not None),
        *(["--requeue"] if plan.may_requeue else []),
        *("--", "/bin/bash", f"{plan.directory}/job.sh", token),
    )


@dataclass(frozen=True)
class JobRequest:
    name: str
    directory: str
    pool: str
    need: int
    command: tuple[str, ...]
    time_seconds: int | None
    warn_before_seconds: int
    kill_wait_seconds: int
    tasks: tuple[str, ...]
    parallel: int | None
    requeue: bool
    after: str
    umask: int = -1
    """For job.sh; -1 is that of its supervisor."""


def parse(command: Sequence[str]) -> JobRequest:
    import argparse

    parser = argparse.ArgumentParser(prog="main.py", description="Supervise one job on this machine.")
    parser.add_argument("--job-name", required=True)
    parser.add_argument("--chdir", required=True)
    slots = parser.add_mutually_exclusive_group(required=True)
    slots.add_argument("--gpus", type=int)
    slots.add_argument("--cpus", type=int)
    parser.add_argument("--time", type=int)
    parser.add_argument("--warn-before", type=int, default=0)
    parser.add_argument("--kill-wait", type=int, default=30)
    parser.add_argument("--array", default="")
    parser.add_argument("--requeue", action="store_true")
    parser.add_argument("--after", default="")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(command[len(COMMAND) :])
    listed, _, throttle = given.array.partition("%")
    return JobRequest(
        name=given.job_name,
        directory=given.chdir,
        pool=CPU if given.gpus is None else GPU,
        need=given.cpus if given.gpus is None else given.gpus,
        command=tuple(given.command),
        time_seconds=given.time,
        warn_before_seconds=given.warn_before,
        kill_wait_seconds=given.kill_wait,
        tasks=tuple(map(str, expand(listed))) if listed else (WHOLE,),
        parallel=int(throttle) if throttle else None,
        requeue=given.requeue,
        after=given.after,
    )


START_TIMEOUT_SECONDS = 60.0

REASONS: Mapping[str, tuple[Reason | None, str]] = {
    "Priority": (Reason.QUEUED, "other jobs in this machine's queue come first"),
    "Resources": (Reason.QUEUED, "it is next in the queue; the slots that it needs are in use"),
    "Dependency": (Reason.DEPENDENCY, "it waits for another job to end"),
    "JobArrayTaskLimit": (Reason.QUEUED, "as many tasks run as `--parallel` allows"),
    "NonZeroExitCode": (None, "its script ended with a non-zero exit code"),
    SUPERVISOR_GONE: (None, "its supervisor is gone: it was killed, or the machine restarted"),
    "": (Reason.QUEUED, "it has only just been queued"),
}


class Local:
    name = "local"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def submission(
        self, plan: Plan, token: str, environment: Variables, *, after: str = "", task: str = "", held: bool = False
    ) -> SubmitCommand:
        argv = supervisor_command(plan, token, after=after, task=task)
        return SubmitCommand(argv, scrub(environment), umask=MODES[plan.share].umask)

    def commands(self, plan: Plan, environment: Variables) -> Commands:
        job, task = successor_commands.JOB, successor_commands.TASK if plan.array else ""
        return Commands(
            submit=supervisor_command(plan, successor_commands.TOKEN, after=job, task=task),
            cancel=(*COMMAND, "cancel", job),
            ask=(*COMMAND, "ask", job),
            # A job sees its own GPUs alone.
            environment={VISIBLE: os.environ.get(VISIBLE)},
            id_pattern=r"^(\d+)$",
        )

    def interactive(
        self, plan: Plan, token: str, environment: Variables, *, now: bool, has_terminal: bool
    ) -> SubmitCommand:
        """It takes no slots: its user sits in front of it."""
        return SubmitCommand(("/bin/bash", f"{plan.directory}/job.sh", token), scrub(environment))

    def join(self, job: str, host: str, words: Sequence[str], *, has_terminal: bool) -> tuple[str, ...]:
        return tuple(words)

    def errand(self, plan: Plan, host: str, words: Sequence[str]) -> tuple[str, ...]:
        return tuple(words)

    def submit(self, submission: SubmitCommand) -> str:
        # The supervisor needs these variables of ours, whatever environment its job gets.
        ours = {name: os.environ[name] for name in (DIRECTORY, SLOTS, GPUS, VISIBLE) if name in os.environ}
        log = jobs.root() / f"supervisor-{os.getpid()}-{time.monotonic_ns()}.log"
        self.calls["supervisor"] += 1
        environment = {**submission.environment, **ours}
        pid = shell.spawn(submission.argv, log=log, env=environment, cwd=Path("/"), umask=submission.umask)
        try:
            return _await_id(pid, log)
        finally:
            with contextlib.suppress(OSError):
                log.unlink()

    def find(self, token: str, since: float | None = None) -> str | None:
        for folder in reversed(jobs.folders(jobs.root())):
            about = folder.about
            if about and names_token(about["name"], token):
                return str(folder.number)
        return None

    def poll(self, ids: Sequence[str], since: float | None = None) -> Mapping[tuple[str, int | None], Job]:
        root = jobs.root()
        answer: dict[tuple[str, int | None], Job] = {}
        for number in {self.split(job)[0] for job in ids}:
            for job in JobFolder(root, number).jobs():
                if number in ids or f"{number}_{job.task}" in ids:
                    answer[job.id, job.task] = job
        if any(job.reason == SUPERVISOR_GONE for job in answer.values()):
            # In place of the killed supervisor, release its slots and sweep the remains of its job.
            with jobs.locked_slots(root):
                pass
        return answer

    def poll_others(self, users: Sequence[str]) -> Mapping[tuple[str, int | None], Job]:
        return {}  # jobs of the local scheduler belong to one user

    def split(self, job: str) -> tuple[str, int | None]:
        number, _, task = job.partition("_")
        return number, int(task) if task else None

    def cancel(self, ids: Sequence[str]) -> None:
        for job in ids:
            number, _, task = job.partition("_")
            folder, key = JobFolder(jobs.root(), number), task or WHOLE
            about = folder.about
            if about is None:
                continue
            (folder.path / jobs.cancel_name(key)).touch(mode=PRIVATE_FILE)
            supervisor = Process(**about["supervisor"])
            if supervisor.is_alive:
                if about["hears_signals"]:
                    supervisor.send(signal.SIGUSR1)
                continue
            for own, standing in folder.standings().items():
                child = standing.child if WHOLE in (own, key) or own == key else None
                if child is not None and child.is_alive:
                    jobs.signal_all(child.pid, folder.mark(own), signal.SIGTERM)

    def release(self, ids: Sequence[str]) -> None:
        """Nothing is held: no array is too large for this queue."""

    def explain(self, reason: str) -> str:
        return REASONS[reason][1] if reason in REASONS else f"this machine's queue reports `{reason}`"

    def classify(self, reason: str) -> Reason | None:
        return REASONS.get(reason, (None,))[0]


SCHEDULER = Local


def answer_job(words: Sequence[str]) -> int:
    """`main.py ask JOB`, which prints the job's state, and `main.py cancel JOB`: for another job."""
    question, job = words
    if question == "cancel":
        Local().cancel([job])
    else:
        for known in Local().poll([job]).values():
            print(known.state)
    return 0


def _await_id(pid: int, log: Path) -> str:
    """The job's id, which its supervisor `pid` prints once the job exists."""
    supervisor = processes.identify(pid)
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        # In this order: a supervisor that is gone by now has already printed everything.
        is_alive = supervisor is not None and supervisor.is_alive
        printed = log.read_text(encoding="utf-8", errors="replace")
        job, newline, _ = printed.partition("\n")
        if newline and job.isdecimal():
            return job
        if not is_alive:
            *details, problem = printed.strip().splitlines() or ["its supervisor printed no reason"]
            raise SubmissionRefused(f"this machine cannot run the job: {problem}", details="\n".join(details) or None)
        time.sleep(0.005)
    raise SubmissionUncertain("the job's supervisor does not answer; the job may still start", details=printed or None)
