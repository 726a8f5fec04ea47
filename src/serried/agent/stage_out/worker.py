"""The role `bring`: a process beside a node's agent that copies while ranks run, and the rest when they have ended."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from serried.agent import helper_process
from serried.agent.attempt import Work, make_umask, run_directory
from serried.agent.stage_out import throttle
from serried.agent.stage_out.publish import Places
from serried.agent.stage_out.sync_loop import Rounds
from serried.agent.stage_out.watch_roots import watches
from serried.protocol import names
from serried.protocol.layout import RESULTS

LOOK_SECONDS = 2.0
HURRIED_LOOK_SECONDS = 0.2
SHARE = 20
"""Looking takes at most one part in so many of the time."""
TELL_SECONDS = 5.0


class Orders:
    """What the agent has said so far, heard by a thread of its own: a copy may take minutes."""

    def __init__(self, agent: helper_process.Agent, own: throttle.Pace) -> None:
        self._agent = agent
        self._pace = own
        self._news = threading.Event()
        self.finish: Optional[Dict[str, Any]] = None
        self.is_hurried = False
        threading.Thread(target=self._listen, daemon=True).start()

    def wait(self, seconds: float) -> None:
        """That long, or until something is said."""
        self._news.wait(seconds)
        self._news.clear()

    def _listen(self) -> None:
        for message in self._agent.messages():
            if message["do"] in ("hurry", "finish"):
                self.is_hurried = True
                self._pace.hurry()
            if message["do"] == "finish":
                self.finish = message
            if message.get("seconds") is not None:
                self._bound(time.monotonic() + float(message["seconds"]))
            self._news.set()
        os._exit(0)  # the agent is gone, and what it knew of the ranks with it

    def _bound(self, ends: float) -> None:
        self._pace.ends = ends if self._pace.ends is None else min(ends, self._pace.ends)


class Service:
    def __init__(
        self, work: Work, node: int, local: Optional[Path], scratch: Path, agent: helper_process.Agent
    ) -> None:
        sync, data = work.plan.get("sync") or {}, work.plan.get("data") or {}
        self._agent = agent
        self._sync_every = float(sync.get("every_seconds", 30))
        self._results_every = float(data.get("results_every_seconds", 300))
        self._pace = throttle.Pace(sync.get("bandwidth"))
        results = str(local / RESULTS) if local and data.get("results") else ""
        self._watched = watches(work, node, local, scratch)
        self._rounds = Rounds(Places(work, node, self._pace), self._watched, results, self._say)
        self._orders = Orders(agent, self._pace)

    def run(self) -> None:
        next_sync = 0.0
        next_results = time.monotonic() + self._results_every
        while self._orders.finish is None:
            began = time.monotonic()
            hurried = self._orders.is_hurried
            self._rounds.look()
            looked = time.monotonic() - began
            if self._watched and (hurried or began >= next_sync):
                brought = self._rounds.bring_checkpoints(hurried=hurried)
                if brought:
                    self._agent.tell(event="brought", kind="checkpoints", names=brought[:3], **self._so_far())
                    next_sync = began + self._sync_every
            if began >= next_results and not hurried:
                next_results = began + self._results_every
                self._bring_results()
            self._orders.wait(self._pause(looked, hurried=hurried))
        self._finish(**{name: bool(self._orders.finish[name]) for name in ("trusted", "all_trusted")})

    def _pause(self, looked: float, *, hurried: bool) -> float:
        """Only looking is to be seldom: what was copied took its time, and the next one waits for it already."""
        if hurried:
            return HURRIED_LOOK_SECONDS
        return max(min(LOOK_SECONDS, self._sync_every, self._results_every), looked * SHARE)

    def _bring_results(self) -> None:
        try:
            brought = self._rounds.bring_results()
        except throttle.InterruptedByUrgentError:
            return
        except throttle.OutOfTimeError:
            return
        if brought:
            self._agent.tell(event="brought", kind="results", names=brought[:3], **self._so_far())

    def _finish(self, *, trusted: bool, all_trusted: bool) -> None:
        began = time.monotonic()
        threading.Thread(target=self._tell_of_progress, daemon=True).start()
        summary = self._rounds.finish(trusted=trusted, all_trusted=all_trusted)
        self._agent.tell(event="finished", seconds=round(time.monotonic() - began, 1), **summary, **self._so_far())

    def _tell_of_progress(self) -> None:
        while True:
            time.sleep(TELL_SECONDS)
            self._agent.tell(event="progress", moved=self._pace.moved, **self._so_far())

    def _so_far(self) -> Dict[str, Any]:
        return {"files": self._rounds.files, "bytes": self._rounds.bytes}

    def _say(self, message: str) -> None:
        self._agent.tell(event="problem", message=message)


def main(arguments: List[str]) -> int:
    """`bring NODE LOCAL SCRATCH`: the node's number and folders, LOCAL empty without a disk."""
    agent = helper_process.Agent(niced=True)
    throttle.prioritise(throttle.IDLE)
    element = os.environ.get(names.ELEMENT)
    work = Work.load(run_directory(), int(element) if element else None, int(os.environ[names.ATTEMPT]))
    make_umask(work)
    local = Path(arguments[1]) if arguments[1] else None
    Service(work, int(arguments[0]), local, Path(arguments[2]), agent).run()
    return 0
