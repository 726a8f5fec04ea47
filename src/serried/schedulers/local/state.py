"""The files of a local job, in the folder jobs/N of this machine's root.

job.json     what it is and who looks after it; there as soon as the job exists
state.json   how it and its elements stand; written by its supervisor alone
cancel, cancel-I   requests to end it, or element I
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from serried.fs import files
from serried.processes import Process, myself
from serried.protocol import names
from serried.schedulers.interface import Job

SUPERVISOR_GONE = "SupervisorGone"

KEEP_SECONDS = 7 * 24 * 3600.0
"""How long an ended job is remembered."""

WHOLE = "-"
"""The key in state.json of a job that is no array."""


@dataclass(frozen=True)
class Standing:
    """How a job or an element stands, as its supervisor last knew."""

    state: str = names.PENDING
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    slots: tuple[str, ...] = ()
    child: Process | None = None
    """job.sh, while it runs."""


class JobFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = path.parents[1]
        self.number = int(path.name)

    @property
    def about(self) -> dict[str, Any] | None:
        """job.json; None for a folder whose job never came to be."""
        return files.read_json(self.path / "job.json")

    def commit(
        self, name: str, elements: Sequence[str], *, refused: str | None = None, hears_signals: bool = True
    ) -> None:
        """From here on the job exists, and this process looks after it."""
        about = {
            "schema": 1,
            "name": name,
            "supervisor": asdict(myself()),
            "hears_signals": hears_signals,
            "host": socket.gethostname(),
            "elements": list(elements),
            "refused": refused,
            "created": time.time(),
        }
        files.write_json(self.path / "job.json", about)

    def write(self, standings: dict[str, Standing]) -> None:
        files.write_json(self.path / "state.json", {key: asdict(value) for key, value in standings.items()})

    def standings(self) -> dict[str, Standing]:
        return {key: _standing(value) for key, value in (files.read_json(self.path / "state.json") or {}).items()}

    def ask_to_cancel(self, element: str) -> None:
        (self.path / _cancel_name(element)).touch(mode=files.PRIVATE_FILE)

    def is_cancelled(self, element: str) -> bool:
        return any((self.path / name).exists() for name in ("cancel", _cancel_name(element)))

    def jobs(self) -> Iterator[Job]:
        """The job, or each of its elements, with the truth about a supervisor that is gone."""
        about = self.about
        if about is None or about["refused"]:
            return
        # In this order: what a supervisor that is gone by now had to say is there to be read.
        is_attended = Process(**about["supervisor"]).is_alive
        standings = self.standings()
        for key in about["elements"]:
            standing = standings.get(key, Standing())
            if not is_attended and standing.state not in names.ENDED:
                standing = _unattended(standing)
            yield _job(self.number, key, standing, about["host"])


def folders(root: Path) -> list[JobFolder]:
    """Every job's folder, oldest first."""
    try:
        found = [JobFolder(path) for path in (root / "jobs").iterdir() if path.name.isdigit()]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda folder: folder.number)


def new_folder(root: Path) -> JobFolder:
    """A folder with the next id.

    The first id on a machine is taken from the clock: ids must not come back after /tmp was emptied, for records
    of runs outlive it.
    """
    files.make_directory(root / "jobs")
    known = folders(root)
    number = max(int(time.time()) % 10**8, known[-1].number + 1 if known else 1)
    while True:
        path = root / "jobs" / str(number)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=files.PRIVATE_DIRECTORY)
            return JobFolder(path)
        number += 1


def prune(root: Path) -> None:
    """Forget jobs that ended long ago."""
    horizon = time.time() - KEEP_SECONDS
    for folder in folders(root):
        with contextlib.suppress(OSError):
            if folder.path.stat().st_mtime < horizon and all(job.state in names.ENDED for job in folder.jobs()):
                shutil.rmtree(folder.path)


def element_of(key: str) -> int | None:
    return None if key == WHOLE else int(key)


def _cancel_name(element: str) -> str:
    return "cancel" if element == WHOLE else f"cancel-{element}"


def _standing(value: dict[str, Any]) -> Standing:
    child = value.get("child")
    return Standing(**{**value, "slots": tuple(value["slots"]), "child": Process(**child) if child else None})


def _unattended(standing: Standing) -> Standing:
    """Without its supervisor a job is what its job.sh is: running while that lives, lost otherwise."""
    if standing.child is not None and standing.child.is_alive:
        return replace(standing, reason=SUPERVISOR_GONE)
    return replace(standing, state=names.NODE_FAIL, reason=SUPERVISOR_GONE)


def _job(number: int, key: str, standing: Standing, host: str) -> Job:
    return Job(
        id=str(number),
        element=element_of(key),
        state=standing.state,
        raw=standing.state,
        reason=standing.reason,
        exit_code=standing.exit_code,
        signal=standing.signal,
        ended=standing.ended,
        nodes=(host,) if standing.started else (),
        restarts=standing.restarts,
    )
