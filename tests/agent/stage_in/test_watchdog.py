"""A file system that does not answer ends the staging with a message."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from serried.agent.node_disk import folder
from serried.agent.stage_in import worker
from serried.schema import names


@pytest.fixture
def away(tmp_path: Path, wait_until, monkeypatch):
    """A folder below a mount whose server has stopped."""
    monkeypatch.setattr(folder, "UNMOUNT_SECONDS", 120.0)  # undone after the teardown below
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


class Agent:
    def __init__(self) -> None:
        self.told: list[dict] = []

    def send(self, **message: object) -> None:
        self.told.append(message)


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="no FUSE here")
@pytest.mark.parametrize("has_disk", [True, False], ids=["copied", "in-place"])
def test_gpus_do_not_wait_for_a_source_that_does_not_answer(away, tmp_path, monkeypatch, wait_until, has_disk):
    monkeypatch.setattr(worker, "SILENT_SECONDS", 1.0)
    for name in (names.MARK, names.SETUP):
        monkeypatch.setenv(name, "")  # and taken back then
    agent = Agent()
    (tmp_path / "disk").mkdir()
    task = {"items": [[str(away), "set", ""]], "view": str(tmp_path / "view"), "shared": str(tmp_path / "disk/data")}
    rest = {"has_disk": has_disk, "hashed": False, "limit": 0, "key": "00", "node": 0, "serves": None}
    rest |= {"mark": "r/-/1", "run": "r"}
    staging = worker.StageInWorker(agent, {**task, **rest})
    staging.begin(None)

    def has_failed() -> bool:
        staging.flush()
        return len(agent.told) == 2

    wait_until(has_failed)
    assert agent.told == [
        {"say": "ready", "port": 0},
        {"say": "failed", "because": f"`{away}` has not answered for 1 s"},
    ]
    staging.release()
    assert not (tmp_path / "disk" / "data").exists()
