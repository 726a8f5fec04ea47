"""Run directories: those that records know, those that no record knows, and what a removal has left half done."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from serried.errors import reason
from serried.fs.files import read_json
from serried.protocol import names
from serried.protocol.layout import PROGRAMS, RunDirectory, run_directory
from serried.records.record import is_id

ASIDE = ".removing-"
"""Before the name of what is being removed: it is no run directory any more, also where nobody goes on removing."""
_PROGRAM = re.compile(r"\.?(agent-[0-9a-f]{16}\.pyz|library-[0-9a-f]{16}\.zip)(\.[0-9a-f]{8})?")
_ASIDE = re.compile(r"\.removing-[a-z0-9]{6}-[0-9a-f]{8}")


@dataclass(frozen=True)
class Lost:
    """A run directory below a root of ours that no record here knows."""

    path: Path
    state: str
    """How it ended, as it says itself; empty where it does not."""


def refusal(path: Path, run: str) -> str | None:
    """Why `path` is not to be removed as the directory of `run`; None where it is that, ours and in its place."""
    try:
        if any(not stat.S_ISDIR(place.lstat().st_mode) for place in (path, path.parent, path.parent.parent)):
            return "a link leads there"
        if path.lstat().st_uid != os.getuid():
            return "it is somebody else's"
    except OSError as error:
        return reason(error)
    said = read_json(path / "plan.json") or {}
    try:
        place = run_directory(said["site"]["root"], said["project"], said["experiment"], said["run"])
    except (KeyError, TypeError, AttributeError):
        return "it holds no plan of a run"
    if said["run"] != run or not is_id(run) or os.path.normpath(place) != os.path.normpath(path):
        return "it holds the plan of another run"
    return None


def unknown(root: Path, known: set[str]) -> Iterator[Lost]:
    """Run directories below `root` of runs that are not in `known`."""
    for path in _runs_below(root):
        if path.name not in known and refusal(path, path.name) is None:
            end = read_json(RunDirectory(path).exit) or {}
            yield Lost(path, str(end.get("state", "")) if end.get("state") in names.ENDED else "")


def half_removed(root: Path) -> Iterator[Path]:
    """What was renamed to be removed, by somebody who did not come to the end of it."""
    for experiment in _experiments(root):
        for name in _names(experiment):
            if _ASIDE.fullmatch(name) and _is_ours(experiment / name):
                yield experiment / name


def archives(root: Path) -> Iterator[Path]:
    """Snapshots of code, which runs of a project share, and what they bring along of Serried, which all share."""
    for project in _folders(root):
        for name in _names(project / "sources"):
            if re.fullmatch(r"[0-9a-f]{16}\.tar", name) and _is_ours(project / "sources" / name, folder=False):
                yield project / "sources" / name
    for name in _names(root / PROGRAMS):
        if _PROGRAM.fullmatch(name) and _is_ours(root / PROGRAMS / name, folder=False):
            yield root / PROGRAMS / name


def programs_of(runs: Iterable[Path]) -> set[Path]:
    """What of Serried itself these run directories need."""
    found = set()
    for run in runs:
        for path in (RunDirectory(run).agent, RunDirectory(run).library):
            with contextlib.suppress(OSError):
                found.add(Path(os.path.normpath(run / path.readlink())))
    return found


def same_files(paths: Iterable[Path | None]) -> set[tuple[int, int]]:
    """What tells a file from all others: records may spell one root in several ways, by links or with `..`."""
    found = set()
    for path in paths:
        with contextlib.suppress(OSError):
            if path is not None:
                state = path.stat()
                found.add((state.st_dev, state.st_ino))
    return found


def archive_of(plan_json: dict[str, object], path: Path) -> Path | None:
    """The archive that a run's plan names."""
    source = plan_json.get("source")
    archive = source.get("archive") if isinstance(source, dict) else None
    return Path(os.path.normpath(path / str(archive))) if archive else None


def plans_below(root: Path) -> Iterator[tuple[Path, dict[str, object]]]:
    """Every run directory below `root`, also of other users' records, and its plan."""
    for path in _runs_below(root):
        yield path, read_json(path / "plan.json") or {}


def _runs_below(root: Path) -> Iterator[Path]:
    for experiment in _experiments(root):
        yield from (experiment / name for name in _names(experiment) if is_id(name) and (experiment / name).is_dir())


def _experiments(root: Path) -> Iterator[Path]:
    for project in _folders(root):
        yield from _folders(project)


def _folders(folder: Path) -> Iterator[Path]:
    for name in _names(folder):
        path = folder / name
        if not name.startswith(".") and path.is_dir() and not path.is_symlink():
            yield path


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - a thousand runs
    except OSError:
        return []


def _is_ours(path: Path, *, folder: bool = True) -> bool:
    try:
        state = path.lstat()
    except FileNotFoundError:  # somebody removed it meanwhile
        return False
    return state.st_uid == os.getuid() and (stat.S_ISDIR if folder else stat.S_ISREG)(state.st_mode)
