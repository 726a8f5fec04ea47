"""The manifest of a million files takes hundreds of megabytes: it is freed once all nodes have the data."""

from __future__ import annotations

import gc
import weakref

from serried.agent.stage_in import worker
from serried.agent.stage_in.items import StagedItem, TreeWriter
from serried.agent.stage_in.relay import Predecessor
from serried.base.manifest import Manifest
from serried.schema import names


class Agent:
    def __init__(self) -> None:
        self.told: list[dict] = []

    def send(self, **message: object) -> None:
        self.told.append(message)


def test_nothing_of_the_files_is_held_when_the_last_node_has_them(tmp_path, monkeypatch, wait_until):
    for name in (names.MARK, names.SETUP):
        monkeypatch.setenv(name, "")  # and taken back then
    (tmp_path / "disk").mkdir()
    (tmp_path / "there" / "set").mkdir(parents=True)
    (tmp_path / "there" / "set" / "file").write_text("one")
    items = [[str(tmp_path / "there" / "set"), "set", ""]]
    place = {"view": str(tmp_path / "view"), "shared": str(tmp_path / "disk/data"), "has_disk": True, "limit": 0}
    told = {
        "items": items,
        "hashed": False,
        "key": "00",
        "mark": "r/-/1",
        "run": "r",
        "node": 0,
        "serves": "127.0.0.1",
        **place,
    }
    staging = worker.StageInWorker(agent := Agent(), told)
    staging.begin(None)
    next_node = Predecessor(("127.0.0.1", agent.told[0]["port"]), b"\0", 1)
    item = StagedItem("", "")
    manifest = Manifest.from_bytes(next_node.manifest(0, next_node.item_key(0), item.availability))
    next_node.receive_into(TreeWriter(str(tmp_path / "next").encode(), manifest))
    wait_until(lambda: staging.flush() or agent.told[-1]["say"] == "staged")
    held = weakref.ref(staging.stager.items[0].manifest)
    assert held() is not None

    next_node.close()
    staging.end_serving()
    wait_until(lambda: gc.collect() is None or held() is None)
    assert (tmp_path / "next" / "file").read_text() == "one"
    staging.release()
