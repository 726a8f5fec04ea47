"""Environments built when they are missing, or what they are built from has changed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from serried import shell
from serried.environments.store import Claim, Patience, Store
from serried.errors import EnvironmentFailed, UsageError, reason


class Observe(Protocol):
    """Receives the step that a build is at, and the latest line of its output."""

    def __call__(self, step: str, latest: str = "", /) -> None: ...


def silent(_step: str, _latest: str = "", /) -> None:
    """An observer that nobody looks at."""


Tick = Callable[[], None]
"""To be called about once a second while the building goes on."""

Builder = Callable[[Path, Path, Tick], None]
"""Runs a script, its output into a log. Raises EnvironmentFailed."""

LOOK_SECONDS = 0.5
END_SECONDS = 2.0
"""Between TERM and KILL, where we are interrupted."""
AS_ONE = 'trap "trap - TERM; kill 0" TERM; /bin/bash "$1" & wait $!'
"""TERM ends the script and whatever it has started, which would go on installing otherwise."""


class Recipe(Protocol):
    """How something is built: an environment, an image, or data."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> object:
        """What it is built from: a path, an address, or a command."""

    @property
    def doing(self) -> str:
        """What goes on meanwhile: `building NAME from FILE`."""

    def store(self, root: Path) -> Store: ...
    def script(self, prefix: Path) -> str: ...


LAST_LINES = 12
LITTLE, MUCH = 1 << 13, 1 << 16
"""Bytes of a log's end."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def provide(recipe: Recipe, root: Path, builder: Builder, observe: Observe) -> Path:
    """The folder of the environment, or of the image; built by `builder` first where there is none yet.

    Who comes while somebody else builds it waits. Raises EnvironmentFailed with its last words.
    """
    store = recipe.store(root)
    patience = Patience()
    while True:
        found = store.finished()
        if found:
            return found
        with _plain_errors(store):
            claim = store.claim()
            owner = store.owner()
            if claim is None and patience.is_over(owner):
                claim = store.succeed(owner)
        if claim:
            _build(recipe, claim, builder, observe)
        else:
            observe(f"waiting for {owner.get('host', 'another')}, which is {recipe.doing}")
            time.sleep(LOOK_SECONDS)


def _build(recipe: Recipe, claim: Claim, builder: Builder, observe: Observe) -> None:
    script = claim.prefix.with_name(f"{claim.prefix.name}.sh")

    def tick() -> None:
        claim.beat()
        observe(recipe.doing, last_line(claim.log))

    try:
        if claim.store.finished():  # somebody was quicker
            return
        with _plain_errors(claim.store):
            script.write_text(recipe.script(claim.prefix), encoding="utf-8")
            tick()
        builder(script, claim.log, tick)
        if not claim.store.is_whole(claim.prefix):
            raise failed(f"`{script}` ended well and has left no `{claim.store.product}`", claim.log)
        claim.store.publish(claim, {"source": str(recipe.source), "built": int(time.time())})
    finally:
        claim.store.tidy(claim)


def here(variables: Mapping[str, str]) -> Builder:
    """Builds on this machine, with the variables that the run inherits."""

    def build(script: Path, log: Path, tick: Tick) -> None:
        status = run_script(script, log, tick, variables)
        if status:
            raise failed(f"building it ended with status {status}", log)

    return build


def run_script(script: Path, log: Path, tick: Tick, variables: Mapping[str, str]) -> int:
    """Run a script of bash on this machine, its output into `log`; return its status.

    Where we are interrupted it ends, and all that it has started.
    """
    child = shell.start(
        ["/bin/bash", "-c", AS_ONE, "bash", str(script)],
        log=log,
        env={**variables, "PYTHONUNBUFFERED": "1"},
        signal_on_our_death=signal.SIGTERM,
    )
    try:
        while child.poll() is None:
            tick()
            time.sleep(LOOK_SECONDS / 5)
    finally:
        if child.poll() is None:
            _end(child)
    return int(child.returncode)


def _end(child: shell.Child) -> None:
    """TERM for its whole group, and KILL for who does not heed that."""
    deadline = time.monotonic() + END_SECONDS
    os.killpg(child.pid, signal.SIGTERM)
    child.wait()
    with contextlib.suppress(ProcessLookupError):  # there is nobody left
        while time.monotonic() < deadline:
            os.killpg(child.pid, 0)
            time.sleep(LOOK_SECONDS / 10)
        os.killpg(child.pid, signal.SIGKILL)


def failed(what: str, log: Path) -> EnvironmentFailed:
    """The error with the log's last lines."""
    return EnvironmentFailed(
        f"`{log.stem}` was not built: {what}", details=last_lines(log), hint=f"all that it said is in {log}"
    )


def last_lines(log: Path) -> str:
    return "\n".join(_lines(log, MUCH)[-LAST_LINES:])


def last_line(log: Path) -> str:
    return next(reversed(_lines(log, LITTLE)), "")


def _lines(log: Path, size: int) -> list[str]:
    """Of the end of a log, those that say something; of a line that was written over and over, its last state."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in COLOURS.sub("", text).split("\n"))
    return [line for line in lines if line.strip()]


@contextlib.contextmanager
def _plain_errors(store: Store) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"nothing can be built in `{store.folder}`: {reason(error)}",
            hint="the project's folder has to be writable, and compute nodes have to see it",
        ) from error
