"""Where built environments are, and who builds: at most one at a time, on any number of login nodes, without locks.

.serried/environments/
  NAME.json          the environment is whole, and where it is; written last
  NAME-RANDOM/       the environment; every build gets its own folder, because a running job may use an older one
  NAME-RANDOM.log    the output of its build
  NAME.claims/N/     who builds: the highest N, as long as `owner.json` there changes now and then

A builder that died is found out by its process, or elsewhere by its silence, and the next one takes N + 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried.fs.files import make_directory, read_json, write_json
from serried.processes import Process, myself

FOLDER = Path(".serried") / "environments"
PYTHON = "bin/python"
"""What an environment has once it is whole, as far as that can be seen."""
CLAIMS = ".claims"
LOGS = (".log", ".sh")
BEAT_SECONDS = 5.0
SILENT_SECONDS = 120.0
"""A shared file system may show a beat a minute late."""


class Store:
    def __init__(self, project: Path, name: str, product: str = PYTHON, folder: Path = FOLDER) -> None:
        self.folder = project / folder
        self._name = name
        self.product = product
        self._whole = self.folder / f"{name}.json"
        self._claims = self.folder / f"{name}{CLAIMS}"

    @property
    def expected(self) -> Path:
        """What to show of an environment that is not built yet: its folder, but for the last part of its name."""
        return self.folder / self._name

    def finished(self) -> Path | None:
        """The environment, if it is whole."""
        said = read_json(self._whole) or {}
        prefix = self.folder / str(said.get("folder", ""))
        return prefix if said and self.is_whole(prefix) else None

    def forget(self) -> None:
        """Let it not be whole any more: the next one builds it anew."""
        self._whole.unlink(missing_ok=True)

    def is_whole(self, prefix: Path) -> bool:
        return (prefix / self.product).exists()

    def claim(self) -> Claim | None:
        """The right to build it; None while somebody else has that. Raises OSError."""
        make_directory(self.folder)
        ignore = self.folder.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        make_directory(self._claims)
        number = max(self._numbers(), default=0)
        if number and _is_alive(read_json(self._claims / str(number) / "owner.json")):
            return None
        return self._take(number + 1)

    def _take(self, number: int) -> Claim | None:
        path = self._claims / str(number)
        try:
            path.mkdir()
        except (FileExistsError, FileNotFoundError):  # somebody was quicker, or has just tidied up
            return None
        claim = Claim(self, path, self.folder / f"{self._name}-{os.urandom(2).hex()}")
        claim.beat()
        return claim

    def owner(self) -> dict[str, Any]:
        """Who builds it, as far as that is known."""
        number = max(self._numbers(), default=0)
        return {"number": number, **(read_json(self._claims / str(number) / "owner.json") or {})}

    def succeed(self, silent: dict[str, Any]) -> Claim | None:
        """The right to build it after an owner of whom nothing has been heard; None where it was not to be had."""
        return self._take(int(silent["number"]) + 1)

    def publish(self, claim: Claim, facts: dict[str, Any]) -> None:
        """Say that it is whole, unless somebody has taken over meanwhile."""
        if self._is_current(claim):
            write_json(self._whole, {"folder": claim.prefix.name, **facts})

    def tidy(self, claim: Claim) -> None:
        """Remove what was left half built and is not somebody's at work, and then the claims."""
        whole = self.finished()
        if not self._is_current(claim):
            shutil.rmtree(claim.prefix, ignore_errors=True)
            return
        of_it = {claim.prefix.name, whole.name if whole else ""}
        for path in self.folder.glob(f"{self._name}-*"):
            if path.is_dir() and path != whole:
                shutil.rmtree(path, ignore_errors=True)
            elif path.stem not in of_it:
                path.unlink(missing_ok=True)
        for number in sorted(self._numbers()):
            if number <= int(claim.path.name):
                shutil.rmtree(self._claims / str(number), ignore_errors=True)
        with contextlib.suppress(OSError):
            self._claims.rmdir()

    def _is_current(self, claim: Claim) -> bool:
        return max(self._numbers(), default=0) == int(claim.path.name)

    def _numbers(self) -> list[int]:
        try:
            return [int(path.name) for path in self._claims.iterdir() if path.name.isdigit()]
        except OSError:
            return []


@dataclass
class Claim:
    """The right to build an environment in a folder of its own, for as long as it beats."""

    store: Store
    path: Path
    prefix: Path
    _count: int = 0
    _next: float = field(default_factory=time.monotonic)

    @property
    def log(self) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.log")

    def beat(self) -> None:
        """To be called often; writes now and then."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + BEAT_SECONDS
        self._count += 1
        owner = {"host": os.uname().nodename, **dataclasses.asdict(myself())}
        with contextlib.suppress(OSError):
            write_json(self.path / "owner.json", {**owner, "beat": self._count, "log": self.log.name})


class Patience:
    """Watches an owner on another machine: by whether it beats, on our own clock."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._since = time.monotonic()

    def is_over(self, owner: dict[str, Any]) -> bool:
        if owner != self._last:
            self._last, self._since = owner, time.monotonic()
            return False
        return time.monotonic() - self._since > SILENT_SECONDS


def _is_alive(owner: dict[str, Any] | None) -> bool:
    """Whether the owner may be at work: an owner on this machine is seen, any other believed."""
    if owner is None or owner.get("host") != os.uname().nodename:
        return True
    return Process(int(owner["pid"]), str(owner["started"])).is_alive


def built(project: Path, folder: Path = FOLDER) -> list[tuple[Path, str]]:
    """The environments that were built in a project, and from which files."""
    said = [(path, read_json(path) or {}) for path in sorted((project / folder).glob("*.json"))]
    return [(path.parent / str(facts["folder"]), str(facts.get("source"))) for path, facts in said if "folder" in facts]


def abandoned(project: Path, folder: Path, whole: Iterable[Path]) -> list[Path]:
    """What builds that came to nothing have left: folders not among `whole`, logs without one. Not of one at work."""
    kept = {prefix.name for prefix in whole}
    place = project / folder
    claimed = [path.name.removesuffix(CLAIMS) for path in place.glob(f"*{CLAIMS}")]
    found = []
    for path in sorted(place.glob("*")):
        name = path.name if path.is_dir() else path.stem
        is_log = path.suffix in LOGS and not path.is_dir()
        is_half = path.is_dir() and not path.is_symlink() and not name.endswith(CLAIMS)
        if (is_log or is_half) and name not in kept and name.rpartition("-")[0] not in claimed:
            found.append(path)
    return found


def remove(prefix: Path) -> None:
    """Remove a built environment: first what says that it is whole. Raises OSError."""
    whole = prefix.parent / f"{prefix.name.rpartition('-')[0]}.json"
    if (read_json(whole) or {}).get("folder") == prefix.name:
        whole.unlink()
    shutil.rmtree(prefix)
    for suffix in LOGS:
        prefix.with_name(prefix.name + suffix).unlink(missing_ok=True)
