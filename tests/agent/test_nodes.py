"""Several nodes, pretended on one machine by a launcher that starts several node agents."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from serried.base import processes
from serried.schema.plan import Environment, Source
from serried.submission import script

PYTHON = sys.executable
PATIENT = {"head.head.LEAVE_SECONDS": 120.0, "head.head.OBEY_SECONDS": 120.0}


def test_every_rank_knows_its_place_but_not_the_key(start):
    place = "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK"
    run = start(f"echo {place}; env | grep -e ^SERRIED_KEY= -e ^SERRIED_HEAD=; true", nodes=3, ranks=2)

    assert run.wait() == 0
    places = [run.output(rank, rank // 2).strip() for rank in range(6)]
    assert places == ["0 0 6 2 0 0", "1 1 6 2 0 0", "2 0 6 2 1 1", "3 1 6 2 1 1", "4 0 6 2 2 2", "5 1 6 2 2 2"]
    assert run.exit["nodes"] == ["fake1", "fake2", "fake3"]


def test_a_failure_on_one_node_ends_the_others_and_names_rank_and_node(start, marked_processes):
    run = start("test $RANK = 3 && exit 9; sleep 100", nodes=3, ranks=2)

    assert run.wait() == 9
    assert run.ending == ("FAILED", 9, "exit", "rank 3 on fake2 exited with status 9")
    assert marked_processes(run.mark) == []


def test_a_killed_agent_ends_the_ranks_on_all_nodes_and_leaves_no_file_there(
    start, wait_until, marked_processes, tmp_path
):
    run = start("(setsid sleep 476 &); sleep 100", nodes=3, ranks=1, seconds=PATIENT)
    wait_until(lambda: len(run.events("started")) == 3)

    os.kill(run.pid_of("node", FAKE_NODE="1"), signal.SIGKILL)

    assert run.wait() == 137
    assert run.ending == ("FAILED", 137, "agent-killed", "the agent on fake2 was killed")
    assert marked_processes(run.mark) == []
    assert "Traceback" not in run.log
    wait_until(lambda: list(tmp_path.glob("serried-*/*")) == [])


def test_an_agent_that_dies_before_it_calls_is_named_and_is_no_cancellation(make_run, start):
    """Its launcher then ends the other agent by TERM, as a scheduler does that cancels the job."""
    dies = """
        if [ "$FAKE_NODE" = 1 ]; then
          until grep -q '"connected"' "$SERRIED_RUN_DIR/attempts/1/events.jsonl"; do sleep 0.05; done
          kill -9 $$
        fi
    """
    run = start(None, plan=with_setup(make_run, dies))

    assert run.wait() == 70
    assert run.ending[:3] == ("LAUNCH_FAILED", 70, "launch")
    assert run.ending[3].startswith("no agent answered from fake2")


def with_setup(make_run, lines, **options):
    plan = make_run("true", nodes=2, ranks=1, environment=Environment(setup=lines), **options)
    (Path(plan.directory) / "setup.sh").write_text(script.render_setup(plan))
    return plan


def test_setup_without_its_folder_ends_the_launch(make_run, start, tmp_path):
    source = Source(directory=str(tmp_path / "project"), workdir="no such", snapshot=False)

    run = start(None, plan=with_setup(make_run, "true", source=source))

    assert run.wait() == 70
    assert run.ending[:3] == ("LAUNCH_FAILED", 70, "launch")
    said = f": `setup` cannot enter the working directory `{tmp_path}/project/no such`: no such file or directory"
    assert run.ending[3].endswith(said)


def test_a_snapshot_that_cannot_be_unpacked_starts_no_agents_for_setup(make_run, start, tmp_path):
    source = Source(directory=str(tmp_path / "project"), archive="no-such.tar")

    run = start(None, plan=with_setup(make_run, "touch began", source=source))

    assert run.wait() == 70
    assert run.ending[:3] == ("LAUNCH_FAILED", 70, "launch")
    assert run.ending[3].startswith("cannot unpack the snapshot: ")
    assert run.events("connected") == []


def test_an_agent_that_freezes_does_not_hold_up_the_end(start, wait_until):
    run = start("sleep 100", nodes=2, ranks=1)
    wait_until(lambda: len(run.events("started")) == 2)
    victim = processes.identify(run.pid_of("node", FAKE_NODE="1"))

    victim.send(signal.SIGSTOP)
    try:
        run.process.terminate()
        assert run.wait() == 143
    finally:
        victim.send(signal.SIGKILL)


def test_an_agent_whose_launcher_dies_says_so_and_the_node_is_lost(start, wait_until, marked_processes):
    run = start("sleep 100", nodes=2, ranks=1, seconds=PATIENT)
    wait_until(lambda: len(run.events("started")) == 2)

    os.kill(run.pid_of("node", "2"), signal.SIGKILL)

    assert run.wait() == 71
    assert run.ending[:3] == ("NODE_FAIL", 71, "node-lost")
    assert marked_processes(run.mark) == []


class Wire:
    """Between the head and its node agents: relays what they say, and can break one node's connection."""

    def __init__(self, head: Callable[[], tuple[str, int]]) -> None:
        self._head = head
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._sockets[0].getsockname()[1]
        self._of_node: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self, node: int) -> None:
        _shut(self._of_node[node])

    def close(self) -> None:
        for each in self._sockets:
            _shut(each)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        self._threads.append(threading.Thread(target=work, args=args))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                agent = self._sockets[0].accept()[0]
                self._sockets.append(agent)
                head = socket.create_connection(self._head())
                self._sockets.append(head)
                self._start(self._relay_greeting, agent, head)
                self._start(self._relay, head, agent)

    def _relay_greeting(self, agent: socket.socket, head: socket.socket) -> None:
        """It says which node the agent is on."""
        said = b""
        with contextlib.suppress(OSError):
            found = None
            while not found and (data := agent.recv(65536)):
                said += data
                found = re.search(rb'"node": ?(\d+)[^\d]', said)
                if found:  # noted before the head hears of it, so that whoever sees the node can cut it off
                    self._of_node[int(found[1])] = agent
                head.sendall(data)
        self._relay(agent, head)

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            _shut(end)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # somebody else was quicker
        end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def launch_after(tmp_path, fake_script):
    """Puts a few lines of shell before the launcher."""

    def install(lines):
        wrapper = tmp_path / "wrapper"
        wrapper.write_text(f'#!/bin/sh\n{lines}\nexec "$@"\n')
        wrapper.chmod(0o700)
        usual = fake_script.words
        fake_script.words = lambda plan: (str(wrapper), *usual(plan))

    return install


@pytest.fixture
def wire(launch_after, tmp_path):
    """Between a run's head and its agents."""
    told = tmp_path / "head"

    def head() -> tuple[str, int]:
        host, port = told.read_text().strip().split(",")[0].rsplit(":", 1)
        return host, int(port)

    made = Wire(head)
    launch_after(f"echo $SERRIED_HEAD >{told}; export SERRIED_HEAD=127.0.0.1:{made.port}")
    yield made
    made.close()


def test_a_broken_connection_is_no_killed_agent(start, wait_until, marked_processes, wire):
    run = start("(setsid sleep 477 &); sleep 100", nodes=3, ranks=1, seconds=PATIENT)
    wait_until(lambda: len(run.events("started")) == 3)

    wire.cut(1)

    assert run.wait() == 71
    assert run.ending == ("NODE_FAIL", 71, "node-lost", "the connection to the agent on fake2 broke")
    assert marked_processes(run.mark) == []


def test_a_launcher_that_fails_at_first_is_tried_again(start, launch_after):
    launch_after('if mkdir "$0.tried" 2>/dev/null; then echo away >&2; exit 1; fi')

    run = start("true", nodes=2, ranks=1)

    assert run.wait() == 0
    assert [(event["status"], event["said"]) for event in run.events("launcher-exit")] == [(1, ["away"]), (0, ["away"])]


def test_a_source_that_cannot_be_unpacked_is_a_failed_launch(start, tmp_path):
    archive = tmp_path / "broken.tar"
    archive.write_bytes(b"no tar")
    run = start("true", source=Source(directory=str(tmp_path), archive=str(archive)))

    assert run.wait() == 70
    assert run.ending[:3] == ("LAUNCH_FAILED", 70, "launch")
    assert str(archive) in run.ending[3]


REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank())])
dist.all_reduce(value)
print(int(value), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_torch_meets_by_what_it_finds_in_its_environment(start, torch_python, tmp_path):
    (tmp_path / "reduce.py").write_text(REDUCE)
    run = start([*torch_python, str(tmp_path / "reduce.py")], nodes=2, ranks=2)

    assert run.wait() == 0
    assert [run.output(rank, rank // 2) for rank in range(4)] == ["6\n"] * 4


def test_two_jobs_on_one_node_do_not_meet(start):
    listen = (
        "import os, socket; s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(('', int(os.environ['MASTER_PORT'])))"
    )
    runs = [start([PYTHON, "-c", f"{listen}; s.listen(); print(1)"], ranks=1) for _ in range(6)]

    assert [run.wait() for run in runs] == [0] * 6


def test_a_strangers_call_changes_nothing(start, wait_until, launch_after, tmp_path):
    launch_after(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
    run = start("true", nodes=2, ranks=1)
    head = wait_until(lambda: run.pid_of("head"))
    port = wait_until(lambda: _listening_port(head))

    with socket.create_connection(("127.0.0.1", port), 120) as stranger:
        stranger.sendall(b"0" * 64 + b' nonce {"node": 0, "host": "evil"}\n')
        stranger.settimeout(120)
        while stranger.recv(100):
            pass
    (tmp_path / "go").touch()

    assert run.wait() == 0
    assert run.exit["nodes"] == ["fake1", "fake2"]


def _listening_port(pid):
    sockets = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            return int(fields[1].partition(":")[2], 16)
    return None
