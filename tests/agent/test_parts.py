"""The agent's small parts, each by itself."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from serried.agent import options
from serried.agent.ending import diagnose
from serried.agent.head import deadline, snapshot
from serried.agent.head.deadline import Deadline
from serried.agent.head.launcher import Launcher
from serried.agent.loop import Loop
from serried.agent.messages import rendezvous
from serried.agent.messages.channel import Channel, Guest, ProtocolError, greet
from serried.agent.ranks import binding, memory

KEY = b"k" * 32


# What a launcher says.


def test_what_a_launcher_announces_is_kept_though_it_says_more_afterwards():
    said = ["slurmstepd: error: *** STEP 5.0 CANCELLED DUE TO JOB REQUEUE ***", *(f"srun: {n}" for n in range(20))]
    program = [sys.executable, "-c", f"import sys; sys.stderr.write({chr(10).join(said)!r})"]
    ended = []
    loop = Loop()
    launcher = Launcher(loop, program, {}, lambda status: (ended.append(status), loop.stop()))
    loop.on_signal(signal.SIGCHLD, launcher.reap)
    launcher.start()
    loop.run()
    assert (ended, launcher.last_lines) == ([0], [said[0], *said[-5:]])


# Why a rank ended.


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


# CPUs.


def test_cpus_are_shared_evenly():
    assert binding.split(range(8), 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert binding.split(range(5), 2) == [[0, 1], [2, 3, 4]]


def test_fewer_cpus_than_ranks_are_not_bound():
    assert binding.split([0, 1], 3) == [[], [], []]


def test_cpus_of_one_memory_and_one_core_stay_together():
    siblings = {f"cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}\n" for cpu in range(8)}
    system = {
        "node/online": "0-1\n",
        "node/node0/cpulist": "0,2,4,6\n",
        "node/node1/cpulist": "1,3,5,7\n",
        "cpu/smt/active": "1\n",
        **siblings,
    }

    assert binding.in_order(range(8), lambda name: system.get(name, "")) == [0, 4, 2, 6, 1, 5, 3, 7]


def test_a_system_that_tells_nothing_leaves_cpus_in_their_order():
    assert binding.in_order([0, 1, 2], lambda _: "") == [0, 1, 2]


# Memory.


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/job_1/step_0\n", "job_1/step_0/memory.events"),
        ("9:cpu:/x\n4:memory:/m\n0::/\n", "memory/m/memory.oom_control"),
    ],
)
def test_the_counter_of_our_own_cgroup_is_found(tmp_path, membership, file):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("low 0\noom_kill 3\n")

    found = memory.find_counter(membership, tmp_path)

    assert (found, memory.parse_kills(found.read_text())) == (tmp_path / file, 3)


def test_where_nobody_counts_nothing_was_killed(tmp_path):
    assert memory.OutOfMemory(str(tmp_path / "none"), tmp_path).has_struck() is False


# Time.


@pytest.mark.parametrize(
    ("limit", "told", "expected"),
    [
        (None, 0, None),
        (3600, 0, Deadline(at=4600, warning=4540, end=4585, grace=10)),
        (100, 0, Deadline(at=1100, warning=1075, end=1095, grace=10 / 3)),
        (3600, 2000, Deadline(at=2000, warning=1940, end=1985, grace=10)),
    ],
)
def test_ranks_are_warned_and_ended_before_the_scheduler_would(limit, told, expected):
    assert deadline.decide(1000, limit, told, lead=60, grace=30) == expected


# Words from job.sh.


def test_job_shs_words_are_read():
    read = options.parse(["tok-1", "--job", "12", "--element", "3", "--hosts", "n[1-2]", "--end", ""])

    assert (read.token, read.job, read.element, read.hosts, read.end) == ("tok-1", "12", 3, "n[1-2]", 0.0)


@pytest.mark.parametrize("words", [["t", "--job"], ["t", "--nonsense", "1"], ["t", "--element", "x"]])
def test_words_that_job_sh_would_not_say_are_refused(words):
    with pytest.raises(ValueError, match=r"no value|no option|invalid literal"):
        options.parse(words)


# The channel.


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


def shake_hands(pair, node_key=KEY):
    """What the head gets from a node that says one thing after the handshake."""

    def node():
        with contextlib.suppress(OSError, ProtocolError):
            greet(pair[1], node_key, {"node": 4}).send({"event": "beat"})

    guest = Guest(pair[0], KEY)
    pair[0].settimeout(10)
    pair[1].settimeout(10)
    thread = threading.Thread(target=node)
    thread.start()
    try:
        answer = guest.receive()
        assert answer is not None
        thread.join()
        return answer
    finally:
        pair[0].shutdown(socket.SHUT_WR)
        thread.join()


def test_a_node_that_knows_the_key_is_heard(pair):
    channel, greeting = shake_hands(pair)

    assert (greeting, channel.receive()) == ({"node": 4}, [{"event": "beat"}])


def test_a_node_with_another_key_is_not(pair):
    with pytest.raises(ProtocolError):
        shake_hands(pair, node_key=b"x" * 32)


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\n", b"\xff" * 4000])
def test_a_strangers_noise_is_no_greeting(pair, noise):
    guest = Guest(pair[0], KEY)
    pair[1].sendall(noise)

    with pytest.raises((ProtocolError, ValueError)):
        guest.receive()


def test_a_line_that_somebody_repeats_is_refused(pair):
    sender, receiver = Channel(pair[0], KEY, "node", "head"), Channel(pair[1], KEY, "head", "node")
    sender.send({"event": "beat"})
    line = pair[1].recv(1000)
    pair[0].send(line + line)

    with pytest.raises(ProtocolError):
        receiver.receive()


def test_a_line_may_arrive_in_pieces(pair):
    sender, receiver = Channel(pair[0], KEY, "node", "head"), Channel(pair[1], KEY, "head", "node")
    sender.send({"event": "beat"})
    line = pair[1].recv(1000)
    pair[0].send(line[:30])
    first = receiver.receive()
    pair[0].send(line[30:])

    assert (first, receiver.receive()) == ([], [{"event": "beat"}])


# Ports.


def test_a_held_port_is_open_to_torch_and_to_nobody_else():
    held = rendezvous.hold_port()
    port = held.getsockname()[1]

    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    with socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", port))
        store.listen()
    held.close()


def test_one_node_needs_no_address_but_the_loopback():
    assert rendezvous.addresses(["n1"], 1) == ["127.0.0.1"]
    assert rendezvous.addresses(["n1", "n2.invalid"], 2)[-1] == "127.0.0.1"


# The snapshot.


def test_a_snapshot_is_unpacked_with_modes_of_the_umask_and_links_made_files(tmp_path):
    def entry(name, **facts):
        member = tarfile.TarInfo(name)
        for fact, value in facts.items():
            setattr(member, fact, value)
        return member

    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        tar.addfile(entry("src", type=tarfile.DIRTYPE, mode=0o777))
        tar.addfile(entry("src/run.sh", size=2, mode=0o755), io.BytesIO(b"hi"))
        tar.addfile(entry("src/same.sh", type=tarfile.LNKTYPE, linkname="src/run.sh", mode=0o644))
        tar.addfile(entry("there", type=tarfile.SYMTYPE, linkname="src/run.sh"))
    before = os.umask(0o077)
    try:
        snapshot.extract(tmp_path / "s.tar", tmp_path / "out")
    finally:
        os.umask(before)

    out = tmp_path / "out"
    modes = {path.name: oct(path.lstat().st_mode & 0o777) for path in (out / "src", *(out / "src").iterdir())}
    assert modes == {"src": "0o700", "run.sh": "0o700", "same.sh": "0o600"}
    assert (out / "src/same.sh").read_text() == "hi"
    assert (out / "src/same.sh").stat().st_ino != (out / "src/run.sh").stat().st_ino
    assert (out / "there").readlink() == Path("src/run.sh")
