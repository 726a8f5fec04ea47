"""The file of ended runs: it saves time, and no answer depends on it."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest

from building import a_plan, an_ending
from serried.records import index
from serried.records.record import Record, records_directory
from serried.schema.endings import End
from standing import OPENS

KEPT = "ended.jsonl"


def make(run, *, state=None, name="train"):
    record = Record.create(a_plan(run, name=name))
    if state:
        record.write_end(End.of(an_ending(run, state)))
    return record


def settle():
    """The records have not changed for a while."""
    long_ago = time.time_ns() - 60_000_000_000
    os.utime(records_directory(), ns=(long_ago, long_ago))


def found():
    runs = index.all_runs()
    return sorted(record.id for record in runs.open), {run.id: run.state for run in runs.ended}


def kept():
    return records_directory().with_name(KEPT)


def test_ended_runs_are_known_from_one_file():
    for first in "abcdefghjk":
        make(f"{first}bcdef", state="COMPLETED")
    make("zbcdef")
    settle()
    before = found()
    opens = OPENS(records_directory().parent)
    after = found()
    opens.folder = None

    assert before == after == (["zbcdef"], {f"{first}bcdef": "COMPLETED" for first in "abcdefghjk"})
    assert opens.listed == []
    assert {os.path.relpath(path, records_directory().parent) for path in opens.opened} == {
        KEPT,
        "runs/zbcdef/exit.json",  # which would say that it has ended
    }


@pytest.mark.parametrize("rest", [False, True], ids=["at once", "after a while"])
def test_runs_that_come_end_and_go_are_seen(rest):
    pause = settle if rest else lambda: None
    assert found() == ([], {})
    record = make("abcdef")
    pause()
    assert found() == (["abcdef"], {})
    record.write_end(End.of(an_ending("abcdef", "FAILED")))
    assert found() == ([], {"abcdef": "FAILED"})
    make("bbcdef")
    assert found() == (["bbcdef"], {"abcdef": "FAILED"})
    pause()
    assert found() == (["bbcdef"], {"abcdef": "FAILED"})
    record.remove()
    assert found() == (["bbcdef"], {})


def test_a_new_record_with_the_id_of_a_removed_one_is_not_taken_for_it():
    record = make("abcdef", state="FAILED")
    settle()
    assert found() == ([], {"abcdef": "FAILED"})
    keeps_the_inode = record.directory.path.with_name("kept")
    record.directory.path.rename(keeps_the_inode)
    make("abcdef")
    assert found() == (["abcdef"], {})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"[]",
        b"{}",
        b'{"version": 2, "changed": 0, "open": ["../../x"], "latest": [0, ""], "crc": 0}\n',
        b'{"version": 3, "changed": 0, "open": [], "latest": [0, ""], "crc": 0}\n',
        b'{"version": 2, "changed": 0, "open": [], "latest": [0, ""], "crc": 0}\n["zzzzzz"]',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_made_again(content):
    make("abcdef", state="FAILED")
    make("bbcdef")
    settle()
    kept().write_bytes(content)
    assert found() == (["bbcdef"], {"abcdef": "FAILED"})
    assert json.loads(kept().read_text().partition("\n")[0])["open"] == ["bbcdef"]


def test_a_torn_or_deleted_file_is_made_again():
    for run in ("abcdef", "bbcdef", "cbcdef"):
        make(run, state="COMPLETED", name="träin")
    settle()
    before = found()
    whole = kept().read_bytes()
    without_a_line = whole[: whole.rindex(b"\n")]
    for torn in (None, whole[:-1], whole.replace(b"bbcdef", b"dbcdef"), without_a_line):
        if torn is None:
            kept().unlink()
        else:
            kept().write_bytes(torn)
        assert found() == before == ([], dict.fromkeys(("abcdef", "bbcdef", "cbcdef"), "COMPLETED"))
        assert kept().read_bytes() == whole


def test_a_record_that_cannot_be_read_is_read_again_each_time():
    record = make("abcdef", state="FAILED")
    whole = record.directory.exit.read_text()
    record.directory.exit.write_text(whole[:20])
    assert found() == (["abcdef"], {})
    record.directory.exit.write_text(whole)
    assert found() == ([], {"abcdef": "FAILED"})


def test_a_home_that_cannot_be_written_loses_only_time(monkeypatch):
    make("abcdef", state="FAILED")

    def refuse(*_, **__):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(index, "write_bytes", refuse)
    assert found() == found() == ([], {"abcdef": "FAILED"})
    assert not kept().exists()


def test_runs_that_have_ended_are_found_as_others_are():
    make("abcdef", state="FAILED", name="old")
    os.utime(index.find("abcdef").record.directory.plan, (1, 1))
    make("abkdef", state="COMPLETED", name="new")
    for _ in range(2):
        assert [index.find(word).record.id for word in ("old", "new", "abk", "last")] == [
            "abcdef",
            "abkdef",
            "abkdef",
            "abkdef",
        ]
    shutil.rmtree(records_directory() / "abkdef")
    assert index.find("last").record.id == "abcdef"
