"""The process of a launcher that starts ranks: what it prints goes into `launcher.log` beside their logs."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from typing import Any, Dict, List, Optional

from serried.agent import system
from serried.agent.attempt import Work
from serried.agent.launchers import rank_identity
from serried.agent.launchers.kinds import Kind, Scene
from serried.agent.outcome.diagnose import read_tail
from serried.agent.ranks import command, program

LAST_LINES = 5


def rank_words(work: Work, kind: Kind, words: List[str]) -> List[str]:
    """The words that start one rank, by the Python that is where the launcher is."""
    return ["python3", *words[1:]] if work.plan.get("container") and kind.is_inside else words


def start(kind: Kind, scene: Scene, place: command.Place) -> Starter:
    """Start the launcher of `scene`, in the container if it belongs there."""
    begun = kind.start(scene)
    argv, environment = begun.argv, rank_identity.of_starter(scene.work, place, begun)
    inside = program.container_of(scene.work, place) if kind.is_inside else None
    if inside is not None:
        argv, environment = inside.enter(argv, inside.inherited(environment))
    return Starter(scene.work, scene.node, begun.argv, argv, environment)


class Starter:
    def __init__(self, work: Work, node: int, said: List[str], argv: List[str], environment: Dict[str, str]) -> None:
        self.said = said
        """The launcher's own words, without those of a container."""
        self.name = os.path.basename(said[0])  # noqa: PTH119 - a bare string
        if self.name.startswith("python") and said[1:2] == ["-m"]:
            self.name = work.launcher
        self._log = work.place.attempt(work.number).launcher_log(node)
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

    def end(self, status: int) -> None:
        """It has, with this wait status."""
        self.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        problem = self._child.problem()
        if problem:
            self.problem = os.strerror(problem[1]).lower()
            self.is_absent = problem[1] == errno.ENOENT

    def farewell(self) -> Dict[str, Any]:
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
