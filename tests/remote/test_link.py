"""Connections to real login nodes."""

from __future__ import annotations

import pytest
from sshd import SECOND_FACTOR

from serried.base.errors import NotConnected
from serried.remote import link


def said(channel: link.Link) -> str:
    """All that a command prints."""
    channel.stdin.close()
    try:
        return channel.stdout.read().decode()
    finally:
        channel.kill()


def test_keys_connect_once_for_many_commands(make_sshd):
    far = make_sshd()
    assert [said(link.connect("fir", "fir", f"echo {number}; uname -n")) for number in range(3)] == [
        f"{number}\nfir-login1\n" for number in range(3)
    ]
    assert far.connections == 1
    login = link.last_login("fir")
    assert (login.mode, login.is_batch, login.node) == ("master", True, "fir-login1")


def test_a_second_factor_is_left_to_the_user(make_sshd):
    far = make_sshd(**SECOND_FACTOR)
    with pytest.raises(NotConnected) as error:
        link.connect("fir", "fir", "true")
    assert (error.value.message, error.value.hint, error.value.exit_code) == (
        "`fir` asks for a password or a second factor",
        "serried login fir",
        4,
    )
    with pytest.raises(NotConnected) as error:
        link.connect("fir", "fir", "true")
    assert (error.value.message, error.value.hint) == ("not connected to `fir`", "serried login fir")
    assert far.connections == 1
