"""`serried run`: a local job in the foreground. It takes its slots without queueing, and the queue sees them taken."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from serried.clusters.machine import gpus
from serried.errors import UsageError
from serried.fs.files import MODES, make_directory
from serried.plan import Plan
from serried.protocol import names
from serried.protocol.environment import scrub
from serried.schedulers.current_job import Inside
from serried.schedulers.local import argv, machine, state
from serried.schedulers.local.argv import Request
from serried.schedulers.local.machine import CPU, NOTHING
from serried.schedulers.local.supervisor import Supervisor, interrupt_by, refusal

TICK_SECONDS = 0.1

INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The first ends the job in its own time (TERM, the kill wait, KILL), the second at once."""


class Ended(NamedTuple):
    status: int
    """job.sh's exit status; of an array, the first that is not 0."""
    was_interrupted: bool
    """By one of INTERRUPTING, perhaps too late."""


def run_here(
    plan: Plan,
    token: str,
    environment: Mapping[str, str],
    *,
    gpu_ids: Sequence[str] = (),
    inside: Inside | None = None,
    on_start: Callable[[str], None] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Ended:
    """Run the plan's job.sh now, here; return how it ended.

    `on_start` hears the job's id before job.sh runs; `tick` is called some ten times a second until the end.
    Idle GPUs are preferred: those that no job has taken, then those with the most memory free; `gpu_ids` says
    which instead. While this runs, INTERRUPTING signals are the job's. Call it from the main thread.

    Within a job, `inside`, that job's nodes are used, and none of this machine's slots.

    Raises UsageError where this machine has not what the plan asks for.
    """
    request = replace(argv.of_plan(plan, token), umask=MODES[plan.share].umask)
    environment = {**scrub(environment), **(_terminal(plan) if inside is None else {})}
    slots: tuple[str, ...] = ()
    if inside is None:
        slots = _slots(request, gpu_ids)
    else:
        request, environment = _within(request, inside, plan), {**environment, **inside.variables}
    root = machine.root()
    state.prune(root)
    folder = state.new_folder(root)
    supervisor = Supervisor(request, folder, root, slots, environment)
    folder.commit(request.name, request.elements, hears_signals=False)
    if on_start is not None:
        on_start(str(folder.number))
    with _interrupting(supervisor):
        supervisor.run(lambda seconds: _pause(seconds, tick), seize=slots)
        tick()
    return Ended(_status(supervisor), bool(supervisor.interruptions))


def _terminal(plan: Plan) -> dict[str, str]:
    """For `breakpoint()` in an only rank, where this command stands in the foreground of a terminal."""
    if plan.world_size > 1 or plan.array is not None:
        return {}
    try:
        is_ours = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
        return {names.TERMINAL: os.ttyname(0)} if is_ours else {}
    except OSError:
        return {}


def _within(request: Request, inside: Inside, plan: Plan) -> Request:
    """job.sh on the first node of the job that we are in."""
    private: tuple[str, ...] = ()
    if plan.site.inside == "pbs":
        make_directory(Path(plan.private))
        private = (f"{plan.private}/{plan.run}",)
    return replace(request, pool=NOTHING, need=0, command=(*inside.to_first_node, *request.command, *private))


def _slots(request: Request, gpu_ids: Sequence[str]) -> tuple[str, ...]:
    """What to choose from, best first."""
    if request.pool == CPU:
        return machine.cpu_slots(os.environ)
    slots = tuple(device.id for device in gpus(os.environ))
    if gpu_ids:
        if unknown := [name for name in gpu_ids if name not in slots]:
            raise UsageError(
                f"there is no GPU `{unknown[0]}` here", hint=f"there are: {', '.join(sorted(slots)) or 'none'}"
            )
        slots = tuple(gpu_ids)
    elif len(slots) > 1:
        used = machine.used_mb(os.environ)
        slots = tuple(sorted(slots, key=lambda slot: used.get(slot, 0)))
    problem = refusal(request, slots)
    if problem:
        raise UsageError(f"this machine cannot run it: {problem}")
    return slots


@contextmanager
def _interrupting(supervisor: Supervisor) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in INTERRUPTING}
    interrupt_by(supervisor, *INTERRUPTING)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pause(seconds: float, tick: Callable[[], None]) -> None:
    tick()
    time.sleep(min(seconds, TICK_SECONDS))


def _status(supervisor: Supervisor) -> int:
    standings = [task.standing for task in supervisor.tasks]
    failed = [standing for standing in standings if standing.state != names.COMPLETED]
    return (failed[0].exit_code or 1) if failed else 0
