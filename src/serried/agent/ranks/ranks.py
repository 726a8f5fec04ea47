"""The ranks of one node: start, watch, signal and reap them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.outcome.diagnose import has_stumbled, read_tail
from serried.agent.ranks import binding, command
from serried.agent.ranks.oom import OutOfMemory
from serried.process import linux
from serried.protocol import failure_report, names
from serried.protocol.json_lines import Message
from serried.protocol.reasons import Reason

NO_DIRECTORY = 66
NOT_EXECUTABLE = 126
NOT_FOUND = 127

Exit = Dict[str, Any]
"""How one rank ended: rank, local_rank, exit_code, signal, seconds, ended_by_us; also oom, problem.

stumbled: it only lost another rank. By its own word (`contract.failing`): error, and order where that is known.
"""


def has_failed(exit_: Exit) -> bool:
    return bool(exit_["exit_code"] or exit_["signal"])


class Rank:
    def __init__(self, number: int, local_rank: int, pid: int, log: int) -> None:
        self.number = number
        self.local_rank = local_rank
        self.pid = pid
        self.log = log
        self.stopped_at: Optional[float] = None
        """When we first sent it something that ends most programs, on the monotonic clock."""

    @property
    def is_stopping(self) -> bool:
        return self.stopped_at is not None

    def stop(self, number: int, *, everything: bool) -> None:
        """Send `number`, which ends most programs, to its process, or to all of its group."""
        self.stopped_at = time.monotonic() if self.stopped_at is None else self.stopped_at
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if everything else os.kill)(self.pid, number)


class Ranks:
    """The ranks of one node, whoever started them."""

    def __init__(self, work: Attempt, node: int, stop_file: str) -> None:
        self.work = work
        self.node = node
        self._stop_file = stop_file
        self.exits: List[Exit] = []
        self._began_at = time.monotonic()
        self._running: Dict[int, Rank] = {}
        self.leaders: List[int] = []
        """Every rank's process, and the group that it leads."""
        self._sizes = 0
        self._newest_output = self._began_at
        self._notice = 0
        self.are_notified = False
        """To save and leave."""

    def log_of(self, number: int) -> Path:
        return self.work.directory.attempt(self.work.number).log_of(number, self.work.ranks)

    def open_log(self, number: int) -> int:
        return os.open(self.log_of(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, self.work.file_mode)

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:  # noqa: ARG002 - for those who have children
        """The ranks that have ended since the last call; `children` of the agent have ended with these statuses."""
        return []

    @property
    def have_ended(self) -> bool:
        """Whether none runs, and none will come."""
        return not self._running

    @property
    def have_exited_by_themselves(self) -> bool:
        """Whether all have left by themselves, done or saved: nobody was cut short while writing a file."""
        return all(not exit_["signal"] and exit_["exit_code"] in (0, names.EXIT_SAVED) for exit_ in self.exits)

    def was_killed_by_launcher(self, exit_: Exit) -> bool:  # noqa: ARG002 - the four below are for ranks that a launcher starts
        """Whether it was killed because its launcher ended."""
        return False

    def report_launcher_exit(self, *, all_sent: bool) -> None:
        """Tell of a launcher's end, once what its ranks had to say has been told."""

    def on_message(self, message: Message) -> None:
        """What the head says about launchers."""

    def on_head_lost(self) -> None:
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

    def record(
        self, rank: Rank, status: int, problem: Optional[Tuple[str, int]], *, is_oom: bool, now: Optional[float] = None
    ) -> Exit:
        """How it ended. What was seen to have ended at one look has ended at once, as far as is known: `now`."""
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = 128 + number if number is not None else os.WEXITSTATUS(status)
        record: Exit = {
            "rank": rank.number,
            "local_rank": rank.local_rank,
            "exit_code": code if number is None else None,
            "signal": number,
            "seconds": round((now or time.monotonic()) - self._began_at, 3),
            "ended_by_us": rank.is_stopping or bool(self._notice and code == 128 + self._notice),
        }
        if problem:
            record.update(_explain(problem, self.work))
            os.write(rank.log, f"serried: {record['message']}\n".encode())
        if number == signal.SIGKILL and not rank.is_stopping and is_oom:
            record["oom"] = True
        world_size = self.work.nodes * self.work.ranks
        word = failure_report.take(self._stop_file, rank.number, world_size)
        if has_failed(record) and word:
            self._apply_failure_report(record, word, rank)
        elif has_failed(record) and world_size > 1 and has_stumbled(self.log_of(rank.number)):
            record["stumbled"] = True
        os.close(rank.log)
        return record

    def _apply_failure_report(self, record: Exit, word: failure_report.Word, rank: Rank) -> None:
        """It failed when it said so, whatever has ended it since."""
        if rank.stopped_at is not None and word.at > rank.stopped_at:
            return  # because it was to stop, or because others had stopped
        if rank.is_stopping and (record["signal"] or record["exit_code"] == names.EXIT_LEFT):
            record.update(exit_code=word.exit_code, signal=word.signal)
        if rank.is_stopping and not self._is_by_notice(record):
            record["ended_by_us"] = False
        record["seconds"] = round(max(0.0, min(word.at - self._began_at, record["seconds"])), 3)
        record.update(error=word.error, stumbled=word.lost_peer)
        if word.order is not None:
            record["order"] = word.order

    def _is_by_notice(self, record: Exit) -> bool:
        number = record["signal"]
        return bool(self._notice) and self._notice + 128 == (128 + number if number else record["exit_code"])

    def tail(self, exit_: Exit) -> List[str]:
        return read_tail(self.log_of(exit_["rank"]))

    def notify(self, name: Optional[str]) -> None:
        """They have been asked to save: send the notice that the user chose. A rank that dies of it was ended by us."""
        self.are_notified = True
        if name:
            self._notice = int(getattr(signal, f"SIG{name}"))
            for rank in self.running:
                for pid in notice_targets(rank.pid, self._notice):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, self._notice)

    def terminate(self) -> None:
        """TERM, to each rank and its process group: a shell that dies of it must not leave its program running."""
        self._end_groups(signal.SIGTERM)

    def abort(self) -> None:
        """ABRT, to the ranks themselves: Python then writes where each of its threads is, and ends."""
        for rank in self.running:
            system.forbid_core(rank.pid)
            with contextlib.suppress(OSError):
                os.write(rank.log, b"serried: ending this rank by ABRT; if it is Python, where it was follows\n")
            rank.stop(signal.SIGABRT, everything=False)

    def kill(self) -> None:
        self._end_groups(signal.SIGKILL)

    def _end_groups(self, number: int) -> None:
        for rank in self.running:
            rank.stop(number, everything=True)


class ForkedRanks(Ranks):
    """Started by the agent itself, all at once."""

    def __init__(self, work: Attempt, node: int, place: Dict[str, Any]) -> None:
        super().__init__(work, node, place["stop_file"])
        self._memory = OutOfMemory()
        self._children: Dict[int, system.Child] = {}
        threads = binding.threads(work)
        for local, cpus in enumerate(binding.shares(work.ranks)):
            number = node * work.ranks + local
            here = command.RankPlace(node=node, rank=number, local_rank=local, threads=threads, **place)
            rank = self._start(here, cpus)
            self._running[rank.pid] = rank
        self.leaders += self._running

    def _start(self, place: command.RankPlace, cpus: List[int]) -> Rank:
        log = self.open_log(place.rank)
        stdin = _stdin()
        program = command.program(self.work, place)
        child = system.spawn(
            program.argv,
            program.environment,
            (stdin, log, log),
            directory=str(self.work.workdir),
            cpus=cpus,
            parent_death=signal.SIGKILL,
            own_group=True,
        )
        os.close(stdin)
        self._children[child.pid] = child
        return Rank(place.rank, place.local_rank, child.pid, log)

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:
        now = time.monotonic()
        ended = [self._end(self._running.pop(pid), status, now) for pid, status in children if pid in self._running]
        self.exits += ended
        return ended

    def _end(self, rank: Rank, status: int, now: float) -> Exit:
        problem = self._children.pop(rank.pid).problem()
        return self.record(rank, status, problem, is_oom=self._memory.has_occurred(), now=now)


def _stdin() -> int:
    """The terminal of the `serried run` that started the only rank, else nothing.

    It is not the controlling terminal of the job, which has a session of its own: so nobody is stopped for reading.
    """
    with contextlib.suppress(OSError):
        terminal = os.environ.get(names.TERMINAL)
        if terminal:
            return os.open(terminal, os.O_RDONLY | os.O_NOCTTY)
    return os.open(os.devnull, os.O_RDONLY)


def _explain(problem: Tuple[str, int], work: Attempt) -> Dict[str, Any]:
    """Why a rank's program never began."""
    stage, number = problem
    reason = os.strerror(number).lower()
    if stage == "directory":
        return {
            "exit_code": NO_DIRECTORY,
            "problem": Reason.WORKDIR_MISSING,
            "message": f"cannot enter the working directory `{work.workdir}`: {reason}",
        }
    name = "/bin/bash" if work.plan.get("shell") else work.command[0]
    if stage == "command" and number in (errno.ENOENT, errno.ENOTDIR):
        return {"exit_code": NOT_FOUND, "problem": Reason.COMMAND_NOT_FOUND, "message": f"command not found: `{name}`"}
    return {
        "exit_code": NOT_EXECUTABLE,
        "problem": Reason.COMMAND_NOT_FOUND,
        "message": f"cannot run `{name}`: {reason}",
    }


SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "busybox"})


def notice_targets(pid: int, number: int) -> List[int]:
    """The processes of the rank `pid` that get the signal `limit.notify`.

    The rank's own process gets it, and not helpers such as a loader's workers, which do not expect it. A shell without
    a trap would die of the signal before its program sees it. So the shell's children get it instead.
    """
    if not _is_shell(pid) or _catches(pid, number):
        return [pid]
    children = [int(child) for child in linux.read(pid, f"task/{pid}/children").split()]
    return [target for child in children for target in notice_targets(child, number)] or [pid]


def _is_shell(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"{linux.PROC}/{pid}/exe")) in SHELLS  # noqa: PTH115, PTH119 - strings
    except OSError:
        return False


def _catches(pid: int, number: int) -> bool:
    lines = linux.read(pid, "status").splitlines()
    caught = next((line.split()[1] for line in lines if line.startswith(b"SigCgt:")), b"0")
    return bool(int(caught, 16) >> (number - 1) & 1)
