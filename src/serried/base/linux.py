"""Processes as Linux shows them in /proc and in their cgroups, and what prctl(2) arranges for them.

Without /proc, as on macOS, a process has no descriptors and no environment here.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from serried.base import NamedTuple

PROC = "/proc"
CGROUPS = Path("/sys/fs/cgroup")
EXEC_SECONDS = 1.0
"""How long a process that executes a new program may show no environment, on a busy machine."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def pids() -> List[int]:
    return [int(name) for name in _names("") if name.isdigit()]


def other_pids() -> List[int]:
    own = os.getpid()
    return [pid for pid in pids() if pid != own]


def read(pid: int, name: str) -> bytes:
    """The content of /proc/PID/`name`; empty if the process has ended or belongs to another user."""
    try:
        return _read(pid, name)
    except OSError:
        return b""


def _read(pid: int, name: str) -> bytes:
    with open(f"{PROC}/{pid}/{name}", "rb") as file:  # noqa: PTH123 - a scan reads thousands
        return file.read()


def stat(pid: int) -> List[str]:
    """The fields of /proc/PID/stat from the third on: the second, the name, may contain spaces.

    Empty if the process has ended or belongs to another user.
    """
    return read(pid, "stat").rpartition(b")")[2].decode("ascii", "replace").split()


def group_members(group: int) -> List[int]:
    return [pid for pid in pids() if stat(pid)[2:3] == [str(group)]]


def started(pid: int) -> str:
    """Clock ticks from boot to the start of a process, which identify it among all with its pid. "" if unknown."""
    return "".join(stat(pid)[19:20])


def parent(pid: int) -> int:
    """0 if the process has ended, also if it is a zombie."""
    fields = stat(pid)
    return int(fields[1]) if fields and fields[0] not in "ZX" else 0


def descendants(pid: int) -> List[int]:
    """The processes that `pid` and its children have started and that have a living parent, parents first."""
    pairs = [(child, parent(child)) for child in sorted(pids())]
    found = [pid]
    for one in found:
        found += [child for child, its_parent in pairs if its_parent == one and child not in found]
    return found[1:]


def environ(pid: int) -> bytes:
    """`NAME=value` entries, each ended by a NUL. Empty as `read`.

    A process that is executing a new program shows an empty environment for a moment.
    """
    deadline = time.monotonic() + EXEC_SECONDS
    entries = b""
    with contextlib.suppress(OSError):
        while not (entries := _read(pid, "environ")) and not _has_none(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
    return entries


def _has_none(pid: int) -> bool:
    """Is the environment empty for good? A zombie and a kernel thread have no memory, others may have no variables.

    During an exec there is memory, but the environment has neither a beginning nor an end.
    """
    fields = stat(pid)
    return len(fields) < 49 or fields[0] in "ZX" or fields[20] == "0" or fields[47] == fields[48] != "0"


def descriptors(pid: int) -> List[str]:
    """The paths /proc/PID/fd/N of a process's open files."""
    return [f"{PROC}/{pid}/fd/{number}" for number in _names(f"/{pid}/fd")]


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(PROC + folder)  # noqa: PTH208 - no stat
    except OSError:
        return []


def die_with_parent(number: int) -> None:
    """Request signal `number` for the time when the process that started this one ends."""
    request = parent_death_request(number)
    if request:
        request()


def parent_death_request(number: int) -> Optional[Callable[[], object]]:
    """`die_with_parent`, prepared for a call between fork and exec; None if this system does not support that."""
    return _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that each can be found."""
    request = _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if request:
        request()


def _prctl(option: int, value: int) -> Optional[Callable[[], object]]:
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):  # some Pythons have no ctypes
            import ctypes  # takes milliseconds, and few processes need it at their start

            prctl = ctypes.CDLL(None).prctl
            return lambda: prctl(option, int(value), 0, 0, 0)
    return None


class OutOfMemory:
    """Has the kernel killed a process of this cgroup for memory? Compares the counter with its value at the start."""

    def __init__(self, membership: str = "/proc/self/cgroup", root: Path = CGROUPS) -> None:
        self._file = find_counter(text_of(Path(membership)), root)
        self._before = self._count()

    @property
    def is_counted(self) -> bool:
        return self._file is not None and "oom_kill " in text_of(self._file)

    def has_occurred(self) -> bool:
        return self._count() > self._before

    def _count(self) -> int:
        return parse_kills(text_of(self._file)) if self._file else 0


def find_counter(membership: str, root: Path) -> Optional[Path]:
    """The file that counts the kills, from the text of /proc/self/cgroup."""
    candidates = []
    for version, path in _memory_groups(membership):
        if version == 1:
            candidates.append(root / "memory" / path / "memory.oom_control")
        else:
            candidates += [root / path / "memory.events", root / "unified" / path / "memory.events"]
    return next((file for file in candidates if file.exists()), None)


def _memory_groups(membership: str) -> Iterator[Tuple[int, str]]:
    """The groups for memory as (version, path), from lines `0::/path` (version 2) and `4:memory:/path` (version 1)."""
    for line in membership.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers or "memory" in controllers.split(","):
            yield 1 if controllers else 2, path.lstrip("/")


def parse_kills(text: str) -> int:
    """The number in the line `oom_kill 3` of memory.events or memory.oom_control."""
    return _parse_table(text).get("oom_kill", 0)


class LimitedGroup(NamedTuple):
    """A group whose memory is limited. Its files may disappear with it."""

    limit: int
    """In bytes."""
    usage: Path
    statistics: Path
    reclaimable: str
    """The line of `statistics` with the page cache that can be dropped."""
    cpu: Optional[Path]
    """The file with the CPU time that its processes have used; None where only other groups count that."""

    def working_set(self) -> Optional[int]:
        """Memory in use without the page cache that can be dropped, in bytes."""
        used, statistics = _number_in(self.usage), _parse_table(text_of(self.statistics))
        return None if used is None else max(0, used - statistics.get(self.reclaimable, 0))

    def cpu_seconds(self) -> Optional[float]:
        if self.cpu is None:
            return None
        if self.cpu.name == "cpu.stat":
            microseconds = _parse_table(text_of(self.cpu)).get("usage_usec")
            return None if microseconds is None else microseconds / 1e6
        nanoseconds = _number_in(self.cpu)
        return None if nanoseconds is None else nanoseconds / 1e9


def limited_group(machine: int, membership: str = "/proc/self/cgroup", root: Path = CGROUPS) -> Optional[LimitedGroup]:
    """The group around this process with the lowest limit below `machine`, the machine's memory in bytes.

    Of several with the same limit the outermost, as the job around its steps.
    """
    lowest: Optional[LimitedGroup] = None
    for version, path in _memory_groups(text_of(Path(membership))):
        # `a/b`, `a` and the empty path of `/a/b`. Paths that lead out of a container's view begin with `..`.
        names = posixpath.normpath(f"/{path}").strip("/").split("/")
        for length in range(len(names), -1, -1):
            inner = "/".join(names[:length])
            group = _limit_of_version_1(root, inner) if version == 1 else _limit_of_version_2(root / inner)
            if group and group.limit < machine and (lowest is None or group.limit <= lowest.limit):
                lowest = group
    return lowest


def _limit_of_version_1(root: Path, inner: str) -> Optional[LimitedGroup]:
    folder, cpu = root / "memory" / inner, root / "cpuacct" / inner / "cpuacct.usage"
    limit = _number_in(folder / "memory.limit_in_bytes")
    if limit is None:
        return None
    own_cpu = cpu if inner and cpu.exists() else None
    return LimitedGroup(limit, folder / "memory.usage_in_bytes", folder / "memory.stat", "total_inactive_file", own_cpu)


def _limit_of_version_2(folder: Path) -> Optional[LimitedGroup]:
    limit = _number_in(folder / "memory.max")
    if limit is None:
        return None
    return LimitedGroup(limit, folder / "memory.current", folder / "memory.stat", "inactive_file", folder / "cpu.stat")


def _number_in(path: Path) -> Optional[int]:
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None


def _parse_table(text: str) -> Dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def text_of(path: Path) -> str:
    """A file of /proc or /sys; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
