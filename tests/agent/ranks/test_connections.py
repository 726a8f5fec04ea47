"""Whether ranks are in contact with one another, by the connections of real processes."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from serried.agent.ranks import connections
from serried.agent.ranks.connections import ConnectionMonitor

LISTEN = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
ACCEPT = LISTEN + "c, _ = s.accept(); print('accepted', flush=True); c.recv(1)"
CONNECT = "import socket, sys; s = socket.create_connection(('127.0.0.1', {port})); print('in', flush=True); s.recv(1)"
ALONE = (
    LISTEN + "a = socket.create_connection(s.getsockname()); b, _ = s.accept(); print('in', flush=True); input()"
)  # as a program does with a helper of its own
IN_A_SHELL = ["/bin/sh", "-c", '"$@"; exit', "sh"]


@pytest.fixture
def start():
    started = []

    def start(code, *, words=()):
        """A program, and the first line that it prints."""
        pipe = subprocess.PIPE
        argv = [*words, sys.executable, "-c", code]
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, process_group=0)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def port():
    """Nobody else's, held as the head holds it: bound, without listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield held.getsockname()[1]


def seen(port, *processes):
    contact = ConnectionMonitor(port, lambda: [process.pid for process in processes], holds_port=True)
    contact.look()
    return contact.is_seen


@pytest.mark.parametrize("words", [(), IN_A_SHELL], ids=["itself", "by a process that it started"])
def test_ranks_that_are_connected_by_a_port_of_their_own_are_in_contact(start, port, words):
    server, chosen = start(ACCEPT, words=words)
    other, _ = start(LISTEN + "input()")
    assert seen(port, server, other) is False
    client, _ = start(CONNECT.format(port=chosen), words=words)
    assert server.stdout.readline().strip() == "accepted"
    assert seen(port, server, client) is True


def test_a_rank_of_another_node_on_the_same_machine_is_another_rank(start, port):
    server, chosen = start(ACCEPT)
    start(CONNECT.format(port=chosen))
    assert server.stdout.readline().strip() == "accepted"
    assert seen(port, server) is True


def test_a_rank_that_is_connected_to_itself_has_met_nobody(start, port):
    process, _ = start(ALONE)
    assert process.stdout.readline().strip() == "in"
    assert seen(port, process) is False


def listen(port):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def test_whoever_serves_the_rendezvous_port_may_meet_others_there(port):
    contact = ConnectionMonitor(port, list, holds_port=True)
    contact.check()
    assert contact.is_seen is False
    with listen(port):
        contact.check()
    assert contact.is_seen is True


def meet_and_end(port):
    """Two ends of a connection, of which the kernel keeps an entry for a minute (TIME_WAIT)."""
    with listen(port) as server:
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        client.close()
        accepted.close()


def test_ranks_that_have_met_and_ended_between_two_looks_have_left_a_trace(port):
    contact = ConnectionMonitor(port, list, holds_port=True)
    meet_and_end(port)
    contact.check()
    assert contact.is_seen is True


def test_on_other_nodes_a_program_may_have_a_port_of_that_number(port):
    contact = ConnectionMonitor(port, list, holds_port=False)
    with listen(port):
        contact.check()
    assert contact.is_seen is False
    meet_and_end(port)
    contact.check()
    assert contact.is_seen is True


def test_where_connections_cannot_be_listed_nothing_is_claimed(monkeypatch, tmp_path):
    monkeypatch.setattr("serried.base.linux.PROC", str(tmp_path))
    contact = ConnectionMonitor(1, list, holds_port=True)
    contact.look()
    assert contact.is_seen is None


@pytest.mark.parametrize(
    ("used", "expected"),
    [(0.0, [1.0] * 8), (0.005, [1.0, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0]), (0.05, [1.0, 1, 2, 4, 8, 16, 32, 50])],
)
def test_a_node_where_a_check_is_expensive_is_checked_less_often_as_its_ranks_grow_older(
    port, monkeypatch, used, expected
):
    """Ranks that have connected and soon end are found there too."""
    pauses, later = [], []
    loop = SimpleNamespace(after=lambda seconds, call: (pauses.append(seconds), later.append(call)))
    process_time = itertools.cycle((0.0, used)).__next__
    monkeypatch.setattr(connections, "time", SimpleNamespace(process_time=process_time, monotonic=lambda: sum(pauses)))
    contact = ConnectionMonitor(port, lambda: [os.getpid()], holds_port=True)
    monkeypatch.setattr(contact, "look", lambda: None)
    contact.begin(loop, lambda *_, **__: None)
    while len(pauses) < len(expected):
        later[-1]()

    assert pauses == pytest.approx(expected)
