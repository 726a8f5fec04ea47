"""Further jobs of a run: the next one is submitted as an attempt begins, and withdrawn when the run has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.options import parse
from serried.base import files, linux
from serried.base.text import iso
from serried.schema import SCHEMA, names, successor_commands
from serried.schema.names import SubmissionState

SUBMIT_SECONDS = 120
AWAY_SECONDS = 600.0
"""How long the next job is kept back while the scheduler does not answer."""
BETWEEN_SECONDS = 3.0
FAREWELL_SECONDS = 0.2
SETTLE_SECONDS = 15.0
"""How long the end of an attempt waits for the result of submitting the next job."""


def start(attempt: Attempt, token: str, job: str) -> None:
    """Submit the next job in a separate process: neither the ranks nor their end wait for the scheduler."""
    if attempt.plan.limit.continue_by != names.SUCCESSOR or attempt.number > attempt.plan.limit.restarts:
        return
    task = [] if attempt.task is None else ["--task", str(attempt.task)]
    argv = system.agent_command("submit-next", token, "--job", job, *task)
    null = os.open(os.devnull, os.O_RDONLY)
    system.spawn(argv, system.environment(), (null, 2, 2), own_group=True)
    os.close(null)


def main(arguments: List[str]) -> int:
    """`submit-next TOKEN --job ID [--task I]`: submit the job after TOKEN's, unless it was submitted already."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    options = parse(arguments)
    attempt = Attempt.load(run_directory(), options.task, 0)
    set_umask(attempt)
    message = _submit_next(attempt, options.token, attempt.job_of(options.job))
    if message:
        print(f"serried: the next job was not submitted: {message}", file=sys.stderr)
    return 0


def _submit_next(attempt: Attempt, token: str, job: str) -> Optional[str]:
    """Submit the job after `job`, unless it was submitted already. Returns the problem."""

    def why_not() -> Optional[str]:
        word = how_it_stands(attempt, job, AWAY_SECONDS)
        if word and successor_commands.is_ending(word):
            return "the job before it was ending"
        return "the scheduler does not answer" if word is None else None

    number = successor_commands.number_of(token) + 1
    return submit(attempt, successor_commands.token_of(attempt.plan.run, attempt.task, number), job, why_not)


def submit_without(attempt: Attempt, claim: Dict[str, Any], hosts: Sequence[str]) -> Optional[str]:
    """Have the next job, and all that are queued behind it, exclude `hosts`. Returns the problem.

    The next job cannot start meanwhile, because it waits for the end of this one.
    """
    import subprocess

    token, job = str(claim.get("token")), attempt.job_of(str(claim.get("job")))
    following, commands = list(_after(attempt, token)), successor_commands.read(attempt.run.link_commands)
    if commands is None or not commands.exclude:
        return "the scheduler cannot exclude a node"
    is_queued = any(attempt.run.link(later).exists() for later in following)
    problem = None if is_queued else _submit_next(attempt, token, job)
    problem = problem or missing(attempt, token)
    if problem:
        return problem
    for later in following:
        queued = (files.read_json(attempt.run.link(later)) or {}).get("job")
        if queued:
            argv = successor_commands.fill(commands.exclude, job=attempt.job_of(queued), hosts=",".join(hosts))
            try:
                subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=SUBMIT_SECONDS, check=True, capture_output=True)
            except (OSError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", None) or str(error).encode()
                return said.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return None


def submit(
    attempt: Attempt, token: str, after: str, why_not: Callable[[], Optional[str]], **more: Any
) -> Optional[str]:
    """Submit job `token` to start after any end of `after`, unless it was submitted already. Returns the problem.

    `after` may be several jobs with `:` between; `more` is kept in the link's file.
    """
    files.make_directory(attempt.run.links, attempt.directory_mode)
    intent = {
        "schema": SCHEMA,
        "token": token,
        "state": SubmissionState.SUBMITTING,
        "cluster": attempt.plan.site.name,
        "scheduler": attempt.plan.site.scheduler,
        "at": iso(time.time()),
        "by_pid": os.getpid(),
        "by_host": os.uname().nodename,
        "by_started": linux.started(os.getpid()),
        "job": None,
        "message": None,
        **more,
    }
    mine = files.text_of(intent)
    if files.claim(attempt.run.link(token), mine) != mine:
        return None
    job, message = _submit(attempt, token, after, why_not)
    state = SubmissionState.FAILED if job is None else SubmissionState.SUBMITTED
    result = {**intent, "state": state, "job": job, "message": message}
    files.write_json(attempt.run.link(token), result, attempt.file_mode)
    if _owner(attempt, token) == names.WITHDRAWN:  # meanwhile, by a process that could not know the job's id
        _cancel(attempt, token)
    return message if job is None else None


def _submit(
    attempt: Attempt, token: str, after: str, why_not: Callable[[], Optional[str]]
) -> Tuple[Optional[str], Optional[str]]:
    """The new job's id, or the problem. Submits once at most, also if the scheduler does not answer."""
    commands = successor_commands.read(attempt.run.link_commands)
    if commands is None:
        return None, f"{attempt.run.link_commands} is missing"
    obstacle = why_not()
    if obstacle:
        return None, obstacle
    if _owner(attempt, token) == names.WITHDRAWN:
        return None, "it was withdrawn"
    index = None if attempt.task is None else attempt.task - attempt.index_offset
    argv = successor_commands.fill(commands.submit, token=token, job=after, task=index)
    dialect = attempt.plan.site.dialect
    environment = {**names.scrub(os.environ, dialect.prefixes, dialect.selectors), **commands.environment}
    try:
        output, errors = _output(argv, {name: value for name, value in environment.items() if value is not None})
    except OSError as error:
        return None, str(error)
    job = successor_commands.new_id(output, commands.id_pattern)
    if job is not None:
        return job, None
    lines = [line.strip() for line in (errors or output).splitlines() if line.strip()]
    return None, lines[-1] if lines else "the scheduler printed nothing"


def _output(argv: List[str], environment: Dict[str, str]) -> Tuple[str, str]:
    """The output of a command until it closes its stdout; the process may keep running, as a supervisor does."""
    import subprocess

    def too_long(*_: object) -> None:
        raise OSError("the scheduler did not answer")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SUBMIT_SECONDS)
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    output, errors = [pipe.read() for pipe in (process.stdout, process.stderr) if pipe]
    signal.alarm(0)
    for pipe in filter(None, (process.stdout, process.stderr)):
        pipe.close()
    try:
        process.wait(FAREWELL_SECONDS)
    except subprocess.TimeoutExpired:
        process.returncode = 0  # keeps subprocess from warning about a child that still runs
    return output.decode("utf-8", "replace"), errors.decode("utf-8", "replace")


def how_it_stands(attempt: Attempt, job: str, patience: float = 0.0) -> Optional[str]:
    """The scheduler's state of `job` (`123`, `123_4`); "" for a job it no longer knows, None without an answer."""
    commands = successor_commands.read(attempt.run.link_commands)
    if commands is None:
        return ""
    deadline = time.monotonic() + patience
    while True:
        word = system.query(successor_commands.fill(commands.ask, job=job))
        if word is not None or time.monotonic() >= deadline:
            return word
        time.sleep(BETWEEN_SECONDS)


def missing(attempt: Attempt, token: str) -> Optional[str]:
    """Why no job follows the one of `token`; None if one does. Waits for a submission in progress."""
    following = list(_after(attempt, token))[:1]
    if not following:
        return "the run has no further job"
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        link = files.read_json(attempt.run.link(following[0])) or {}
        if link.get("state", SubmissionState.SUBMITTING) != SubmissionState.SUBMITTING or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    if link.get("state") == SubmissionState.SUBMITTED:
        return "the next job was withdrawn" if _owner(attempt, following[0]) == names.WITHDRAWN else None
    return f"the next job was not submitted ({link.get('message') or 'no answer yet'})"


def withdraw(attempt: Attempt, token: str) -> None:
    """Withdraw all jobs after the one of `token`: first their claims, then their places in the queue."""
    following = list(_after(attempt, token))
    for later in following:
        if attempt.task == successor_commands.task_of(later):
            with contextlib.suppress(OSError):
                files.claim(attempt.run.claim(later), names.WITHDRAWN)
    commands = successor_commands.read(attempt.run.link_commands)
    if commands is not None and commands.strands and attempt.run.followed.exists():
        return  # jobs that depend on them would never start; they start, see their withdrawn claims, and exit
    for later in following:
        _cancel(attempt, later)


def _cancel(attempt: Attempt, token: str) -> None:
    import subprocess

    commands = successor_commands.read(attempt.run.link_commands)
    job = (files.read_json(attempt.run.link(token)) or {}).get("job")
    if job and commands is not None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            argv = successor_commands.fill(commands.cancel, job=attempt.job_of(job))
            subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=system.ANSWER_SECONDS, check=False)


def _after(attempt: Attempt, token: str) -> Iterator[str]:
    """Tokens of the jobs that may follow the one of `token`, including those that are not submitted yet."""
    number, run, limit = successor_commands.number_of(token), attempt.plan.run, attempt.plan.limit
    last = limit.restarts + 2 if limit.continue_by == names.PREQUEUED else 0
    if last > number + 1:
        yield from (successor_commands.token_of(run, None, later) for later in range(number + 1, last))
    elif limit.continue_by == names.SUCCESSOR or attempt.plan.may_exclude_nodes:
        yield successor_commands.token_of(run, attempt.task, number + 1)


def _owner(attempt: Attempt, token: str) -> Optional[str]:
    try:
        return attempt.run.claim(token).read_text(encoding="utf-8")
    except OSError:
        return None
