"""Data that only compute nodes see is looked for there, before any rank starts."""

from __future__ import annotations

import zipfile
from pathlib import Path

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
    """As if it took nodes for ever to leave, which is not waited for where some have not come."""
    usual = LAUNCHERS["fake"]
    late = tmp_path / "late"
    late.write_text(
        '#!/bin/sh\n[ "$FAKE_NODE" = 0 ] || until grep -q launch-failed "$SERRIED_RUN_DIR/attempts/1/events.jsonl"\n'
        'do sleep 0.1; done\nexec "$@"\n'
    )
    late.chmod(0o755)
    monkeypatch.setitem(LAUNCHERS, "fake", lambda plan: (*usual(plan), str(late)))
    plan = make_run("true", nodes=2, data=Data(in_place=(str(tmp_path / "missing"),)))
    edit(Path(plan.directory) / "agent.pyz", f"LEAVE_SECONDS = {head.LEAVE_SECONDS}", "LEAVE_SECONDS = 1e9")
    run = start(None, plan=plan)

    assert run.wait() == 70
    assert [event["node"] for event in run.events("connected")] == [0]
    assert [len(run.events(name)) for name in ("launch-failed", "ended")] == [1, 1]


def edit(archive, before, after):
    """Another text in the head of this run alone."""
    with zipfile.ZipFile(archive) as packed:
        texts = {name: packed.read(name) for name in packed.namelist()}
    name = "serried/agent/head/head.py"
    assert texts[name].count(before.encode()) == 1
    texts[name] = texts[name].replace(before.encode(), after.encode())
    del texts[f"{name}c"]  # which would be believed instead
    with zipfile.ZipFile(archive, "w") as packed:
        for path, text in texts.items():
            packed.writestr(path, text)


def test_ranks_start_where_all_of_it_is_there(start, tmp_path):
    run = start("true", data=Data(in_place=(str(tmp_path),)))

    assert run.wait() == 0
