"""A run whose ranks say nothing is told of before it is ended."""

from __future__ import annotations

from types import SimpleNamespace

from building import a_plan
from serried.agent import notifications
from serried.agent.head.head import Monitor
from serried.schema.plan import Limit


def test_where_both_are_due_at_once_it_is_told_of_first_and_ended_with_the_next_beat(tmp_path, monkeypatch):
    """Beats may come late: the notice of a stall must not be killed with the job, or not be sent at all."""
    done: list[str] = []
    pids = iter((77, None, None))

    def notify(_, event):
        pid = next(pids)
        done.extend(["told of", event] if pid else ["told already"])
        return pid

    monkeypatch.setattr(notifications, "notify", notify)
    attempt = SimpleNamespace(control=tmp_path / "control.jsonl")
    work = SimpleNamespace(
        directory=SimpleNamespace(attempt=lambda _: attempt),
        number=1,
        grace_seconds=2.0,
        expects_connections=True,
        plan=a_plan(limit=Limit(output_timeout_seconds=4)),
    )
    members = SimpleNamespace(silent_ranks=lambda _: [0])
    head = SimpleNamespace(
        loop=None, is_stopping=False, work=work, stop=lambda reason, *_, **__: done.append(f"ended for {reason}")
    )
    watch = Monitor(head, members, None)

    watch.check_silence()
    assert done == ["told of", "stall"]
    watch.check_silence()
    assert done == ["told of", "stall", "told already", "ended for silence"]
