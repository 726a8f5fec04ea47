"""The process of a launcher that starts ranks: what it prints goes into `launcher.log` beside their logs."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from typing import Any, Dict, List, Optional

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.launchers import rank_identity
from serried.agent.launchers.kinds import LaunchContext, LauncherKind
from serried.agent.outcome.diagnose import read_tail
from serried.agent.ranks import command, program

LAST_LINES = 5


def rank_command(work: Attempt, kind: LauncherKind, command: List[str]) -> List[str]:
    """The words that start one rank, by the Python that is where the launcher is."""
    return ["python3", *command[1:]] if work.plan.get("container") and kind.is_inside else command


def start(kind: LauncherKind, scene: LaunchContext, place: command.RankPlace) -> LauncherProcess:
    """Start the launcher of `scene`, in the container if it belongs there."""
    launch = kind.start(scene)
    argv, environment = launch.argv, rank_identity.launcher_environment(scene.work, place, launch)
    container = program.container_of(scene.work, place) if kind.is_inside else None
    if container is not None:
        argv, environment = container.enter(argv, container.inherited(environment))
    return LauncherProcess(scene.work, scene.node, launch.argv, argv, environment)


class LauncherProcess:
    def __init__(
        self, work: Attempt, node: int, command: List[str], argv: List[str], environment: Dict[str, str]
    ) -> None:
        self.command = command
        """The launcher's own words, without those of a container."""
        self.name = os.path.basename(command[0])  # noqa: PTH119 - a bare string
        if self.name.startswith("python") and command[1:2] == ["-m"]:
            self.name = work.launcher
        self._log = work.directory.attempt(work.number).launcher_log(node)
        self.status: Optional[int] = None
        """Its exit status, negative for a signal; None while it runs."""
        self.problem: Optional[str] = None
        """Why it never began."""
        self.is_absent = False
        """There is no such program."""
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, work.file_mode)
        null = os.open(os.devnull, os.O_RDONLY)
        self._child = system.spawn(
            argv,
            environment,
            (null, log, log),
            directory=str(work.workdir),
            parent_death=signal.SIGKILL,
            own_group=True,
        )
        os.close(null)
        os.close(log)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self.status is None

    def set_exited(self, status: int) -> None:
        """It has, with this wait status."""
        self.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        problem = self._child.problem()
        if problem:
            self.problem = os.strerror(problem[1]).lower()
            self.is_absent = problem[1] == errno.ENOENT

    def exit_facts(self) -> Dict[str, Any]:
        """How it ended, and what it said last."""
        return {
            "name": self.name,
            "status": self.status,
            "said": read_tail(self._log, LAST_LINES),
            "problem": self.problem,
            "is_absent": self.is_absent,
        }

    def terminate(self) -> None:
        """TERM to itself: it ends what it has started, and would be ended with it by a signal to its group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL, all_of_it=True)

    def _signal(self, number: signal.Signals, *, all_of_it: bool = False) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if all_of_it else os.kill)(self.pid, number)
