from __future__ import annotations

import os

import pytest

from building import a_plan
from serried.base.errors import RunNotFoundError
from serried.records import index
from serried.records.record import Record, records_directory


def make(run, *, name="train", age=0, **plan):
    record = Record.create(a_plan(run, name=name, **plan))
    moment = 1_795_000_000 - age
    os.utime(record.directory.plan, (moment, moment))
    return record


def refusal(selector):
    with pytest.raises(RunNotFoundError) as raised:
        index.find(selector)
    return raised.value.message, raised.value.hint


def test_a_run_is_found_by_id_prefix_name_and_last():
    make("abcdef", name="old", age=10)
    make("k3f9q2", name="new")

    assert index.find("abcdef").record.id == "abcdef"
    assert index.find("ab").record.id == "abcdef"
    assert index.find("old").record.id == "abcdef"
    assert index.find("last").record.id == "k3f9q2"


def test_a_name_of_several_runs_means_the_newest_and_says_so():
    make("abcdef", age=10)
    make("k3f9q2", age=20)

    selection = index.find("train")

    assert selection.record.id == "abcdef"
    assert selection.note == "2 runs are named `train`; this is the newest"


def test_an_ambiguous_prefix_lists_the_candidates():
    make("k3f9q2", name="one")
    make("k3zzzz", name="two")
    assert refusal("k3") == ("`k3` matches the ids of 2 runs", "k3f9q2 (one), k3zzzz (two)")


def test_a_name_wins_over_a_prefix_and_a_task():
    make("k3f9q2", name="one")
    make("abcdef", name="k3")
    make("bbcdef", name="lr/17")
    assert [str(index.find(name)) for name in ("k3", "lr/17")] == ["abcdef", "bbcdef"]


def test_a_task_is_found_behind_whatever_finds_the_run():
    make("k3f9q2", name="sweep", indices=range(20))
    for selector in ("k3f9q2/17", "k3/17", "sweep/17", "last/17"):
        assert str(index.find(selector)) == "k3f9q2/17"


def test_a_task_that_is_not_there_is_refused():
    make("k3f9q2", indices=range(20))
    make("abcdef", name="plain", age=5)
    assert refusal("k3f9q2/20") == ("run `k3f9q2` has no task 20", "its tasks are 0 to 19")
    assert refusal("plain/1") == ("run `abcdef` is not an array, so it has no task 1", "serried show abcdef")


def test_a_misspelt_name_gets_a_suggestion():
    make("k3f9q2", name="digits")
    assert refusal("digit5") == ("unknown run: `digit5`", "did you mean `digits`? (serried ps --all lists them)")


def test_no_runs_at_all_says_how_to_make_one():
    assert refusal("last") == ("you have no runs yet", "serried submit -- python train.py")
    assert refusal("gone") == ("unknown run: `gone`; you have no runs yet", "serried submit -- python train.py")


def test_hostile_selectors_are_only_not_found():
    make("k3f9q2", name="digits")
    for selector in ("", "/", "..", "../..", "/17", "a/b/c", "$(id)", "-rf", "\x1b[2J", "x" * 300):
        refusal(selector)


def test_what_is_no_record_is_no_run():
    assert index.records() == []
    make("k3f9q2")
    (records_directory() / "notes.txt").touch()
    (records_directory() / ".cache").mkdir()
    assert [record.id for record in index.records()] == ["k3f9q2"]
