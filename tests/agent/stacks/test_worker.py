"""The stacks of real processes, which run on afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from serried.agent.stacks import worker
from serried.agent.stacks.flight_recorder import GroupState, RankReport
from serried.base import linux
from serried.base.startup import SIGNAL
from serried.submission import script

HANGS = """
import os, sys, threading
def inner():
    print("ready", flush=True)
    os.close(2)
    threading.Event().wait()
def outer():
    inner()
outer()
"""
FORKS = """
import os, time
child = os.fork()
if child == 0:
    def in_the_child():
        time.sleep(1000)
    in_the_child()
print(child, flush=True)
time.sleep(1000)
"""
LIMIT = 1 << 16


@pytest.fixture
def begin(tmp_path):
    """Start a Python program as a rank starts; return the process after its first line of output."""
    (tmp_path / "library.zip").write_bytes(script.library().read())
    (tmp_path / "node").mkdir()
    started = []

    def begin(program, *options, python=(sys.executable,), **variables):
        environment = {
            **os.environ,
            "PYTHONPATH": str(tmp_path / "library.zip"),
            "PYTHONFAULTHANDLER": "1",
            "SERRIED_STOP_FILE": str(tmp_path / "node" / "stop"),
            **variables,
        }
        process = subprocess.Popen(
            [*python, *options, "-c", program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        process.first = process.stdout.readline().strip()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """Without py-spy, on a machine as slow as it likes."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 100.0)


def functions(described, thread=0):
    return [name for _, _, name in described["threads"][thread]["frames"]]


def test_a_rank_with_a_closed_stderr_gives_its_stack_and_runs_on(begin, tmp_path, wait_until):
    rank = begin(HANGS)
    stack = ["wait", "wait", "inner", "outer", "<module>"]
    wait_until(lambda: functions(worker.describe(rank.pid, LIMIT)) == stack)
    for _ in range(3):
        described = worker.describe(rank.pid, LIMIT)
        assert (described["method"], functions(described)) == ("handler", stack)
    assert rank.poll() is None
    assert list((tmp_path / "node").iterdir()) == []


RECORDS = """
import os, pickle, threading
prefix = os.environ["PREFIX"]
os.mkfifo(f"{prefix}3.pipe")
pipe = os.open(f"{prefix}3.pipe", os.O_RDONLY | os.O_NONBLOCK)
def watch():
    while not (os.read(pipe, 128)):
        threading.Event().wait(0.05)
    entry = {"process_group": ("0", "default_pg"), "collective_seq_id": 7, "profiling_name": "nccl:all_reduce",
             "state": "started", "retired": False, "is_p2p": False, "frames": []}
    record = {"pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0, 3]"}}, "entries": [entry]}
    with open(f"{prefix}3", "wb") as file:
        file.write(pickle.dumps(record, protocol=2))
threading.Thread(target=watch, daemon=True).start()
print(flush=True)
threading.Event().wait()
"""


def test_a_rank_that_hangs_is_looked_at_again_and_asked_for_its_record(begin, tmp_path, monkeypatch):
    """The rank answers as torch does: to bytes in its pipe, by a thread."""
    monkeypatch.setattr(worker, "PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(worker, "RECORD_SECONDS", 100.0)
    (tmp_path / "train.py").write_text(RECORDS)
    prefix = str(tmp_path / "node" / "record-")
    rank = begin("import train", PREFIX=prefix)
    leaders = [{"rank": 3, "pid": rank.pid, "launch": None}]
    asked_at = time.time()
    worker.ask_for_records(prefix, leaders)

    reports = worker.look_again(worker.read_ranks(leaders), leaders, prefix, asked_at)

    groups = (GroupState("0", "0,3", 7, 7, "all_reduce"),)
    line = len(RECORDS.splitlines())
    assert reports == [RankReport(3, f"train.py:{line}", "<module>", groups=groups)]


def test_a_forked_process_gives_its_own_stack(begin):
    parent = begin(FORKS)
    child = int(parent.first)
    try:
        (found,) = worker.read_ranks([{"rank": 0, "pid": parent.pid, "launch": None}])
        stacks = [functions(described) for described in found["processes"]]
        assert stacks == [["<module>"], ["in_the_child", "<module>"]]
        # Ranks of a script are not described as the script.
        leaders = [{"rank": -1, "pid": parent.pid, "launch": None}, {"rank": 0, "pid": child, "launch": "1"}]
        found = worker.read_ranks(leaders)
        assert [[described["pid"] for described in one["processes"]] for one in found] == [[parent.pid], [child]]
        assert linux.parent(child) == parent.pid
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("program", "options", "variables"),
    [
        (HANGS, ["-I"], {}),
        (HANGS, ["-E"], {}),
        (HANGS, [], {"PYTHONFAULTHANDLER": ""}),
        (HANGS, [], {"SERRIED_STOP_FILE": ""}),
        ("import os, time; os.closerange(3, 99); print(flush=True); time.sleep(1000)", [], {}),  # the file is closed
        (f"import signal, time; signal.signal({SIGNAL}, signal.SIG_DFL); print(flush=True); time.sleep(1000)", [], {}),
    ],
)
def test_a_python_without_the_handler_gets_no_signal(begin, program, options, variables):
    rank = begin(program, *options, **variables)
    described = worker.describe(rank.pid, LIMIT)
    assert (described["method"], described["problems"]) == (None, ["no-handler", "no-py-spy"])
    assert described["state"] in "SRD"
    assert rank.poll() is None


def test_a_handler_of_the_programs_own_gets_the_signal_and_nothing_else_happens(begin):
    own = f"signal.signal({SIGNAL}, lambda *_: print('its own', flush=True))"
    rank = begin(f"import signal, time; {own}; print(flush=True); time.sleep(1000)")
    assert worker.describe(rank.pid, LIMIT)["problems"] == ["not-answered", "no-py-spy"]
    assert rank.stdout.readline() == "its own\n"
    assert rank.poll() is None


def test_a_process_that_executes_another_program_as_the_signal_comes_survives(tmp_path):
    (tmp_path / "stacks").touch()
    other = subprocess.Popen(["/bin/sh", "-c", "read line; exit 7"], stdin=subprocess.PIPE)
    assert worker._dump(other.pid, str(tmp_path / "stacks"), LIMIT) == ""
    other.communicate(b"\n")
    assert other.returncode == 7


def test_a_program_that_is_not_python_is_described_by_the_kernel(begin):
    rank = begin("echo; exec /bin/sleep 1000", python=("/bin/sh",))
    described = worker.describe(rank.pid, LIMIT)
    assert (described["method"], described["problems"], described["threads"]) == (None, ["not-python"], [])
    assert rank.poll() is None


def test_behind_a_shell_the_program_itself_is_described(begin):
    program = f"'{sys.executable}' -c 'print(flush=True); input()'; true"
    shell = begin(program, python=("/bin/sh",))
    (found,) = worker.read_ranks([{"rank": 5, "pid": shell.pid, "launch": None}])
    assert (found["rank"], [functions(described) for described in found["processes"]]) == (5, [["<module>"]])


def test_a_stopped_process_does_not_answer_and_survives(begin, wait_until):
    rank = begin(HANGS)
    os.kill(rank.pid, signal.SIGSTOP)
    wait_until(lambda: linux.stat(rank.pid)[0] == "T")
    described = worker.describe(rank.pid, LIMIT)
    assert (described["problems"], described["state"]) == (["not-answered", "no-py-spy"], "T")
    os.kill(rank.pid, signal.SIGCONT)
    assert functions(worker.describe(rank.pid, LIMIT))[-2:] == ["outer", "<module>"]


def test_a_process_in_a_system_call_that_no_signal_interrupts_survives(begin, monkeypatch, tmp_path, wait_until):
    os.mkfifo(tmp_path / "fifo")
    opens = '[(os.POSIX_SPAWN_OPEN, 1, "fifo", os.O_WRONLY, 0)]'  # the child blocks, and the kernel stops its parent
    rank = begin(
        f"import os; print(flush=True); os.posix_spawn('/bin/true', ['true'], {{}}, file_actions={opens})\n"
        "def after(): print('went on', flush=True); input()\nafter()"
    )
    wait_until(lambda: linux.stat(rank.pid)[0] == "D" and linux.descendants(rank.pid))
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 0.05)
    described = worker.describe(rank.pid, LIMIT)
    assert (described["problems"], described["state"]) == (["not-answered", "no-py-spy"], "D")
    (tmp_path / "fifo").open("rb").close()
    assert rank.stdout.readline() == "went on\n"
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 100.0)
    wait_until(lambda: functions(worker.describe(rank.pid, LIMIT)) == ["after", "<module>"])


def test_a_process_that_does_not_handle_the_signal_in_time_survives(begin, monkeypatch):
    rank = begin(f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [{SIGNAL}]); {HANGS.strip()}")
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 0.05)
    assert worker.describe(rank.pid, LIMIT)["problems"] == ["not-answered", "no-py-spy"]
    assert rank.poll() is None


def test_a_process_that_has_ended_is_reported_as_such():
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    assert worker.describe(ended.pid, LIMIT)["problems"] == ["not-readable"]


def test_py_spy_of_the_programs_own_environment_is_used_where_there_is_no_handler(begin, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    frame = {"name": "step", "filename": "/p/train.py", "line": 41}
    threads = [
        {"os_thread_id": 1, "thread_name": "loader", "frames": []},
        {"os_thread_id": "PID", "thread_name": "MainThread", "frames": [frame]},
    ]
    dump = json.dumps(threads).replace('"PID"', "$4").replace('"', '\\"')
    (tools / "py-spy").write_text(f'#!/bin/sh\n[ "$1 $2 $3" = \'dump --json --pid\' ] && echo "{dump}"\n')
    (tools / "py-spy").chmod(0o755)
    rank = begin(HANGS, "-I", PATH=f"{tools}:/bin")
    described = worker.describe(rank.pid, LIMIT)
    assert (described["method"], described["problems"]) == ("py-spy", ["no-handler"])
    assert [thread["name"] for thread in described["threads"]] == ["MainThread", "loader"]
    (tools / "py-spy").write_text("#!/bin/sh\nexit 1\n")
    assert worker.describe(rank.pid, LIMIT)["problems"] == ["no-handler", "py-spy-failed"]


def test_a_dump_longer_than_the_limit_keeps_the_main_thread(begin):
    one = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    many = f"import threading, time\nfor _ in range(90): {one}\n"
    rank = begin(f"{many}def the_main_thread():\n    print(flush=True)\n    time.sleep(1000)\nthe_main_thread()")
    described = worker.describe(rank.pid, 1000)
    assert functions(described) == ["the_main_thread", "<module>"]
    assert len(described["threads"]) < 10
