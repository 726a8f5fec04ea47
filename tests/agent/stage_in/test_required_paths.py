"""Paths that only compute nodes see are checked there, before any rank starts."""

from __future__ import annotations

from serried.schema.plan import Data


def test_a_node_that_does_not_see_the_data_is_named_and_no_rank_starts(start, tmp_path):
    (tmp_path / "here").mkdir()
    missing = tmp_path / 'the "other" $(one)'
    run = start(f"touch {tmp_path}/started", nodes=2, data=Data(require=(str(tmp_path / "here"), str(missing))))

    assert run.wait() == 70
    assert run.ending[:3] == ("LAUNCH_FAILED", 70, "launch")
    host, _, said = run.ending[3].partition(": ")
    assert (bool(host), said) == (True, f"data: `{missing}` does not exist")
    assert not (tmp_path / "started").exists()


def test_nodes_that_come_later_are_not_waited_for_then(start, tmp_path, fake_script):
    """As if it took nodes for ever to leave, which is not waited for where some have not come."""
    usual = fake_script.words
    late = tmp_path / "late"
    late.write_text(
        '#!/bin/sh\n[ "$FAKE_NODE" = 0 ] || until grep -q launch-failed "$SERRIED_RUN_DIR/attempts/1/events.jsonl"\n'
        'do sleep 0.1; done\nexec "$@"\n'
    )
    late.chmod(0o755)
    fake_script.words = lambda plan: (*usual(plan), str(late))
    missing = Data(require=(str(tmp_path / "missing"),))
    run = start("true", nodes=2, data=missing, seconds={"head.head.LEAVE_SECONDS": 1e9})

    assert run.wait() == 70
    assert [event["node"] for event in run.events("connected")] == [0]
    assert [len(run.events(name)) for name in ("launch-failed", "ended")] == [1, 1]
