"""Ports and addresses."""

from __future__ import annotations

import socket

import pytest

from serried.agent.comms import rendezvous


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
