"""The role `stage-out`: a process beside a node's agent that copies while ranks run, and the rest when they ended."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from serried.agent import helper_process
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.stage_out import throttle
from serried.agent.stage_out.publish import Publisher
from serried.agent.stage_out.sync_loop import SyncLoop, watch_roots
from serried.protocol import names
from serried.protocol.events import FromStageOut, ToHelper
from serried.protocol.layout import RESULTS

POLL_SECONDS = 2.0
URGENT_POLL_SECONDS = 0.2
SHARE = 20
"""Looking takes at most one part in so many of the time."""
PROGRESS_SECONDS = 5.0


class AgentRequests:
    """What the agent has said so far, heard by a thread of its own: a copy may take minutes."""

    def __init__(self, agent: helper_process.AgentConnection, limiter: throttle.Throttle) -> None:
        self._agent = agent
        self._throttle = limiter
        self._received = threading.Event()
        self.finish: Optional[Dict[str, Any]] = None
        self.is_urgent = False
        threading.Thread(target=self._listen, daemon=True).start()

    def wait(self, seconds: float) -> None:
        """That long, or until something is said."""
        self._received.wait(seconds)
        self._received.clear()

    def _listen(self) -> None:
        for message in self._agent.messages():
            if message["do"] in (ToHelper.HURRY, ToHelper.FINISH):
                self.is_urgent = True
                self._throttle.set_urgent()
            if message["do"] == ToHelper.FINISH:
                self.finish = message
            if message.get("seconds") is not None:
                self._limit(time.monotonic() + float(message["seconds"]))
            self._received.set()
        os._exit(0)  # the agent is gone, and what it knew of the ranks with it

    def _limit(self, ends_at: float) -> None:
        self._throttle.ends_at = ends_at if self._throttle.ends_at is None else min(ends_at, self._throttle.ends_at)


class StageOutWorker:
    def __init__(
        self, work: Attempt, node: int, local: Optional[Path], scratch: Path, agent: helper_process.AgentConnection
    ) -> None:
        sync, data = work.plan.get("sync") or {}, work.plan.get("data") or {}
        self._agent = agent
        self._sync_every = float(sync.get("every_seconds", 30))
        self._results_every = float(data.get("results_every_seconds", 300))
        self._throttle = throttle.Throttle(sync.get("bandwidth"))
        results = str(local / RESULTS) if local and data.get("results") else ""
        self._roots = watch_roots(work, node, local, scratch)
        self._sync_loop = SyncLoop(Publisher(work, node, self._throttle), self._roots, results, self._send_problem)
        self._requests = AgentRequests(agent, self._throttle)

    def run(self) -> None:
        next_sync = 0.0
        next_results = time.monotonic() + self._results_every
        while self._requests.finish is None:
            began = time.monotonic()
            urgent = self._requests.is_urgent
            self._sync_loop.poll()
            poll_seconds = time.monotonic() - began
            if self._roots and (urgent or began >= next_sync):
                copied = self._sync_loop.sync_checkpoints(urgent=urgent)
                if copied:
                    self._agent.send(event=FromStageOut.COPIED, kind="checkpoints", names=copied[:3], **self._totals())
                    next_sync = began + self._sync_every
            if began >= next_results and not urgent:
                next_results = began + self._results_every
                self._sync_results()
            self._requests.wait(self._pause(poll_seconds, urgent=urgent))
        self._finish(**{name: bool(self._requests.finish[name]) for name in ("trusted", "all_trusted")})

    def _pause(self, poll_seconds: float, *, urgent: bool) -> float:
        """Only looking is to be seldom: what was copied took its time, and the next one waits for it already."""
        if urgent:
            return URGENT_POLL_SECONDS
        return max(min(POLL_SECONDS, self._sync_every, self._results_every), poll_seconds * SHARE)

    def _sync_results(self) -> None:
        try:
            copied = self._sync_loop.sync_results()
        except throttle.InterruptedByUrgentError:
            return
        except throttle.OutOfTimeError:
            return
        if copied:
            self._agent.send(event=FromStageOut.COPIED, kind="results", names=copied[:3], **self._totals())

    def _finish(self, *, trusted: bool, all_trusted: bool) -> None:
        began = time.monotonic()
        threading.Thread(target=self._send_progress, daemon=True).start()
        summary = self._sync_loop.finish(trusted=trusted, all_trusted=all_trusted)
        self._agent.send(
            event=FromStageOut.FINISHED, seconds=round(time.monotonic() - began, 1), **summary, **self._totals()
        )

    def _send_progress(self) -> None:
        while True:
            time.sleep(PROGRESS_SECONDS)
            self._agent.send(event=FromStageOut.PROGRESS, moved=self._throttle.bytes_moved, **self._totals())

    def _totals(self) -> Dict[str, Any]:
        return {"files": self._sync_loop.files, "bytes": self._sync_loop.bytes}

    def _send_problem(self, message: str) -> None:
        self._agent.send(event=FromStageOut.PROBLEM, message=message)


def main(arguments: List[str]) -> int:
    """`stage-out NODE LOCAL SCRATCH`: the node's number and folders, LOCAL empty without a disk."""
    agent = helper_process.AgentConnection(niced=True)
    throttle.prioritise(throttle.IDLE)
    task = os.environ.get(names.TASK)
    work = Attempt.load(run_directory(), int(task) if task else None, int(os.environ[names.ATTEMPT]))
    set_umask(work)
    local = Path(arguments[1]) if arguments[1] else None
    StageOutWorker(work, int(arguments[0]), local, Path(arguments[2]), agent).run()
    return 0
