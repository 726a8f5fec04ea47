"""The ranks of one node: started, watched, told, ended."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from serried.agent import system
from serried.agent.ending.diagnose import has_stumbled, read_tail
from serried.agent.messages.channel import Message
from serried.agent.ranks import binding, command, notice, program
from serried.agent.ranks.memory import OutOfMemory
from serried.agent.work import Work
from serried.contract import names

NO_DIRECTORY = 66
NOT_EXECUTABLE = 126
NOT_FOUND = 127

Exit = Dict[str, Any]
"""How one rank ended: rank, local_rank, exit_code, signal, seconds, ended_by_us; also oom, problem, stumbled."""


def has_failed(exit_: Exit) -> bool:
    return bool(exit_["exit_code"] or exit_["signal"])


class Rank:
    def __init__(self, number: int, local: int, pid: int, log: int) -> None:
        self.number = number
        self.local = local
        self.pid = pid
        self.log = log
        self.is_stopping = False
        """We have sent it something that ends most programs."""


class Ranks:
    """The ranks of one node, whoever started them."""

    def __init__(self, work: Work, node: int) -> None:
        self.work = work
        self.node = node
        self.exits: List[Exit] = []
        self._began = time.monotonic()
        self._running: Dict[int, Rank] = {}
        self.leaders: List[int] = []
        """Every rank's process, and the group that it leads."""
        self._sizes = 0
        self._newest_output = self._began
        self._notice = 0
        self.have_been_asked = False
        """To save and leave."""

    def log_of(self, number: int) -> Path:
        return self.work.place.attempt(self.work.number).log_of(number, self.work.ranks)

    def open_log(self, number: int) -> int:
        return os.open(self.log_of(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, self.work.file_mode)

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:  # noqa: ARG002 - for those who have children
        """The ranks that have ended since the last call; `children` of the agent have ended with these statuses."""
        return []

    @property
    def are_over(self) -> bool:
        """Whether none runs, and none will come."""
        return not self._running

    @property
    def have_left(self) -> bool:
        """Whether all have left by themselves, done or saved: nobody was cut short while writing a file."""
        return all(not exit_["signal"] and exit_["exit_code"] in (0, names.EXIT_SAVED) for exit_ in self.exits)

    def was_taken_along(self, exit_: Exit) -> bool:  # noqa: ARG002 - the four below are for ranks that a launcher starts
        """Whether it was killed because its launcher ended."""
        return False

    def say_farewell(self, *, are_told: bool) -> None:
        """Tell of a launcher's end, once what its ranks had to say has been told."""

    def heed(self, message: Message) -> None:
        """What the head says about launchers."""

    def lose_head(self) -> None:
        """Nobody will say any more when to let the launcher go."""

    @property
    def running(self) -> List[Rank]:
        return list(self._running.values())

    def quiet_seconds(self) -> float:
        """Since when no running rank has written anything. By size: a file server's clock is not ours."""
        sizes = sum(os.fstat(rank.log).st_size for rank in self.running)
        if sizes != self._sizes:
            self._sizes, self._newest_output = sizes, time.monotonic()
        return time.monotonic() - self._newest_output

    def record(self, rank: Rank, status: int, problem: Optional[Tuple[str, int]], *, is_oom: bool) -> Exit:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = 128 + number if number is not None else os.WEXITSTATUS(status)
        record: Exit = {
            "rank": rank.number,
            "local_rank": rank.local,
            "exit_code": code if number is None else None,
            "signal": number,
            "seconds": round(time.monotonic() - self._began, 3),
            "ended_by_us": rank.is_stopping or bool(self._notice and code == 128 + self._notice),
        }
        if problem:
            record.update(_explain(problem, self.work))
            os.write(rank.log, f"serried: {record['message']}\n".encode())
        if number == signal.SIGKILL and not rank.is_stopping and is_oom:
            record["oom"] = True
        if has_failed(record) and has_stumbled(self.tail(record)):
            record["stumbled"] = True
        os.close(rank.log)
        return record

    def tail(self, exit_: Exit) -> List[str]:
        return read_tail(self.log_of(exit_["rank"]))

    def tell(self, name: Optional[str]) -> None:
        """They have been asked to save: send the notice that the user chose. A rank that dies of it was ended by us."""
        self.have_been_asked = True
        if name:
            self._notice = int(getattr(signal, f"SIG{name}"))
            for rank in self.running:
                notice.give(rank.pid, self._notice)

    def terminate(self) -> None:
        """TERM, to each rank and its process group: a shell that dies of it must not leave its program running."""
        self._end_groups(signal.SIGTERM)

    def abort(self) -> None:
        """ABRT, to the ranks themselves: Python then writes where each of its threads is, and ends."""
        for rank in self.running:
            rank.is_stopping = True
            system.forbid_core(rank.pid)
            with contextlib.suppress(OSError):
                os.write(rank.log, b"serried: ending this rank by ABRT; if it is Python, where it was follows\n")
                os.kill(rank.pid, signal.SIGABRT)

    def kill(self) -> None:
        self._end_groups(signal.SIGKILL)

    def _end_groups(self, number: int) -> None:
        for rank in self.running:
            rank.is_stopping = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, number)


class Forked(Ranks):
    """Started by the agent itself, all at once."""

    def __init__(self, work: Work, node: int, place: Dict[str, Any]) -> None:
        super().__init__(work, node)
        self._memory = OutOfMemory()
        self._children: Dict[int, system.Child] = {}
        threads = binding.threads(work)
        for local, cpus in enumerate(binding.shares(work.ranks)):
            number = node * work.ranks + local
            here = command.Place(node=node, rank=number, local_rank=local, threads=threads, **place)
            rank = self._start(here, cpus)
            self._running[rank.pid] = rank
        self.leaders += self._running

    def _start(self, place: command.Place, cpus: List[int]) -> Rank:
        log = self.open_log(place.rank)
        null = os.open(os.devnull, os.O_RDONLY)
        what = program.of(self.work, place)
        child = system.spawn(
            what.argv,
            what.environment,
            (null, log, log),
            directory=str(self.work.workdir),
            cpus=cpus,
            parent_death=signal.SIGKILL,
            own_group=True,
        )
        os.close(null)
        self._children[child.pid] = child
        return Rank(place.rank, place.local_rank, child.pid, log)

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:
        ended = [self._end(self._running.pop(pid), status) for pid, status in children if pid in self._running]
        self.exits += ended
        return ended

    def _end(self, rank: Rank, status: int) -> Exit:
        return self.record(rank, status, self._children.pop(rank.pid).problem(), is_oom=self._memory.has_struck())


def _explain(problem: Tuple[str, int], work: Work) -> Dict[str, Any]:
    """Why a rank's program never began."""
    stage, number = problem
    reason = os.strerror(number).lower()
    if stage == "directory":
        return {
            "exit_code": NO_DIRECTORY,
            "problem": "workdir-missing",
            "message": f"cannot enter the working directory `{work.workdir}`: {reason}",
        }
    name = "/bin/bash" if work.plan.get("shell") else work.words[0]
    if stage == "command" and number in (errno.ENOENT, errno.ENOTDIR):
        return {"exit_code": NOT_FOUND, "problem": "command-not-found", "message": f"command not found: `{name}`"}
    return {"exit_code": NOT_EXECUTABLE, "problem": "command-not-found", "message": f"cannot run `{name}`: {reason}"}
