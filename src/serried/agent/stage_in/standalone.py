"""Data for a shell, which has no agents around it: staged on this node before the prompt appears."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Dict

from serried.agent.attempt import Work
from serried.agent.loop import Loop
from serried.agent.node_disk import Folder, base_dirs
from serried.agent.node_disk.folder import is_of
from serried.agent.stage_in.node_side import VIEW, Staging
from serried.agent.stage_in.topology import wanted
from serried.fs import locks
from serried.protocol.sizes import progress

SAY_SECONDS = 5.0
RELEASE_SECONDS = 10.0
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Data:
    def __init__(self, work: Work, own: Folder) -> None:
        alone = {**work.plan, "allocation": {**work.plan["allocation"], "nodes": 1}}
        self._work = Work(work.run, alone, work.element, work.number)
        self._own = own
        self._loop = Loop()
        self._staging = Staging(self._loop, self._work, own, lambda *_, **__: None, self._told)
        self._said = time.monotonic()
        self.problem = ""
        """Why it cannot be had."""
        self.signal = 0
        """What has ended us meanwhile."""

    def bring(self) -> Dict[str, str]:
        """Return when it is there, with the variables that say where. It takes the signals of `ENDS` for itself."""
        if wanted(self._work) is None:
            return {}
        for number in ENDS:
            self._loop.on_signal(number, lambda number=number: self._end(number))  # type: ignore[misc]
        self._staging.prepare(0, os.urandom(32), "", "")
        self._loop.run()
        place = self._staging.place
        return {"SERRIED_DATA_DIR": place["data"]} if place and not self.problem else {}

    def release(self) -> None:
        self._staging.release(RELEASE_SECONDS)

    def _told(self, event: str, **facts: Any) -> None:
        """What an agent would tell its head."""
        if event == "stage-port":
            self._staging.heed({"do": "stage", "before": None})
        elif event == "stage-failed":
            self.problem = f"data: {facts['because']}"
            self._loop.stop()
        elif event == "staged":
            self._staging.heed({"do": "go"})
            self._loop.stop()
        elif event == "staging":
            self._say(facts)

    def _say(self, facts: Dict[str, Any]) -> None:
        now = time.monotonic()
        if (facts["of"] or facts["waits_for"] is not None) and now - self._said > SAY_SECONDS:
            self._said = now
            print(f"serried: staging {progress(facts)}", file=sys.stderr)

    def _end(self, number: int) -> None:
        self.signal = number
        self._loop.stop()


def of_run(work: Work) -> Dict[str, str]:
    """Where an attempt that runs on this node has its data, for who joins it."""
    for own in base_dirs.rooms(work):
        for path in locks.things(own / base_dirs.JOBS):
            if is_of(path, work.mark) and (path / VIEW).is_dir():
                return {"SERRIED_DATA_DIR": str(path / VIEW)}
    return {}
