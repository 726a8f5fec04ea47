"""Horovod's ranks meet at a store of ours: what they put, ask for, and leave behind."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def ask() -> Iterator[Callable[..., tuple[int, bytes]]]:
    """`ask("PUT", "global", "0", b"…")` of a store for two nodes with two ranks each."""
    listener = socket.create_server(("127.0.0.1", 0))
    code = "from serried.agent.ranks import horovod_rendezvous; horovod_rendezvous.main(['2', '2', '10.0.0.1'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=listener, env={"PYTHONPATH": str(SOURCE)})
    port = listener.getsockname()[1]
    listener.close()

    def ask(method: str, scope: str, key: str, value: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request(method, f"/{scope}/{key}", value)
        answer = connection.getresponse()
        told = answer.status, answer.read()
        connection.close()
        return told

    yield ask
    process.kill()
    process.wait()


def test_what_one_rank_puts_the_others_get(ask):
    binary = bytes(range(256))
    assert ask("GET", "global", "0") == (404, b"")
    assert ask("PUT", "global", "0", binary) == (200, b"")
    assert ask("GET", "global", "0") == (200, binary)
    assert ask("GET", "cross_0", "0") == (404, b"")


@pytest.mark.parametrize(("scope", "size"), [("global", 4), ("local_node-1", 2), ("cross_1", 2)])
def test_a_scope_is_emptied_when_all_have_left_it_and_can_be_met_in_again(ask, scope, size):
    for _ in range(2):
        for rank in range(size):
            ask("PUT", scope, str(rank), b"here")
        for rank in range(size):
            assert ask("GET", scope, "0") == (200, b"here")
            ask("DELETE", scope, str(rank))
        assert ask("GET", scope, "0") == (404, b"")


def test_of_another_scope_a_rank_takes_only_its_own_key(ask):
    ask("PUT", "set_7", "0", b"a")
    ask("PUT", "set_7", "1", b"b")
    ask("DELETE", "set_7", "1")
    assert (ask("GET", "set_7", "0"), ask("GET", "set_7", "1")) == ((200, b"a"), (404, b""))
