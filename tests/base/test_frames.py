from __future__ import annotations

import contextlib
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.base import frames
from serried.base.frames import FrameWire, Malformed, RemoteFrame, TunnelEnd


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(frames.REQUEST, frames.EXIT), st.binary(max_size=300))),
    st.integers(1, 50),
)
def test_frames_arrive_whole_however_the_bytes_are_cut(sent, piece):
    data = b"".join(frames.encode(*each) for each in sent)
    received, arrived = bytearray(), []
    for at in range(0, len(data), piece):
        received += data[at : at + piece]
        arrived += frames.decode(received)
    assert arrived == [RemoteFrame(*each) for each in sent]


@given(st.binary(min_size=frames.HEADER.size))
def test_bytes_that_are_no_frame_are_malformed_or_wait_for_more(data):
    try:
        decoded = frames.decode(bytearray(data))
    except Malformed:
        return
    assert all(frames.REQUEST <= frame.kind <= frames.EXIT for frame in decoded)


def test_a_long_stream_is_several_frames():
    data = frames.encode(3, frames.OUTPUT, b"x" * (frames.LONGEST + 1))
    assert [len(frame.payload) for frame in frames.decode(bytearray(data))] == [frames.LONGEST, 1]


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_request_that_is_no_object_is_malformed(payload):
    with pytest.raises(Malformed):
        RemoteFrame(1, frames.REQUEST, payload).json()


def test_a_wire_ends_after_what_is_not_a_frame():
    reads, writes = os.pipe()
    wire = FrameWire(reads, os.dup(writes))
    os.write(writes, frames.encode(1, frames.INPUT, b"y"))
    assert (wire.receive(), wire.has_ended) == ([RemoteFrame(1, frames.INPUT, b"y")], False)
    os.write(writes, b"\xff" * 40)
    assert (wire.receive(), wire.has_ended) == ([], True)


@pytest.fixture
def tunnel():
    """Both ends of a tunnel to a server that listens, as (steps of both, an end, the server)."""
    pipes = [*os.pipe(), *os.pipe()]
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = TunnelEnd(FrameWire(pipes[2], pipes[1]))
        far = TunnelEnd(FrameWire(pipes[0], pipes[3]), lambda: iter([(socket.AF_INET, server.getsockname())]))

        def steps(count=20):
            for end in [near, far] * count:
                end.step((), 0)

        yield steps, near, server
    near.close()
    far.close()
    for descriptor in pipes:
        os.close(descriptor)


def begin(near, channel):
    ours, carried = socket.socketpair()
    near.add(channel, carried)
    near.send(channel, frames.REQUEST, b"{}")
    return ours


def test_each_direction_of_a_connection_through_a_tunnel_ends_by_itself(tunnel):
    steps, near, server = tunnel
    with begin(near, 1) as client:
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        steps()
        accepted, _ = server.accept()
        with accepted:
            assert [accepted.recv(99), accepted.recv(99)] == [b"question", b""]
            accepted.sendall(b"answer")
        steps()
        assert [client.recv(99), client.recv(99), near.connections] == [b"answer", b"", {}]


def test_a_reader_that_stops_holds_a_window_and_delays_no_other_connection(tunnel):
    steps, near, server = tunnel
    with begin(near, 1) as stopped, begin(near, 2) as other:
        steps()
        floods, _ = server.accept()
        talks, _ = server.accept()
        with floods, talks:
            floods.setblocking(False)
            for _ in range(300):
                with contextlib.suppress(BlockingIOError):
                    floods.send(bytes(1 << 16))
                steps(1)
            assert len(near.connections[1].backlog) <= frames.WINDOW_BYTES
            talks.sendall(b"still here")
            steps()
            assert other.recv(99) == b"still here"
        assert stopped.recv(1) == bytes(1)


def test_an_end_that_sends_more_than_it_was_granted_fills_no_memory(tunnel):
    _steps, near, _server = tunnel
    ours, carried = socket.socketpair()
    near.add(1, carried)
    with ours, pytest.raises(Malformed):
        near._handle(RemoteFrame(1, frames.INPUT, bytes(frames.WINDOW_BYTES + 1)))
