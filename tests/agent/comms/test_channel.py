"""One connection between a node and the head."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

import pytest

from serried.agent.comms.channel import ProtocolError, SignedChannel, UnprovenConnection, greet

KEY = b"k" * 32


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
            greet(pair[1], node_key, {"node": 4}, 120).send({"event": "beat"})

    guest = UnprovenConnection(pair[0], KEY)
    pair[0].settimeout(120)
    pair[1].settimeout(120)
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


def test_only_a_node_that_knows_the_key_is_heard(pair):
    channel, greeting = shake_hands(pair)
    assert (greeting, channel.receive()) == ({"node": 4}, [{"event": "beat"}])


def test_a_node_with_another_key_is_refused(pair):
    with pytest.raises(ProtocolError):
        shake_hands(pair, node_key=b"x" * 32)


def test_a_head_that_is_slow_to_answer_a_greeting_keeps_the_node_that_it_has_counted_in(pair):
    guest, channels = UnprovenConnection(pair[0], KEY), []
    pair[1].settimeout(0.2)
    node = threading.Thread(target=lambda: channels.append(greet(pair[1], KEY, {"node": 4}, 120)))
    node.start()
    select.select([pair[0]], [], [])
    node.join(1)

    answer = guest.receive()
    node.join()

    assert answer is not None
    assert [channel.key for channel in channels] == [answer[0].key]


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\n", b"\xff" * 4000])
def test_a_strangers_noise_is_no_greeting(pair, noise):
    guest = UnprovenConnection(pair[0], KEY)
    pair[1].sendall(noise)

    with pytest.raises((ProtocolError, ValueError)):
        guest.receive()


def test_a_line_may_arrive_in_pieces_but_not_twice(pair):
    sender, receiver = SignedChannel(pair[0], KEY, "node", "head"), SignedChannel(pair[1], KEY, "head", "node")
    sender.send({"event": "beat"})
    line = pair[1].recv(1000)
    pair[0].send(line[:30])
    assert receiver.receive() == []
    pair[0].send(line[30:])
    assert receiver.receive() == [{"event": "beat"}]
    pair[0].send(line)
    assert receiver.receive() is None
