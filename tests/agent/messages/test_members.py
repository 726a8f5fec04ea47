"""The agents that the head waits for."""

from __future__ import annotations

import time
from types import SimpleNamespace

from serried.agent.loop import Loop
from serried.agent.messages.members import Members, Reactions


class Counted(Loop):
    """Knows how many timers there were."""

    timers = 0

    def after(self, seconds, action):
        self.timers += 1
        return super().after(seconds, action)


def test_many_that_are_at_work_for_their_results_are_given_up_each_in_its_time_by_one_timer(monkeypatch):
    began = time.monotonic()
    awaited = [SimpleNamespace(index=index, is_done=False, patience=began + index / 50) for index in range(20)]
    monkeypatch.setattr(Members, "__iter__", lambda _: iter(awaited))
    loop, lost = Counted(), []

    def lose(member):
        member.is_done = True
        lost.append((member.index, time.monotonic() >= member.patience))
        if len(lost) == len(awaited):
            loop.stop()

    members = Members(loop, 1, ["n1"], Reactions(*[lambda *_: None] * len(Reactions._fields)))
    members.give_up(lose)
    loop.run()
    members.close_door()

    assert lost == [(index, True) for index in range(20)]
    assert loop.timers < len(awaited)
