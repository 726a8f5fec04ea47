"""`serried tunnel` to a run on this machine and on Slurm."""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest

from place import Place
from serried.base import frames
from serried.base.errors import SerriedError
from serried.cli.tunnel import TunnelListener
from tunnelled import SERVER, OpenTunnel, content, digest, digest_through, memory, received

SIZE = ("--ranks", "1", "--cpus", "1", "--mem", "200M", "--time", "5m")


@pytest.fixture
def begin(wait_until):
    """Start a run with a server, which ends with the test. Returns the run and the server's port."""
    runs = []

    def begin(place: Place, *options: str, port: int = 0) -> tuple[str, int]:
        (place.project / "server.py").write_text(SERVER)
        run = place.submit(*SIZE, *options, "--", sys.executable, "server.py", str(port))
        runs.append((place, run))
        wait_until(lambda: "port" in place.log(run))
        return run, int(place.log(run).split()[1])

    yield begin
    for place, run in runs:
        place.serried("stop", "-y", "--now", run)


@pytest.fixture
def tunnel():
    opened = []

    def tunnel(place: Place, *arguments: str) -> OpenTunnel:
        opened.append(OpenTunnel(*arguments, directory=place.project, environ=place.environ))
        return opened[-1]

    yield tunnel
    for each in opened:
        each.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_connections_reach_the_server_of_a_run_and_the_tunnel_ends_with_the_run(place: Place, begin, tunnel):
    run, port = begin(place)
    through = tunnel(place, run, f"0:{port}")
    assert (through.facts["run"], through.facts["port"]) == (run, port)
    large = content(100_000_000)
    with through.connect() as idle, through.connect() as stopped:
        stopped.sendall(b"send 200000000\n")  # and it reads nothing
        assert digest_through(through, large) == digest(large)
        with through.connect() as other:
            other.sendall(b"send 5000000\n")
            assert received(other) == b"0123456789" * 500_000
        idle.sendall(b"send 1000\n")
        assert received(idle) == b"0123456789" * 100
    assert memory(through.process.pid) < 150_000_000
    place.serried("stop", "-y", run)
    assert through.end() == 0
    assert through.said.endswith(f"closed the tunnel: run `{run}` has ended, CANCELLED\n")


def test_a_server_may_start_after_the_tunnel(place: Place, begin, tunnel, wait_until):
    run, _ = begin(place)
    port = free_port()
    through = tunnel(place, run, f"0:{port}")
    with pytest.raises(ConnectionResetError):
        digest_through(through, b"x")
    wait_until(
        lambda: f": port {port} of {through.facts['host']}: nothing listens there; the tunnel stays" in through.said
    )
    with socket.create_server(("127.0.0.1", port)) as late, through.connect() as connection:
        accepted, _ = late.accept()
        with accepted:
            accepted.sendall(b"now")
            accepted.shutdown(socket.SHUT_WR)
            assert received(connection) == b"now"
            connection.sendall(b"and back")  # after the end of file from there
            connection.shutdown(socket.SHUT_WR)
            assert received(accepted) == b"and back"
    through.process.send_signal(signal.SIGINT)
    assert through.end() == 130
    assert place.show(run)["state"] == "RUNNING"


def test_a_port_that_is_taken_here_and_a_run_that_has_ended_are_errors(local: Place):
    run = local.submit(*SIZE, "--", "true")
    local.wait(run)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = local.serried("tunnel", run, str(port))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"error: cannot listen on port {port} of this machine: address already in use\n\n"
            "hint: choose another one, as in `9000:PORT`, or `0:PORT` for any free one\n"
        )
    done = local.serried("tunnel", run, "0:80")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: run `{run}` has ended: it is COMPLETED")
    for option in ("--node", "--rank"):
        done = local.serried("tunnel", run, "80", option, "9")
        assert (done.returncode, done.stderr) == (2, f"error: run `{run}` has no {option[2:]} 9\n")
    array = local.submit(*SIZE, "--array", "0-1", "--", "true")
    assert local.serried("tunnel", array, "9:80").stderr.endswith(f"hint: serried tunnel {array}/0 9:80\n")
    for wrong in ("x", "80:", "1:2:3", "70000", "0", "8888:0"):
        done = local.serried("tunnel", run, wrong)
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: cannot read `{wrong}` as a port")


FACTS = {"run": "k3f9q2", "host": "gpu03", "port": 8888, "seconds_left": 30}


def carry(listener: TunnelListener, *arrived: bytes) -> None:
    """Have the listener carry what one end of a tunnel sends, which ends then."""
    (reads, writes), (unread, taken) = os.pipe(), os.pipe()
    os.write(writes, b"".join(arrived))
    os.close(writes)
    try:
        listener.carry(reads, taken)
    finally:
        for descriptor in (reads, unread, taken):
            os.close(descriptor)


def ready(**facts: object) -> bytes:
    return frames.encode_json(0, frames.OUTPUT, {**FACTS, **facts}) + frames.encode(0, frames.OUTPUT, b"{}")


def test_a_notebook_that_starts_again_has_another_address_and_the_limit_is_announced(capsys):
    listener = TunnelListener(0)
    with listener.socket:
        for token in ("one", "one", "two"):
            carry(listener, ready(token=token))
    printed = capsys.readouterr()
    assert [line.partition("token=")[2] for line in printed.out.splitlines()] == ["one", "two"]
    assert printed.err.count("leads to port 8888 of gpu03, until k3f9q2 ends; Ctrl-C closes it\n") == 3
    assert printed.err.count("warning: k3f9q2 ends in ") == 3


@pytest.mark.parametrize(
    "arrived",
    [
        frames.encode(0, frames.OUTPUT, b"[1]"),
        frames.encode(0, frames.OUTPUT, b"{}"),
        frames.encode(0, frames.EXIT, b"7"),
        frames.encode(0, frames.SIGNAL),
        frames.encode(9, frames.EXIT, b'{"errno": "errorcode"}'),
        ready(seconds_left="x"),
    ],
)
def test_what_no_tunnel_sends_is_an_error(arrived: bytes):
    listener = TunnelListener(0)
    with listener.socket, pytest.raises(SerriedError) as error:
        carry(listener, arrived)
    assert error.value.message == "the other end of the tunnel sent something else"


def test_the_tunnel_waits_for_its_run_and_follows_it_into_its_next_attempt(place: Place, tunnel, wait_until):
    port = free_port()
    first = place.submit(*SIZE, "--", "sleep", "1")
    (place.project / "server.py").write_text(SERVER)
    more = ("--restarts", "1", "--set", "limit.continue=successor", "--after", first)
    run = place.submit(*SIZE, *more, "--", sys.executable, "server.py", str(port))
    through = tunnel(place, run, f"0:{port}")
    wait_until(lambda: "port" in place.log(run))
    assert digest_through(through, b"one") == digest(b"one")
    place.ask_to_save(run)
    wait_until(lambda: "port" in place.log(run, attempt=2))
    wait_until(lambda: through.said.count("leads to port") == 2)
    assert digest_through(through, b"two") == digest(b"two")
    place.serried("stop", "-y", run)
    assert through.end() == 0
