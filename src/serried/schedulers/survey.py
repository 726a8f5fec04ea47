"""What a scheduler says about its cluster: asked through its commands, and kept for minutes."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from serried.clusters.machine import Command
from serried.fs import files
from serried.protocol.layout import slug, state_directory

ASKING_SECONDS = 45.0
"""What a job asks for hangs on the answer. A client of Slurm's gives up by itself after 10 or 18 s."""
GLANCE_SECONDS = 4.0
"""Where it is enough to know it next time."""
KEPT_SECONDS = 300.0

Ask = Callable[[Sequence[str]], str]
"""What a command printed; empty when it failed."""


@dataclass(frozen=True)
class ArrayLimits:
    """None: no such limit is known."""

    below: int | None = None
    """What the indices of a job have to stay below."""
    tasks: int | None = None
    """How many tasks a job may have."""
    jobs: int | None = None
    """What the number of all users' jobs stays below; each task is one."""


@dataclass(frozen=True)
class Learnt:
    name: str
    """What the site itself calls it."""
    table: Mapping[str, Any]
    """As a profile holds it."""
    sources: Mapping[str, str]
    """By key of `table`: which command said it."""


@dataclass(frozen=True)
class Inside:
    """What a job has to give. Where nodes differ, the least that each has."""

    scheduler: str
    job: str
    hosts: tuple[str, ...]
    """The scheduler's names for its nodes, the first one first."""
    cpus: int
    """On each node."""
    gpus: int
    """On each node."""
    tasks: int
    """Tasks on each node, as whoever asked for it said; 1 where nobody did."""
    seconds: int | None
    """Until its time is over; None has no end."""
    is_here: bool
    """Whether this is its first node: `salloc` leaves its shell where it was typed."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What tells the scheduler's commands which job they are in."""
    to_first_node: tuple[str, ...] = ()
    """Words that start the words after them on the first node; none if that is here."""
    has_private_file: bool = False
    """Whether job.sh gets a second argument: a path for the environment of the nodes' agents."""


class SiteSurvey(Protocol):
    """The module `site` of a scheduler."""

    def describe(self, environ: Mapping[str, str], command: Command = ...) -> dict[str, Any]:
        """Its partitions and nodes, as a profile's table; empty when it does not answer."""

    def own_name(self, environ: Mapping[str, str], command: Command = ..., *, seconds: float = ...) -> str:
        """Its name for itself, where its job ids do not tell it from another; else empty."""

    def array_limits(self, environ: Mapping[str, str], command: Command = ...) -> ArrayLimits: ...

    def learn(self, environ: Mapping[str, str], user: str, command: Command = ...) -> Learnt | None:
        """All that a profile may hold; None when it does not answer."""

    def inside(self, environ: Mapping[str, str]) -> Inside:
        """The job around us, for a scheduler whose traits say `is_around`. Raises SchedulerUnreachable."""

    def is_throwaway(self, environ: Mapping[str, str]) -> bool:
        """Whether it is a lab's: a cluster of this machine alone."""


def asker(
    environ: Mapping[str, str],
    command: Command,
    identity: Sequence[object],
    seconds: float = ASKING_SECONDS,
) -> Ask:
    """Asks with `environ`, or answers with what the same command printed within minutes.

    `identity` tells this scheduler from any other that shares this home.
    """

    def ask(argv: Sequence[str]) -> str:
        path = environ.get("PATH", os.defpath)
        if shutil.which(argv[0], path=path) is None:
            return ""
        known_by = (os.uname().nodename, path, *argv, *identity)
        kept = state_directory(environ) / "cache" / slug(f"{argv[0]} {known_by}")
        with contextlib.suppress(OSError):
            if 0 <= time.time() - kept.stat().st_mtime < KEPT_SECONDS:
                return kept.read_text(encoding="utf-8")
        listed = command([*argv], seconds, environ) or ""
        if listed:
            with contextlib.suppress(OSError):
                files.make_directory(kept.parent)
                files.write_text(kept, listed)
        return listed

    return ask


def changed_at(path: str) -> int:
    """When a file was written, in nanoseconds; 0 where there is none."""
    with contextlib.suppress(OSError):
        return Path(path).stat().st_mtime_ns if path else 0
    return 0
