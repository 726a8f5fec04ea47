"""Stage-in for `serried shell`, which has no head: the data is on this node before the prompt appears."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Dict

from serried.agent.attempt import Attempt
from serried.agent.loop import Loop
from serried.agent.node_disk import Folder, base_dirs
from serried.agent.node_disk.folder import is_of
from serried.agent.stage_in.node_side import VIEW, StageIn
from serried.agent.stage_in.topology import staged_data
from serried.fs import locks
from serried.protocol.events import ToHead, ToNode
from serried.protocol.sizes import progress

PRINT_SECONDS = 5.0
RELEASE_SECONDS = 10.0
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StandaloneStageIn:
    def __init__(self, work: Attempt, folder: Folder) -> None:
        plan = {**work.plan, "allocation": {**work.plan["allocation"], "nodes": 1}}
        self._work = Attempt(work.run, plan, work.element, work.number)
        self._folder = folder
        self._loop = Loop()
        self._staging = StageIn(self._loop, self._work, folder, lambda *_, **__: None, self._on_event)
        self._printed_at = time.monotonic()
        self.problem = ""
        """Why it cannot be had."""
        self.signal = 0
        """What has ended us meanwhile."""

    def stage(self) -> Dict[str, str]:
        """Return when it is there, with the variables that say where. It takes the signals of `ENDS` for itself."""
        if staged_data(self._work) is None:
            return {}
        for number in ENDS:
            self._loop.on_signal(number, lambda number=number: self._end(number))  # type: ignore[misc]
        self._staging.prepare(0, os.urandom(32), "", "")
        self._loop.run()
        place = self._staging.variables
        return {"SERRIED_DATA_DIR": place["data"]} if place and not self.problem else {}

    def release(self) -> None:
        self._staging.release(RELEASE_SECONDS)

    def _on_event(self, event: str, **facts: Any) -> None:
        """What an agent would tell its head."""
        if event == ToHead.STAGE_PORT:
            self._staging.on_message({"do": ToNode.STAGE, "before": None})
        elif event == ToHead.STAGE_FAILED:
            self.problem = f"data: {facts['because']}"
            self._loop.stop()
        elif event == ToHead.STAGED:
            self._staging.on_message({"do": ToNode.START_RANKS})
            self._loop.stop()
        elif event == ToHead.STAGING:
            self._print_progress(facts)

    def _print_progress(self, facts: Dict[str, Any]) -> None:
        now = time.monotonic()
        if (facts["of"] or facts["waits_for"] is not None) and now - self._printed_at > PRINT_SECONDS:
            self._printed_at = now
            print(f"serried: staging {progress(facts)}", file=sys.stderr)

    def _end(self, number: int) -> None:
        self.signal = number
        self._loop.stop()


def running_attempt_variables(work: Attempt) -> Dict[str, str]:
    """Where an attempt that runs on this node has its data, for who joins it."""
    for base in base_dirs.rooms(work):
        for path in locks.things(base / base_dirs.JOBS):
            if is_of(path, work.process_tag) and (path / VIEW).is_dir():
                return {"SERRIED_DATA_DIR": str(path / VIEW)}
    return {}
