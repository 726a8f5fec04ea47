"""Reports the exits of one node's ranks to the head: at once, or when the cause is known."""

from __future__ import annotations

import signal
from typing import Callable, List

from serried.agent.loop import Loop
from serried.agent.ranks.ranks import Exit, Ranks, has_failed
from serried.protocol.events import JournalEvent, ToHead

TOGETHER_SECONDS = 1.0
"""How long a rank's death by TERM waits for the agent's own TERM: the scheduler sends both at once."""
STUMBLED_SECONDS = 5.0
"""How long a failure by a lost peer waits for that peer's own exit."""


class Exits:
    """`on_released` is called after held exits have been reported."""

    def __init__(
        self, loop: Loop, log_event: Callable[..., None], send: Callable[..., None], on_released: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._log_event = log_event
        self._send = send
        self._on_released = on_released
        self._held: List[Exit] = []
        self._has_failure = False

    @property
    def have_all_been_sent(self) -> bool:
        return not self._held

    def add(self, ranks: Ranks, exit_: Exit, *, is_stopping: bool) -> None:
        if (exit_["signal"] == signal.SIGTERM or exit_.get("vanished")) and not exit_["ended_by_us"]:
            self._held.append(exit_)
            self._loop.after(TOGETHER_SECONDS, lambda: self.release(ranks))
        elif exit_.get("stumbled") and not is_stopping:
            self._held.append(exit_)
            self._loop.after(STUMBLED_SECONDS, lambda: self.release(ranks, stumbled=True))
        else:
            self._report(ranks, exit_)

    def release(self, ranks: Ranks, *, stumbled: bool = False) -> None:
        """Report the held exits: those by a lost peer if `stumbled`, else the others."""
        released = [exit_ for exit_ in self._held if bool(exit_.get("stumbled")) == stumbled]
        self._held = [exit_ for exit_ in self._held if exit_ not in released]
        for exit_ in released:
            exit_["ended_by_us"] |= ranks.was_killed_by_launcher(exit_)
            self._report(ranks, exit_)
        self._on_released()

    def mark_ended_by_us(self) -> None:
        """Mark the held exits: the scheduler's TERM caused them."""
        for exit_ in self._held:
            exit_["ended_by_us"] = True

    def _report(self, ranks: Ranks, exit_: Exit) -> None:
        self._log_event(JournalEvent.RANK_EXIT, **exit_)
        if not exit_["ended_by_us"] and has_failed(exit_):
            tail = [] if self._has_failure else ranks.tail(exit_)
            self._has_failure = not exit_.get("stumbled")
            self._send(ToHead.FAILED, exit=exit_, tail=tail)
