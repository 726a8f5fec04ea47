"""Nodes side by side, each with a disk and a process of its own that stages: the source is read once, whoever dies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from between import Between
from trees import MIB, is_same, plant

pytestmark = pytest.mark.runs

ONE_NODE = Path(__file__).with_name("one_node.py")
HERE = "127.0.0.1"
KEY = b"of this attempt".hex()


class Node:
    """What the agent of a node tells the process beside it, and hears."""

    def __init__(self, folder: Path, sources: list[Path], *, getting=0, giving=0, changes="", hashed=False) -> None:
        self.view, shared = folder / f"view-{os.urandom(4).hex()}", folder / "shared"
        shared.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._end, theirs = socket.socketpair()
        words = [sys.executable, ONE_NODE, getting, giving, changes]
        self.process = subprocess.Popen(list(map(str, words)), stdin=theirs)
        theirs.close()
        self._lines = self._end.makefile("r")
        self.notes: list[dict] = []
        items = [[str(source), f"item-{number}", ""] for number, source in enumerate(sources)]
        said = {"hashed": hashed, "limit": 1 << 40, "has_disk": True, "node": 0, "key": KEY, "mark": "x", "run": "x"}
        place = {"items": items, "view": str(self.view), "shared": str(shared / "data"), "serves": HERE}
        self.tell(do="prepare", **said, **place)
        self.port = self.hear("ready")["port"]

    def tell(self, **message) -> None:
        self._end.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, *wanted: str) -> dict | None:
        """The first of these that it says; None where it went before."""
        for line in self._lines:
            message = json.loads(line)
            if message["say"] in wanted:
                return message
            if message["say"] == "note":
                self.notes.append(message)
        return None

    def noted(self, event: str) -> list[dict]:
        return [note for note in self.notes if note["event"] == event]

    @property
    def origins(self) -> list[str]:
        return [note["origin"] for note in self.noted("staged-item")]

    def end(self) -> None:
        """As an agent that is killed: with it goes the process."""
        self._end.close()
        self._lines.close()
        self.process.wait(120)


@pytest.fixture
def node(tmp_path):
    """`node(source, …)`: another node; `node(…, disk=2)`: one with the disk of that one."""

    def start(*sources: Path, disk: int | None = None, **fate) -> Node:
        number = len(nodes) if disk is None else disk
        nodes.append(Node(tmp_path / f"node-{number}", list(sources), **fate))
        return nodes[-1]

    nodes: list[Node] = []
    yield start
    for each in nodes:
        each.end()


def go(*nodes: Node, before: dict[int, int] | None = None) -> list[str | None]:
    """In a chain, or as `before` says; what each says at last, None of one that was killed."""
    for number, each in enumerate(nodes):
        other = (before or {}).get(number, number - 1)
        each.tell(do="stage", before=[HERE, nodes[other].port] if other >= 0 else None)
    said = [each.hear("staged", "failed") for each in nodes]
    return [message and message["say"] for message in said]


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("source") / "there", files=300, large=40)


def test_the_source_is_read_by_the_first_node_alone(node, there, tmp_path):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file").write_bytes(b"x" * (3 * MIB))
    items, elsewhere = [there, tmp_path / "nothing", tmp_path / "file"], [tmp_path / "not here"] * 3
    nodes = [node(*items), *(node(*elsewhere) for _ in range(3))]
    assert go(*nodes) == ["staged"] * 4
    assert [each.origins for each in nodes] == [["source"] * 3, *[["peer"] * 3] * 3]
    assert [is_same(nodes[3].view / f"item-{number}", item) for number, item in enumerate(items)] == [True] * 3
    assert (nodes[3].view / "item-0" / "sparse").stat().st_blocks * 512 < MIB


def test_a_node_serves_an_item_from_its_cache_at_once(node, there, tmp_path):
    before = [node(there), node(there), node(there)]
    assert go(before[0]) == go(before[2]) == ["staged"]
    for each in before:
        each.end()
    elsewhere = tmp_path / "not here"
    nodes = [node(there, disk=0), node(elsewhere, disk=1), node(elsewhere, disk=2), node(elsewhere)]
    assert go(*nodes) == ["staged"] * 4
    assert [each.origins for each in nodes] == [["cache"], ["peer"], ["cache"], ["peer"]]
    assert [is_same(each.view / "item-0", there) for each in nodes] == [True] * 4


def test_the_node_after_one_that_dies_reads_the_source_and_serves_the_others(node, there, tmp_path):
    dead = node(tmp_path / "not here", giving=12 * MIB)
    nodes = [node(there), dead, node(there), node(tmp_path / "not here")]
    assert go(*nodes) == ["staged", None, "staged", "staged"]
    assert [each.origins for each in nodes] == [["source"], [], ["source"], ["peer"]]
    assert [len(each.noted("staging-alone")) for each in nodes] == [0, 0, 1, 0]
    assert [is_same(each.view / "item-0", there) for each in nodes if each is not dead] == [True] * 3


def test_a_node_that_dies_harms_nobody_before_it_or_beside_it(node, there, tmp_path):
    nodes = [node(there), node(tmp_path / "not here", getting=10 * MIB), node(tmp_path / "not here")]
    assert go(*nodes, before={2: 0}) == ["staged", None, "staged"]
    assert is_same(nodes[2].view / "item-0", there)


def test_a_source_that_changes_while_it_is_read_is_begun_again_by_all(node, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    for name in ("changes", "a", "z"):
        (there / name).write_bytes(os.urandom(3 * MIB))
    nodes = [node(there, changes=there / "changes"), node(tmp_path / "not here"), node(tmp_path / "not here")]
    assert go(*nodes) == ["staged"] * 3
    assert [each.origins for each in nodes] == [["source"], ["peer"], ["peer"]]
    assert [(each.view / "item-0" / "changes").stat().st_size for each in nodes] == [3 * MIB + 4] * 3
    assert [is_same(each.view / "item-0", there) for each in nodes] == [True] * 3


def test_without_a_node_before_it_that_answers_a_node_reads_the_source(node, there):
    with socket.create_server((HERE, 0)) as listener:  # whatever listens there now, it is none of ours
        alone = node(there)
        alone.tell(do="stage", before=[HERE, listener.getsockname()[1]])
        listener.accept()[0].close()
        assert alone.hear("staged", "failed")["say"] == "staged"
    assert (alone.origins, len(alone.noted("staging-alone"))) == (["source"], 1)


def test_with_hashes_contents_that_were_changed_on_the_way_are_not_used(node, there):
    first, second = node(there, hashed=True), node(there, hashed=True)
    between = Between(first.port, at=20 * MIB)
    first.tell(do="stage", before=None)
    second.tell(do="stage", before=[HERE, between.port])
    assert [each.hear("staged", "failed")["say"] for each in (first, second)] == ["staged", "staged"]
    assert [each.origins for each in (first, second)] == [["source"], ["source"]]
    assert is_same(second.view / "item-0", there)
    between.join(30)
