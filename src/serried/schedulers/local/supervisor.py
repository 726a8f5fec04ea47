"""The supervisor of one local job: waits for its turn, runs job.sh, ends it as Slurm would. No daemon.

It is a process of its own, which outlives the terminal, or, for `serried run`, the foreground one.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from serried.clusters.machine import gpus
from serried.errors import SerriedError
from serried.processes import myself
from serried.protocol import names
from serried.schedulers.local import argv, machine, slots, state
from serried.schedulers.local.argv import Request
from serried.schedulers.local.machine import CPU
from serried.schedulers.local.slots import Claim
from serried.schedulers.local.state import JobFolder
from serried.schedulers.local.task import Task

LONGEST_PAUSE_SECONDS = 1.0
DEPENDENCY_PAUSE_SECONDS = 0.5
SHORTEST_PAUSE_SECONDS = 0.02
QUEUE_PAUSE_SECONDS = 0.1
"""Times the place in the queue: the next in line looks most often."""


class Supervisor:
    def __init__(
        self, request: Request, folder: JobFolder, root: Path, slots: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.tasks = [Task(request, folder, key, environment) for key in request.elements]
        self.interruptions = 0
        """Counted up by signal handlers: the first cancels the job, the second kills it."""
        self._request = request
        self._folder = folder
        self._root = root
        self._available = slots
        self._me = myself()
        self._written: dict[str, state.Standing] = {}
        self._place = 0
        self._waits_for = request.after

    def run(self, pause: Callable[[float], None], seize: Sequence[str] = ()) -> None:
        """Look after the job until it has ended; `seize` are slots to take without queueing, if free or not."""
        while not self._has_ended:
            self._cancel_what_is_asked()
            for task in self.tasks:
                task.step(self._release)
            self._start_what_may(seize)
            self._write()
            if not self._has_ended:
                pause(self._until_next())

    @property
    def _has_ended(self) -> bool:
        return all(task.has_ended for task in self.tasks)

    def _unended(self) -> list[Task]:
        return [task for task in self.tasks if not task.has_ended]

    def _cancel_what_is_asked(self) -> None:
        for task in self._unended():
            if self.interruptions or self._folder.is_cancelled(task.key):
                task.cancel()
            if self.interruptions > 1:
                task.kill()
            if task.has_ended:
                self._release(task)

    def _start_what_may(self, seize: Sequence[str]) -> None:
        waiting = [task for task in self._unended() if not task.is_running]
        if not self._may_queue():
            for task in waiting:
                task.wait_because("Dependency")
            return
        running = sum(task.is_running for task in self.tasks)
        for task in waiting:
            if self._request.parallel and running >= self._request.parallel:
                task.wait_because("JobArrayTaskLimit")
                return
            if not self._start(task, seize):
                return
            running += 1

    def _may_queue(self) -> bool:
        """Whether the jobs that this one comes after have ended, or are forgotten."""
        if self._waits_for:
            if any(map(self._is_open, self._waits_for.split(":"))):
                return False
            self._waits_for = ""
            for task in self.tasks:
                task.queued = time.time()
        return True

    def _is_open(self, job: str) -> bool:
        number, _, element = job.partition("_")
        before = JobFolder(self._root / "jobs" / number).jobs()
        return any(one.state not in names.ENDED for one in before if element in ("", str(one.element)))

    def _start(self, task: Task, seize: Sequence[str]) -> bool:
        """Whether its turn had come."""
        claim = Claim(self._folder.number, task.element, self._request.pool, self._need, task.queued, (self._me,))
        with slots.locked(self._root) as table:
            answer = table.seize(claim, seize) if seize else table.ask(claim, self._available)
        if isinstance(answer, int):
            self._place = answer
            task.wait_because("Priority" if answer else "Resources")
            return False
        task.start(answer)
        if task.has_ended:
            self._release(task)
        elif task.standing.child is not None:
            with slots.locked(self._root) as table:
                table.hold(claim.key, task.standing.child)
        return True

    @property
    def _need(self) -> int:
        """CPUs are shared rather than refused: a small machine runs what a big one would, slower."""
        return min(self._request.need, len(self._available)) if self._request.pool == CPU else self._request.need

    def _release(self, task: Task) -> None:
        with slots.locked(self._root) as table:
            table.release((self._folder.number, task.element))

    def _until_next(self) -> float:
        if self._waits_for:
            return DEPENDENCY_PAUSE_SECONDS
        waits = any(not task.is_running for task in self._unended())
        queue = QUEUE_PAUSE_SECONDS * (1 + self._place) if waits else LONGEST_PAUSE_SECONDS
        due = min((task.next_moment() for task in self.tasks), default=LONGEST_PAUSE_SECONDS)
        return max(SHORTEST_PAUSE_SECONDS, min(queue, due, LONGEST_PAUSE_SECONDS))

    def _write(self) -> None:
        now = {task.key: task.standing for task in self.tasks}
        if now != self._written:
            self._folder.write(now)
            self._written = now


def refusal(request: Request, slots: Sequence[str]) -> str | None:
    """Why this machine can never run it, if so."""
    if request.pool == CPU or request.need <= len(slots):
        return None
    return f"it asks for {request.need} GPUs; this machine has {len(slots)}"


def main(words: Sequence[str]) -> int:
    """Become the supervisor of the job that `words` ask for."""
    root = machine.root()
    state.prune(root)
    request = argv.parse(words)
    slots, problem = _slots(request)
    folder = state.new_folder(root)
    supervisor = Supervisor(request, folder, root, slots, os.environ)
    waker = _hear_signals()
    interrupt_by(supervisor, signal.SIGTERM, signal.SIGINT)
    folder.commit(request.name, request.elements, refused=problem)
    if problem:
        print(f"this machine cannot run the job: {problem}", file=sys.stderr)
        return 1
    print(folder.number, flush=True)
    _write_to(folder.path / "supervisor.log")
    supervisor.run(lambda seconds: _sleep(waker, seconds))
    return 0


def interrupt_by(supervisor: Supervisor, *numbers: int) -> None:
    """Let these signals cancel the job, and kill it the second time."""

    def count(*_: object) -> None:
        supervisor.interruptions += 1

    for number in numbers:
        signal.signal(number, count)


def _write_to(log: Path) -> None:
    """From now on what Python has to say goes there; until then it went to who started us."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _slots(request: Request) -> tuple[tuple[str, ...], str | None]:
    try:
        slots = (
            machine.cpu_slots(os.environ) if request.pool == CPU else tuple(device.id for device in gpus(os.environ))
        )
    except SerriedError as error:
        return (), error.message
    return slots, refusal(request, slots)


def _hear_signals() -> socket.socket:
    """Every signal that concerns us ends a sleep; that of a closing terminal does nothing."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    return reader


def _sleep(waker: socket.socket, seconds: float) -> None:
    if select.select([waker], [], [], seconds)[0]:
        waker.recv(4096)
