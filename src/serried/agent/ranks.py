"""The ranks of one node: started, watched, told, ended."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from typing import Any, Dict, List, Optional, Tuple

from serried.agent import binding, command, notice, program, system
from serried.agent.diagnose import read_tail
from serried.agent.memory import OutOfMemory
from serried.agent.work import Work

NO_DIRECTORY = 66
NOT_EXECUTABLE = 126
NOT_FOUND = 127

Exit = Dict[str, Any]
"""How one rank ended: rank, local_rank, exit_code, signal, seconds, ended_by_us; oom, problem where they apply."""


def has_failed(exit_: Exit) -> bool:
    return bool(exit_["exit_code"] or exit_["signal"])


class Rank:
    def __init__(self, number: int, local: int, child: system.Child, log: int) -> None:
        self.number = number
        self.local = local
        self.child = child
        self.log = log
        self.is_stopping = False
        """We have sent it something that ends most programs."""


class Ranks:
    """Starts every rank of `node` at once; `reap` tells which have ended."""

    def __init__(self, work: Work, node: int, place: Dict[str, Any]) -> None:
        self.work = work
        self.node = node
        self.exits: List[Exit] = []
        self._began = time.monotonic()
        self._memory = OutOfMemory()
        self._running: Dict[int, Rank] = {}
        self.leaders: List[int] = []
        """Every rank's process, and the group that it leads."""
        self._sizes = 0
        self._newest_output = self._began
        self._notice = 0
        shares = binding.shares(work.ranks)
        for local, cpus in enumerate(shares):
            alone = max(1, binding.available() // work.ranks)
            here = command.Place(node, node * work.ranks + local, local, place["master"], place["port"],
                                 len(cpus) or alone, place["deadline"], place["stop_file"])  # fmt: skip
            rank = self._start(here, cpus)
            self._running[rank.child.pid] = rank
        self.leaders += self._running

    def _start(self, place: command.Place, cpus: List[int]) -> Rank:
        number = place.node * self.work.ranks + place.local_rank
        path = self.work.place.attempt(self.work.number).rank_log(place.node, number)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, self.work.file_mode)
        null = os.open(os.devnull, os.O_RDONLY)
        what = program.of(self.work, place)
        child = system.spawn(
            what.argv,
            what.environment,
            system.encode(str(self.work.workdir)),
            (null, log, log),
            cpus=cpus,
            parent_death=signal.SIGKILL,
            own_group=True,
        )
        os.close(null)
        return Rank(number, place.local_rank, child, log)

    @property
    def running(self) -> List[Rank]:
        return list(self._running.values())

    def quiet_seconds(self) -> float:
        """Since when no running rank has written anything. By size: a file server's clock is not ours."""
        sizes = sum(os.fstat(rank.log).st_size for rank in self.running)
        if sizes != self._sizes:
            self._sizes, self._newest_output = sizes, time.monotonic()
        return time.monotonic() - self._newest_output

    def reap(self) -> List[Exit]:
        """The ranks that have ended since the last call. Adopted children are reaped on the way."""
        ended = [self._record(self._running.pop(pid), status) for pid, status in system.reap() if pid in self._running]
        self.exits += ended
        return ended

    def _record(self, rank: Rank, status: int) -> Exit:
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
        problem = rank.child.problem()
        if problem:
            record.update(_explain(problem, self.work))
            os.write(rank.log, f"serried: {record['message']}\n".encode())
        if number == signal.SIGKILL and not rank.is_stopping and self._memory.has_struck():
            record["oom"] = True
        os.close(rank.log)
        return record

    def tail(self, exit_: Exit) -> List[str]:
        return read_tail(self.work.place.attempt(self.work.number).rank_log(self.node, exit_["rank"]))

    def tell(self, name: Optional[str]) -> None:
        """Send the signal that the user chose as the notice; a rank that dies of it was ended by us."""
        if name:
            self._notice = int(getattr(signal, f"SIG{name}"))
            for rank in self.running:
                notice.give(rank.child.pid, self._notice)

    def terminate(self) -> None:
        """TERM, to each rank and its process group: a shell that dies of it must not leave its program running."""
        self._end_groups(signal.SIGTERM)

    def abort(self) -> None:
        """ABRT, to the ranks themselves: Python then writes where each of its threads is, and ends."""
        for rank in self.running:
            rank.is_stopping = True
            system.forbid_core(rank.child.pid)
            with contextlib.suppress(OSError):
                os.write(rank.log, b"serried: ending this rank by ABRT; if it is Python, where it was follows\n")
                os.kill(rank.child.pid, signal.SIGABRT)

    def kill(self) -> None:
        self._end_groups(signal.SIGKILL)

    def _end_groups(self, number: int) -> None:
        for rank in self.running:
            rank.is_stopping = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.child.pid, number)


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
