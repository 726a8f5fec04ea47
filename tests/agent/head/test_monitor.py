"""What the head's monitor says and does while ranks run: about ranks that do not connect, or write nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from building import a_plan
from serried.agent import notifications
from serried.agent.head.head import UNCONNECTED_SECONDS, Monitor


@pytest.fixture
def monitor(tmp_path):
    """A monitor, its head's journal and its timers by seconds."""

    def make(*, are_done=False, **facts):
        attempt = SimpleNamespace(files=SimpleNamespace(control=tmp_path / "control.jsonl"), nodes=2, ranks=2)
        attempt.__dict__.update({"expects_connections": True, "grace_seconds": 2.0, "plan": a_plan(), **facts})
        nodes = SimpleNamespace(are_done=lambda: are_done, silent_ranks=lambda _: [0])
        events, timers = [], {}
        head = SimpleNamespace(
            loop=SimpleNamespace(after=timers.__setitem__),
            attempt=attempt,
            is_stopping=False,
            name_hang=lambda _: None,
            hung="",
            log_event=lambda event, **facts: events.append((event, facts)),
            stop=lambda reason, *_, **__: events.append(("stop", reason)),
        )
        made = Monitor(head, nodes, None)
        made.ranks_began()
        return made, events, timers

    return make


MESSAGE = "no rank has connected to another in 120 s: the program may run 4 times, each by itself"


def test_ranks_that_have_not_connected_are_reported_in_the_journal_and_the_jobs_log(monitor, capsys):
    _, events, timers = monitor()
    timers[UNCONNECTED_SECONDS]()
    assert events == [("ranks-apart", {"message": MESSAGE})]
    assert capsys.readouterr().err == f"serried: warning: {MESSAGE}\n"


@pytest.mark.parametrize("seen", [True, None], ids=["seen", "a node cannot tell"])
def test_ranks_that_have_connected_are_not_reported(monitor, seen):
    made, events, timers = monitor()
    for _ in range(2):
        made.on_contact(seen)
    timers[UNCONNECTED_SECONDS]()
    assert events == [("ranks-in-contact", {"seen": seen})]


@pytest.mark.parametrize("facts", [{"expects_connections": False}, {"are_done": True}], ids=str)
def test_unconnected_ranks_are_not_reported_where_none_is_expected_or_all_have_ended(monitor, facts):
    _, events, timers = monitor(**facts)
    timers[UNCONNECTED_SECONDS]()
    assert events == []


def test_a_silent_run_is_ended_only_at_the_heartbeat_after_its_notification(monitor, monkeypatch):
    """Heartbeats may be late: the process that notifies of the stall must not be killed with the job."""
    made, events, _ = monitor()
    pids = iter((77, None, None))
    monkeypatch.setattr(notifications, "notify", lambda _, event: events.append(event) or next(pids))
    made.check_silence(4.0)
    assert events == ["stall"]
    made.check_silence(4.0)
    assert events == ["stall", "stall", ("stop", "silence")]
