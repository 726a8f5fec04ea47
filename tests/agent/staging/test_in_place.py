"""Data that only compute nodes see is looked for there, before any rank starts."""

from __future__ import annotations

from serried.agent.head import head
from serried.plan import Data
from serried.script.launcher import LAUNCHERS


def test_a_node_that_does_not_see_the_data_is_named_and_no_rank_starts(start, tmp_path):
    (tmp_path / "here").mkdir()
    missing = tmp_path / 'the "other" $(one)'
    run = start(f"touch {tmp_path}/started", nodes=2, data=Data(in_place=(str(tmp_path / "here"), str(missing))))

    assert run.wait() == 70
    assert run.ending[:3] == ("LAUNCH_FAILED", 70, "launch")
    host, _, said = run.ending[3].partition(": ")
    assert (bool(host), said) == (True, f"data: `{missing}` is not there")
    assert not (tmp_path / "started").exists()


def test_nodes_that_come_later_are_not_waited_for_then(start, make_run, tmp_path, monkeypatch):
    plan = make_run("true", nodes=2, data=Data(in_place=(str(tmp_path / "missing"),)))
    usual = LAUNCHERS["fake"](plan)
    late = '[ "$FAKE_NODE" = 0 ] || sleep 1; exec "$@"'
    monkeypatch.setitem(LAUNCHERS, "fake", lambda _: (*usual, "sh", "-c", late, "sh"))
    run = start("true", nodes=2, data=plan.data)

    assert run.wait() == 70
    (failed,), (ended,) = run.events("launch-failed"), run.events("ended")
    assert [event["node"] for event in run.events("connected")] == [0]
    assert ended["t"] - failed["t"] < head.LEAVE_SECONDS


def test_ranks_start_where_all_of_it_is_there(start, tmp_path):
    run = start("true", data=Data(in_place=(str(tmp_path),)))

    assert run.wait() == 0
