"""The process that stages, without its agent."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import weakref
from pathlib import Path

import pytest

from serried.agent.node_disk import folder
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


@pytest.fixture
def stage(tmp_path: Path, monkeypatch):
    """`stage(source)` begins to stage one item; the process and what it tells its agent."""
    for name in (names.MARK, names.SETUP):
        monkeypatch.setenv(name, "")  # and taken back then
    (tmp_path / "disk").mkdir()

    def begin(source: Path, *, has_disk: bool = True, serves: str | None = None):
        request = {"items": [[str(source), "set", ""]], "view": str(tmp_path / "view"), "hashed": False, "limit": 0}
        request |= {"shared": str(tmp_path / "disk/data"), "has_disk": has_disk, "serves": serves}
        agent = Agent()
        staging = worker.StageInWorker(agent, {**request, "key": "00", "node": 0, "mark": "r/-/1", "run": "r"})
        staging.begin(None)
        return staging, agent.told

    return begin


@pytest.fixture
def away(tmp_path: Path, wait_until, monkeypatch):
    """A folder below a mount whose server has stopped."""
    monkeypatch.setattr(folder, "UNMOUNT_SECONDS", 120.0)  # undone after the teardown below
    monkeypatch.setattr(worker, "SILENT_SECONDS", 1.0)
    (tmp_path / "packed" / "set").mkdir(parents=True)
    (tmp_path / "packed" / "set" / "file").write_text("one")
    (tmp_path / "mounted").mkdir()
    image = tmp_path / "image.sqsh"
    subprocess.run(["mksquashfs", tmp_path / "packed", image, "-quiet", "-no-progress"], check=True)
    server = subprocess.Popen(["squashfuse", "-f", image, tmp_path / "mounted"])
    try:
        wait_until(lambda: server.poll() is not None or (tmp_path / "mounted").is_mount())
        assert server.poll() is None
        server.send_signal(signal.SIGSTOP)
        yield tmp_path / "mounted" / "set"
    finally:
        server.kill()  # who waits for an answer gets one
        server.wait()
        assert folder.unmount(tmp_path / "mounted")


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="no FUSE here")
@pytest.mark.parametrize("has_disk", [True, False], ids=["copied", "in-place"])
def test_gpus_do_not_wait_for_a_source_that_does_not_answer(away, stage, tmp_path, wait_until, has_disk):
    staging, told = stage(away, has_disk=has_disk)
    wait_until(lambda: staging.flush() or len(told) == 2)
    assert told == [{"say": "ready", "port": 0}, {"say": "failed", "because": f"`{away}` has not answered for 1 s"}]
    staging.release()
    assert not (tmp_path / "disk" / "data").exists()


def test_the_manifest_is_freed_once_all_nodes_have_the_data(stage, tmp_path, wait_until):
    """The manifest of a million files takes hundreds of megabytes."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("one")
    staging, told = stage(tmp_path / "there", serves="127.0.0.1")
    next_node = Predecessor(("127.0.0.1", told[0]["port"]), b"\0", 1)
    item = StagedItem("", "")
    manifest = Manifest.from_bytes(next_node.manifest(0, next_node.item_key(0), item.availability))
    next_node.receive_into(TreeWriter(str(tmp_path / "next").encode(), manifest))
    wait_until(lambda: staging.flush() or told[-1]["say"] == "staged")
    held = weakref.ref(staging.stager.items[0].manifest)
    assert held() is not None

    next_node.close()
    staging.end_serving()
    wait_until(lambda: gc.collect() is None or held() is None)
    assert (tmp_path / "next" / "file").read_text() == "one"
    staging.release()
