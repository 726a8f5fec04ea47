"""Journals, the reserve on a full disk, and the new lines of a file that grows."""

from __future__ import annotations

import errno
import os

import pytest

from serried.base import files
from serried.base.files import TailReader


def test_lines_that_are_no_objects_are_skipped(tmp_path):
    journal = tmp_path / "events.jsonl"
    lines = [b'{"t": 1}', b"[2]", b"\xff", b"[" * 100_000, b"", b'{"t": 3}', b'{"t": 4']
    journal.write_bytes(b"\n".join(lines))
    assert files.read_journal(journal) == [{"t": 1}, {"t": 3}]
    assert files.read_journal(tmp_path / "gone") == []


@pytest.mark.parametrize(
    ("number", "is_kept"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EIO, True), (errno.ESTALE, True)]
)
def test_only_a_full_disk_takes_the_reserve(tmp_path, number, is_kept):
    reserve = tmp_path / "reserve"
    files.write_reserve(reserve)
    files.give_back(reserve, OSError(number, "as the kernel says"))
    assert reserve.exists() is is_kept


def test_lines_come_once_and_whole(tmp_path):
    path = tmp_path / "log"
    tail = TailReader(path, 1000)
    assert tail.lines() == []
    path.write_bytes(b"one\ntwo\r\nthr")
    assert tail.lines() == [b"one", b"two", b""]
    with path.open("ab") as file:
        file.write(b"ee\n\xff\0\n")
    assert tail.lines() == [b"three", b"\xff\0"]
    assert tail.lines() == []


def test_of_much_text_only_the_end_is_read(tmp_path):
    path = tmp_path / "log"
    tail = TailReader(path, 10)
    path.write_bytes(b"0123456789\nabc\nde\n")
    assert tail.lines() == [b"abc", b"de"]
    with path.open("ab") as file:
        file.write(b"x" * 50)
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"yy\nlast\n")
    assert tail.lines()[-1] == b"last"


def test_a_file_that_was_cut_or_replaced_begins_again(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    tail = TailReader(path, 1000)
    assert tail.lines() == [b"one", b"two"]
    os.truncate(path, 0)
    path.write_bytes(b"three\n")
    assert tail.lines() == [b"three"]
    (tmp_path / "other").write_bytes(b"a longer line\n")
    (tmp_path / "other").replace(path)
    assert tail.lines() == [b"a longer line"]
    path.unlink()
    assert tail.lines() == []


def test_what_is_not_a_file_has_no_lines(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert TailReader(tmp_path / "pipe", 10).lines() == []
    assert TailReader(tmp_path, 10).lines() == []
