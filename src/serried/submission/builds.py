"""Files built once and kept under a hash of their inputs: environments, images, prepared data.

Several processes, also on different login nodes, may need the same build. One of them builds it; the others wait. A
shared file system has no locks that can be relied on, so the builder claims a numbered folder:

FOLDER/
  NAME.json          the build is complete, and where it is; written last
  NAME-RANDOM/       the build; always a new folder, because a running job may use an older one
  NAME-RANDOM.sh     the script that builds it
  NAME-RANDOM.log    the output of the script
  NAME.claims/N/     the builder: the highest N, while `owner.json` in there changes

A builder that has died is recognised by its process, or from another machine by its silence. The next one claims N + 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from serried.base import shell
from serried.base.errors import EnvironmentFailed, SerriedError, UsageError, reason
from serried.base.files import make_directory, read_json, write_json
from serried.base.processes import Process, myself

ENVIRONMENTS, IMAGES, DATA = (Path(".serried") / name for name in ("environments", "images", "data"))
"""Below the project, except for images: these lie below the root of the run directories."""
CLAIMS = ".claims"
LOG, SCRIPT = ".log", ".sh"
LOOK_SECONDS = 0.5
BEAT_SECONDS = 5.0
SILENT_SECONDS = 120.0
"""A shared file system may show a beat a minute late."""
END_SECONDS = 2.0
"""Between TERM and KILL when a build is interrupted."""
AS_GROUP = 'trap "trap - TERM; kill 0" TERM; /bin/bash "$1" & wait $!'
"""Passes TERM on to all that the script has started. Otherwise an installation would run to its end."""
LAST_LINES = 12
SHORT_END, LONG_END = 1 << 13, 1 << 16
"""Bytes read from the end of a log, for its last line and for its last lines."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Observe(Protocol):
    """Receives the current step of a build and the latest line of its output."""

    def __call__(self, step: str, latest: str = "", /) -> None: ...


def silent(_step: str, _latest: str = "", /) -> None:
    """An observer that shows nothing."""


Tick = Callable[[], None]
"""Called about once a second during a build."""

Builder = Callable[[Path, Path, Tick], str]
"""Runs a script with its output in a log. Returns why that failed; empty after a success."""


@dataclass(frozen=True)
class Recipe:
    folder: Path
    name: str
    """Has a hash of all inputs as its last part."""
    product: str
    """A path in the folder of the build. It exists once the build is complete."""
    source: str
    """A file, an address or a command; users see it."""
    step: str
    """`building NAME from FILE`."""
    commands: str
    """Lines of bash that build it in the folder `$prefix`."""
    failure: type[SerriedError] = EnvironmentFailed

    @property
    def expected(self) -> Path:
        """The folder of a future build, without the random end of its name."""
        return self.folder / self.name

    @property
    def mark(self) -> Path:
        """The file that exists once a build is complete."""
        return self.folder / f"{self.name}.json"

    @property
    def _claims(self) -> Path:
        return self.folder / f"{self.name}{CLAIMS}"

    def finished(self) -> Path | None:
        """The folder of the build if it is complete."""
        facts = read_json(self.mark) or {}
        prefix = self.folder / str(facts.get("folder", ""))
        return prefix if facts and self.is_complete(prefix) else None

    def forget(self) -> None:
        """Have the next `provide` build it again."""
        self.mark.unlink(missing_ok=True)

    def script(self, prefix: Path) -> str:
        title = " ".join(self.step.split())
        return f"#!/bin/bash\n# Written by Serried: {title}\nprefix={shlex.quote(str(prefix))}\n{self.commands}"

    def is_complete(self, prefix: Path) -> bool:
        return (prefix / self.product).exists()

    def claim(self) -> Claim | None:
        """The right to build it; None while another builder has it. Raises OSError."""
        make_directory(self.folder)
        ignore = self.folder.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        make_directory(self._claims)
        owner = self.owner()
        return None if owner["number"] and _may_be_at_work(owner) else self.succeed(owner)

    def owner(self) -> dict[str, Any]:
        """The number of the newest claim, and what is known about its builder."""
        number = max(self.claimed(), default=0)
        return {"number": number, **(read_json(self._claims / str(number) / "owner.json") or {})}

    def succeed(self, owner: Mapping[str, Any]) -> Claim | None:
        """The right to build it in place of `owner`, which has died; None if another process was faster."""
        path = self._claims / str(owner["number"] + 1)
        try:
            path.mkdir()
        except (FileExistsError, FileNotFoundError):  # claimed, or just tidied up, by another process
            return None
        claim = Claim(self, path, self.folder / f"{self.name}-{os.urandom(2).hex()}")
        claim.beat()
        return claim

    def claimed(self) -> list[int]:
        """Numbers of all claims."""
        try:
            return [int(path.name) for path in self._claims.iterdir() if path.name.isdigit()]
        except OSError:
            return []


@dataclass(repr=False, eq=False)
class Claim:
    """The right to build a recipe in the folder `prefix`, for as long as it beats."""

    recipe: Recipe
    path: Path
    prefix: Path
    _count: int = 0
    _next: float = field(default_factory=time.monotonic)

    @property
    def log(self) -> Path:
        return self.prefix.with_name(self.prefix.name + LOG)

    @property
    def is_newest(self) -> bool:
        return max(self.recipe.claimed(), default=0) == int(self.path.name)

    def beat(self) -> None:
        """Call this often; it writes every few seconds."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + BEAT_SECONDS
        self._count += 1
        owner = {"host": os.uname().nodename, **dataclasses.asdict(myself())}
        with contextlib.suppress(OSError):
            write_json(self.path / "owner.json", {**owner, "beat": self._count, "log": self.log.name})

    def publish(self) -> None:
        """Mark the build as complete, unless another builder has taken over."""
        if self.is_newest:
            facts = {"folder": self.prefix.name, "source": self.recipe.source, "built": int(time.time())}
            write_json(self.recipe.mark, facts)

    def tidy(self) -> None:
        """Remove incomplete builds, but not that of an active builder, and then the claims."""
        if not self.is_newest:
            shutil.rmtree(self.prefix, ignore_errors=True)
            return
        folder, complete = self.recipe.folder, self.recipe.finished()
        kept = {self.prefix.name, complete.name if complete else ""}
        for path in folder.glob(f"{self.recipe.name}-*"):
            if path.is_dir() and path != complete:
                shutil.rmtree(path, ignore_errors=True)
            elif path.stem not in kept:
                path.unlink(missing_ok=True)
        claims = self.path.parent
        for number in sorted(self.recipe.claimed()):
            if number <= int(self.path.name):
                shutil.rmtree(claims / str(number), ignore_errors=True)
        with contextlib.suppress(OSError):
            claims.rmdir()


def _may_be_at_work(owner: Mapping[str, Any]) -> bool:
    """False for a builder on this machine whose process has ended. Another machine's processes cannot be seen."""
    if owner.get("host") != os.uname().nodename:
        return True
    return Process(int(owner["pid"]), str(owner["started"])).is_alive


def provide(recipe: Recipe, builder: Builder, observe: Observe) -> Path:
    """The folder of the build; `builder` builds it first if needed. Waits while another process builds it.

    Raises `recipe.failure` with the last lines of the output.
    """
    silent_owner: Mapping[str, Any] = {}
    since = time.monotonic()
    while True:
        prefix = recipe.finished()
        if prefix:
            return prefix
        with _plain_errors(recipe.folder):
            claim = recipe.claim()
            owner = recipe.owner()
            if claim is None and owner != silent_owner:
                silent_owner, since = owner, time.monotonic()
            elif claim is None and time.monotonic() - since > SILENT_SECONDS:
                claim = recipe.succeed(owner)
        if claim:
            _build(claim, builder, observe)
        else:
            observe(f"waiting for {owner.get('host', 'another process')}, which is {recipe.step}")
            time.sleep(LOOK_SECONDS)


def _build(claim: Claim, builder: Builder, observe: Observe) -> None:
    recipe, log = claim.recipe, claim.log
    script = log.with_suffix(SCRIPT)

    def tick() -> None:
        claim.beat()
        observe(recipe.step, next(reversed(_lines(log, SHORT_END)), ""))

    try:
        if recipe.finished():  # by a process that was faster
            return
        with _plain_errors(recipe.folder):
            script.write_text(recipe.script(claim.prefix), encoding="utf-8")
            tick()
        problem = builder(script, log, tick)
        if not problem and not recipe.is_complete(claim.prefix):
            problem = f"`{script}` has not created `{recipe.product}`"
        if problem:
            last = "\n".join(_lines(log, LONG_END)[-LAST_LINES:])
            raise recipe.failure(f"{recipe.step} failed: {problem}", details=last, hint=f"the complete output: {log}")
        claim.publish()
    finally:
        claim.tidy()


def here(variables: Mapping[str, str]) -> Builder:
    """Builds on this machine with `variables` as the environment. An interruption ends all that the script started."""

    def build(script: Path, log: Path, tick: Tick) -> str:
        child = shell.start(
            ["/bin/bash", "-c", AS_GROUP, "bash", str(script)],
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
        return f"exit status {child.returncode}" if child.returncode else ""

    return build


def _end(child: shell.Child) -> None:
    """TERM for the whole group, and KILL for processes that ignore TERM."""
    deadline = time.monotonic() + END_SECONDS
    os.killpg(child.pid, signal.SIGTERM)
    child.wait()
    with contextlib.suppress(ProcessLookupError):  # all have ended
        while time.monotonic() < deadline:
            os.killpg(child.pid, 0)
            time.sleep(LOOK_SECONDS / 10)
        os.killpg(child.pid, signal.SIGKILL)


def _lines(log: Path, size: int) -> list[str]:
    """The lines with text in the last `size` bytes; of a line that was overwritten, its last state."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in COLOURS.sub("", text).split("\n"))
    return [line for line in lines if line.strip()]


@contextlib.contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot build in `{folder}`: {reason(error)}",
            hint="the folder must be writable here and visible on compute nodes",
        ) from error


def digest(*parts: object) -> str:
    """Twelve digits that change with any of `parts`."""
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def built(folder: Path) -> list[tuple[Path, str]]:
    """The complete builds in a folder, and the source of each."""
    facts = [read_json(path) or {} for path in sorted(folder.glob("*.json"))]
    return [(folder / str(fact["folder"]), str(fact.get("source"))) for fact in facts if "folder" in fact]


def abandoned(folder: Path, complete: Iterable[Path]) -> list[Path]:
    """What failed builds have left: folders not among `complete` and files of no build. Not of an active builder."""
    kept = {prefix.name for prefix in complete}
    claimed = [path.name.removesuffix(CLAIMS) for path in folder.glob(f"*{CLAIMS}")]
    left = []
    for path in sorted(folder.glob("*")):
        is_folder = path.is_dir()
        name = path.name if is_folder else path.stem
        is_left = not path.is_symlink() and not name.endswith(CLAIMS) if is_folder else path.suffix in (LOG, SCRIPT)
        if is_left and name not in kept and name.rpartition("-")[0] not in claimed:
            left.append(path)
    return left


def remove(prefix: Path) -> None:
    """Remove a build, beginning with the mark of its completeness. Raises OSError."""
    complete = prefix.parent / f"{prefix.name.rpartition('-')[0]}.json"
    if (read_json(complete) or {}).get("folder") == prefix.name:
        complete.unlink()
    shutil.rmtree(prefix)
    for suffix in (LOG, SCRIPT):
        prefix.with_name(prefix.name + suffix).unlink(missing_ok=True)
