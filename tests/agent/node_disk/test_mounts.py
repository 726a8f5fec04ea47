"""Mounts are taken off whoever uses them and whatever became of their servers, also where there is no fusermount."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from serried.agent.node_disk import folder
from serried.agent.node_disk.folder import discard

CAN_MOUNT = os.access("/dev/fuse", os.W_OK) and os.geteuid() == 0
pytestmark = pytest.mark.skipif(not CAN_MOUNT, reason="needs FUSE, and root to unmount without fusermount")

UMOUNT = shutil.which("umount") or "umount"


@pytest.fixture
def served(tmp_path: Path, wait_until, monkeypatch: pytest.MonkeyPatch):
    """A mount that a process uses and the process that serves it, where there is no fusermount."""
    monkeypatch.setattr(folder, "UNMOUNT_SECONDS", 120.0)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "file").write_text("one")
    image, point = tmp_path / "image.sqsh", tmp_path / "folder" / "a point"
    point.mkdir(parents=True)
    subprocess.run(["mksquashfs", tmp_path / "packed", image, "-quiet", "-no-progress"], check=True)
    user = server = subprocess.Popen(["squashfuse", "-f", image, point])
    try:
        wait_until(lambda: server.poll() is not None or point.is_mount())
        with (point / "file").open() as opened:
            user = subprocess.Popen(["sleep", "infinity"], stdin=opened)
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "umount").symlink_to(UMOUNT)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        yield point, server
    finally:
        server.kill()
        user.kill()
        user.wait()
        server.wait()
        subprocess.run([UMOUNT, "-l", point], check=False, capture_output=True)


@pytest.mark.parametrize("end", [None, signal.SIGSTOP, signal.SIGKILL], ids=["serves", "hangs", "dead"])
def test_a_mount_in_use_is_unmounted_and_its_folder_deleted(served, end):
    point, server = served
    if end:
        server.send_signal(end)
    if end == signal.SIGKILL:
        server.wait()
    assert folder.below(point.parent) == [str(point)]

    assert folder.unmount(point)

    assert folder.below(point.parent) == []
    assert folder.unmount(point)  # nothing is there: no program is asked
    discard(None, point.parent, None)
    assert not point.parent.exists()


def test_a_mount_that_cannot_be_unmounted_is_reported(served, monkeypatch):
    point, server = served
    assert not folder.unmount(point, time.monotonic() - 1)
    with monkeypatch.context() as context:
        context.setenv("PATH", "/nowhere")
        assert not folder.unmount(point)
    assert folder.below(point.parent) == [str(point)]

    server.send_signal(signal.SIGSTOP)
    discard(None, point.parent, None)
    assert not point.parent.exists()
