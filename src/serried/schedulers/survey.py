"""The facts that a scheduler reports about its cluster. Answers of its commands are kept for minutes."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Protocol

from serried.base import NamedTuple, files
from serried.schema.layout import slug, state_directory

if TYPE_CHECKING:
    from serried.schedulers.occupancy import Occupancy

ASKING_SECONDS = 45.0
"""For answers that decide what a job requests. A client of Slurm gives up by itself after 10 or 18 s."""
GLANCE_SECONDS = 4.0
"""For answers that can wait until the next command."""
KEPT_SECONDS = 300.0

Command = Callable[[list[str], float, Mapping[str, str]], Optional[str]]
"""Runs a command for at most so many seconds and returns its output; None if it failed."""

Ask = Callable[[Sequence[str]], str]
"""Returns the output of a command; empty if it failed."""


def run_command(argv: list[str], seconds: float, environ: Mapping[str, str]) -> str | None:
    from serried.base import shell
    from serried.base.errors import SerriedError

    if shutil.which(argv[0], path=environ.get("PATH", os.defpath)) is None:
        return None
    try:
        result = shell.run(argv, timeout=seconds, env={**environ, "LC_ALL": "C"})
    except (SerriedError, OSError):
        return None
    return result.stdout if result.status == 0 else None


class ArrayLimits(NamedTuple):
    """None: no such limit is known."""

    below: int | None = None
    """Each index of a job is below this number."""
    tasks: int | None = None
    """The most tasks of a job."""
    jobs: int | None = None
    """The number of all users' jobs stays below this; each task counts as a job."""
    in_ranges: bool = False
    """The indices of a job are a range with a step."""


class Learnt(NamedTuple):
    name: str
    """The site's own name for the cluster."""
    table: Mapping[str, Any]
    """As a profile holds it."""
    sources: Mapping[str, str]
    """The command that reported each key of `table`."""


class Greeting(NamedTuple):
    """The answer to the one call of `serried doctor`."""

    version: str
    account: str = ""
    """The account that is charged by default; empty if it is not known."""
    accounts: tuple[str, ...] = ()
    """All accounts of the user; empty if they are not known."""
    limits: tuple[tuple[str, int, int | None], ...] = ()
    """Of the default account: whose jobs or GPUs, the most, and how many there are, if known."""
    is_full: bool = False
    """Whether the limit of submitted jobs is reached."""


class Inside(NamedTuple):
    """The resources of the job around us. If nodes differ, the least that each has."""

    scheduler: str
    job: str
    hosts: tuple[str, ...]
    """The scheduler's names for its nodes, the first one first."""
    cpus: int
    """On each node."""
    gpus: int
    """On each node."""
    tasks: int
    """Tasks on each node, as the job was submitted; 1 if it was submitted without a number."""
    seconds: int | None
    """Until its time limit; None without a limit."""
    is_here: bool
    """Whether this is its first node: `salloc` leaves its shell where it was typed."""
    variables: Mapping[str, str] = {}
    """Variables by which the scheduler's commands know the job around them."""
    to_first_node: tuple[str, ...] = ()
    """Words that start the words after them on the first node; none if that is here."""
    has_private_file: bool = False
    """Whether job.sh gets a second argument: a path for the environment of the nodes' agents."""


class ClusterSurvey(Protocol):
    def identity(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """What tells this cluster from others that share this home."""

    def describe(self, environ: Mapping[str, str], command: Command = ...) -> dict[str, Any]:
        """Its partitions and nodes, as a profile's table; empty if it does not answer."""

    def own_name(self, environ: Mapping[str, str], command: Command = ..., *, seconds: float = ...) -> str:
        """Its own name, if another cluster may have the same job ids; else empty."""

    def array_limits(self, environ: Mapping[str, str], command: Command = ...) -> ArrayLimits: ...
    def learn(self, environ: Mapping[str, str], user: str, command: Command | None = ...) -> Learnt | None:
        """All that a profile may hold; None if the scheduler does not answer.

        Without a `command`, as it answered last time.
        """

    def greeting(self, user: str) -> tuple[tuple[str, ...], str]:
        """The one command that tells most about scheduler and user, and its standard input."""

    def read_greeting(self, text: str) -> Greeting:
        """What that command printed. Pure."""

    def inside(self, environ: Mapping[str, str]) -> Inside:
        """The job around us, for a scheduler whose traits say `is_around`. Raises SchedulerUnreachable."""

    def is_throwaway(self, environ: Mapping[str, str]) -> bool:
        """Whether the cluster is a lab on this machine."""

    def ask_occupancy(self, environ: Mapping[str, str], user: str, seconds: float) -> dict[str, str]:
        """Output of the commands about nodes and queue, by name. Raises SchedulerUnreachable, at the latest after
        `seconds`.
        """

    def read_occupancy(self, texts: Mapping[str, str], user: str) -> Occupancy:
        """How full the cluster is, by what `ask_occupancy` returned. Pure."""


def asker(
    environ: Mapping[str, str],
    command: Command | None,
    identity: Sequence[object],
    seconds: float = ASKING_SECONDS,
    kept_seconds: float = KEPT_SECONDS,
) -> Ask:
    """Run commands with `environ`, or return what the same command printed within `kept_seconds`.

    `identity` tells this scheduler from any other that shares this home. Without a `command`, only answers that are
    kept count, however old.
    """

    def ask(argv: Sequence[str]) -> str:
        known_by = (os.uname().nodename, environ.get("PATH", os.defpath), *argv, *identity)
        kept = state_directory(environ) / "cache" / slug(f"{argv[0]} {known_by}")
        with contextlib.suppress(OSError):
            if command is None or 0 <= time.time() - kept.stat().st_mtime < kept_seconds:
                return kept.read_text(encoding="utf-8")
        listed = (command([*argv], seconds, environ) if command else None) or ""
        if listed:
            with contextlib.suppress(OSError):
                files.make_directory(kept.parent)
                files.write_text(kept, listed)
        return listed

    return ask


def together(seconds: float, command: Command) -> Command:
    """A `command` whose calls take at most so long together: of a scheduler that hangs, one call waits."""
    deadline = time.monotonic() + seconds

    def run(argv: list[str], limit: float, environ: Mapping[str, str]) -> str | None:
        left = deadline - time.monotonic()
        return command(argv, min(limit, left), environ) if left > 0 else None

    return run


def changed_at(path: str) -> int:
    """The time of a file's last change, in nanoseconds; 0 without a file."""
    with contextlib.suppress(OSError):
        return Path(path).stat().st_mtime_ns if path else 0
    return 0
