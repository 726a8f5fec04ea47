"""Ranks that have not connected to one another are reported while they run, once, and not if they have."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from building import a_plan
from serried.agent.head.head import UNCONNECTED_SECONDS, Monitor


@pytest.fixture
def watch(tmp_path):
    """What the head does after APART_SECONDS, and its journal."""

    def make(*, expects_contact=True, are_done=False):
        attempt = SimpleNamespace(control=tmp_path / "control.jsonl")
        work = SimpleNamespace(
            directory=SimpleNamespace(attempt=lambda _: attempt),
            number=1,
            nodes=2,
            ranks=2,
            expects_connections=expects_contact,
            plan=a_plan(),
        )
        notes, timers = [], {}
        loop = SimpleNamespace(after=timers.__setitem__)
        head = SimpleNamespace(loop=loop, work=work, log_event=lambda event, **facts: notes.append((event, facts)))
        watch = Monitor(head, SimpleNamespace(are_done=lambda: are_done), None)
        watch.ranks_began()
        return watch, timers[UNCONNECTED_SECONDS], notes

    return make


MESSAGE = "no rank has connected to another in 120 s: the program may run 4 times, each by itself"


def test_it_is_said_in_the_journal_and_in_the_jobs_log(watch, capsys):
    _, later, notes = watch()
    later()
    assert notes == [("ranks-apart", {"message": MESSAGE})]
    assert capsys.readouterr().err == f"serried: warning: {MESSAGE}\n"


@pytest.mark.parametrize("seen", [True, None], ids=["seen", "a node cannot tell"])
def test_after_contact_nothing_is_said(watch, seen):
    watch, later, notes = watch()
    for _ in range(2):
        assert watch.on_message({"event": "contact", "seen": seen})
    assert not watch.on_message({"event": "staged"})
    later()
    assert notes == [("ranks-in-contact", {"seen": seen})]


@pytest.mark.parametrize("how", [{"expects_contact": False}, {"are_done": True}], ids=["not wanted", "over"])
def test_where_it_is_not_expected_or_over_nothing_is_said(watch, how):
    _, later, notes = watch(**how)
    later()
    assert notes == []
