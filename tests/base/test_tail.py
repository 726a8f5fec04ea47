"""The new lines of a file that grows."""

from __future__ import annotations

import os

from serried.base.files import TailReader


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
