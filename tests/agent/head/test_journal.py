"""What nodes tell the head, in its journal."""

from __future__ import annotations

from types import SimpleNamespace

from serried.agent.head.head import Head
from serried.schema.codec import facts_of
from serried.schema.endings import NodeEnded
from serried.schema.events import ToHead


def test_the_head_states_from_which_node_an_entry_is(monkeypatch):
    head, logged = Head.__new__(Head), []
    monkeypatch.setattr(head, "log_event", lambda event, **facts: logged.append((event, facts)), raising=False)
    monkeypatch.setattr(head, "_finish_if_done", lambda: None, raising=False)
    monkeypatch.setattr(head, "_rounds", None, raising=False)
    told = {"event": ToHead.DONE, **facts_of(NodeEnded((), 7, "elsewhere", swept=0))}
    head._on_event(SimpleNamespace(index=0, host="n1", is_done=False), told)
    assert logged == [("node-ended", {"exits": [], "node": 0, "host": "n1", "swept": 0})]
