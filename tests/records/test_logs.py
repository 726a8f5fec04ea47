"""Logs read while they grow, from their end, and since a time, by the sizes in samples."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.records.logs import Lines, LogTimes, RankLog, Tail, last_lines, start_of_last_lines
from serried.schema.layout import TaskDirectory
from serried.views.text import overwritten

_OUTPUT = st.one_of(st.binary(max_size=20), st.sampled_from((b"\n", b"\r", b"\x1b[A", b"\x1b", b"[A")))


@given(st.lists(_OUTPUT))
def test_lines_do_not_depend_on_how_the_bytes_arrived(pieces):
    whole, piecemeal = Lines(), Lines()
    expected = [*whole.feed(b"".join(pieces)), *whole.finish()]
    assert [line for piece in pieces for line in piecemeal.feed(piece)] + list(piecemeal.finish()) == expected


def test_a_tail_reads_on_from_where_it_stopped(tmp_path):
    path = tmp_path / "rank-0.log"
    tail = Tail(path)
    assert tail.read() == b""
    path.write_bytes(b"one")
    assert tail.read() == b"one"
    assert tail.read() == b""
    path.write_bytes(b"one two")
    assert tail.read() == b" two"


def test_a_file_that_was_cut_is_read_from_its_start(tmp_path):
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"a long beginning")
    tail = Tail(path)
    tail.read()
    path.write_bytes(b"new")
    assert tail.read() == b"new"


def test_a_progress_bar_without_an_end_does_not_grow_in_memory():
    lines = Lines()
    for step in range(3000):
        assert list(lines.feed(f"\r{step} {'#' * 50}".encode())) == []
    assert len(lines.rest) < 70_000
    assert lines.rest.endswith(b"2999 " + b"#" * 50)


def test_bars_of_nested_loops_are_lines_only_when_they_are_left_behind():
    """As tqdm writes them: the inner bar below the outer one, and cleared at its end."""
    lines, shown = Lines(), []
    for epoch in (0, 1):
        shown += lines.feed(f"\repochs {epoch}/2".encode())
        for batch in range(3):
            shown += lines.feed(f"\n\rbatches {batch}/3\x1b[A".encode())
            assert lines.rest.rpartition(b"\r")[2] == f"batches {batch}/3".encode()
        shown += lines.feed(b"\n\r           \r\x1b[A")
        assert lines.rest == f"\repochs {epoch}/2".encode() * (epoch > 0)
    shown += lines.feed(b"\repochs 2/2\ndone\n\nend")
    assert [overwritten(line.decode()) for line in shown] == ["epochs 0/2", "epochs 2/2", "done", ""]
    assert [*lines.finish()] == [b"end"]


def test_rows_that_a_program_erased_are_no_lines():
    lines = Lines()
    assert list(lines.feed(b"\r 50%\r100%\x1b[A\x1b[2K\n")) == []
    assert overwritten(lines.rest.decode()) == "100%"
    assert [*lines.finish()] == [b"\r 50%\r100%"]


def test_rows_that_move_up_forever_do_not_grow_in_memory():
    lines = Lines()
    shown = [line for _ in range(3000) for line in lines.feed(b"\x1b[A\r" + b"#" * 50)]
    assert shown == []
    assert len(lines.rest) < 70_000


def test_the_last_lines_of_a_huge_file_cost_one_window(tmp_path):
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)))
    assert last_lines(path, 2) == ["line 99998", "line 99999"]
    assert last_lines(tmp_path / "none", 2) == []
    path.write_bytes(b"epoch 1\n\r10%\x1b[A\n\r20%\x1b[A\nend\n\r30%\x1b[A")
    assert last_lines(path, 9) == ["epoch 1", "end", "\r30%\x1b[A"]


@given(st.binary(max_size=60).map(lambda text: text.replace(b"0", b"\n")), st.integers(1, 9))
def test_the_last_lines_begin_where_they_do(tmp_path_factory, text, count):
    path = tmp_path_factory.getbasetemp() / "given.log"
    path.write_bytes(text)
    lines = text.removesuffix(b"\n").split(b"\n")
    expected = b"\n".join(lines[-count:]) + (b"\n" if text.endswith(b"\n") else b"")
    assert text[start_of_last_lines(path, count) :] == expected


def test_the_last_lines_of_a_huge_log_are_read_without_the_rest(tmp_path):
    path = tmp_path / "rank-0.log"
    with path.open("wb") as file:
        file.truncate(10 << 30)
        file.seek(0, 2)
        file.write(b"\none\ntwo\n")
    assert start_of_last_lines(path, 2) == path.stat().st_size - len("one\ntwo\n")
    assert start_of_last_lines(path, 5) == path.stat().st_size - (5 << 20)
    assert start_of_last_lines(tmp_path / "none", 2) == 0


T = 1_795_000_000.0


@pytest.fixture
def attempt(tmp_path):
    """A rank that wrote ten bytes every half a minute, for an hour."""
    attempt = TaskDirectory(tmp_path).attempt(1)
    log = attempt.rank_log(0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {at:04}\n" for at in range(120)))
    os.utime(log, (T + 3600, T + 3600))
    lines = [{"t": T, "host": "n1"}]
    lines += [{"t": T + 30 * at, "ranks": {"0": {"log": 10 * at}}} for at in range(1, 121)]
    attempt.samples(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return attempt


def start(attempt, since, rank=0):
    return LogTimes(attempt, since).start(RankLog(rank, 0, attempt.rank_log(0, rank)))


def test_the_output_since_a_time_begins_after_the_sample_before_it(attempt):
    expected = {-100: 0, 0: 0, 30: 10, 59: 10, 60: 20, 1800: 600, 3599: 1190, 3601: 1200}
    assert {after: start(attempt, T + after) for after in expected} == expected


def test_a_line_that_was_being_written_is_printed_from_its_beginning(attempt):
    attempt.samples(0).write_text(json.dumps({"t": T, "ranks": {"0": {"log": 15}}}) + "\n")
    assert start(attempt, T + 1) == 10


def test_torn_and_disordered_samples_cost_some_precision_and_nothing_else(attempt):
    lines = attempt.samples(0).read_bytes().splitlines(keepends=True)
    lines[5:9] = [b'{"t": 1795000000.0, "ra', b"\x00\xff\n", b"[1]\n", b'{"t": "x"}\n']
    attempt.samples(0).write_bytes(b"".join(lines) + b'{"t": 17950')
    assert start(attempt, T + 1800) == 600
    attempt.samples(0).write_bytes(b"".join(reversed(lines)))
    assert 0 <= start(attempt, T + 1800) <= 1200


def test_nothing_is_known_without_samples_or_with_impossible_ones(attempt):
    attempt.samples(0).write_text(json.dumps({"t": T, "ranks": {"0": {"log": 10**9}}}) + "\n")
    assert start(attempt, T + 1) is None
    attempt.samples(0).write_text(json.dumps({"t": T, "ranks": {"0": {"step": 3}}}) + "\n")
    assert start(attempt, T + 1) is None
    attempt.samples(0).unlink()
    assert start(attempt, T + 1) is None
    assert start(attempt, T + 3601) == 1200  # the file is older
    assert start(attempt, T, rank=5) == 0  # there is no log yet


def test_of_ranks_that_share_a_log_one_that_still_runs_is_enough(attempt):
    log = RankLog(8, 1, attempt.shared_log(1), ranks=8)
    log.path.parent.mkdir()
    log.path.write_text("line 0000\n" * 100)
    os.utime(log.path, (T + 3600, T + 3600))
    attempt.samples(1).write_text(json.dumps({"t": T, "ranks": {"9": {"log": 500}}}) + "\n")
    assert LogTimes(attempt, T + 1).start(log) == 500
