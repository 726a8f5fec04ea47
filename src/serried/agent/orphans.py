"""Find and end the processes that an attempt left behind: by its mark in /proc, never by name."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Callable, Iterable, List, Optional, Set

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.node_disk import cleanup
from serried.base import NamedTuple, linux
from serried.schema import names

END_SECONDS = 5.0


class Leftover(NamedTuple):
    pid: int
    command: str
    """Its command line, shortened."""

    @property
    def may_outlive_ranks(self) -> bool:
        """Whether `setup` or a command of `beside` started it. Such a process is ended after the ranks."""
        environ = _environ(self.pid)
        return f"{names.SETUP}={names.IN_SETUP}".encode() in environ or f"{names.SIDE_COMMAND}=1".encode() in environ


def leftovers(mark: str, node: Optional[int] = None, adopted_by: int = 0) -> List[Leftover]:
    """This user's processes with `mark`, and the children of `adopted_by`. `node` restricts the former to one node."""
    wanted = {f"{names.MARK}={mark}".encode()}
    if node is not None:
        wanted.add(f"{names.NODE}={node}".encode())
    others = (pid for pid in linux.other_pids() if pid not in system.HELPER_PIDS)
    ours = [pid for pid in others if _is_ours(pid, wanted, adopted_by)]
    commands = (linux.read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip() for pid in ours)
    return [Leftover(pid, command[:60]) for pid, command in zip(ours, commands)]


def end(find: Callable[[], List[Leftover]], reap: Callable[[], object] = system.reap) -> int:
    """KILL what `find` returns until it returns none, for END_SECONDS at most. Returns the number of processes.

    `reap` is called repeatedly: a launcher may be waiting for the exit status of a child.
    """
    killed: Set[int] = set()
    limit = time.monotonic() + END_SECONDS
    while time.monotonic() < limit:
        remaining = find()
        if not remaining:
            break
        for leftover in remaining:
            system.send_signal(leftover.pid, signal.SIGKILL)
            killed.add(leftover.pid)
        time.sleep(0.02)
        reap()
    return len(killed)


def end_groups(leaders: Iterable[int]) -> None:
    """On a system without /proc (macOS): KILL the process groups of the ranks."""
    if os.path.isdir(linux.PROC):  # noqa: PTH112 - a bare string
        return
    for leader in leaders:
        system.send_signal(leader, signal.SIGKILL, to_group=True)


def clear(attempt: Attempt) -> int:
    """End the attempt's processes on this node, and delete its files there. Returns the number of processes."""
    count = end(lambda: leftovers(attempt.process_tag))
    cleanup.clear(attempt)
    return count


def _is_ours(pid: int, wanted: Set[bytes], adopted_by: int) -> bool:
    """Whether process `pid` has every entry of `wanted` in its environment, or is a child of `adopted_by`."""
    environ = _environ(pid)
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in environ)
    is_marked = wanted <= environ and not names.is_in_another_job({name: value for name, _, value in pairs})
    return is_marked or (bool(adopted_by) and linux.parent(pid) == adopted_by)


def _environ(pid: int) -> Set[bytes]:
    return set(linux.environ(pid).split(b"\0"))


def main(arguments: List[str]) -> int:
    """`sweep MARK DIRECTORY ATTEMPT [TASK]`: the head starts it on the nodes when an agent there was killed.

    The environment need not name the run: what `pbsdsh` starts has that of the job, not that of job.sh.
    """
    mark, directory, (number, task) = arguments[0], arguments[1], [*map(int, arguments[2:]), None][:2]
    count = end(lambda: leftovers(mark))
    with contextlib.suppress(OSError, ValueError):  # a file system that is away
        cleanup.clear(Attempt.load(directory, task, number or 0))
    if count:
        print(f"serried: ended {count} processes that were left over", file=sys.stderr)
    return 0
