"""The programs that a launcher starts, between a launcher, here the test, and an agent, here a thread."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading

import pytest

from serried.agent.launchers import local_socket, programs
from serried.agent.launchers.node_side import find_host
from serried.agent.launchers.programs import parse_ssh
from serried.base.channel import Channel
from tables import for_each


class Agent:
    """Answers each rank with `answer`, and keeps the messages."""

    def __init__(self, folder, answer) -> None:
        self.address = "@" + secrets.token_hex(16)
        self.log = folder / "rank.log"
        self.answer = {"do": "run", "environment": {}, "log": str(self.log), "mode": 0o600, **answer}
        self.messages = []
        self.listener = local_socket.listen(self.address)[0]
        self.connections = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            connection, _ = self.listener.accept()
            self.connections.append(connection)
            threading.Thread(target=self._converse, args=[connection], daemon=True).start()

    def _converse(self, connection):
        channel = Channel(connection)
        while (messages := channel.receive()) is not None:
            for message in messages:
                self.messages.append(message)
                if message["event"] == "program-waits":
                    channel.send(self.answer)

    def of(self, event):
        return next((message for message in self.messages if message["event"] == event), None)


@pytest.fixture
def launch(agent_command, tmp_path):
    processes = []

    def start(*program, answer=None, launch="1", added=(), **options):
        agent = Agent(tmp_path, answer or {})
        command = [*agent_command, "rank-through", agent.address, *added, launch, *program]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=tmp_path, **{**pipes, **options})
        processes.append(process)
        return process, agent

    yield start
    for process in processes:
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
        process.kill()
        process.wait()


def test_paths_of_the_first_node_become_those_of_this_node(launch):
    script_has = {"SERRIED_STOP_FILE": "/disk/run.0.1a2b/stop", "SERRIED_DATA_DIR": "/disk/run.0.1a2b/data"}
    answer = {"environment": {name: path.replace("0.1a2b", "1.3c4d") for name, path in script_has.items()}}
    process, _ = launch(
        "sh", "-c", 'echo "$1 $OUT $SERRIED_DATA_DIR"', "x", "--data=/disk/run.0.1a2b/data/a",
        answer=answer, env={**os.environ, **script_has, "OUT": "/disk/run.0.1a2b/results"},
    )  # fmt: skip
    assert (
        process.communicate()[0] == b"--data=/disk/run.1.3c4d/data/a /disk/run.1.3c4d/results /disk/run.1.3c4d/data\n"
    )


def test_output_is_passed_on_and_logged_and_input_arrives(launch, tmp_path, wait_until):
    process, agent = launch("sh", "-c", 'cat; echo "$HERE $SERRIED_LAUNCH" >&2; pwd', answer={
        "environment": {"HERE": "x y"}
    }, env={**os.environ, "SLURM_PROCID": "3", "SECRET": "s"})  # fmt: skip
    output, errors = process.communicate(b"\0\xff\n" * 3)
    assert (output, errors) == (b"\0\xff\n" * 3 + f"{tmp_path}\n".encode(), b"x y 1\n")
    assert process.returncode == 0
    assert sorted(agent.log.read_bytes().splitlines()) == sorted((output + errors).splitlines())
    waits = agent.of("program-waits")
    assert waits["launch"] == "1"
    assert waits["environ"]["SLURM_PROCID"] == "3"
    assert "SECRET" not in waits["environ"]
    wait_until(lambda: agent.of("rank-started"))
    assert agent.of("rank-started")["pid"] > 1


@pytest.mark.parametrize(("code", "status"), [("exit 3", 3), ("kill -TERM $$", -15), ("kill -KILL $$", -9)])
def test_a_rank_ends_as_its_program_did(launch, wait_until, code, status):
    process, agent = launch("sh", "-c", code)
    process.communicate()
    assert process.returncode == status
    wait_until(lambda: agent.of("rank-ended"))
    assert agent.of("rank-ended")["status"] == (status << 8 if status > 0 else -status)


def test_without_an_agent_the_program_runs_alone(agent_command):
    done = subprocess.run([*agent_command, "rank-through", "@none", "1", "sh", "-c", "echo $$ $0; exit 4"],
                          capture_output=True, check=False)  # fmt: skip
    assert (done.returncode, done.stdout.split()[1:]) == (4, [b"sh"])


def test_a_refused_rank_does_not_start(launch):
    process, _ = launch("touch", "never", answer={"do": "refuse", "because": "the attempt is being ended"})
    assert process.communicate() == (b"", b"serried: the attempt is being ended\n")
    assert process.returncode == 70


def test_a_program_that_is_not_there_is_named(launch, wait_until):
    process, agent = launch("./nowhere")
    assert b"cannot run `./nowhere`: No such file or directory\n" in process.communicate()[1]
    assert process.returncode == 127
    wait_until(lambda: agent.of("rank-ended"))
    assert agent.of("rank-ended")["problem"] == ["command", 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_reach_the_program(launch, wait_until, number):
    trap = f'trap "echo got; exit 9" {int(number)}; echo ready; while :; do sleep 0.1; done'
    process, agent = launch("sh", "-c", trap)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.communicate()[0] == b"got\n"
    assert process.returncode == 9
    wait_until(lambda: agent.of("rank-ended"))
    assert agent.of("rank-ended")["signal"] == number


def test_a_program_whose_reader_has_gone_gets_sigpipe(launch):
    process, agent = launch("sh", "-c", "yes; echo $? >&2")
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b"141\n"
    assert process.wait() == 0
    assert agent.log.read_bytes().startswith(b"y\ny\n")


def test_a_program_continues_without_its_agent(launch):
    process, agent = launch("sh", "-c", "echo one; read line; echo $line; exit 5")
    assert process.stdout.readline() == b"one\n"
    agent.connections[0].shutdown(2)
    assert process.communicate(b"two\n")[0] == b"two\n"
    assert process.returncode == 5
    assert agent.log.read_bytes().startswith(b"one\n")


def test_a_background_process_that_keeps_the_output_holds_nobody_up(launch, tmp_path, wait_until):
    held = "until test -e go; do sleep 0.1; done; echo late"
    process, agent = launch("sh", "-c", f"({held}) & echo done; exit 6")
    assert process.wait() == 6
    (tmp_path / "go").touch()
    assert process.stdout.read() == b"done\nlate\n"
    wait_until(lambda: agent.log.read_bytes() == b"done\nlate\n")


def test_a_large_output_arrives_whole(launch):
    line = "x" * 5_000_000
    code = f"import sys; sys.stdout.write('x' * 5_000_000 + chr(10)); sys.stderr.write('{line[:3]}')"
    process, agent = launch(sys.executable, "-c", code)
    assert process.communicate() == (f"{line}\n".encode(), b"xxx")
    assert len(agent.log.read_bytes()) == 5_000_004


def test_an_output_that_another_program_made_non_blocking_arrives_whole():
    """Such as ssh, which shares the output of the script."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    chunks = []

    def read():
        while data := os.read(reader, 65536):
            chunks.append(data)

    consumer = threading.Timer(0.5, read)
    consumer.start()
    try:
        programs._write(writer, b"x" * 1_000_000)
    finally:
        os.close(writer)
        consumer.join()
        os.close(reader)
    assert len(b"".join(chunks)) == 1_000_000


def test_an_added_local_rank_follows_the_script(launch):
    process, agent = launch("echo", "-u", "t.py", "x", launch="2.1@3", added=["--local-rank=1"])
    assert process.communicate()[0] == b"-u t.py --local-rank=1 x\n"
    assert agent.of("program-waits")["launch"] == "2.1"


def test_a_rank_that_the_scheduler_started_is_as_if_the_script_had_started_it(launch, tmp_path):
    output = tmp_path / "script.log"
    output.write_text("before\n")
    of_script = {"LR": "0.1", "HOME": "/other", "PYTHONPATH": "/library:/lib"}
    detached = {"environment": of_script, "bin": "/shims/bin", "output": str(output)}
    here = {"HOME": "/home/ada", "PATH": "/usr/bin:/bin", "PYTHONPATH": "/lib:/own"}
    program = "echo $LR $HOME ${PATH%%:*} $PYTHONPATH; echo error >&2"
    process, agent = launch("sh", "-c", program, launch="1@detached", answer={"detached": detached}, env=here)
    assert process.communicate(timeout=30)[0] in ("", b"")
    assert set(output.read_text().splitlines()) == {"before", "0.1 /home/ada /shims/bin /library:/lib:/own", "error"}
    waiting = agent.of("program-waits")
    assert (waiting["launch"], waiting["is_detached"]) == ("1", True)


@for_each(
    ("words", "host", "command"),
    [
        # As Open MPI, MPICH, Intel MPI, horovodrun and ssh's users write it.
        (["n1", " orted -mca", "ess", "env"], "n1", " orted -mca ess env"),
        (["-x", "n1", '"/opt/hydra_pmi_proxy"', "--rmk", "user"], "n1", '"/opt/hydra_pmi_proxy" --rmk user'),
        (["-q", "-x", "n1", "/opt/bin//hydra_bstrap_proxy", "--upstream-port", "1"], "n1",
         "/opt/bin//hydra_bstrap_proxy --upstream-port 1"),
        (["-o", "PasswordAuthentication=no", "n1", "-p", "22", "-o", "ConnectTimeout=10", "true"], "n1", "true"),
        (["-oBatchMode=yes", "ada@n1", "echo", "$HOME; exit 3"], "n1", "echo $HOME; exit 3"),
        (["n1"], "n1", ""),
    ],
)  # fmt: skip
def test_host_and_command_are_found_among_sshs_options(words, host, command):
    assert parse_ssh(words) == (host, command)


@for_each(
    ("host", "hosts", "index"),
    [
        ("n2", ["n1", "n2"], 1),
        ("n2.cluster.example.org", ["n1", "n2"], 1),
        ("n2", ["n1.cluster", "n2.cluster"], 1),
        ("n2.a", ["n2.a", "n2.b"], 0),
        ("n2", ["n2.a", "n2.b"], None),
        ("n3", ["n1", "n2"], None),
    ],
)
def test_a_node_is_known_by_its_short_name_too_where_that_is_one_nodes_alone(host, hosts, index):
    assert find_host(host, hosts) == index
