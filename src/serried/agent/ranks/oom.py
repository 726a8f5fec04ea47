"""Whether the kernel killed a process of ours for memory: the counter of our own cgroup, before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

ROOT = Path("/sys/fs/cgroup")


class OutOfMemory:
    """Knows how often the kernel had killed in our cgroup when this was made."""

    def __init__(self, membership: str = "/proc/self/cgroup", root: Path = ROOT) -> None:
        self._file = find_counter(_read(Path(membership)), root)
        self._before = self._count()

    def has_occurred(self) -> bool:
        return self._count() > self._before

    def _count(self) -> int:
        return parse_kills(_read(self._file)) if self._file else 0


def find_counter(membership: str, root: Path) -> Optional[Path]:
    """Which file counts the kills, from the text of /proc/self/cgroup: `0::/path` (v2), `4:memory:/path` (v1)."""
    candidates = []
    for line in membership.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(","):
            candidates.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
        elif not controllers:
            candidates.append(root / path.lstrip("/") / "memory.events")
            candidates.append(root / "unified" / path.lstrip("/") / "memory.events")
    return next((file for file in candidates if file.exists()), None)


def parse_kills(text: str) -> int:
    """`oom_kill 3` among the lines of memory.events or memory.oom_control."""
    words = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) > 1)
    return int(words.get("oom_kill", "0"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
