"""Why a rank ended, by what it said."""

from __future__ import annotations

import pytest

from serried.agent.outcome import diagnose
from serried.schema.exits import Exit
from tables import for_each


def of(code, signal, **more):
    return Exit(0, 0, code, signal, 1.0, False, **more)


@for_each(
    ("exit_", "tail", "cause"),
    [
        (of(1, None), ["ModuleNotFoundError: No module named 'x'"], "import-error"),
        (of(1, None), ["ImportError: libcudart.so"], "import-error"),
        (of(1, None), ["torch.OutOfMemoryError: CUDA out of memory. Tried"], "out-of-memory"),
        (of(1, None), ["torch.AcceleratorError: CUDA error: out of memory"], "out-of-memory"),
        (of(1, None), ["MemoryError"], "out-of-memory"),
        (of(137, None), ["Killed"], "out-of-memory"),
        (of(137, None, spared=True), ["Killed"], "exit"),
        (of(137, None, oom=True), [], "out-of-memory"),
        (of(None, 9, oom=True), [], "out-of-memory"),
        (of(None, 9), [], "signal"),
        (of(1, None), ["we handle MemoryError and ImportError here"], "exit"),
        (of(1, None, stumbled=True), ["RuntimeError: [/gloo/pair.cc:1] x"], "peer-lost"),
        (of(None, 6, stumbled=True), [], "peer-lost"),
        (of(1, None, stumbled=True), ["torch.OutOfMemoryError: CUDA"], "out-of-memory"),
        (of(127, None), ["/bin/bash: line 1: nosuch: command not found"], "command-not-found"),
        (of(66, None, problem="workdir-missing"), ["MemoryError"], "workdir-missing"),
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


def test_a_rank_that_lost_another_is_known_though_the_stacks_of_its_threads_follow(tmp_path):
    log = tmp_path / "log"
    stacks = "".join(f'  File "x.py", line {number} in wait\n' for number in range(60))
    log.write_text(f"[rank0]: torch.distributed.DistNetworkError: Broken pipe\nFatal Python error: Aborted\n{stacks}")
    assert diagnose.has_stumbled(log)
    log.write_text("torch.distributed.DistNetworkError is what one may expect\nValueError: bad batch\n")
    assert not diagnose.has_stumbled(log)


RESET = """\
Traceback (most recent call last):
  File "data.py", line 8, in fetch
    raise ConnectionResetError
ConnectionResetError: [Errno 104] Connection reset by peer
"""
BAD = RESET.replace("ConnectionResetError: [Errno 104] Connection reset by peer", "ValueError: bad batch")
OWN = RESET.replace("ConnectionResetError: [Errno 104] Connection reset by peer", "__main__.Stopped")
NCCL = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 9, in <module>
[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, remote process exited
[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank0]: Last error:
"""


@pytest.mark.parametrize(
    ("text", "stumbled"),
    [
        (f"{RESET}try again\nepoch 2\n{BAD}", False),
        ("ConnectionResetError: try again\nValueError: bad batch\n", False),
        (f"{RESET}try again\nepoch 2\n{OWN}", False),
        (f"{NCCL}\n{BAD}", False),
        (f"{BAD}skipped\n{RESET}", True),
        (NCCL, True),
        (f"{NCCL}Exception ignored in: <function Loader.__del__ at 0x7f>\n{BAD}", True),
        (f"{NCCL}Exception in thread Thread-3:\n{BAD}frame #21: main\n", True),
        (f"Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError: [Errno 32]\n{BAD}", False),
    ],
)
def test_the_last_exception_that_nobody_has_caught_tells_whether_a_rank_lost_another(tmp_path, text, stumbled):
    (tmp_path / "log").write_text(text)
    assert diagnose.has_stumbled(tmp_path / "log") is stumbled
