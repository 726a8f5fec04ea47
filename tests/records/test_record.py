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
from serried.schema.endings import End


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


def test_an_end_at_its_very_start_took_no_time():
    record = Record.create(a_plan("k3f9q2"))
    record.write_end(End.of({"state": "CANCELLED", "seconds": 0.0}))
    assert Record.load("k3f9q2").end == record.end


def test_the_end_carries_a_summary_so_that_one_file_tells_all():
    plan = a_plan("k3f9q2", name="train")
    Record.create(plan).write_end(End.of({"state": "COMPLETED", "exit_code": 0}))
    again = Record.load("k3f9q2")
    again.directory.plan.unlink()

    assert again.end is not None
    assert again.end.state == "COMPLETED"
    assert again.summary == Summary.of(plan)


def test_a_plan_that_cannot_be_read_says_why_and_is_no_traceback():
    record = Record.create(a_plan("k3f9q2"))
    plan = json.loads(record.directory.plan.read_text())
    changed = [{"resume": {"checkpoints": [], "run": None}}, {"schema": 2}]
    torn = ["", "{", "[]", '{"schema": 1', "null", '{"schema": "x"}', "\udcff"]
    messages, hints = [], []
    for text in (*torn, *(json.dumps({**plan, **change}) for change in changed)):
        record.directory.plan.write_bytes(text.encode("utf-8", "surrogateescape"))
        for part in ("summary", "plan"):
            with pytest.raises(RecordUnreadable) as raised:
                getattr(Record.load("k3f9q2"), part)
        messages.append(raised.value.message)
        hints.append(raised.value.hint)
    assert "resume.checkpoints: no checkpoint" in messages[-2]
    assert messages[-1] == "plan.json of run `k3f9q2` has schema 2; this Serried reads 1"
    assert hints[-1] == "use the version of Serried that wrote it"


def test_the_run_directory_is_found_by_where_else_by_the_plan():
    plan = a_plan("k3f9q2")._replace(project="my project/../$(id)")
    record = Record.create(plan)
    record.directory.where.write_text("/new/place\n")
    assert str(Record.load("k3f9q2").where.path) == "/new/place"
    record.directory.where.unlink()
    assert str(record.where.path) == plan.directory


def test_a_relative_state_home_is_ignored_as_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert records.records_directory() == tmp_path / ".local" / "state" / "serried" / "runs"
