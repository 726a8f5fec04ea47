"""Workers that connect to each other, with sockets that refuse, hang, or lose what is long."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from serried.agent.checks import facts, peers
from serried.agent.checks.facts import PeerFacts, PeerResult
from serried.agent.checks.peers import PeerAddress, PeerServer, PeerTest
from serried.agent.comms.channel import UnprovenConnection

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
LOOPBACK = "127.0.0.1"
HERE = "localhost"
"""Its address is the peers'."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(peers, "TRIES_SECONDS", (0.3, 0.6))


def connect(*targets, node=1, rendezvous=None):
    connections = PeerTest(KEY, node, targets)
    connections.begin(rendezvous)
    assert connections.done.wait(240)
    assert connections.are_named.wait(240)
    return connections.finish()


def server(node, key=KEY):
    return PeerAddress(node, HERE, PeerServer(key, node, 2).port, (LOOPBACK,))


def outcomes(found):
    return [result.outcomes for result in found.results]


@pytest.fixture
def listener():
    """A port where `serve(connection)` answers, in a thread, or nothing at all."""
    with contextlib.ExitStack() as stack:

        def listen(serve=None):
            own = stack.enter_context(socket.create_server((LOOPBACK, 0)))

            def work():
                with contextlib.suppress(OSError):
                    while True:
                        serve(stack.enter_context(own.accept()[0]))

            if serve:
                threading.Thread(target=work, daemon=True).start()
            return PeerAddress(2, HERE, own.getsockname()[1], (LOOPBACK,))

        yield listen


def test_peers_that_answer_have_no_result_and_node_0_gives_the_time(monkeypatch):
    monkeypatch.setattr(peers, "TRIES_SECONDS", (60.0,))
    found = connect(server(0), server(2))
    assert found[:3] == PeerFacts(1, (0, 2))[:3]
    assert abs(found.offset) <= found.trip / 2


def test_a_closed_port_refuses():
    with socket.socket() as bound:
        bound.bind((LOOPBACK, 0))
        target = PeerAddress(2, HERE, bound.getsockname()[1], (LOOPBACK,))
        found = connect(target, rendezvous=(LOOPBACK, target.port))
    assert found.results == (PeerResult(2, {LOOPBACK: facts.REFUSED}),)
    assert found.rendezvous == facts.OK


def test_a_port_that_drops_packets_times_out():
    """As with a firewall: the queue of a listener that accepts nothing is full."""
    own = socket.socket()
    own.bind((LOOPBACK, 0))
    own.listen(0)
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(own.getsockname())
    target = PeerAddress(2, HERE, own.getsockname()[1], (LOOPBACK,))
    found = connect(target, rendezvous=own.getsockname())
    assert (outcomes(found), found.rendezvous) == ([{LOOPBACK: facts.TIMED_OUT}], facts.TIMED_OUT)
    for each in (own, *waiting):
        each.close()


def test_a_program_that_is_not_a_worker_of_this_attempt_is_reported_as_another(listener, monkeypatch):
    monkeypatch.setattr(peers, "TRIES_SECONDS", (60.0,))
    assert outcomes(connect(server(2, OTHER_KEY))) == [{LOOPBACK: facts.OTHER}]
    assert outcomes(connect(server(3)._replace(node=2))) == [{LOOPBACK: facts.OTHER}]
    assert outcomes(connect(listener(lambda connection: connection.sendall(b"SSH-2.0\r\n")))) == [
        {LOOPBACK: facts.OTHER}
    ]


def test_a_listener_that_says_nothing_is_silent(listener):
    assert outcomes(connect(listener())) == [{LOOPBACK: facts.SILENT}]


def deaf_to_long_messages(connection):
    """Answers short messages, and reads no more then."""
    proven, unproven = None, UnprovenConnection(connection, KEY)
    while not proven:
        with contextlib.suppress(BlockingIOError):
            proven = unproven.receive()
    channel, _ = proven
    while not (messages := channel.receive_within(60)):
        assert messages is not None
    channel.send({"node": 2, "clock": 0.0, "length": 0})


@pytest.fixture
def impatient(monkeypatch):
    """With long messages alone, so that a slow machine does not matter."""
    ask = peers._ask
    monkeypatch.setattr(peers, "TRIES_SECONDS", (60.0,))
    monkeypatch.setattr(peers, "_ask", lambda channel, text, seconds: ask(channel, text, 0.3 if text else seconds))


@pytest.mark.usefixtures("impatient")
def test_a_link_that_loses_long_messages_passes_short_ones(listener, monkeypatch):
    monkeypatch.setattr(peers, "BULK_BYTES", 64 << 20)  # more than the kernel takes, as if packets were lost
    assert outcomes(connect(listener(deaf_to_long_messages))) == [{LOOPBACK: facts.NO_BULK}]


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_is_too_slow_to_answer_does_not_blame_the_link(listener):
    assert outcomes(connect(listener(deaf_to_long_messages))) == [{LOOPBACK: facts.SILENT}]


def test_an_address_without_a_route_is_unreachable():
    target = PeerAddress(2, HERE, 9, ("255.255.255.255",))
    assert outcomes(connect(target)) == [{"255.255.255.255": facts.UNREACHABLE}]


def test_a_name_that_leads_elsewhere_is_reported(monkeypatch):
    monkeypatch.setattr(peers, "TRIES_SECONDS", (60.0,))
    strange = server(2)._replace(host="no-such-host.invalid")
    assert connect(strange).results == (PeerResult(2, {LOOPBACK: facts.OK}, ()),)
