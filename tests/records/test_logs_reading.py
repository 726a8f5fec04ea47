from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serried.records.logs import Lines, Tail, last_lines, start_of_last_lines
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
