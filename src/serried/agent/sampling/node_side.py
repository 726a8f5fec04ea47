"""The agent's end of sampling: starts the process once ranks run, and forwards its samples to the head."""

from __future__ import annotations

import os
import time
from typing import Callable, List, Optional

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.helper_process import NICENESS, HelperProcess
from serried.agent.loop import Loop
from serried.base import NamedTuple
from serried.base.channel import Message
from serried.schema import codec, live
from serried.schema.events import ToHead, ToSampler

DELAY_SECONDS = 2.0
"""From the start of the ranks: they load their libraries first."""
MOST_STARTS = 4
RESTART_SECONDS = 10.0
LEEWAY_SECONDS = 0.5
"""A sample that comes this much too early is not left out."""
LAST_SECONDS = 1.0
"""For the process to write the last period, at the agent's end."""


class RunningRank(NamedTuple):
    rank: int
    pid: int
    log: str


class SamplerProcess:
    def __init__(
        self,
        loop: Loop,
        attempt: Attempt,
        node: int,
        folder: str,
        *,
        running: Callable[[], List[RunningRank]],
        send: Callable[..., None],
    ) -> None:
        """`folder` is the attempt's on the node's disk; `send` sends an event to the head."""
        self._loop = loop
        self._attempt = attempt
        self._node = node
        self._folder = folder
        self._running = running
        self._send = send
        self._send_at = 0.0
        """When the head wants the next sample, on the monotonic clock."""
        self._process: Optional[HelperProcess] = None
        self._sent: Optional[List[RunningRank]] = None
        self._starts = 0
        self._has_ended = False
        self._host = self._results = ""

    def begin(self, host: str, results: str) -> None:
        """The ranks have been started, or their launcher has.

        `host` is the node's name among the nodes of the attempt, `results` the folder for results, if not the default.
        """
        self._host, self._results = host, results
        every_seconds = self._attempt.plan.sampling.every_seconds
        if every_seconds is not None:
            self._loop.after(min(DELAY_SECONDS, every_seconds), self._start)

    def update(self) -> None:
        """Tell the process which ranks run, if these have changed."""
        running = self._running() if self._process else []
        if self._process and running != self._sent:
            self._sent = running
            self._process.send({"do": ToSampler.RANKS, "ranks": [rank._asdict() for rank in running]})

    def end(self) -> None:
        """The ranks have ended."""
        self._has_ended = True
        if self._process:
            self._process.send({"do": ToSampler.FINISH})

    def wait_for_exit(self) -> None:
        if self._process:
            self._process.wait_for_exit(LAST_SECONDS)

    def _start(self) -> None:
        if self._has_ended:
            return
        self._starts += 1
        try:
            self._process = HelperProcess(self._loop, "sample", (), self._on_message, niceness=NICENESS)
        except OSError as error:
            system.log(f"cannot start the sampler: {error}")
            return
        attempt, plan = self._attempt, self._attempt.plan
        self._sent = None
        self._process.send(
            {
                "do": ToSampler.BEGIN,
                "every": plan.sampling.every_seconds,
                "node": self._node,
                "host": self._host,
                "folder": self._folder,
                "attempt": str(attempt.directory.attempt(attempt.number).path),
                "results": self._results or str(attempt.directory.results),
                "mode": attempt.file_mode,
                "gpus": attempt.visible_gpus,
                "is_shared": plan.site.is_this_machine and not plan.site.inside,
                "mark": attempt.process_tag if self._starts == 1 else None,
                "metric": codec.to_json(attempt.metric_source),
                "stands_for": attempt.ranks if plan.shares_logs else 1,
            }
        )
        self.update()

    def _on_message(self, message: Optional[Message]) -> None:
        if message is not None:
            event = message.pop("event")
            if event == ToHead.SAMPLE:  # of many nodes the head wants a sample only every few
                now = time.monotonic()
                if now < self._send_at:
                    return
                self._send_at = now + live.interval_of(self._attempt.nodes) - LEEWAY_SECONDS
            self._send(event, **message)
            return
        self._process = None
        if self._has_ended:
            return
        if self._starts < MOST_STARTS:
            self._loop.after(RESTART_SECONDS, self._start)
        else:
            system.log(f"the sampler on {os.uname().nodename} ended {self._starts} times; it is not restarted")
