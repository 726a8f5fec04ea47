"""One job that stages on one node, and what it leaves there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from serried.agent.stage_in.items import StagedItem, StageError, StagingCache
from serried.agent.stage_in.worker import Stager


class Job:
    """What one job does on one node."""

    def __init__(
        self, there: Path, disk: Path, *names: str, hashed: bool = False, has_disk: bool = True, run: str = "a1b2c3"
    ) -> None:
        (disk / "data").mkdir(parents=True, exist_ok=True)
        wanted = [
            StagedItem(str(there / name), to or name, name.partition(".")[2] if to else "")
            for name, _, to in (it.partition("=") for it in names)
        ]
        self.view = disk / f"job-{os.urandom(4).hex()}" / "data"
        self.view.parent.mkdir()
        self.told: list[tuple[str, dict]] = []
        cache = StagingCache(disk / "data", hashed=hashed, run=run)
        self.stager = Stager(wanted, self.view, cache, self.note, has_disk=has_disk)

    def note(self, event: str, **facts: object) -> None:
        self.told.append((event, facts))

    def bring(self) -> Job:
        self.stager.stage_all(None)
        return self

    @property
    def origins(self) -> list[str]:
        return [facts["origin"] for event, facts in self.told if event == "staged-item"]

    def begin(self) -> tuple[threading.Thread, list[StageError]]:
        """Bring it meanwhile; what ends that is in the list then."""
        problems: list[StageError] = []

        def bring() -> None:
            try:
                self.bring()
            except StageError as error:
                problems.append(error)

        thread = threading.Thread(target=bring)
        thread.start()
        return thread, problems


def kept(disk: Path) -> list[str]:
    return sorted(path.name for path in (disk / "data").iterdir())
