"""The ranks of one node: start, watch, signal and reap them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.outcome.diagnose import has_stumbled, has_stumbled_in_shared, tail_of
from serried.agent.ranks import binding, command
from serried.base import linux
from serried.base.channel import Message
from serried.schema import failure_report, names
from serried.schema.exits import Exit
from serried.schema.failure_report import FailureReport
from serried.schema.reasons import Reason

NO_DIRECTORY = 66
NOT_EXECUTABLE = 126
NOT_FOUND = 127

_RETRACT = "serried: hint: to survive an exception, catch it in the session, or open another session"


class Rank:
    restarts = 0
    """How often its launcher had started it before in this attempt."""

    # Of a rank that a job script launches; the defaults are those of other ranks.
    launch = within = ""
    """The launch, and the rank of the outer launch."""
    world_size: Optional[int] = None
    path: Optional[Path] = None
    is_needed = False
    """As `kinds.is_needed` says."""

    def __init__(self, number: int, local_rank: int, pid: int, log: int) -> None:
        self.number = number
        self.local_rank = local_rank
        self.pid = pid
        self.log = log
        self.stopped_at: Optional[float] = None
        """When the agent first sent it a signal that ends most programs, on the monotonic clock."""

    @property
    def is_stopping(self) -> bool:
        return self.stopped_at is not None

    def stop(self, number: int, *, everything: bool) -> None:
        """Send signal `number` to its process, or with `everything` to its process group."""
        self.stopped_at = time.monotonic() if self.stopped_at is None else self.stopped_at
        system.send_signal(self.pid, number, to_group=everything)


class Ranks:
    """The ranks of one node, started by the agent or by a launcher."""

    def __init__(self, attempt: Attempt, node: int, stop_file: str, group: Optional[int] = None) -> None:
        self.attempt = attempt
        self.node = node
        self.group = node if group is None else group
        """The place of the node among those that have ranks."""
        self._stop_file = stop_file
        self.exits: Dict[int, Exit] = {}
        """By rank."""
        self._began_at = time.monotonic()
        self._running: Dict[int, Rank] = {}
        self.leaders: List[int] = []
        """The pid of every rank, which is also that of its process group."""
        self._sizes = 0
        self._newest_output = self._began_at
        self._notice = 0
        self.are_notified = False
        """They have received the stop notice."""

    def open_log(self, number: int) -> int:
        return os.open(
            self.attempt.log_of(number, self.group), os.O_WRONLY | os.O_CREAT | os.O_APPEND, self.attempt.file_mode
        )

    def log_path(self, rank: Rank) -> Path:
        return rank.path or self.attempt.log_of(rank.number, self.group)

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:  # noqa: ARG002 - a subclass has children
        """The ranks that have ended since the last call. `children` of the agent have ended: (pid, wait status)."""
        return []

    @property
    def have_ended(self) -> bool:
        return not self._running

    @property
    def have_exited_by_themselves(self) -> bool:
        """Whether all exited with success or after a save, so that no file was cut off."""
        return all(exit_.exit_code in (0, names.EXIT_SAVED) for exit_ in self.exits.values())

    @property
    def may_leave_processes(self) -> bool:
        """Whether a process that runs at the end is simply ended, instead of failing the run."""
        return False

    # The next four are for ranks of a launcher.

    def was_killed_by_launcher(self, exit_: Exit) -> bool:  # noqa: ARG002
        return False

    def report_launcher_exit(self, *, all_sent: bool) -> None:
        """Report the launcher's exit, after the exits of its ranks: `all_sent` says that these were reported."""

    def on_message(self, message: Message) -> None:
        """Handle the head's messages about launchers."""

    def on_head_lost(self) -> None:
        """Let the launcher exit: no message from the head will."""

    @property
    def running(self) -> List[Rank]:
        return list(self._running.values())

    def quiet_seconds(self) -> float:
        """How long no running rank has written anything. By file size, because a file server's clock may differ."""
        sizes = sum(os.fstat(rank.log).st_size for rank in self.running)
        if sizes != self._sizes:
            self._sizes, self._newest_output = sizes, time.monotonic()
        return time.monotonic() - self._newest_output

    def record(
        self,
        rank: Rank,
        status: int,
        problem: Optional[Sequence[Any]],
        *,
        is_oom: Optional[bool],
        now: Optional[float] = None,
    ) -> Exit:
        """The exit of `rank`. Ranks that were reaped together share `now`: which ended first is unknown.

        `is_oom`: the kernel has killed a process for want of memory; None if nothing shows it.
        """
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = 128 + number if number is not None else os.WEXITSTATUS(status)
        was_killed = code == 128 + signal.SIGKILL and not rank.is_stopping  # or its program, below a shell
        exit_ = Exit(
            rank=rank.number,
            local_rank=rank.local_rank,
            exit_code=code if number is None else None,
            signal=number,
            seconds=round((now or time.monotonic()) - self._began_at, 3),
            ended_by_us=rank.is_stopping or bool(self._notice and code == 128 + self._notice),
            oom=was_killed and bool(is_oom),
            spared=was_killed and is_oom is False,
        )
        if problem:
            exit_ = _with_problem(exit_, problem, self.attempt)
            os.write(rank.log, f"serried: {exit_.message}\n".encode())
        world_size = rank.world_size or self.attempt.world_size
        reports = failure_report.take(failure_report.place_of(self._stop_file, rank.number, rank.launch, rank.within))
        if exit_.has_failed:
            own = [it.report for it in reports if (it.rank, it.report.world_size) == (rank.number, world_size)]
            if own and not own[-1].is_past:
                exit_ = self._with_failure_report(exit_, own[-1], rank)
            elif world_size > 1:
                log, is_shared = self.log_path(rank), self.attempt.shares_log(rank.number)
                has_lost = has_stumbled_in_shared(log, rank.number) if is_shared else has_stumbled(log)
                exit_ = exit_._replace(stumbled=has_lost)
        else:
            # If a bash of the job script has seen one of the calls fail, the rules of its failures apply.
            failures = self.attempt.directory.attempt(self.attempt.number).launches / "failures"
            seen = [any((failures / f"{call}.json").exists() for call in it.calls) for it in reports]
            if False in seen:
                exit_ = self._with_unretracted_report(exit_, reports[seen.index(False)].report, rank)
        os.close(rank.log)
        return exit_

    def _with_failure_report(self, exit_: Exit, report: FailureReport, rank: Rank) -> Exit:
        """The failure as of the report's time, even if the agent ended the rank since."""
        if rank.stopped_at is not None and report.at > rank.stopped_at:
            return exit_  # the stop itself, or the stop of another rank, caused this failure
        if rank.is_stopping and (exit_.signal or exit_.exit_code == names.EXIT_LEFT):
            exit_ = exit_._replace(exit_code=report.exit_code, signal=report.signal)
        is_by_notice = bool(self._notice) and exit_.status == 128 + self._notice
        return exit_._replace(
            ended_by_us=exit_.ended_by_us and (is_by_notice or not rank.is_stopping),
            seconds=round(max(0.0, min(report.at - self._began_at, exit_.seconds)), 3),
            error=report.error,
            stumbled=report.lost_peer,
            order=report.order,
        )

    def _with_unretracted_report(self, exit_: Exit, report: FailureReport, rank: Rank) -> Exit:
        """The failure of a rank that exited with status 0 but did not retract its report.

        After the signal of `limit.notify`, an exception may be the way to stop, and status 0 does not complete the run.
        """
        if self._notice or (rank.stopped_at is not None and report.at > rank.stopped_at):
            return exit_
        is_script = rank.number == names.SCRIPT_RANK
        what = "ran a program whose session reported a failure" if is_script else "reported a failure in its session"
        message = f"{what}, but exited with status 0"
        code = report.exit_code if report.signal is None else 128 + report.signal
        exit_ = exit_._replace(exit_code=code or 1, reported=True, problem=Reason.EXIT, message=message)
        said = f"serried: {names.rank_name(rank.number)} {message}: {report.error}\n{_RETRACT}\n"
        with contextlib.suppress(OSError):  # the disk is full
            os.write(rank.log, said.encode())
        return self._with_failure_report(exit_, report, rank)

    def tail(self, rank: int) -> List[str]:
        return tail_of(self.attempt, rank, self.group)

    def notify(self, name: Optional[str]) -> None:
        """Send the signal `name` as the stop notice. A rank that dies of the signal counts as ended by the agent."""
        self.are_notified = True
        if name:
            self._notice = int(getattr(signal, f"SIG{name}"))
            for rank in self.running:
                for pid in notice_targets(rank.pid, self._notice):
                    system.send_signal(pid, self._notice)

    def terminate(self) -> None:
        """Send TERM to each rank's process group: a shell that dies of TERM must not leave its program running."""
        for rank in self.running:
            rank.stop(signal.SIGTERM, everything=True)

    def abort(self) -> None:
        """Send ABRT to the ranks themselves: Python then prints the stacks of its threads and exits."""
        for rank in self.running:
            system.forbid_core(rank.pid)
            with contextlib.suppress(OSError):
                os.write(rank.log, f"{names.ENDING_WITH_ABRT}\n".encode())
            rank.stop(signal.SIGABRT, everything=False)

    def kill(self) -> None:
        for rank in self.running:
            rank.stop(signal.SIGKILL, everything=True)


class ForkedRanks(Ranks):
    """Ranks that the agent itself starts, all at once."""

    def __init__(self, attempt: Attempt, node: int, place: Dict[str, Any], group: Optional[int] = None) -> None:
        super().__init__(attempt, node, place["stop_file"], group)
        self._memory = linux.OutOfMemory()
        self._children: Dict[int, system.Child] = {}
        self._start_all(place)

    def _start_all(self, place: Dict[str, Any]) -> None:
        attempt, threads = self.attempt, binding.threads(self.attempt)
        for local, cpus in enumerate(binding.shares(attempt.ranks)):
            number = self.group * attempt.ranks + local
            rank = command.RankPlace(node=self.node, rank=number, local_rank=local, threads=threads, **place)
            self._start(rank, command.program(attempt, rank), cpus=cpus)

    def _start(
        self,
        place: command.RankPlace,
        program: command.Program,
        *,
        cpus: Sequence[int] = (),
        input_file: str = "",
        umask: Optional[int] = None,
    ) -> None:
        log, stdin = self.open_log(place.rank), _open_input(input_file)
        if place.round > 1:
            with contextlib.suppress(OSError):  # the disk is full
                os.write(log, f"{names.ROUND_BEGINS}{place.round}\n".encode())
        child = system.spawn(
            program.argv,
            program.environment,
            (stdin, log, log),
            directory=str(self.attempt.workdir),
            cpus=cpus,
            parent_death=signal.SIGKILL,
            own_group=True,
            umask=umask,
        )
        os.close(stdin)
        self._children[child.pid] = child
        self._running[child.pid] = Rank(place.rank, place.local_rank, child.pid, log)
        self.leaders.append(child.pid)

    def reap(self, children: Iterable[Tuple[int, int]]) -> List[Exit]:
        now = time.monotonic()
        ended = [
            self.record(
                self._running.pop(pid),
                status,
                self._children.pop(pid).problem(),
                is_oom=self._memory.has_occurred() if self._memory.is_counted else None,
                now=now,
            )
            for pid, status in children
            if pid in self._running
        ]
        self.exits.update((exit_.rank, exit_) for exit_ in ended)
        return ended


def _open_input(path: str) -> int:
    """The input of the only rank: the file, else the terminal of the `serried run` that started it, else /dev/null.

    It is not the job's controlling terminal, because the job has its own session. So the kernel stops no reader.
    """
    for candidate in filter(None, (path, os.environ.get(names.TERMINAL))):
        with contextlib.suppress(OSError):
            return os.open(candidate, os.O_RDONLY | os.O_NOCTTY)
    return os.open(os.devnull, os.O_RDONLY)


def _with_problem(exit_: Exit, problem: Sequence[Any], attempt: Attempt) -> Exit:
    stage, number = problem
    because = os.strerror(number).lower()
    if stage == "directory":
        code, reason = NO_DIRECTORY, Reason.WORKDIR_MISSING
        message = f"cannot enter the working directory `{attempt.workdir}`: {because}"
    else:
        script = attempt.plan.script
        name = script.interpreter[0] if script else "/bin/bash" if attempt.plan.shell else attempt.command[0]
        is_absent = stage == "command" and number in (errno.ENOENT, errno.ENOTDIR)
        code, reason = NOT_FOUND if is_absent else NOT_EXECUTABLE, Reason.COMMAND_NOT_FOUND
        message = f"command not found: `{name}`" if is_absent else f"cannot run `{name}`: {because}"
    return exit_._replace(exit_code=code, problem=reason, message=message)


SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "busybox"})


def notice_targets(pid: int, number: int) -> List[int]:
    """The processes of the rank `pid` that get the signal `limit.notify`.

    The rank's own process gets it, and not helpers such as a loader's workers, which do not expect it. A shell without
    a trap would die of the signal before its program sees it. So the shell's children get it instead.
    """
    try:
        program = os.path.basename(os.readlink(f"{linux.PROC}/{pid}/exe"))  # noqa: PTH115, PTH119 - strings
    except OSError:
        return [pid]
    if program not in SHELLS or catches(pid, number):
        return [pid]
    children = [int(child) for child in linux.read(pid, f"task/{pid}/children").split()]
    return [target for child in children for target in notice_targets(child, number)] or [pid]


def catches(pid: int, number: int) -> bool:
    lines = linux.read(pid, "status").splitlines()
    caught = next((line.split()[1] for line in lines if line.startswith(b"SigCgt:")), b"0")
    return bool(int(caught, 16) >> (number - 1) & 1)
