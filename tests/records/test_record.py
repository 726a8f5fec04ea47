from __future__ import annotations

import json
import shutil
import stat

import pytest

from building import a_plan
from serried.base import files
from serried.base.files import make_directory
from serried.records import index
from serried.records import record as records
from serried.records.record import Record, RecordUnreadable, Submission, Summary


def submission(number, **changes):
    values = {
        "token": f"k3f9q2-{number}",
        "state": "submitted",
        "job": "123",
        "cluster": "fir",
        "scheduler": "slurm",
        "at": "2026-11-21T03:00:00Z",
        "by_pid": 77,
    }
    return Submission(**{**values, **changes})


def test_an_id_is_a_letter_and_five_letters_or_digits_that_do_not_look_alike():
    for _ in range(200):
        run = records.new_id()
        assert len(run) == 6
        assert run[0].isalpha()
        assert not set(run) & set("ilo01")


def test_creating_writes_a_private_folder_that_loads_as_the_same_plan(state_home):
    plan = a_plan("k3f9q2")

    Record.create(plan)

    folder = state_home / "serried" / "runs" / "k3f9q2"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "plan.json").stat().st_mode) == 0o600
    assert Record.load("k3f9q2").plan == plan
    assert str(Record.load("k3f9q2").where.path) == plan.directory


def test_an_id_that_is_taken_is_refused():
    Record.create(a_plan("k3f9q2"))
    with pytest.raises(FileExistsError):
        Record.create(a_plan("k3f9q2"))


def test_a_record_is_there_whole_or_not_at_all(monkeypatch):
    """Whoever is killed while one is made or removed leaves what no listing shows."""
    seen = []

    def looking(act):
        def look_and_act(*arguments, **options):
            seen.append([each.id for each in index.records()])
            return act(*arguments, **options)

        return look_and_act

    for module, name in ((files, "write_unsynced"), (records, "write_json"), (shutil, "rmtree")):
        monkeypatch.setattr(module, name, looking(getattr(module, name)))

    record = Record.create(a_plan("k3f9q2"), submission(1, state="submitting"))

    assert [each.state for each in Record.load("k3f9q2").submissions] == ["submitting"]
    record.remove()
    assert seen == [[]] * 4
    assert list(records.records_directory().iterdir()) == []


def test_submissions_are_read_back_in_their_order(tmp_path):
    record = Record.create(a_plan("k3f9q2", root=tmp_path))
    make_directory(record.where.links)
    for number in (2, 10, 1):
        record.write_submission(submission(number))
    record.write_submission(submission("x", token="k3f9q2.7-2"))

    assert [one.number for one in record.submissions] == [1, 2, 10]
    assert record.submissions[0] == submission(1)
    assert [one.token for one in record.submissions_of(7)][-1] == "k3f9q2.7-2"


def test_the_end_carries_a_summary_so_that_one_file_tells_all():
    plan = a_plan("k3f9q2", name="train")
    Record.create(plan).write_end({"state": "COMPLETED", "exit_code": 0})
    again = Record.load("k3f9q2")
    again.directory.plan.unlink()

    assert again.end is not None
    assert again.end["state"] == "COMPLETED"
    assert again.summary == Summary.of(plan)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1', "null", '{"schema": "x"}', "\udcff"])
def test_a_torn_plan_is_unreadable_and_no_traceback(text):
    record = Record.create(a_plan("k3f9q2"))
    record.directory.plan.write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(RecordUnreadable):
        _ = Record.load("k3f9q2").summary
    with pytest.raises(RecordUnreadable):
        _ = Record.load("k3f9q2").plan


def test_a_plan_that_resumes_from_no_checkpoint_is_unreadable():
    record = Record.create(a_plan("k3f9q2"))
    plan = json.loads(record.directory.plan.read_text())
    record.directory.plan.write_text(json.dumps({**plan, "resume": {"checkpoints": [], "run": None}}))

    with pytest.raises(RecordUnreadable, match=r"resume.checkpoints: no checkpoint"):
        _ = Record.load("k3f9q2").summary


def test_a_plan_of_a_later_schema_says_so_and_how_to_read_it():
    record = Record.create(a_plan("k3f9q2"))
    plan = json.loads(record.directory.plan.read_text())
    record.directory.plan.write_text(json.dumps({**plan, "schema": 2}))

    with pytest.raises(RecordUnreadable) as raised:
        _ = Record.load("k3f9q2").summary

    assert raised.value.message == "plan.json of run `k3f9q2` has schema 2; this Serried reads 1"
    assert raised.value.hint == "use the version of Serried that wrote it"


def test_a_run_directory_that_moved_is_found_by_where():
    record = Record.create(a_plan("k3f9q2"))
    record.directory.where.write_text("/new/place\n")
    assert str(Record.load("k3f9q2").where.path) == "/new/place"


def test_without_where_the_plan_still_tells_the_directory_of_a_project_with_a_hostile_name():
    plan = a_plan("k3f9q2")._replace(project="my project/../$(id)")
    record = Record.create(plan)
    record.directory.where.unlink()
    assert str(record.where.path) == plan.directory


def test_a_relative_state_home_is_ignored_as_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert records.records_directory() == tmp_path / ".local" / "state" / "serried" / "runs"
