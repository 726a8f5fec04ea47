"""The supervisor of one local job: waits for slots, runs job.sh, and ends it as Slurm would.

It is a process that outlives the terminal, or, for `serried run`, the process in the foreground.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from serried.base import NamedTuple, processes, shell
from serried.base.errors import SerriedError, UsageError
from serried.base.files import MODES, make_directory
from serried.schedulers import scrub
from serried.schedulers.local import cluster, commands, jobs
from serried.schedulers.local.cluster import VISIBLE
from serried.schedulers.local.commands import CPU, GPU, NOTHING, JobRequest
from serried.schedulers.local.jobs import JobFolder, SlotClaim, Standing, locked_slots
from serried.schedulers.survey import Inside
from serried.schema import layout, names
from serried.schema.layout import RunDirectory
from serried.schema.plan import Plan

TICK_SECONDS = 0.1

INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The first ends the job with its grace (TERM, the kill wait, KILL), the second at once."""


class ForegroundEnd(NamedTuple):
    status: int
    """job.sh's exit status; for an array, the first that is not 0."""
    was_interrupted: bool
    """By one of INTERRUPTING, perhaps too late."""


def run_here(
    plan: Plan,
    token: str,
    environment: Mapping[str, str],
    *,
    gpu_ids: Sequence[str] = (),
    inside: Inside | None = None,
    on_start: Callable[[str], None] = lambda _: None,
    tick: Callable[[], None] = lambda: None,
) -> ForegroundEnd:
    """Run the plan's job.sh here and now.

    `on_start` gets the job's id before job.sh runs; `tick` is called some ten times a second until the end. The job
    gets the GPUs `gpu_ids`, else idle ones: those that no job has taken, then those with the most free memory. During
    the run, INTERRUPTING signals are the job's. Call this from the main thread.

    Inside of another job, `inside`, the job runs on that job's nodes and takes no slots.

    Raises UsageError if this machine lacks a requested GPU.
    """
    request = replace(commands.parse(commands.supervisor_command(plan, token)), umask=MODES[plan.share].umask)
    environment = scrub(environment)
    slots: tuple[str, ...] = ()
    if inside is None:
        environment |= _terminal(plan)
        slots = _slots(request, gpu_ids)
    else:
        environment |= inside.variables
        command = (*inside.to_first_node, *request.command)
        if inside.has_private_file:
            make_directory(Path(plan.private))
            command = (*command, f"{plan.private}/{plan.run}")
        request = replace(request, pool=NOTHING, need=0, command=command)
    root = jobs.root()
    folder = jobs.new_folder(root)
    supervisor = Supervisor(request, folder, root, slots, environment)
    folder.commit(request.name, request.tasks, hears_signals=False)
    on_start(str(folder.number))

    def pause(seconds: float) -> None:
        tick()
        time.sleep(min(seconds, TICK_SECONDS))

    with _interrupting(supervisor), _restored_terminal(environment.get(names.TERMINAL)):
        supervisor.run(pause, seize=slots)
        tick()
    failed = [task.standing for task in supervisor.tasks if task.standing.state != names.COMPLETED]
    return ForegroundEnd((failed[0].exit_code or 1) if failed else 0, bool(supervisor.interruptions))


def _terminal(plan: Plan) -> dict[str, str]:
    """For `breakpoint()` in an only rank, if this command is in the foreground of a terminal."""
    if plan.world_size > 1 or plan.array is not None:
        return {}
    try:
        is_ours = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
        return {names.TERMINAL: os.ttyname(0)} if is_ours else {}
    except OSError:
        return {}


@contextmanager
def _restored_terminal(terminal: str | None) -> Iterator[None]:
    """Restore the modes of the terminal at the end: a debugger that was killed at its prompt has changed them."""
    if terminal is None:
        yield
        return
    import termios

    modes = termios.tcgetattr(0)
    try:
        yield
    finally:
        with suppress(termios.error):
            if os.tcgetpgrp(0) == os.getpgrp():
                termios.tcsetattr(0, termios.TCSADRAIN, modes)


def _slots(request: JobRequest, gpu_ids: Sequence[str]) -> tuple[str, ...]:
    """The slots to choose from, best first."""
    slots = available_slots(request)
    if request.pool == CPU:
        return slots
    if gpu_ids:
        if unknown := [name for name in gpu_ids if name not in slots]:
            raise UsageError(
                f"this machine has no GPU `{unknown[0]}`", hint=f"its GPUs: {', '.join(sorted(slots)) or 'none'}"
            )
        if request.need > len(gpu_ids):
            raise UsageError(f"the job needs {request.need} GPUs; `--gpu-ids` lists {len(gpu_ids)}")
        return tuple(gpu_ids)
    used = cluster.used_mb(os.environ) if len(slots) > 1 else {}
    return tuple(sorted(slots, key=lambda slot: used.get(slot, 0)))


@contextmanager
def _interrupting(supervisor: Supervisor) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in INTERRUPTING}
    supervisor.interrupt_by(*INTERRUPTING)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


LONGEST_PAUSE_SECONDS = 1.0
DEPENDENCY_PAUSE_SECONDS = 0.5
ORPHAN_PAUSE_SECONDS = 0.1
SHORTEST_PAUSE_SECONDS = 0.02
QUEUE_PAUSE_SECONDS = 0.1
"""Times the place in the queue: the next in line looks most often."""
TIDY_SECONDS = 15.0
"""Time that agents have beyond the kill wait if job.sh was killed: ranks may need the whole kill wait to end."""


class Task:
    """One local job, or one task of its array, from its wait to its end. The endings are Slurm's.

    job.sh gets USR1 `warn_before_seconds` before the limit. At the limit, or if the job is cancelled, every process of
    the job gets TERM, and KILL after the kill wait. After the end of job.sh, all that remains is killed. If job.sh
    itself was killed, its agents first have the kill wait and a little more.
    """

    def __init__(self, request: JobRequest, folder: JobFolder, key: str, environment: Mapping[str, str]) -> None:
        self.key = key
        self.task = jobs.task_of(key)
        self.standing = Standing()
        self.queued = time.time()
        self._mark = folder.mark(key)
        self._request = request
        self._job = folder.number
        self._run = RunDirectory(Path(request.directory))
        self._inherited = environment
        self._child: shell.Child | None = None
        self._began = 0.0
        self._is_warned = False
        self._is_killed = False
        self._ending: str | None = None
        """The final state of a task that was ordered to stop."""
        self._stopped = 0.0
        """Time of the order to stop."""
        self._orphaned = 0.0
        """Time at which job.sh proved to be killed; 0 if it was not."""

    @property
    def has_ended(self) -> bool:
        return self.standing.state in names.ENDED

    @property
    def is_running(self) -> bool:
        return self._child is not None

    def start(self, slots: tuple[str, ...]) -> None:
        """Run job.sh on these slots. If it cannot be started, the task has ended."""
        try:
            self._child = shell.start(
                self._request.command,
                log=self._run.scheduler_log(self.task),
                env=self._environment(slots),
                cwd=self._run.path,
                umask=self._request.umask,
                signal_on_our_death=signal.SIGTERM,
            )
        except OSError as error:
            self._end(names.LAUNCH_FAILED, reason=error.strerror or "JobLaunchFailure")
            return
        self._began, self._is_warned, self._is_killed, self._orphaned = time.monotonic(), False, False, 0.0
        child = processes.identify(self._child.pid)  # None if it has ended already
        self.standing = self.standing._replace(
            state=names.RUNNING, reason="", started=time.time(), slots=slots, child=child
        )

    def _environment(self, slots: tuple[str, ...]) -> dict[str, str]:
        own = {names.LOCAL_JOB: self._mark, names.JOB: str(self._job), names.RESTARTS: str(self.standing.restarts)}
        if self._request.time_seconds is not None:
            own[names.JOB_END] = f"{time.time() + self._request.time_seconds:.3f}"
        if self._request.pool != NOTHING:
            # A job that requested no GPU sees none.
            own[VISIBLE] = ",".join(slots) if self._request.pool == GPU else ""
        if self.task is not None:
            own[names.TASK] = self.key
        return {**self._inherited, **own}

    def wait_because(self, reason: str) -> None:
        self.standing = self.standing._replace(reason=reason)

    def cancel(self) -> None:
        """End the task for good; a request to requeue no longer counts."""
        if self._child is None:
            self._end(names.CANCELLED)
        elif self._ending != names.CANCELLED:
            self._stop(names.CANCELLED)

    def kill(self) -> None:
        self.cancel()
        self._signal_kill()

    def step(self, release: Callable[[Task], None]) -> None:
        """Do what is due by the clock and by the state of job.sh. `release` returns the slots."""
        if self._child is None:
            return
        status = self._child.poll()
        if status is None:
            due = self._next_action()
            if due and time.monotonic() >= due[0]:
                due[1]()
        elif not self._leaves_agents(self._child.pid, status):
            jobs.sweep(self._child.pid, self._mark)
            self._child = None
            release(self)
            self._judge(status)

    def seconds_until_due(self) -> float:
        if self._child is not None and self._orphaned:
            return ORPHAN_PAUSE_SECONDS
        due = self._next_action()
        return due[0] - time.monotonic() if due else float("inf")

    def _next_action(self) -> tuple[float, Callable[[], None]] | None:
        limit, lead = self._request.time_seconds, self._request.warn_before_seconds
        if self._child is None or (self._ending and self._is_killed):
            return None
        if self._ending:
            return self._stopped + self._request.kill_wait_seconds, self._signal_kill
        if limit is None:
            return None
        if lead and not self._is_warned:
            return self._began + limit - lead, self._warn
        return self._began + limit, lambda: self._stop(names.TIMEOUT)

    def _leaves_agents(self, session: int, status: int) -> bool:
        """Was job.sh killed, with agents alive that end the ranks, clean up the node and record the end?"""
        if status >= 0 or self._is_killed:
            return False
        self._orphaned = self._orphaned or time.monotonic()
        is_late = time.monotonic() - self._orphaned >= self._request.kill_wait_seconds + TIDY_SECONDS
        return not is_late and bool(jobs.members(session, None))

    def _warn(self) -> None:
        self._is_warned = True
        if self._child is not None:
            self._child.send_signal(signal.SIGUSR1)

    def _stop(self, ending: str) -> None:
        if self._ending is None:
            self._stopped = time.monotonic()
        self._ending = ending
        self._signal(signal.SIGTERM)

    def _signal_kill(self) -> None:
        self._is_killed = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._child is not None:
            jobs.signal_all(self._child.pid, self._mark, number)

    def _judge(self, status: int) -> None:
        code, number = (128 - status, -status) if status < 0 else (status, None)
        # A job may still request another attempt at its limit: it has saved, and only exits late. Once the agent has
        # written the end, the status is the program's own.
        may_requeue = self._request.requeue and self._ending in (None, names.TIMEOUT)
        if status == names.EXIT_SAVED and may_requeue and not self._run.task(self._running_task).exit.exists():
            self._ending = None
            self.queued = time.time()
            self.standing = Standing(restarts=self.standing.restarts + 1)
        elif self._ending:
            self._end(self._ending, exit_code=code, number=number)
        elif status == 0:
            self._end(names.COMPLETED, exit_code=0)
        else:
            self._end(names.FAILED, exit_code=code, number=number, reason="NonZeroExitCode" if number is None else "")

    @property
    def _running_task(self) -> int | None:
        """The task that job.sh runs: another, if it has drawn that. Reads a file of every task of the array."""
        drawn = None if self.task is None else layout.unended_trial(self._run, self.task)
        return self.task if drawn is None else drawn

    def _end(self, state: str, *, exit_code: int | None = None, number: int | None = None, reason: str = "") -> None:
        self.standing = self.standing._replace(
            state=state, reason=reason, exit_code=exit_code, signal=number, ended=time.time(), slots=(), child=None
        )


class Supervisor:
    def __init__(
        self, request: JobRequest, folder: JobFolder, root: Path, slots: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.tasks = [Task(request, folder, key, environment) for key in request.tasks]
        self.interruptions = 0
        """Counted up by signal handlers: the first cancels the job, the second kills it."""
        self._request = request
        self._folder = folder
        self._root = root
        self._available = slots
        self._me = processes.myself()
        self._place = 0
        self._waits_for = request.after.split(":") if request.after else []

    def run(self, pause: Callable[[float], None], seize: Sequence[str] = ()) -> None:
        """Supervise the job until it has ended. `seize` are slots to take without queueing, free or not."""
        written: dict[str, Standing] = {}
        while not self._has_ended:
            self._cancel_on_request()
            for task in self.tasks:
                task.step(self._release)
            self._start_tasks(seize)
            standings = {task.key: task.standing for task in self.tasks}
            if standings != written:
                self._folder.write(standings)
                written = standings
            if not self._has_ended:
                queue = QUEUE_PAUSE_SECONDS * (1 + self._place) if self._waiting else LONGEST_PAUSE_SECONDS
                due = min(task.seconds_until_due() for task in self.tasks)
                seconds = max(SHORTEST_PAUSE_SECONDS, min(queue, due, LONGEST_PAUSE_SECONDS))
                pause(DEPENDENCY_PAUSE_SECONDS if self._waits_for else seconds)

    def interrupt_by(self, *numbers: int) -> None:
        """Let these signals cancel the job, and kill it the second time."""

        def count(*_: object) -> None:
            self.interruptions += 1

        for number in numbers:
            signal.signal(number, count)

    @property
    def _has_ended(self) -> bool:
        return all(task.has_ended for task in self.tasks)

    @property
    def _waiting(self) -> list[Task]:
        return [task for task in self.tasks if not task.has_ended and not task.is_running]

    def _cancel_on_request(self) -> None:
        for task in self.tasks:
            if task.has_ended:
                continue
            if self.interruptions or self._folder.is_cancelled(task.key):
                task.cancel()
            if self.interruptions > 1:
                task.kill()
            if task.has_ended:
                self._release(task)

    def _start_tasks(self, seize: Sequence[str]) -> None:
        waiting = self._waiting
        if self._waits_for:
            self._waits_for = [job for job in self._waits_for if _is_open(self._root, job)]
            for task in waiting:
                task.queued = time.time()
                task.wait_because("Dependency" if self._waits_for else "")
            if self._waits_for:
                return
        running = sum(task.is_running for task in self.tasks)
        for task in waiting:
            if self._request.parallel and running >= self._request.parallel:
                task.wait_because("JobArrayTaskLimit")
                return
            if not self._try_start(task, seize):
                return
            running += 1

    def _try_start(self, task: Task, seize: Sequence[str]) -> bool:
        # CPUs are shared: a small machine runs the jobs of a big one, only slower.
        need = min(self._request.need, len(self._available)) if self._request.pool == CPU else self._request.need
        claim = SlotClaim(self._folder.number, task.task, self._request.pool, need, task.queued, (self._me,))
        with locked_slots(self._root) as table:
            answer = table.seize(claim, seize) if seize else table.request(claim, self._available)
        if isinstance(answer, int):
            self._place = answer
            task.wait_because("Priority" if answer else "Resources")
            return False
        task.start(answer)
        if task.has_ended:
            self._release(task)
        elif task.standing.child is not None:
            with locked_slots(self._root) as table:
                table.hold(claim.key, task.standing.child)
        return True

    def _release(self, task: Task) -> None:
        with locked_slots(self._root) as table:
            table.release((self._folder.number, task.task))


def _is_open(root: Path, job: str) -> bool:
    """Has the job or task (`123`, `123_4`) not ended? A job without a folder has."""
    number, _, task = job.partition("_")
    return any(one.state not in names.ENDED for one in JobFolder(root, number).jobs() if task in ("", str(one.task)))


def available_slots(request: JobRequest) -> tuple[str, ...]:
    """The slots of this machine in the pool of `request`. Raises UsageError if it has fewer GPUs than needed."""
    if request.pool == CPU:
        return tuple(map(str, range(cluster.cpus(os.environ))))
    slots = tuple(device.id for device in cluster.gpus(os.environ))
    if request.need > len(slots):
        raise UsageError(f"this machine has {len(slots)} GPUs; the job needs {request.need}")
    return slots


def main(words: Sequence[str]) -> int:
    root = jobs.root()
    request = commands.parse([*commands.COMMAND, *words])
    try:
        slots = available_slots(request)
    except SerriedError as error:
        print(error.message, file=sys.stderr)
        return 1
    folder = jobs.new_folder(root)
    supervisor = Supervisor(request, folder, root, slots, os.environ)
    waker = _wake_on_signals()
    supervisor.interrupt_by(signal.SIGTERM, signal.SIGINT)
    folder.commit(request.name, request.tasks)
    print(folder.number, flush=True)
    # Until now our output went to the process that started us.
    log = os.open(folder.path / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)

    def pause(seconds: float) -> None:
        if select.select([waker], [], [], seconds)[0]:
            waker.recv(4096)

    supervisor.run(pause)
    return 0


def _wake_on_signals() -> socket.socket:
    """Let every signal to a supervisor end a sleep. The hangup of a closing terminal has no effect."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    return reader
