"""`serried run`: a local job in the foreground. It takes its slots without queueing; the queue counts them as taken."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from serried.base.errors import UsageError
from serried.base.files import MODES, make_directory
from serried.schedulers import scrub
from serried.schedulers.clusters import machine
from serried.schedulers.local import jobs, options
from serried.schedulers.local.options import CPU, NOTHING, JobRequest
from serried.schedulers.local.supervisor import Supervisor, available_slots
from serried.schedulers.survey import Inside
from serried.schema import names
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
    request = replace(options.parse(options.supervisor_command(plan, token)), umask=MODES[plan.share].umask)
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
    used = machine.used_mb(os.environ) if len(slots) > 1 else {}
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
