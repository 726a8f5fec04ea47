from __future__ import annotations

import io
import os

import pytest

from building import RunOnDisk, a_plan, an_ending
from serried.base.errors import Elsewhere, RunNotFoundError
from serried.base.files import write_json
from serried.cli import run_view
from serried.cli.ps import describe_all
from serried.records import index
from serried.records.record import Record, records_directory
from serried.schema import names
from serried.schema.endings import End
from serried.schema.layout import sent_key
from standing import OPENS


def make(run, *, name="train", age=0, **plan):
    record = Record.create(a_plan(run, name=name, **plan))
    moment = 1_795_000_000 - age
    os.utime(record.directory.plan, (moment, moment))
    return record


@pytest.fixture
def make_run(tmp_path):
    return lambda *arguments, **options: RunOnDisk(tmp_path, *arguments, **options)


def refusal(selector):
    with pytest.raises(RunNotFoundError) as raised:
        index.find(selector)
    return raised.value.message, raised.value.hint


@pytest.mark.parametrize("file", ["serried.toml", "pyproject.toml"])
def test_last_of_a_project_may_be_on_the_cluster_that_its_files_were_sent_to(file, tmp_path, monkeypatch):
    for folder in ("mine", "other"):
        (tmp_path / folder / "src").mkdir(parents=True)
        (tmp_path / folder / file).write_text("[tool.serried]")
    origins = {
        run: f"{os.uname().nodename}:{tmp_path / where}" for run, where in (("abcdef", "mine"), ("xyzabc", "other"))
    }
    created = {"abcdef": 1_800_000_000.0, "xyzabc": 1_900_000_000.0}
    there = {
        run: index.RunElsewhere(run, "t", "t", "p", created[run], None, (), {}, (), f"/h/projects/{sent_key(origin)}")
        for run, origin in origins.items()
    }
    make("k3f9q2", source=str(tmp_path / "mine"))
    index.remember(index.ClusterRuns("fir", 0.0, [*there.values()]))

    def last_in(folder):
        with pytest.raises(Elsewhere) as raised:
            index.find("last", own=tmp_path / folder)
        return raised.value.run

    assert [last_in("mine/src"), last_in("other")] == ["abcdef", "xyzabc"]
    monkeypatch.setenv(names.MEANT, "k3f9q2")  # a command that came from there
    assert index.find("last", own=tmp_path).record.id == "k3f9q2"


def test_a_repetition_elsewhere_with_the_present_code_takes_the_project_along():
    index.remember(index.ClusterRuns("fir", 0.0, [index.RunElsewhere("abcdef", "t", "t", "p", 1.0, None, (), {}, ())]))
    asks = []
    for new_code in (False, True):
        with pytest.raises(Elsewhere) as raised:
            run_view.select("abcdef", new_code=new_code)
        asks.append((raised.value.needs_project, raised.value.names_cluster))
    assert asks == [(False, False), (True, True)]


def test_another_machine_may_ask_for_a_run_that_is_older_than_those_in_a_list(make_run):
    for number, run in enumerate(("abcdef", "k3f9q2", "xyzabc")):
        made = make_run(run, name=f"train{number}")
        made.record.write_end(End.of(an_ending(run, ended=f"2026-11-2{number}T00:00:00Z")))
    found = [describe_all({"most": 1, "word": word}, io.BytesIO(), io.BytesIO()) for word in ("", "train0", "abc")]
    assert [[run["id"] for run in each["runs"]] for each in found] == [
        ["xyzabc"],
        ["xyzabc", "abcdef"],
        ["xyzabc", "abcdef"],
    ]


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


def test_no_runs_at_all_says_how_to_make_one_in_this_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal("last") == ("you have no runs yet", "serried init")
    (tmp_path / "train.py").touch()
    assert refusal("gone") == ("unknown run: `gone`; you have no runs yet", "serried submit -- python train.py")
    (tmp_path / "serried.toml").touch()
    assert refusal("gone") == ("unknown run: `gone`; you have no runs yet", "serried submit")


@pytest.mark.parametrize("has_ended", [False, True], ids=["live", "ended"])
def test_a_run_is_found_by_the_job_id_of_any_of_its_jobs(make_run, has_ended):
    run = make_run(job="4711").link(2, "4718")
    other = make_run("abcdef", job="47110")
    array = make_run("bbcdef", scheduler="pbs", job="17[].pbs.example.org", indices=range(20)).link(2, "18", task=3)
    if has_ended:
        for made in (run, other, array):
            made.record.write_end(End.of(an_ending(made.plan.run, "FAILED")))
    words = ["4711", "4711.batch", "4718", "47110", "17", "17[]", "17[].pbs", "17[7]", "17[7].pbs.example.org", "17/7"]
    assert {word: str(index.find(word)) for word in [*words, "17_7", "18"]} == {
        **dict.fromkeys(["4711", "4711.batch", "4718"], "k3f9q2"),
        "47110": "abcdef",
        **dict.fromkeys(["17", "17[]", "17[].pbs"], "bbcdef"),
        **dict.fromkeys(["17[7]", "17[7].pbs.example.org", "17/7", "17_7"], "bbcdef/7"),
        "18": "bbcdef/3",
    }
    for word in ("471", "17[].other", "4711x", "4711_", "_7"):
        assert refusal(word)[0] == f"unknown run: `{word}`"
    own_number = (
        "serried ps --all lists them\nno record has the own number of an array task: write ARRAY_TASK, as in `4711_7`"
    )
    assert refusal("4712") == ("unknown run: `4712`", own_number)
    assert refusal("17_20") == ("run `bbcdef` has no task 20", "its tasks are 0 to 19")


def test_a_task_is_found_by_its_job_in_an_array_of_several_jobs(make_run):
    run = make_run(job="11,12", indices=range(2000))
    array = run.plan.array._replace(offsets=(0, 1000))
    write_json(run.record.directory.plan, run.plan._replace(array=array).to_json())
    assert [str(index.find(word)) for word in ("11_7", "12_7")] == ["k3f9q2/7", "k3f9q2/1007"]
    parts = ("job `12` has a part of the array `k3f9q2`", "`k3f9q2` is the run, and `k3f9q2/N` a task")
    assert refusal("12") == parts


def test_a_job_id_that_two_runs_had_is_refused_and_a_name_wins(make_run):
    make_run(job="4711", name="old")
    make_run("abcdef", job="4711", name="new")
    for age, run in enumerate(("abcdef", "k3f9q2")):
        os.utime(records_directory() / run / "plan.json", (1_795_000_000 - age,) * 2)
    assert refusal("4711") == ("2 runs have had a job `4711`", "abcdef (new), k3f9q2 (old)")
    make("bbcdef", name="4711")
    assert index.find("4711").record.id == "bbcdef"


def test_names_and_ids_are_found_without_reading_submissions(make_run):
    make_run(job="4711", name="digits")
    opens = OPENS(records_directory().parent)
    for word in ("k3f9q2", "k3", "digits", "last"):
        index.find(word)
    opens.folder = None
    assert [path for path in opens.opened if "submissions" in os.fspath(path)] == []


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
