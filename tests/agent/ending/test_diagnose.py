"""Why a rank ended, by what it said."""

from __future__ import annotations

import pytest

from serried.agent.ending import diagnose


@pytest.mark.parametrize(
    ("exit_", "tail", "cause"),
    [
        ({"exit_code": 1, "signal": None}, ["ModuleNotFoundError: No module named 'x'"], "import-error"),
        ({"exit_code": 1, "signal": None}, ["ImportError: libcudart.so"], "import-error"),
        ({"exit_code": 1, "signal": None}, ["torch.OutOfMemoryError: CUDA out of memory. Tried"], "out-of-memory"),
        ({"exit_code": 1, "signal": None}, ["torch.cuda.OutOfMemoryError: CUDA"], "out-of-memory"),
        ({"exit_code": 1, "signal": None}, ["MemoryError"], "out-of-memory"),
        ({"exit_code": 137, "signal": None}, ["Killed"], "out-of-memory"),
        ({"exit_code": None, "signal": 9, "oom": True}, [], "out-of-memory"),
        ({"exit_code": None, "signal": 9}, [], "signal"),
        ({"exit_code": 1, "signal": None}, ["we handle MemoryError and ImportError here"], "exit"),
        ({"exit_code": 127, "signal": None}, ["/bin/bash: line 1: nosuch: command not found"], "command-not-found"),
        ({"exit_code": 66, "signal": None, "problem": "workdir-missing"}, ["MemoryError"], "workdir-missing"),
    ],
)
def test_the_cause_is_what_the_agent_saw_else_what_the_output_says(exit_, tail, cause):
    assert diagnose.cause(exit_, tail) == cause


@pytest.mark.parametrize(
    ("content", "tail"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"no newline", ["no newline"]),
        (b"50%\r100%\r\nend\r\n", ["100%", "end"]),
        (b"\xff\xfe\n", ["\ufffd\ufffd"]),
        (b"x\n" * 100, ["x"] * 20),
    ],
)
def test_the_tail_of_any_output_can_be_told(tmp_path, content, tail):
    (tmp_path / "log").write_bytes(content)

    assert diagnose.read_tail(tmp_path / "log") == tail
