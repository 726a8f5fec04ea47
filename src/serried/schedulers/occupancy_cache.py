"""The last answer about how full a cluster is, shared by all processes of a user: at most one query a minute.

A process that wants to ask first claims the turn, by creating a file beside the answer that exists for a minute. So
processes that look at once ask once, and a scheduler that does not answer is left alone for that minute.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serried import schedulers
from serried.base import files, processes
from serried.base.errors import SchedulerUnreachable, SerriedError
from serried.schedulers.client import Answer, Cache, timeout_setting
from serried.schedulers.occupancy import Occupancy
from serried.schedulers.survey import ASKING_SECONDS

FRESH_SECONDS = 60.0
REFRESH_SECONDS = 10.0
"""Between two queries of users who insist."""
GLANCE_SECONDS = 15.0
"""Patience of a process that has an older answer of this hour; any other has `ASKING_SECONDS`."""
HOUR = 3600.0
_TICK_SECONDS = 0.1


@dataclass(frozen=True)
class Look:
    occupancy: Occupancy
    at: float
    """When the scheduler was asked, by this machine's clock."""
    problem: SerriedError | None = None
    """Why there is no newer answer; None if this one is fresh enough."""

    def age(self, now: float) -> float:
        """Seconds. Another machine that shares the home may have another clock: not less than 0."""
        return max(now - self.at, 0.0)


def look(scheduler: str, environ: Mapping[str, str], *, refresh: bool = False) -> Look:
    """How full the cluster is, at most a minute ago, or with `refresh` at most some seconds.

    Raises SchedulerUnreachable if there is no answer at all, after `ASKING_SECONDS` at the latest.
    """
    cache = cache_of(scheduler, environ)
    answer, now = cache.last(), time.time()
    fresh = REFRESH_SECONDS if refresh else FRESH_SECONDS
    fresh = 0.0 if schedulers.traits(scheduler).is_this_machine else fresh
    problem: SerriedError | None = None
    if answer is None or not 0 <= now - answer.at < fresh:
        patience = timeout_setting() or (GLANCE_SECONDS if answer and now - answer.at < HOUR else ASKING_SECONDS)
        try:
            answer = _ask(scheduler, cache, environ, patience, fresh) or answer
        except SerriedError as error:
            problem = error
    if answer is None:
        problem = problem or SchedulerUnreachable("the scheduler did not answer a moment ago")
        problem.hint = problem.hint or f"try again in a minute: it is queried every {FRESH_SECONDS:.0f} s at most"
        raise problem
    return Look(schedulers.cluster(scheduler).read_occupancy(answer.texts, processes.user()), answer.at, problem)


def remembered(scheduler: str, environ: Mapping[str, str], *, seconds: float) -> Look | None:
    """The last answer, if it is at most `seconds` old. Asks nothing."""
    answer = cache_of(scheduler, environ).last()
    if answer is None or time.time() - answer.at > seconds:
        return None
    return Look(schedulers.cluster(scheduler).read_occupancy(answer.texts, processes.user()), answer.at)


def cache_of(scheduler: str, environ: Mapping[str, str]) -> Cache:
    return Cache.of("occupancy", scheduler, *schedulers.cluster(scheduler).identity(environ), os.uname().nodename)


def _ask(scheduler: str, cache: Cache, environ: Mapping[str, str], patience: float, fresh: float) -> Answer | None:
    """A new answer: our own, or that of another process which asks now. None if there is an older one to show.

    Raises SchedulerUnreachable, also if another process failed a moment ago.
    """
    turn = cache.path.with_suffix(".turn")
    if not _claim_turn(turn, fresh):
        return _answer_of_another(cache, turn, time.monotonic() + patience)
    start, at = time.monotonic(), time.time()
    try:
        texts = schedulers.cluster(scheduler).ask_occupancy(environ, processes.user(), patience)
    except SerriedError as error:
        with contextlib.suppress(OSError):
            files.write_text(turn, error.message)
            _stamp(turn)
        raise
    cache.put((), texts, time.monotonic() - start, at)
    return Answer(at, time.monotonic() - start, (), texts)


def _claim_turn(turn: Path, fresh: float) -> bool:
    """Whether this process may ask now. Where nothing can be written (a full home), each process asks for itself."""

    def is_recent(path: Path) -> bool:
        return 0 <= time.time() - path.stat().st_mtime < fresh

    aside = turn.with_name(f"{turn.name}.{os.getpid()}")
    try:
        files.make_directory(turn.parent)
        with contextlib.suppress(FileNotFoundError):
            if is_recent(turn):
                return False
            turn.rename(aside)
            if is_recent(aside):  # another process was faster
                aside.rename(turn)
                return False
            aside.unlink()
        os.close(os.open(turn, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.PRIVATE_FILE))
        _stamp(turn)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _stamp(turn: Path) -> None:
    """By this machine's clock, not by that of a file server."""
    os.utime(turn, (time.time(), time.time()))


def _answer_of_another(cache: Cache, turn: Path, deadline: float) -> Answer | None:
    """Wait for it only while there is no older one. Raises SchedulerUnreachable if the other process gets none."""
    while True:
        try:
            problem = turn.read_text(encoding="utf-8", errors="replace")
        except OSError:
            problem = ""
        if problem:
            raise SchedulerUnreachable(problem)
        if cache.last() is not None or time.monotonic() > deadline:
            return cache.last()
        time.sleep(_TICK_SECONDS)
