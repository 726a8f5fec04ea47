"""How often the page asks for the status of runs."""

from __future__ import annotations

from serried.records import index
from serried.records.status import statuses
from serried.ui.web.runs import Runs


def test_runs_that_have_ended_are_looked_at_once(make, slurm):
    looked = []

    def look(records):
        looked.append(sorted(record.id for record in records))
        return statuses(records)

    make("aaaaaa").ending()
    make("bbbbbb", job="7")
    runs = Runs(look)
    for _ in range(3):
        runs.refresh()

    assert looked == [["aaaaaa", "bbbbbb"], ["bbbbbb"], ["bbbbbb"]]
    assert {status.id: status.state for status in runs.all()}["aaaaaa"] == "COMPLETED"
    assert slurm.polls == [("7",)] * 3


def test_new_runs_appear_and_deleted_ones_go(make):
    import shutil

    runs = Runs()
    runs.refresh()
    assert runs.all() == ()
    made = make("aaaaaa").ending()
    runs.refresh()
    assert [status.id for status in runs.all()] == ["aaaaaa"]
    shutil.rmtree(made.record.directory.path)
    runs.refresh()
    assert runs.all() == ()


def test_one_run_that_has_ended_needs_no_look_at_the_others(make):
    def look(_):
        raise AssertionError

    make("aaaaaa").ending()
    statuses(index.records())  # a reader writes the end into the record
    assert Runs(look).one(index.find("aaaaaa")).state == "COMPLETED"
