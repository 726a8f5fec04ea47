from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.base import frames
from serried.base.frames import FrameWire, Malformed, RemoteFrame


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
