"""Runs of wandb that a run logged offline: folders of `wandb`, each of one attempt or one rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.records.index import Selection
from serried.schema import tracking


@dataclass(frozen=True)
class OfflineRun:
    run: str
    """The run of Serried, or the task (`k3f9q2/17`)."""
    id: str
    """The id in wandb. Further attempts have the same id and another folder."""
    path: Path
    is_synced: bool
    """wandb has uploaded the folder, and the run has not written to it since."""

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run, "id": self.id, "path": str(self.path), "is_synced": self.is_synced}


def of(selection: Selection) -> list[OfflineRun]:
    """In the order of their start, which their names begin with."""
    found = []
    for task in selection.tasks:
        own = Selection(selection.record, task)
        folder = own.place.results / tracking.FOLDER / tracking.WANDB
        for path in sorted(folder.glob("offline-run-*")):
            log = next(path.glob("run-*.wandb"), None)
            if log is not None:
                found.append(OfflineRun(str(own), log.stem.removeprefix("run-"), path, _is_synced(log)))
    return found


def _is_synced(log: Path) -> bool:
    try:
        return Path(f"{log}.synced").stat().st_mtime >= log.stat().st_mtime
    except OSError:
        return False
