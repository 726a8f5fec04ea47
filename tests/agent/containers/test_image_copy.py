"""The image on the node's own disk: copied once, shared, removed by the last."""

from __future__ import annotations

import fcntl
import os
import types
from pathlib import Path

import pytest

from serried.agent import containers
from serried.agent.loop import Loop
from serried.agent.node_disk import shared_cache
from serried.schema.events import JournalEvent
from serried.submission import script


@pytest.fixture
def copied(tmp_path):
    """Copies an image, and says what became of it."""
    image = tmp_path / "an image.sif"
    image.write_bytes(b"image")
    return lambda: containers.copy_image(image, tmp_path / "disk")


def held(path):
    """The lock of whoever runs it."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def test_the_second_finds_the_copy_and_does_not_wait_for_those_who_use_it(copied):
    first = copied()
    using = held(first["path"])

    assert copied() == {"path": first["path"], "bytes": 0}
    assert (first["bytes"], Path(first["path"]).read_bytes()) == (5, b"image")
    os.close(using)


def test_a_copy_that_nobody_holds_goes_when_the_next_comes_and_one_in_use_stays(copied, tmp_path):
    first = copied()["path"]
    (tmp_path / "an image.sif").write_bytes(b"a later image")
    second = copied()["path"]
    assert not Path(first).exists()
    using = held(second)
    (tmp_path / "an image.sif").write_bytes(b"the latest image")

    third = copied()["path"]

    kept = {str(path) for path in Path(third).parent.iterdir()}
    assert kept == {second, f"{second}.lock", third, f"{third}.lock"}
    os.close(using)


def test_another_job_that_copies_it_and_does_not_go_on_is_not_waited_for(copied, monkeypatch):
    monkeypatch.setattr(shared_cache, "SILENT_SECONDS", 0.2)
    path = Path(copied()["path"])
    path.unlink()
    suspended = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(suspended, fcntl.LOCK_EX)
    path.with_name(f"{path.name}.part").write_bytes(b"im")

    assert copied() == {"problem": "another job that copies the image to this node shows no sign of life"}
    os.close(suspended)


def test_without_room_there_is_no_copy_and_the_reason_is_told(copied, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: types.SimpleNamespace(f_bavail=1, f_frsize=4, f_files=0))

    folder = tmp_path / "disk" / "images"
    assert copied() == {"problem": f"no room on {folder}: 5 B needed, 4 B free"}
    assert [path for path in folder.iterdir() if path.suffix != ".lock"] == []


@pytest.mark.parametrize("prepare", [lambda disk: (disk.mkdir(), disk.chmod(0o777)), lambda disk: disk.touch()])
def test_nobody_else_can_slip_an_image_in_and_an_absent_disk_keeps_nobody_from_running(copied, tmp_path, prepare):
    prepare(tmp_path / "disk")
    assert copied() == {"problem": f"not ours alone: {tmp_path / 'disk'}"}


def test_ranks_wait_for_the_process_that_copies_and_get_a_link_to_the_copy(tmp_path, monkeypatch):
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(script.agent().read())
    monkeypatch.syspath_prepend(str(agent))  # as in an agent, whose roles are started from `sys.path[0]`
    (tmp_path / "an image.sif").write_bytes(b"image")
    (tmp_path / "private").mkdir()
    container = types.SimpleNamespace(image=str(tmp_path / "an image.sif"), local=True)
    work = types.SimpleNamespace(plan=types.SimpleNamespace(container=container))
    folder = types.SimpleNamespace(room=tmp_path / "disk", has_disk=True, path=tmp_path / "private")
    loop, events = Loop(), []

    image = containers.ImageCopy(loop, work, folder, lambda event, **facts: events.append((event, facts)))
    image.when_ready(loop.stop)
    loop.run()

    ((event, facts),) = events
    assert (event, facts["bytes"]) == (JournalEvent.IMAGE, 5)
    assert (tmp_path / "private" / containers.COPY).read_bytes() == b"image"
    image.release()
    assert not Path(facts["path"]).exists()
