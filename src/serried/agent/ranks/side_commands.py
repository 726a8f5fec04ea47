"""The commands of `beside`: processes that run beside the ranks of a node, and never decide how the attempt ends.

They start with the ranks, in their folder and environment, but without a rank's identity. Once the ranks of the node
have ended, they get TERM, and KILL soon after.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Dict, Iterable, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.loop import Loop
from serried.agent.ranks import binding, command
from serried.schema import endings, names
from serried.schema.endings import SideExit

END_SECONDS = 5.0
URGENT_END_SECONDS = 2.0
"""From TERM to KILL; the second if the ranks were stopped."""
VANISH_SECONDS = 1.0
"""For a killed process to disappear; the agent does not wait longer."""
NOT_STARTED = 127


class SideCommands:
    def __init__(
        self, attempt: Attempt, node: int, variables: Dict[str, Any], loop: Loop, report: Callable[[SideExit], None]
    ) -> None:
        """Start the commands of this node. `variables` are those of its ranks; `report` receives each exit."""
        self._attempt = attempt
        place = command.RankPlace(node=node, rank=0, local_rank=0, threads=binding.threads(attempt), **variables)
        self._loop = loop
        self._report = report
        self._began_at = time.monotonic()
        self._is_ending = False
        self._running: Dict[int, Tuple[int, system.Child]] = {}
        """By pid: the index of the command, and its process."""
        for index, side in enumerate(attempt.plan.beside):
            if side.on != names.EVERY_NODE and node != 0:
                continue
            log, workdir = attempt.directory.attempt(attempt.number).side_log(node, index), str(attempt.workdir)
            try:
                argv, environment = command.side_program(attempt, place, side.command, is_shell=side.shell)
                child = system.spawn_with_log(argv, environment, log, attempt.file_mode, directory=workdir)
                self._running[child.pid] = (index, child)
            except OSError as error:  # such as a full disk, on which there is no log
                self._end(index, NOT_STARTED << 8, error.errno or 0)

    def reap(self, children: Iterable[Tuple[int, int]]) -> None:
        """`children` of the agent have ended: (pid, wait status)."""
        for pid, status in children:
            if pid in self._running:
                index, child = self._running.pop(pid)
                problem = child.problem()
                self._end(index, status, problem[1] if problem else 0)

    def _end(self, index: int, status: int, errno: int) -> None:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        exit_ = SideExit(
            index=index,
            command=endings.shown(self._attempt.plan.beside[index].command),
            exit_code=None if number else os.WEXITSTATUS(status),
            signal=number,
            seconds=round(time.monotonic() - self._began_at, 3),
            ended_by_us=self._is_ending,
            problem=os.strerror(errno).lower() if errno else "",
        )
        self._report(exit_)

    def end(self, on_ended: Callable[[], None], *, is_urgent: bool) -> bool:
        """Send TERM, and later KILL. Returns whether none runs any more.

        `on_ended` is called if a process does not even end by KILL, and this agent does not wait for it any longer.
        """
        if self._running and not self._is_ending:
            self._is_ending = True
            self._signal(signal.SIGTERM)
            seconds = URGENT_END_SECONDS if is_urgent else END_SECONDS
            self._loop.after(seconds, lambda: self._signal(signal.SIGKILL))

            def give_up() -> None:
                if self._running:
                    self._running.clear()
                    on_ended()

            self._loop.after(seconds + VANISH_SECONDS, give_up)
        return not self._running

    def _signal(self, number: int) -> None:
        for pid in self._running:
            system.send_signal(pid, number, to_group=True)


def has_failed(exit_: SideExit) -> bool:
    """Whether it failed by itself. TERM comes from a scheduler or a user who ends the job."""
    is_well = exit_.exit_code in (0, 128 + signal.SIGTERM) or exit_.signal == signal.SIGTERM
    return not (is_well or exit_.ended_by_us)
