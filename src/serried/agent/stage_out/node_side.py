"""The agent's side of stage-out: starts the process, limits its time, and reports what is missing."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.helper_process import NICENESS, HelperProcess
from serried.agent.loop import Loop, Timer
from serried.agent.node_disk.folder import Folder
from serried.base.channel import Message
from serried.schema.checkpoints import IN_CHECKPOINTS
from serried.schema.codec import from_json
from serried.schema.endings import UncopiedOutputs, outputs_left_out
from serried.schema.events import FromStageOut, JournalEvent, ToHelper, ToNode
from serried.schema.layout import CHECKPOINTS, RESULTS
from serried.schema.reasons import Reason

KEEP_SECONDS = 3 * 86400.0
"""How long files that could not be copied back stay on the node for `serried fetch`."""
RETRY_SECONDS, MOST_RETRY_SECONDS = 0.5, 30.0
"""The first and the longest pause before the process is restarted; the pause doubles each time."""
MOST_STARTS = 5
"""The most starts of the process after the ranks have ended."""
STALLED_SECONDS = 120.0
"""A process that copies nothing for this time is killed: its file system may never answer."""
LATE_SECONDS = 2.0
"""For reporting the missing files before the time is up; less if the scheduler's KILL follows soon."""

KILLED_SECONDS = 1.0
"""After the grace period, until ranks of other nodes have ended too."""
LOST_SECONDS = 6.0
"""After the grace period, if the head is lost."""
RESERVE_SECONDS = 5.0
"""For the head to record the end before the scheduler's KILL."""

Callback = Callable[[Tuple[UncopiedOutputs, ...]], None]


class StageOut:
    def __init__(self, loop: Loop, attempt: Attempt, node: int, folder: Folder, log_event: Callable[..., None]) -> None:
        self._loop = loop
        self._attempt = attempt
        self._node = node
        self._folder = folder
        self._log_event = log_event
        self._process: Optional[HelperProcess] = None
        self._starts = 0
        self._is_resolved = False
        self._callback: Optional[Callback] = None
        self._trusted = False
        self._is_urgent = False
        self._ends_at: Optional[float] = None
        """When all copies must end, on the monotonic clock."""
        self._progress = (0, 0.0)
        """The number of copied bytes, and since when it has not changed."""
        self._watch: Optional[Timer] = None
        patterns = attempt.plan.watch_patterns
        watched = [pattern for pattern in patterns if folder.has_disk or not pattern.startswith(IN_CHECKPOINTS)]
        self._has_results = bool(attempt.plan.result_patterns) and folder.has_disk
        self._has_checkpoints = any(pattern.startswith(IN_CHECKPOINTS) for pattern in watched)
        self._is_local = self._has_results or any(pattern[0] in "{$" for pattern in watched)
        """Some of the files exist only on this node."""
        self._waits_for_others = attempt.nodes > 1 and node == 0 and any(pattern[0] not in "{$" for pattern in watched)
        """Ranks of other nodes may still write to folders that this node watches."""
        self.were_ended = False
        """Ranks were ended on some node, perhaps while they wrote a file."""
        self._doubt: Optional[Message] = None
        """The last one, which a process that replaces another must know too."""
        self._published: Optional[Callable[[], None]] = None
        self._is_draining = False
        self._folders: Optional[Dict[str, str]] = None
        self._is_wanted = self._is_local or (node == 0 and bool(watched))

    def begin(self, seconds_left: Optional[float]) -> Dict[str, str]:
        """Start the copies before the ranks start. Returns the folders for the ranks' files, by kind.

        The scheduler ends the job in `seconds_left`; None without a limit.
        """
        if seconds_left is not None:
            self.limit(seconds_left)
        if self._folders is not None:  # a further round
            self.were_ended, self._published = False, None
            return self._folders
        own = {RESULTS: self._has_results, CHECKPOINTS: self._has_checkpoints}
        self._folders = folders = {name: str(self._folder.path / name) for name, is_ours in own.items() if is_ours}
        for path in folders.values():
            os.mkdir(path, 0o700)  # noqa: PTH102 - a bare string
        if self._is_wanted:
            if self._is_local:
                self._folder.keep(KEEP_SECONDS)
            self._log_event(JournalEvent.STAGE_OUT_STARTED, folder=str(self._folder.path), kinds=self._kinds())
            self._start()
        return folders

    def set_urgent(self) -> None:
        """Copy complete files without delay: the end is near."""
        if not self._is_urgent:
            self._is_urgent = True
            self._send({"do": ToHelper.HURRY})

    def doubt(self, *, trusted: bool) -> None:
        """A rank failed, on this node unless `trusted`. Files that ranks were writing then are incomplete."""
        self._doubt = {"do": ToHelper.DOUBT, "trusted": trusted}
        self._send(self._doubt)

    def publish(self, published: Callable[[], None], *, trusted: bool) -> None:
        """The ranks have ended and may start again: copy complete checkpoints, then call `published`."""
        self._published, self._trusted = published, trusted
        if self._starts:
            self._send(self._request(ToHelper.PUBLISH))
        else:
            self._on_published()

    def _on_published(self) -> None:
        published, self._published = self._published, None
        if published:
            published()

    @property
    def is_drained(self) -> bool:
        """After the ranks have ended: whether the missing files are known."""
        return self._callback is None

    @property
    def heartbeat_facts(self) -> Dict[str, Any]:
        """The fields of each beat: whether the ranks have ended here, and how long the head must wait for this node."""
        if self._callback is None:
            return {"over": self._is_resolved, "patience": 0.0}
        seconds_left = STALLED_SECONDS
        if self._ends_at is not None:
            seconds_left = max(0.0, min(STALLED_SECONDS, self._ends_at - time.monotonic()))
        return {"over": True, "patience": seconds_left + LATE_SECONDS}

    def on_message(self, message: Message) -> None:
        """Handle the head's message that the ranks have ended on all nodes."""
        if message["do"] == ToNode.ALL_RANKS_ENDED:
            self._stop_waiting()

    def stop(self, reason: str, grace: float) -> None:
        """The ranks are being ended on all nodes. After the scheduler's TERM comes its KILL."""
        self.were_ended = True
        self.set_urgent()
        self._loop.after(grace + KILLED_SECONDS, self._stop_waiting)
        if reason == Reason.CANCEL:
            kill_wait = self._attempt.plan.site.kill_wait_seconds
            self.limit(kill_wait - min(RESERVE_SECONDS, kill_wait / 5))

    def on_head_lost(self, grace: float) -> None:
        """Hurry: job.sh does not wait much longer than the ranks' `grace`."""
        self.limit(grace + LOST_SECONDS)
        self._stop_waiting()

    def abandon(self) -> None:
        """Copy nothing more: another node does the work of this one. Its folder stays."""
        self._is_resolved, self._starts = True, 0
        if self._process:
            self._process.kill()
        if self._callback:
            self._give_up("another node has taken its place")

    def limit(self, seconds: float) -> None:
        """End all copies within `seconds`, unless they must end earlier."""
        ends_at = time.monotonic() + max(0.0, seconds)
        if self._ends_at is None or ends_at < self._ends_at:
            self._ends_at = ends_at
            if self._is_draining:
                self._send(self._finish_message())

    def drain(self, callback: Callback, *, trusted: bool) -> None:
        """Copy the rest, then call `callback` with the missing outputs.

        `trusted` says that all writers on this node exited by themselves.
        """
        if not self._starts:
            callback(())
            return
        self._callback, self._trusted = callback, trusted
        if not self._waits_for_others:
            self._begin_drain()

    def _stop_waiting(self) -> None:
        self._waits_for_others = False
        if self._callback and not self._is_draining:
            self._begin_drain()

    def _begin_drain(self) -> None:
        self._is_draining = True
        self._progress = (0, time.monotonic())
        self._starts = 1
        if self._process is None:
            self._start()
        else:
            self._send(self._finish_message())
        self._check_progress()

    def _start(self) -> None:
        if self._process or self._is_resolved:
            return
        self._starts += 1
        local = str(self._folder.path) if self._folder.has_disk else ""
        scratch = os.environ.get("SLURM_TMPDIR") or str(self._folder.scratch)
        arguments = [str(self._node), local, scratch]
        self._process = HelperProcess(self._loop, "stage-out", arguments, self._on_worker_message, niceness=NICENESS)
        if self._doubt:
            self._send(self._doubt)
        if self._is_draining:
            self._send(self._finish_message())
        elif self._is_urgent:
            self._send({"do": ToHelper.HURRY})
        if self._published:
            self._send(self._request(ToHelper.PUBLISH))

    def _finish_message(self) -> Message:
        seconds = None
        if self._ends_at is not None:
            late = min(LATE_SECONDS, self._attempt.plan.site.kill_wait_seconds / 10)
            seconds = max(0.0, self._ends_at - late - time.monotonic())
        return {**self._request(ToHelper.FINISH), "seconds": seconds}

    def _request(self, do: str) -> Message:
        return {"do": do, "trusted": self._trusted, "all_trusted": self._trusted and not self.were_ended}

    def _send(self, message: Message) -> None:
        if self._process:
            self._process.send(message)

    def _on_worker_message(self, message: Optional[Message]) -> None:
        if message is None:
            self._on_worker_exit()
        elif message["event"] == FromStageOut.FINISHED:
            self._resolve(message)
        elif message["event"] == FromStageOut.PUBLISHED:
            self._on_published()
        elif message["event"] == FromStageOut.PROBLEM:
            system.log(message["message"])
            self._log_event(JournalEvent.STAGE_OUT_PROBLEM, message=message["message"])
        elif message["event"] == FromStageOut.PROGRESS:
            if message["moved"] != self._progress[0]:
                self._progress = (message["moved"], time.monotonic())
        else:
            self._log_event(**message)

    def _on_worker_exit(self) -> None:
        """Restart the worker; after the ranks' end, at most MOST_STARTS starts in all."""
        self._process = None
        if self._is_draining and self._starts > MOST_STARTS:
            self._give_up(f"the process that copies has ended {MOST_STARTS} times")
        elif not self._is_resolved:
            self._log_event(JournalEvent.STAGE_OUT_RESTARTED, starts=self._starts)
            pause = RETRY_SECONDS if self._is_draining else RETRY_SECONDS * 2 ** min(self._starts - 1, 10)
            self._loop.after(min(pause, MOST_RETRY_SECONDS), self._start)

    def _check_progress(self) -> None:
        """Give up a process that is stuck or exceeds its time."""
        if self._callback is None:
            return
        now = time.monotonic()
        if self._ends_at is not None and now > self._ends_at:
            self._give_up("no time was left")
        elif now - self._progress[1] > STALLED_SECONDS:
            self._give_up(f"nothing could be copied for {STALLED_SECONDS:.0f} s")
        else:
            self._watch = self._loop.after(0.2, self._check_progress)

    def _give_up(self, problem: str) -> None:
        if self._process:
            self._process.kill()
        self._resolve({"missing": [UncopiedOutputs(kind, problem=problem).to_json() for kind in self._kinds()]})

    def _kinds(self) -> List[str]:
        return [CHECKPOINTS] * bool(self._attempt.plan.checkpoint) + [RESULTS] * self._has_results

    def _resolve(self, facts_received: Message) -> None:
        """Report the missing outputs once. The node's folder stays only if there are any."""
        if self._callback is None:
            return
        callback, self._callback = self._callback, None
        self._is_resolved = True
        facts = {name: value for name, value in facts_received.items() if name != "event"}
        uncopied = (from_json(UncopiedOutputs, outputs) for outputs in facts.get("missing", ()))
        missing = tuple(outputs._replace(folder=str(self._folder.path)) for outputs in uncopied)
        for outputs in missing:
            system.log(f"{outputs.kind} could not be copied back: {outputs.problem}")
        for name in facts.get("torn", ()):
            system.log(f"checkpoint {name!r} may be torn and was not copied back")
        for sentence in outputs_left_out(facts):
            system.log(sentence)
        self._log_event(JournalEvent.STAGE_OUT_ENDED, **{**facts, "missing": [one.to_json() for one in missing]})
        if not missing:
            self._folder.let_go()
        callback(missing)
