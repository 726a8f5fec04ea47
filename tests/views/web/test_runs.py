"""How often the page asks for the status of runs."""

from __future__ import annotations

import pytest

from building import an_ending, live_of
from serried.base.files import write_json
from serried.records import index
from serried.records.status import statuses
from serried.schedulers.interface import Job
from serried.views.web.runs import Runs
from waiting import until


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


@pytest.fixture
def started(monkeypatch):
    monkeypatch.setattr("serried.views.web.runs.FIRST_LOOK_SECONDS", 600.0)
    begun = []

    def start(*arguments):
        runs = Runs(*arguments)
        begun.append(runs)
        runs.start()
        return runs

    yield start
    for runs in begun:
        runs.close()


def test_a_look_that_fails_is_told_and_the_next_one_may_work(make, started):
    make("aaaaaa").ending()
    failing = [True]

    def known():
        if failing:
            raise OSError(116, "Stale file handle")
        return index.records()

    runs = started(statuses, known)
    assert runs.all() == ()
    assert "Stale file handle" in runs.problem
    failing.clear()
    until(lambda: [status.id for status in runs.all()] == ["aaaaaa"])
    until(lambda: not runs.problem)


def test_a_damaged_file_of_one_run_hides_no_other(make):
    make("aaaaaa").ending()
    make("bbbbbb").where.exit.write_text("[" * 100_000)
    runs = Runs()
    runs.refresh()
    assert {status.id for status in runs.all()} == {"aaaaaa", "bbbbbb"}


def test_a_new_run_costs_one_query_however_often_it_is_asked_for(make, slurm):
    runs = Runs()
    runs.refresh()
    make("aaaaaa", job="7")
    for _ in range(5):
        runs.one(index.find("aaaaaa"))
    assert slurm.polls == [("7",)]


def test_after_a_rest_the_first_answer_is_new(make, started, monkeypatch):
    monkeypatch.setattr("serried.views.web.runs.IDLE_SECONDS", 0.0)
    runs = started()
    runs.all()
    until(lambda: not runs._is_wanted.is_set())
    make("aaaaaa").ending()
    assert [status.id for status in runs.all()] == ["aaaaaa"]


def test_files_show_new_runs_and_ends_before_the_next_query(make, slurm, started, monkeypatch):
    monkeypatch.setattr("serried.views.web.runs.Pace.after", lambda _, __: 3600.0)
    made = make("aaaaaa", job="1").live(live_of(1.8e9))
    slurm.tell(Job("1", None, "RUNNING"))
    runs = started()
    until(lambda: [status.state for status in runs.all()] == ["RUNNING"])
    write_json(made.where.exit, {**an_ending("aaaaaa"), "attempts": 1})
    until(lambda: [status.state for status in runs.all()] == ["COMPLETED"])
    make("bbbbbb").ending()
    until(lambda: len(runs.all()) == 2)


def test_files_that_change_while_a_query_lasts_are_noticed_before_the_next_one(make, slurm, started, monkeypatch):
    monkeypatch.setattr("serried.views.web.runs.Pace.after", lambda _, __: 3600.0)
    made = make("aaaaaa", job="1").live(live_of(1.8e9))
    slurm.tell(Job("1", None, "RUNNING"))
    meanwhile = [
        lambda: make("bbbbbb").ending(),
        lambda: write_json(made.where.exit, {**an_ending("aaaaaa"), "attempts": 1}),
    ]

    def look(records):
        found = list(statuses(records))
        if meanwhile:
            meanwhile.pop()()
        return found

    runs = started(look)
    until(
        lambda: (
            sorted((status.id, status.state) for status in runs.all())
            == [("aaaaaa", "COMPLETED"), ("bbbbbb", "COMPLETED")]
        )
    )
