"""The protocol between a node and the next: complete, authenticated, and robust against any bytes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from between import Between
from serried.agent.comms.channel import LONGEST_GREETING, UnprovenConnection
from serried.agent.stage_in import relay, worker
from serried.agent.stage_in.head_side import HEAD_ADDRESS, peer_host, predecessors
from serried.agent.stage_in.items import (
    Availability,
    ExtentLog,
    RestartedError,
    StagedItem,
    TreeWriter,
    UnavailableError,
)
from serried.agent.stage_in.node_side import serving_interface
from serried.agent.stage_in.relay import DataServer, FrameKind, Part, PeerLostError, Predecessor, Wire
from serried.base.manifest import Manifest, scan
from trees import MIB, is_same, plant

ONE_NODE = Path(__file__).with_name("one_node.py")
KEY = b"of this attempt".ljust(32)
HERE = "127.0.0.1"


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("source") / "there", files=100, large=12)


@pytest.fixture
def serve():
    """`serve(holdings)` gives its port; what it refuses is in `serve.refused`."""

    def start(*holdings: Availability) -> int:
        start.items = [StagedItem("", "") for _ in holdings]
        for item, holding in zip(start.items, holdings, strict=True):
            item.availability = holding
        servers.append(DataServer(HERE, KEY, start.items, lambda *told: start.refused.append(told)))
        return servers[-1].port

    servers = []
    start.refused = []
    yield start
    for server in servers:
        server.close()


@pytest.fixture
def call(monkeypatch):
    """`call(port)`: a node that calls the one before it, however slow both are."""
    monkeypatch.setattr(relay, "CALL_SECONDS", 120.0)
    monkeypatch.setattr(relay, "GREETING_SECONDS", 600.0)

    def begin(port: int, key: bytes = KEY, **options) -> Predecessor:
        predecessors.append(Predecessor((HERE, port), key, 1, **options))
        return predecessors[-1]

    predecessors = []
    yield begin
    for predecessor in predecessors:
        predecessor.close()


def held(there: Path) -> Availability:
    """What is here for long."""
    holding = Availability()
    holding.set_complete(ExtentLog.complete(scan(there), os.fsencode(there)))
    return holding


def begun(predecessor: Predecessor, item: int, here: Path) -> TreeWriter:
    """What is about to receive the files of an item."""
    manifest = predecessor.manifest(item, predecessor.item_key(item), Availability())
    return TreeWriter(os.fsencode(here), Manifest.from_bytes(manifest))


def pulled(predecessor: Predecessor, item: int, here: Path) -> Path:
    target = begun(predecessor, item, here)
    predecessor.receive_into(target)
    target.finish()
    return here


def test_items_are_received_in_turn_and_cached_ones_are_skipped(there, tmp_path, serve, call):
    (tmp_path / "file").write_bytes(b"x" * (3 * MIB))
    (tmp_path / "none").write_bytes(b"")
    (tmp_path / "nothing").mkdir()
    items = [there, tmp_path / "file", tmp_path / "none", tmp_path / "nothing"]
    predecessor = call(serve(*map(held, items)))
    assert predecessor.item_key(0) == scan(there).key
    for number, item in enumerate(items[1:], 1):
        assert scan(pulled(predecessor, number, tmp_path / f"{number}")).key == scan(item).key
    assert is_same(pulled(predecessor, 0, tmp_path / "0"), there)


def test_a_restarted_item_is_restarted_by_the_next_node(there, tmp_path, serve, call):
    holding = Availability()
    target = TreeWriter(os.fsencode(tmp_path / "before"), scan(there))
    holding.set_complete(target.extents)
    predecessor = call(serve(holding))
    here = begun(predecessor, 0, tmp_path / "here")

    def restart() -> None:
        serve.items[0].restart()
        serve.items[0].availability.set_complete(held(there).extents)

    threading.Timer(0.05, restart).start()
    with pytest.raises(RestartedError):
        predecessor.receive_into(here)
    assert is_same(pulled(predecessor, 0, tmp_path / "again"), there)


def test_a_node_that_cannot_have_the_item_says_so(serve, call):
    holding = Availability()
    holding.fail(UnavailableError("No space left on device"))
    with pytest.raises(PeerLostError, match="No space left on device"):
        call(serve(holding)).item_key(0)


def test_a_silent_node_is_given_up(serve, call):
    port = serve(Availability())  # of which nothing comes, and no word for as long as WORD_SECONDS
    with pytest.raises(PeerLostError, match="fell silent"):
        call(port, silence=0.2).item_key(0)


def test_a_node_with_nothing_to_send_sends_keepalives(there, tmp_path, serve, call, monkeypatch):
    monkeypatch.setattr(relay, "KEEPALIVE_SECONDS", 0.05)
    holding = Availability()
    receive, words = Wire.receive, []

    def counted(line: Wire) -> relay.Frame:
        frame = receive(line)
        if frame.kind == FrameKind.WAIT:
            words.append(frame)
            if len(words) == 3:
                holding.set_complete(held(there).extents)
        return frame

    monkeypatch.setattr(Wire, "receive", counted)
    assert is_same(pulled(call(serve(holding)), 0, tmp_path / "here"), there)
    assert len(words) >= 3


def test_strangers_are_refused_and_logged_and_delay_no_node(there, tmp_path, serve, call, wait_until):
    port = serve(held(there))
    with pytest.raises(PeerLostError):
        call(port, b"of another job".ljust(32))
    with socket.create_connection((HERE, port)) as scanner:
        scanner.sendall(b"GET / HTTP/1.0\r\n\r\n" + b"x" * 4000)
        wait_until(lambda: len(serve.refused) == 2)
    silent = []
    for _ in range(relay.MOST_UNPROVEN + 5):
        silent.append(socket.create_connection((HERE, port)))
        assert silent[-1].recv(1)  # it has been let in, and the next is later
    assert is_same(pulled(call(port), 0, tmp_path / "here"), there)
    reasons = ["a greeting with a wrong signature", "no greeting", *["too many connections at once"] * 6]
    assert serve.refused == [(HERE, reason) for reason in reasons]
    for caller in silent:
        caller.close()


def test_a_connection_that_does_not_authenticate_is_closed(there, serve, monkeypatch, wait_until):
    monkeypatch.setattr(relay, "GREETING_SECONDS", 0.1)
    with socket.create_connection((HERE, serve(held(there)))) as silent:
        wait_until(lambda: serve.refused)
        assert serve.refused == [(HERE, "it did not identify itself in time")]
        silent.settimeout(10)
        assert silent.recv(100).endswith(b"\n")
        assert silent.recv(100) == b""


class Liar(threading.Thread):
    """A node of this job that has the key, and answers with what it likes."""

    def __init__(self, answer) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server((HERE, 0))
        self.port = self._listener.getsockname()[1]
        self._answer = answer
        self.start()

    def run(self) -> None:
        with self._listener:
            guest = UnprovenConnection(self._listener.accept()[0], KEY)
        guest.connection.setblocking(True)
        line = Wire(guest.receive()[0])
        with contextlib.suppress(OSError):  # who sees that it is a lie goes at once
            for _ in range(2):
                self._answer(line, line.receive())
        line.close()


MANIFEST = Manifest(
    [scan(ONE_NODE.parent).entries[0], scan(ONE_NODE).entries[0]._replace(path=b"f", size=4)]
).to_bytes()
LIES = {
    "more than the file holds": (relay.pack([Part(1, 2, 4, is_data=True)]), b"data"),
    "a file that is none": (relay.pack([Part(0, 0, 4, is_data=True)]), b"data"),
    "a file beyond the last": (relay.pack([Part(9, 0, 4, is_data=True)]), b"data"),
    "less than it says": (relay.pack([Part(1, 0, 4, is_data=True)]), b"dat"),
    "no table": (b"x" * 7, b"data"),
    "a hole beyond the end": (relay.pack([Part(1, 3, 2**60, is_data=False)]), b""),
}


def lied(call, here: Path, send) -> str:
    """What is said of a node that sends MANIFEST, and then what `send` likes."""

    def answer(line: Wire, asked: relay.Frame) -> None:
        if asked.kind == FrameKind.ASK:
            line.send_message(FrameKind.WHAT, key="k")
        else:
            line.send_message(FrameKind.LENGTH, manifest=len(MANIFEST))
            line.send(FrameKind.MANIFEST, data=MANIFEST)
            send(line)

    with pytest.raises(PeerLostError) as lost:
        pulled(call(Liar(answer).port), 0, here)
    return str(lost.value)


def test_even_a_node_of_the_job_cannot_write_where_nothing_belongs(tmp_path, call):
    for name, lie in LIES.items():
        lied(call, tmp_path / name, lambda line, lie=lie: line.send(FrameKind.DATA, *lie))
        assert [path.stat().st_size for path in (tmp_path / name).iterdir()] == []


def test_an_end_before_all_files_is_an_error(tmp_path, call):
    said = lied(call, tmp_path / "here", lambda line: line.send_message(FrameKind.END, extents=0))
    assert "did not send all files" in said


GREETING = 33 + 65
"""What a server says before its first frame: a nonce and its proof, a line each."""


@pytest.mark.parametrize("at", [5, 40, GREETING + 3, GREETING + 60])
def test_a_frame_that_was_changed_on_the_way_is_refused(there, tmp_path, serve, call, at):
    port = Between(serve(held(there)), at).port
    with pytest.raises(PeerLostError):
        pulled(call(port, silence=0.5), 0, tmp_path / "here")


def test_after_a_lost_connection_the_rest_is_read_from_the_source(there, tmp_path, serve, call, wait_until):
    """Also where the one before us says that it cannot go on."""
    before = TreeWriter(os.fsencode(tmp_path / "before"), scan(there))
    holding = Availability()
    holding.set_complete(before.extents)
    number = next(n for n, entry in enumerate(before.extents.manifest.entries) if entry.path == b"large")
    before.write(number, 0, (there / "large").read_bytes()[: 3 * MIB])
    predecessor = call(serve(holding))
    here = begun(predecessor, 0, tmp_path / "here")

    def fail() -> None:
        try:
            wait_until(lambda: here.extents.bytes == 3 * MIB)
        finally:
            holding.fail(UnavailableError("disk full"))

    thread = threading.Thread(target=fail)
    thread.start()
    with pytest.raises(PeerLostError, match="disk full"):
        predecessor.receive_into(here)
    thread.join()
    assert here.extents.bytes == 3 * MIB
    worker.fill(os.fsencode(there), here)
    here.finish()
    assert is_same(tmp_path / "here", there)


def test_each_node_gets_its_data_from_the_one_before_it_that_serves_any():
    hosts = {0: HEAD_ADDRESS, 1: "10.0.0.2", 2: "10.0.0.3", 3: "10.0.0.4"}
    first, third = (HEAD_ADDRESS, 7), ("10.0.0.3", 8)
    assert predecessors({0: 7, 1: 0, 3: 9, 2: 8}, hosts) == {0: None, 1: first, 2: first, 3: third}
    assert predecessors({0: 0, 1: 5, 2: 0, 3: 0}, hosts) == {0: None, 1: None, 2: ("10.0.0.2", 5), 3: ("10.0.0.2", 5)}


def test_nodes_serve_only_on_the_network_of_the_agents():
    def seen_by_the_head(own: str, head: str) -> SimpleNamespace:
        connection = SimpleNamespace(getpeername=lambda: (own, 1), getsockname=lambda: (head, 2))
        return SimpleNamespace(channel=SimpleNamespace(connection=connection))

    first, second = ("10.0.0.1", "10.0.0.1"), ("10.0.0.2", "10.0.0.1")
    assert (peer_host(seen_by_the_head(*first)), serving_interface(*first)) == (HEAD_ADDRESS, "")
    assert (peer_host(seen_by_the_head(*second)), serving_interface(*second)) == ("10.0.0.2", "10.0.0.2")


def test_a_greeting_that_arrives_byte_by_byte_is_given_up(monkeypatch):
    monkeypatch.setattr(relay, "CALL_SECONDS", 0.3)
    said = []

    def drip() -> None:
        caller = listener.accept()[0]
        with caller, contextlib.suppress(OSError):
            while len(said) < LONGEST_GREETING:
                caller.sendall(b"a")
                said.append("a")
                time.sleep(0.05)

    with socket.create_server((HERE, 0)) as listener:
        slow = threading.Thread(target=drip)
        slow.start()
        with pytest.raises(PeerLostError):
            Predecessor((HERE, listener.getsockname()[1]), KEY, 1)
        slow.join()
    assert len(said) < LONGEST_GREETING  # after which anybody's patience ends


def test_a_write_error_is_raised_and_ends_all_writes(there, tmp_path, serve, call):
    """Small files are written by threads: whatever they cannot do is known when they are done."""
    predecessor = call(serve(held(there)))
    target = begun(predecessor, 0, tmp_path / "here")
    shutil.rmtree(tmp_path / "here" / "many")
    before = threading.enumerate()
    with pytest.raises(FileNotFoundError):
        predecessor.receive_into(target)
    writing = [thread for thread in threading.enumerate() if thread not in before]
    assert (writing, (tmp_path / "here" / "many").exists()) == ([], False)
