"""Two labs never get the same ports."""

from __future__ import annotations

import socket

from serried.lab.lab import PORTS_OF_A_LAB, claim_ports


def test_two_that_start_at_once_get_different_blocks():
    with claim_ports(10) as first, claim_ports(10) as second:
        assert abs(first - second) >= PORTS_OF_A_LAB


def test_a_block_in_which_somebody_listens_is_passed_over():
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with claim_ports(10) as port:
            stranger.bind(("127.0.0.1", port + 3))
            stranger.listen()
        with claim_ports(10) as other:
            assert other != port


def test_the_ports_are_free_to_use_for_slurms_daemons():
    with claim_ports(2) as port, socket.socket() as daemon:
        daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        daemon.bind(("", port))
        daemon.listen()
