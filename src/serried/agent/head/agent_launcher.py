"""Runs the scheduler's own launcher, which starts the node agents, and retries while the controller is away."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.loop import Loop
from serried.protocol import names

RETRY_SECONDS = 120.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 15.0
STUCK_SECONDS = 30.0
"""An srun that calls within seconds of a controller's return may wait forever; an srun started later does not."""
KILL_SECONDS = 35.0
SWEEP_SECONDS = 10.0
LAST_LINES = 5
ANNOUNCEMENT = "***"
"""Slurm's mark of the line with the reason why it ends a step. Many lines of srun follow it."""


def agent_environment(work: Attempt, addresses: str, key: bytes) -> Dict[str, str]:
    """The variables that node agents get in addition to the inherited ones."""
    return {
        names.HEAD: addresses,
        names.KEY: key.hex(),
        names.ATTEMPT: str(work.number),
        names.RUN_DIR: str(work.run.path),
        names.RUN_ID: work.plan.run,
        names.RESUME: work.newest_checkpoint,  # once for all nodes: some may not see the newest file yet
        names.TASK: "" if work.task is None else str(work.task),
    }


class AgentLauncher:
    """Runs `argv` and passes on its output. `on_exit` is called with its status."""

    def __init__(
        self, loop: Loop, argv: Sequence[str], changes: Mapping[str, str], on_exit: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._argv = list(argv)
        self._environment = {**system.environment(), **changes}
        self._on_exit = on_exit
        self._child: Optional[system.Child] = None
        self._began = self._started = time.monotonic()
        self._pause = FIRST_PAUSE
        self._errors: Any = None
        self._partial = ""
        """The beginning of an incomplete line."""
        self.last_lines: List[str] = []
        """The end of its stderr: the only explanation when nothing starts."""

    @property
    def is_running(self) -> bool:
        return self._child is not None

    def start(self) -> None:
        self._started = time.monotonic()
        reader, writer = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        self._child = system.spawn(self._argv, self._environment, (null, 2, writer))
        os.close(null)
        os.close(writer)
        os.set_blocking(reader, False)
        self._errors = os.fdopen(reader, "rb", 0)
        self._loop.watch(self._errors, self._read_errors)

    def try_again(self) -> bool:
        """Start it again after a pause, longer each time; False if the time for retries is over."""
        if time.monotonic() - self._began + self._pause > RETRY_SECONDS:
            return False
        self._loop.after(self._pause, self.start)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True

    def end_if_stuck(self, setup_seconds: float) -> None:
        """End a launcher that has started no agent for too long; `on_exit` may start it again."""
        seconds = time.monotonic() - self._started - setup_seconds
        if seconds > STUCK_SECONDS:
            self.signal(signal.SIGKILL if seconds > KILL_SECONDS else signal.SIGTERM)

    def reap(self, children: Iterable[Tuple[int, int]]) -> None:
        """Call `on_exit` if it is among the `children` that have ended: (pid, wait status)."""
        for pid, status in children:
            if self._child and pid == self._child.pid:
                problem = self._child.problem()
                self._child = None
                self._read_errors()
                self._keep(self._partial)
                if problem:
                    self.last_lines = [f"{self._argv[0]}: {os.strerror(problem[1])}"]
                self._on_exit(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))

    def signal(self, number: signal.Signals) -> None:
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    def _read_errors(self) -> None:
        if self._errors is None:
            return
        text = self._errors.read()
        if text:
            with contextlib.suppress(OSError):  # the log may be on a full disk
                os.write(2, text)
            whole, newline, self._partial = (self._partial + text.decode("utf-8", "replace")).rpartition("\n")
            self._keep(whole + newline)
        elif text == b"":
            self._loop.forget(self._errors)
            self._errors.close()
            self._errors = None

    def _keep(self, text: str) -> None:
        lines = [*self.last_lines, *text.splitlines()]
        announced = [line for line in lines[:-LAST_LINES] if ANNOUNCEMENT in line]
        self.last_lines = [*announced[:LAST_LINES], *lines[-LAST_LINES:]]


def sweep_nodes(loop: Loop, argv: List[str], work: Attempt) -> None:
    """Start a new step that ends the processes of killed agents, as far as nodes still respond."""
    words = [work.process_tag, str(work.number), *([] if work.task is None else [str(work.task)])]
    launcher = AgentLauncher(loop, [*argv, *system.agent_command("sweep", *words)], {}, lambda _: loop.stop())
    loop.on_signal(signal.SIGCHLD, lambda: launcher.reap(system.reap()))
    launcher.start()
    loop.after(SWEEP_SECONDS, loop.stop)
    loop.run()
    launcher.signal(signal.SIGKILL)
