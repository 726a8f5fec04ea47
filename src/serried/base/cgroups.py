"""The control group that limits a job's memory, and what its processes use. Versions 1 and 2."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Dict, Iterator, NamedTuple, Optional, Tuple

from serried.base.linux import CGROUPS, text_of

MICROSECONDS, NANOSECONDS = 1e6, 1e9


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
        used, statistics = _number(self.usage), _table(self.statistics)
        return None if used is None else max(0, used - statistics.get(self.reclaimable, 0))

    def cpu_seconds(self) -> Optional[float]:
        if self.cpu is None:
            return None
        if self.cpu.name == "cpu.stat":
            used = _table(self.cpu).get("usage_usec")
            return None if used is None else used / MICROSECONDS
        nanoseconds = _number(self.cpu)
        return None if nanoseconds is None else nanoseconds / NANOSECONDS


def limited_group(machine: int, membership: str = "/proc/self/cgroup", root: Path = CGROUPS) -> Optional[LimitedGroup]:
    """The group around this process with the lowest limit below `machine`, the machine's memory in bytes.

    Of several with the same limit the outermost, as the job around its steps.
    """
    groups = list(_groups(text_of(Path(membership)), root))
    limited = [(limit, group) for limit, group in groups if limit < machine]
    if not limited:
        return None
    lowest = min(limit for limit, _ in limited)
    return [group for limit, group in limited if limit == lowest][-1]


def _groups(membership: str, root: Path) -> Iterator[Tuple[int, LimitedGroup]]:
    """The groups around a process that have a limit, from the innermost on."""
    for line in membership.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(","):
            for inner in _ancestors(path):
                yield from _of_version_1(root, inner)
        elif not controllers:
            for inner in _ancestors(path):
                yield from _of_version_2(root / inner)


def _ancestors(path: str) -> Iterator[str]:
    """`a/b`, `a` and the empty path of `/a/b`. Paths that lead out of a container's view begin with `..`."""
    inner = posixpath.normpath(f"/{path}").strip("/")
    while inner:
        yield inner
        inner = posixpath.dirname(inner)
    yield ""


def _of_version_1(root: Path, inner: str) -> Iterator[Tuple[int, LimitedGroup]]:
    folder, cpu = root / "memory" / inner, root / "cpuacct" / inner / "cpuacct.usage"
    limit = _number(folder / "memory.limit_in_bytes")
    if limit is not None:
        has_own = bool(inner) and cpu.exists()
        usage, statistics = folder / "memory.usage_in_bytes", folder / "memory.stat"
        yield limit, LimitedGroup(limit, usage, statistics, "total_inactive_file", cpu if has_own else None)


def _of_version_2(folder: Path) -> Iterator[Tuple[int, LimitedGroup]]:
    limit = _number(folder / "memory.max")
    if limit is not None:
        usage, statistics = folder / "memory.current", folder / "memory.stat"
        yield limit, LimitedGroup(limit, usage, statistics, "inactive_file", folder / "cpu.stat")


def _number(path: Path) -> Optional[int]:
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None


def _table(path: Path) -> Dict[str, int]:
    """Lines of `name value`."""
    pairs = (line.split() for line in text_of(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
