"""Data that only compute nodes see is looked for there, before any rank starts."""

from __future__ import annotations

from serried.plan import Data


def test_a_node_that_does_not_see_the_data_is_named_and_no_rank_starts(start, tmp_path):
    (tmp_path / "here").mkdir()
    missing = tmp_path / 'the "other" $(one)'
    run = start(f"touch {tmp_path}/started", nodes=2, data=Data(in_place=(str(tmp_path / "here"), str(missing))))

    assert run.wait() == 70
    assert run.ending[:3] == ("LAUNCH_FAILED", 70, "launch")
    host, _, said = run.ending[3].partition(": ")
    assert (bool(host), said) == (True, f"data: `{missing}` is not there")
    assert not (tmp_path / "started").exists()


def test_ranks_start_where_all_of_it_is_there(start, tmp_path):
    run = start("true", data=Data(in_place=(str(tmp_path),)))

    assert run.wait() == 0
