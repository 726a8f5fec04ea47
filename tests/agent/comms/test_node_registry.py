"""The agents that the head waits for."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

from serried.agent.comms import rendezvous
from serried.agent.comms.node_registry import NodeRegistry
from serried.agent.loop import Loop


class Counted(Loop):
    """Knows how many timers there were."""

    timers = 0

    def after(self, seconds, action):
        self.timers += 1
        return super().after(seconds, action)


def test_many_that_are_at_work_for_their_results_are_given_up_each_in_its_time_by_one_timer(monkeypatch):
    began = time.monotonic()
    awaited = [
        SimpleNamespace(index=index, is_done=False, is_held=False, busy_until=began + index / 50) for index in range(20)
    ]
    monkeypatch.setattr(NodeRegistry, "__iter__", lambda _: iter(awaited))
    loop, lost = Counted(), []

    def lose(member, code, because):
        assert (code, because) == ("stop-ignored", "it did not stop")
        member.is_done = True
        lost.append((member.index, time.monotonic() >= member.busy_until))
        if len(lost) == len(awaited):
            loop.stop()

    members = NodeRegistry(loop, 1, ["n1"], SimpleNamespace(on_node_lost=lose))
    members.drop_unfinished("stop-ignored", "it did not stop")
    loop.run()
    members.stop_accepting()

    assert lost == [(index, True) for index in range(20)]
    assert loop.timers < len(awaited)


def test_a_stop_is_told_once_for_each_reason_unless_it_brings_the_kill_forward():
    """A thousand ranks that fail at once would else be a million messages, and the head deaf for minutes."""
    loop = Loop()
    members = NodeRegistry(loop, 1, ["n1"], SimpleNamespace(on_joined=lambda _: loop.stop()))
    joined = []
    greeting = {"node": 0, "host": "n1"}
    call = (members.addresses(), members.key, greeting, 60.0)
    node = threading.Thread(target=lambda: joined.append(rendezvous.connect(*call)))
    node.start()
    loop.run()
    node.join()
    channel = joined[0][0]

    told = [
        members.stop_ranks(*word)
        for word in (("failure", 9.0), *[("failure", 9.0)] * 100, ("lost", 9.0), ("lost", 2.0))
    ]
    members.stop_accepting()
    next(iter(members)).channel.close()
    channel.connection.setblocking(True)
    heard = [word for part in iter(channel.receive, None) for word in part]
    channel.close()

    assert told == [True, *[False] * 100, True, True]
    assert [(word["reason"], word["grace"]) for word in heard] == [("failure", 9.0), ("lost", 9.0), ("lost", 2.0)]


def test_the_silence_of_a_round_does_not_count_in_the_next(monkeypatch):
    agent = SimpleNamespace(is_done=False, is_held=True, running=[0, 1], quiet_seconds=99.0)
    monkeypatch.setattr(NodeRegistry, "__iter__", lambda _: iter([agent]))
    members = NodeRegistry(Loop(), 1, ["n1"], SimpleNamespace())
    members.stop_accepting()
    assert members.silent_ranks(60.0) == [0, 1]

    members.release()

    assert (members.silent_ranks(60.0), agent.is_held) == ([], False)
