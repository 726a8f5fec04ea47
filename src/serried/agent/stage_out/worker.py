"""The processes that copy files from a node's disk to the run directory.

The role `stage-out` runs beside a node's agent and copies files while ranks run, and the rest at the end. The role
`fetch` runs in a job of its own and copies the files that an earlier attempt left on its node.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from serried.agent import helper_process
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.node_disk.folder import JOBS, SCRATCH, discard, remove_empty_room
from serried.agent.stage_out import throttle
from serried.agent.stage_out.publish import Publisher
from serried.agent.stage_out.sync_loop import SyncLoop, watch_roots
from serried.fs import files, locks
from serried.protocol import names
from serried.protocol.events import FromStageOut, JournalEvent, ToHelper
from serried.protocol.layout import RESULTS
from serried.protocol.plan import Data, Sync

POLL_SECONDS = 2.0
URGENT_POLL_SECONDS = 0.2
POLL_SHARE = 20
"""Polling takes at most one part in POLL_SHARE of the time."""
PROGRESS_SECONDS = 5.0
REMOVE_SECONDS = 300.0


# Beside a node's agent.


class AgentRequests:
    """The agent's requests so far. A thread of its own receives them, because a copy may take minutes."""

    def __init__(self, agent: helper_process.AgentConnection, limiter: throttle.Throttle) -> None:
        self._agent = agent
        self._throttle = limiter
        self._received = threading.Event()
        self.finish: Optional[Dict[str, Any]] = None
        self.is_urgent = False
        threading.Thread(target=self._listen, daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait that long, or until the next request."""
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
        os._exit(0)  # the agent ended, and only it knew how the ranks ended

    def _limit(self, ends_at: float) -> None:
        self._throttle.ends_at = ends_at if self._throttle.ends_at is None else min(ends_at, self._throttle.ends_at)


class StageOutWorker:
    def __init__(
        self, work: Attempt, node: int, local: Optional[Path], scratch: Path, agent: helper_process.AgentConnection
    ) -> None:
        sync, data = work.plan.sync or Sync(), work.plan.data or Data()
        self._agent = agent
        self._sync_every = float(sync.every_seconds)
        self._results_every = float(data.results_every_seconds)
        self._throttle = throttle.Throttle(sync.bandwidth)
        results = str(local / RESULTS) if local and data.results else ""
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
        """Polls are rare if they are slow. The time for copies does not count: the next file already waits."""
        if urgent:
            return URGENT_POLL_SECONDS
        return max(min(POLL_SECONDS, self._sync_every, self._results_every), poll_seconds * POLL_SHARE)

    def _sync_results(self) -> None:
        try:
            copied = self._sync_loop.sync_results()
        except (throttle.InterruptedByUrgentError, throttle.OutOfTimeError):
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
    """`stage-out NODE LOCAL SCRATCH`: the node's number and folders; LOCAL is empty without a disk."""
    agent = helper_process.AgentConnection()
    throttle.prioritise(throttle.IDLE)
    task = os.environ.get(names.TASK)
    work = Attempt.load(run_directory(), int(task) if task else None, int(os.environ[names.ATTEMPT]))
    set_umask(work)
    local = Path(arguments[1]) if arguments[1] else None
    StageOutWorker(work, int(arguments[0]), local, Path(arguments[2]), agent).run()
    return 0


# In a job of its own.


def fetch(arguments: List[str]) -> int:
    """`fetch TASK ATTEMPT NODE FOLDER TOKEN`: TASK is `-` unless the run is an array.

    `serried fetch` reads the outcome from the journal.
    """
    task, number, node, folder, token = arguments
    work = Attempt.load(run_directory(), None if task == "-" else int(task), int(number))
    set_umask(work)
    attempt = work.directory.attempt(work.number)
    files.make_directory(attempt.node(int(node)), work.directory_mode)
    journal = files.Journal(attempt.fetched(int(node)), work.file_mode)
    journal.append({"token": token, "event": JournalEvent.BEGUN, "host": os.uname().nodename, "t": time.time()})
    try:
        outcome = _recover(work, int(node), Path(folder))
    except BlockingIOError:
        outcome = {"problem": "another command is fetching it"}
    except OSError as error:
        outcome = {"problem": error.strerror or str(error)}
    journal.append({"token": token, "event": JournalEvent.ENDED, "t": time.time(), **outcome})
    return 0


def _recover(work: Attempt, node: int, folder: Path) -> Dict[str, Any]:
    if not folder.is_dir():
        return {"problem": "it no longer exists", "is_gone": True}
    held = locks.hold(folder, locks.ALONE | locks.AT_ONCE)
    try:
        problems: List[str] = []
        results = str(folder / RESULTS) if (folder / RESULTS).is_dir() else ""
        roots = watch_roots(work, node, folder, folder / SCRATCH)
        sync_loop = SyncLoop(Publisher(work, node, throttle.Throttle()), roots, results, problems.append)
        exited = [_ranks_exited_by_themselves(work, number) for number in range(work.nodes)]
        summary = sync_loop.finish(trusted=exited[node], all_trusted=all(exited))
        missing, torn = summary["missing"], summary["torn"]
        problem: Optional[str] = missing[0]["problem"] if missing else next(iter(problems), None)
        if problem is None and not torn:  # torn checkpoints stay, for a user to examine
            base = _base_directory(folder)
            discard(base, folder, time.monotonic() + REMOVE_SECONDS)
            locks.lock_of(folder).unlink(missing_ok=True)
            if base is not None:
                remove_empty_room(base)
        return {
            "files": sync_loop.files,
            "bytes": sync_loop.bytes,
            "missing": missing,
            "torn": torn,
            "problem": problem,
        }
    finally:
        os.close(held)


def _ranks_exited_by_themselves(work: Attempt, node: int) -> bool:
    """Whether all ranks of the node are known to have exited by themselves, so that no file was cut off."""
    events = files.read_journal(work.directory.attempt(work.number).node_events(node))
    exits = [event for event in events if event["event"] == JournalEvent.RANK_EXIT]
    started = {event["rank"] for event in events if event["event"] == JournalEvent.STARTED}
    all_ended_well = all(
        not rank_exit["signal"] and rank_exit["exit_code"] in (0, names.EXIT_SAVED) for rank_exit in exits
    )
    return all_ended_well and started <= {rank_exit["rank"] for rank_exit in exits}


def _base_directory(folder: Path) -> Optional[Path]:
    """The room of the folder, whose trash can take it in one step; None if it is not in a room."""
    return folder.parent.parent if folder.parent.name == JOBS else None
