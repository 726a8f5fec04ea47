"""The record of a job script's launches, and the link to its log."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from serried.agent.launchers import script
from serried.schema.layout import RunDirectory


@pytest.fixture
def work(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.attempt(1).launches.mkdir(parents=True)
    return SimpleNamespace(workdir=tmp_path, directory=directory, number=1)


def facts(work):
    process = script.ScriptProcess.__new__(script.ScriptProcess)
    process._attempt = work.directory.attempt(1)
    process._began_at = 0.0
    return process.launch_facts()


def test_a_failure_that_counts_is_recorded_however_many_were_handled(work, monkeypatch):
    """Such as those of `while ! python poll.py`."""
    monkeypatch.setattr(script, "MOST_RECORDED", 3)
    failures = work.directory.attempt(1).launches / "failures"
    failures.mkdir()
    for number in range(9):
        document = {"call": f"n1.1.{number}", "status": 1, "handled": number != 7, "time": number, "name": "python"}
        (failures / f"n1.1.{number}.json").write_text(json.dumps({**document, "argv": ["-c", "exit(1)"]}))
    recorded = facts(work)["failures"]
    assert [failure["call"] for failure in recorded] == ["n1.1.7", "n1.1.0", "n1.1.1"]
    assert recorded[0]["words"] == "python -c 'exit(1)'"


def test_the_newest_launches_are_recorded(work, monkeypatch):
    monkeypatch.setattr(script, "MOST_RECORDED", 2)
    for number in range(1, 5):
        document = {"launch": str(number), "time": number, "name": "srun"}
        (work.directory.attempt(1).launches / f"{number}.json").write_text(json.dumps(document))
    assert [launch["launch"] for launch in facts(work)["launches"]] == ["3", "4"]


def test_a_link_of_an_earlier_run_is_replaced(work, tmp_path):
    (tmp_path / "train.out").symlink_to("/elsewhere/attempts/2/script.log")
    script.link_log(work, "train.out")
    assert (tmp_path / "train.out").readlink() == work.directory.attempt(1).script_log


def test_a_link_of_the_user_stays(work, tmp_path):
    (tmp_path / "train.out").symlink_to("/elsewhere/results.txt")
    script.link_log(work, "train.out")
    assert (tmp_path / "train.out").readlink() == Path("/elsewhere/results.txt")
