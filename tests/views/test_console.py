from __future__ import annotations

import contextlib
import io
import os
import pty
import subprocess
import sys

import pytest

from serried.base.errors import SerriedError
from serried.views import console


def on_a_terminal(program):
    """What a program shows on a terminal of 60 columns."""
    master, slave = pty.openpty()
    variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60", "PYTHONPATH": "src"}
    process = subprocess.Popen([sys.executable, "-c", program], stdin=slave, stdout=slave, stderr=slave, env=variables)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # as the terminal of a process that has ended answers
        while piece := os.read(master, 4096):
            shown += piece
    os.close(master)
    assert process.wait(timeout=120) == 0
    return shown.decode()


def test_an_error_quotes_others_below_and_ends_with_the_hint(capsys):
    console.print_error(
        SerriedError("it broke", details="sbatch: error: no\nsbatch: \x1b[2Jreally", hint="mend it\nor not")
    )
    assert capsys.readouterr().err == (
        "error: it broke\n  | sbatch: error: no\n  | sbatch: \\x1b[2Jreally\n\nhint: mend it\n      or not\n"
    )


def test_talk_goes_to_stderr_and_data_to_stdout(capsys):
    console.warning("careful", hint="look")
    console.note("by the way")
    console.out("data")
    captured = capsys.readouterr()
    assert captured.out == "data\n"
    assert captured.err == "warning: careful\nhint: look\nnote: by the way\n"


def test_next_steps_are_aligned(capsys):
    console.next_steps([("serried ps", "list"), ("serried logs -f k3f9q2", "follow")])
    assert capsys.readouterr().err == "  serried ps               list\n  serried logs -f k3f9q2   follow\n"


def test_colours_follow_the_two_variables(monkeypatch):
    for variables, coloured in (
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, False),
    ):
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            assert (variables, console.style("x", "good") == "\x1b[32mx\x1b[0m") == (variables, coloured)


def test_a_stream_that_knows_ascii_alone_gets_ascii(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    console.out("né")
    stream.flush()
    assert stream.buffer.getvalue() == b"n\\xe9\n"


def test_a_status_line_off_a_terminal_is_silent_and_loads_nothing(capsys):
    with console.status_line("working") as line:
        line.update("more")
    assert capsys.readouterr() == ("", "")


LINE, ONE, WIDE = "\r\x1b[2K", "\r\x1b[2Kone\r\x1b[2K", "x" * 58 + "…"
SCENES = (
    (  # a status line moves, is cut to one line and leaves nothing
        "with console.status_line('word ' * 40) as line:\n    line.update('two')\n    line.update('')",
        f"{LINE}{('word ' * 40)[:58].rstrip()}…{LINE}two{LINE}",
    ),
    (  # lines that are printed meanwhile appear above it
        "with console.status_line('one'):\n    console.say('by the way')\n    console.out('data')",
        f"{ONE}by the way\r\n{ONE}data\r\n{ONE}",
    ),
    (
        "line = console.MovingLine(sys.stdout)\nline.update('x' * 100)\nline.update('short')\nline.clear()",
        f"{LINE}{WIDE}{LINE}short{LINE}",
    ),
    (  # several lines are written over together
        (
            "line = console.MovingLine(sys.stdout)\nline.update('one', 'x' * 100)\nline.update('one', 'x' * 100)\n"
            "line.update('two')\nline.clear()"
        ),
        f"{LINE}one\r\n{WIDE}{LINE}\x1b[A\x1b[2Ktwo{LINE}",
    ),
    ("os.environ['SERRIED_NO_PROGRESS'] = '1'\nwith console.status_line('one'):\n    pass", ""),
    ("del os.environ['SERRIED_NO_PROGRESS']\nwith console.status_line('one'):\n    pass", ONE),
    ("os.environ['TERM'] = 'dumb'\nwith console.status_line('one'):\n    pass", ""),
)


def test_moving_lines_on_a_terminal():
    program = "import os, sys\nfrom serried.views import console\n"
    program += "".join(f"{scene}\nprint('done')\n" for scene, _ in SCENES)
    assert on_a_terminal(program).split("done\r\n") == [*(shown for _, shown in SCENES), ""]


def test_a_table_is_aligned_by_what_is_seen(capsys):
    lines = console.table(("A", "B"), [("漢", "x"), ("abc", console.Cell("y", "good"))])
    assert lines == ["A    B", "漢   x", "abc  y"]
    assert capsys.readouterr() == ("", "")


def test_what_has_no_room_in_a_table_goes_on_in_the_line_below(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [("root", "one two three", "profile `slurm`: as they ask"), ("a", "b", "https://a.example/x")]
    assert console.table(("KEY", "VALUE", "ORIGIN"), rows, shrink=1, whole=True) == [
        "KEY   VALUE         ORIGIN",
        "root  one two       profile",
        "      three         `slurm`:",
        "                    as they",
        "                    ask",
        "a     b             https://a.",
        "                    example/x",
    ]


def test_data_and_remarks_in_one_pipe_keep_their_order():
    program = "from serried.views import console\nconsole.out('data')\nconsole.say('remark')\nconsole.out('more')"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=buffered,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.stdout == "data\nremark\nmore\n"


def test_the_end_of_a_cell_is_kept_longest():
    cell = console.Cell("step 1200/5000 loss 0.31", end="no step for 7m", shorter=("step 1200/5000",))
    assert [cell.fitted(columns) for columns in (60, 30, 22, 18, 10)] == [
        "step 1200/5000 loss 0.31, no step for 7m",
        "step 1200/5000, no step for 7m",
        "step…, no step for 7m",
        "no step for 7m",
        "no step f…",
    ]


def test_a_command_that_waits_for_more_ends_with_the_reader_of_its_output(monkeypatch):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        console.await_more(0)
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            console.await_more(0)
