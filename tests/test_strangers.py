"""Whatever a stranger sends to a socket of Serried costs the stranger's connection and nothing else."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from building import A_SCRIPT, a_plan
from serried.agent.attempt import Attempt
from serried.agent.comms import rendezvous
from serried.agent.comms.channel import ProtocolError, SignedChannel, UnprovenConnection
from serried.agent.comms.node_registry import NodeRegistry
from serried.agent.launchers import local_socket, programs
from serried.agent.launchers.script import ScriptNode
from serried.agent.loop import Loop
from serried.agent.stage_in.relay import DataServer, Wire
from serried.schema.layout import RunDirectory
from waiting import until

HERE = "127.0.0.1"
KEY = b"k" * 32
SECONDS = 120.0
FLOOD = 1000
"""More than any socket keeps open."""
KEPT = 300
"""Connections of the flood that stay open at its end."""


class Door(NamedTuple):
    """A listening socket."""

    connect: Callable[[], socket.socket]
    serve: Callable[[], None]
    """Raises unless one who may be there is served."""
    unproven: Callable[[], int]
    """How many connections of strangers are open."""
    most: int


def _tcp(port: int) -> Callable[[], socket.socket]:
    return partial(socket.create_connection, (HERE, port), SECONDS)


def _end(loop: Loop, thread: threading.Thread, door: Door) -> None:
    """Which is still at work, whatever has come."""
    assert thread.is_alive()
    loop.stop()
    door.connect().close()
    thread.join(SECONDS)
    for key in list(loop._selector.get_map().values()):
        key.fileobj.close()


@contextlib.contextmanager
def head() -> Iterator[Door]:
    loop, joined = Loop(), []
    registry = NodeRegistry(loop, 100, ["n1"], SimpleNamespace(on_joined=joined.append, on_node_lost=lambda *_: None))
    numbers = iter(range(100))
    address = registry.addresses().rpartition(",")[2]
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()

    def serve() -> None:
        number = next(numbers)
        rendezvous.connect(address, registry.key, {"node": number, "host": "n"}, SECONDS)[0].close()
        until(lambda: number in [agent.index for agent in joined])

    most = 100 + rendezvous.MOST_UNPROVEN
    door = Door(_tcp(int(address.rpartition(":")[2])), serve, lambda: len(registry._acceptor), most)
    yield door
    _end(loop, thread, door)


@contextlib.contextmanager
def data_server() -> Iterator[Door]:
    refused = []
    server = DataServer(HERE, KEY, [], lambda *told: refused.append(told))

    def serve() -> None:
        channel = rendezvous.connect(f"{HERE}:{server.port}", KEY, {"stage": 1}, SECONDS)[0]
        Wire(channel).close()

    yield Door(_tcp(server.port), serve, lambda: len(server._acceptor), rendezvous.MOST_UNPROVEN)
    server.close()
    assert len(refused) <= 10  # so many are logged


@contextlib.contextmanager
def launchers_socket(folder: Path) -> Iterator[Door]:
    """The agent's, for the programs of a launcher."""
    plan = a_plan(script=A_SCRIPT, root=folder)
    work = Attempt(RunDirectory(folder / "k3f9q2"), plan, None, 1)
    place = {"master": HERE, "port": 4242, "deadline": 0.0, "stop_file": "/t/stop"}
    address = local_socket.socket_address(os.urandom(16), folder)
    loop = Loop()
    node = ScriptNode(work, 0, place, SimpleNamespace(loop=loop, log_event=lambda *_, **__: None), rank_socket=address)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()

    def connect() -> socket.socket:
        connection = local_socket.connect(address).connection
        connection.settimeout(SECONDS)
        return connection

    def serve() -> None:
        rank = local_socket.LocalSocket(connect())
        rank.send({"event": "program-waits", "environ": {}, "launch": "1", "is_detached": False})
        answers = rank.receive_within(60)
        assert [answer["do"] for answer in answers] == ["run"]
        rank.connection.close()

    door = Door(connect, serve, lambda: len(node._connections), FLOOD)
    yield door
    _end(loop, thread, door)


@contextlib.contextmanager
def page() -> Iterator[Door]:
    """That of `serried watch --web`."""
    from serried.views.web.app import application
    from serried.views.web.runs import Runs

    runs = Runs()
    runs.start()
    with _served(application(runs, "t" * 32), "/") as door:
        yield door
    runs.close()


def tensorboard() -> contextlib.AbstractContextManager[Door]:
    """Any application behind the guard of `serried track tensorboard`."""
    from serried.views.web import server

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        assert environ["PATH_INFO"].startswith(f"/{'t' * 32}/")
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"curves"]

    return _served(server.below_token(application, "serried track tensorboard", "t" * 32), f"/{'t' * 32}/")


@contextlib.contextmanager
def _served(guarded: Any, path: str) -> Iterator[Door]:
    from serried.cli import web_page
    from serried.views.web import server

    listener, served = web_page.loopback_listener("page", 0), server.server(guarded)
    thread = threading.Thread(target=served.run, kwargs={"sockets": [listener]})
    thread.start()
    until(lambda: served.started)
    port = listener.getsockname()[1]
    serve = partial(_until_answered, port, "GET", path, 200)
    yield Door(_tcp(port), serve, lambda: len(served.server_state.connections), server.MOST_CONNECTIONS)
    served.should_exit = True
    thread.join(SECONDS)
    listener.close()


def _until_answered(port: int, method: str, path: str, status: int, body: bytes | None = None) -> None:
    """A connection during a flood may be ended as any other; a browser asks again."""

    def answers() -> bool:
        connection = http.client.HTTPConnection(HERE, port, timeout=SECONDS)
        try:
            connection.request(method, path, body, {"Host": HERE})
            return connection.getresponse().status == status
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    until(answers)


DOORS = {
    "head": lambda _: head(),
    "data server": lambda _: data_server(),
    "launchers' socket": launchers_socket,
    "page": lambda _: page(),
    "TensorBoard": lambda _: tensorboard(),
}


def words(random: Random) -> Iterator[bytes]:
    """What a stranger sends."""
    signature = b"0" * 64
    yield b""
    yield b"\n"
    yield "\u00e9 n {}\n".encode()
    yield b"\xff\xfe\x00 n {}\n"
    yield signature + b" n {}\n"
    yield signature + " \u00e9 {}\n".encode()
    yield signature + b" " + b"n" * 32 + b' {"node": 0, "host": "x"}'  # half a line
    yield b" " * 200 + b"\n" * 200
    yield b"\0" * 5000
    yield b"x" * 2_000_000
    yield b"[" * 100_000 + b"\n"
    yield b"{}\n[]\n0\nnull\n"
    yield b'{"do": "leave"}\n'
    yield b'{"event": "rank-ended"}\n{"event": "program-waits", "environ": 3}\n'
    yield b"GET / HTTP/1.1\r\n\r\n"
    yield b"PUT /global/0 HTTP/1.1\r\nContent-Length: 999999999999999\r\n\r\n"
    yield b"PUT /global/0 HTTP/1.1\r\nContent-Length: -1\r\n\r\n"
    yield "PUT /global/0 HTTP/1.1\r\nContent-Length: \u0663\r\n\r\n".encode()
    yield b"GET /\xc3\xa9\xff HTTP/9.9\r\nHost: [\r\n\r\n"
    yield b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000
    for length in (1, 2, 7, 64, 100, 1000, 3071, 3072, 3073, 70_000):
        yield random.randbytes(length)
        yield random.randbytes(length).replace(b"\n", b"") + b"\n"


@pytest.fixture(params=DOORS)
def door(request, tmp_path):
    with DOORS[request.param](tmp_path) as door:
        yield door


def test_any_bytes_cost_no_more_than_the_connection(door):
    with contextlib.ExitStack() as opened:
        for word in words(Random(1)):
            for leaves in (False, True):
                stranger = opened.enter_context(door.connect())
                with contextlib.suppress(OSError):  # it has been closed
                    stranger.sendall(word)
                if leaves:
                    stranger.close()
        door.serve()
    door.serve()


def test_a_flood_of_connections_is_bounded_and_keeps_no_other_out(door):
    with contextlib.ExitStack() as opened:
        open_ = []
        for number in range(FLOOD):
            with contextlib.suppress(ConnectionError):
                open_.append(opened.enter_context(door.connect()))
            if len(open_) > KEPT:
                open_.pop(0).close()
            if number % 100 == 0:
                until(lambda: door.unproven() <= door.most)
        door.serve()
        until(lambda: door.unproven() <= door.most)
    door.serve()


def test_a_greeting_that_a_stranger_has_seen_serves_nobody_else():
    """Neither to the head again nor to another head of the same key."""
    ours, theirs = socket.socketpair()
    recorded = []
    unproven = UnprovenConnection(ours, KEY)
    theirs.settimeout(SECONDS)
    node = threading.Thread(target=lambda: recorded.append(rendezvous.greet(theirs, KEY, {"node": 0}, SECONDS)))
    node.start()
    ours.setblocking(True)
    greeting = ours.recv(4096, socket.MSG_PEEK)
    assert unproven.receive() is not None
    node.join(SECONDS)

    again, stranger = socket.socketpair()
    once_more = UnprovenConnection(again, KEY)
    stranger.sendall(greeting)
    with pytest.raises(ProtocolError, match="wrong signature"):
        once_more.receive()
    for end in (ours, theirs, again, stranger):
        end.close()


def test_a_false_head_costs_a_node_no_more_than_the_connection(monkeypatch):
    """The node goes on to the next address; what a false server says there is of any kind."""
    monkeypatch.setattr(rendezvous, "PROOF_SECONDS", 0.5)
    nonce = b"0" * 32 + b"\n"
    said = [*words(Random(2)), *(nonce + word for word in words(Random(3))), nonce + "\u00e9\n".encode(), None]
    with head() as door, socket.create_server((HERE, 0), backlog=128) as liar:

        def lie() -> None:
            for word in said:
                connection = liar.accept()[0]
                with connection, contextlib.suppress(OSError):
                    connection.sendall(word or b"\xff" * 40)
                    connection.settimeout(0.2)
                    while connection.recv(4096):
                        pass

        thread = threading.Thread(target=lie, daemon=True)
        thread.start()
        for _ in said:
            connection = socket.create_connection(liar.getsockname(), SECONDS)
            with pytest.raises((OSError, ProtocolError)), connection:
                rendezvous.greet(connection, KEY, {"node": 0}, SECONDS)
        thread.join(SECONDS)
        door.serve()


def test_a_changed_line_ends_the_connection():
    ours, theirs = socket.socketpair()
    channel = SignedChannel(ours, KEY, "head", "node")
    for line in (b"\xff\n", "\u00e9 {}\n".encode(), b"\n", b" \n"):
        theirs.sendall(line)
        assert channel.receive() is None
    ours.close()
    theirs.close()


def test_a_false_agent_is_no_more_than_an_absent_one(monkeypatch, capfd):
    """A program of a launcher that meets lines which are no messages ends as where the agent is gone."""
    for word in words(Random(4)):
        ours, theirs = socket.socketpair()
        monkeypatch.setattr(programs.local_socket, "connect", lambda _, ours=ours: local_socket.LocalSocket(ours))
        sender = threading.Thread(target=_say, args=(theirs, word), daemon=True)
        sender.start()
        assert programs.ssh(["@x", "host", "true"]) == programs.SSH_FAILED
        ours.close()
        sender.join(SECONDS)
    assert capfd.readouterr().err == ""


def _say(connection: socket.socket, word: bytes) -> None:
    with connection, contextlib.suppress(OSError):
        connection.sendall(word)
