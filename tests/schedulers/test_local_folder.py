"""The private folder of this machine's queue."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serried.base.errors import UsageError
from serried.schedulers.local import jobs


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    return tmp_path / "local"


def test_the_folder_is_private(monkeypatch, tmp_path):
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "a" / "local"))
    assert jobs.root().stat().st_mode & 0o777 == 0o700


def others_can_write(folder):
    folder.mkdir()
    folder.chmod(0o777)


def is_a_link(folder):
    (folder.parent / "mine").mkdir()
    folder.symlink_to(folder.parent / "mine")


@pytest.mark.parametrize("prepare", [others_can_write, is_a_link, Path.touch])
def test_a_folder_that_is_not_the_users_alone_is_refused(folder, prepare):
    prepare(folder)
    with pytest.raises(UsageError, match=f"`{folder}` is not a folder that only you can write to"):
        jobs.root()


def test_a_file_in_place_of_the_folder_above_is_refused(monkeypatch, folder):
    folder.touch()
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(folder / "below"))
    with pytest.raises(UsageError, match=f"`{folder}/below` is not a folder that only you can write to"):
        jobs.root()


def test_nothing_is_made_behind_a_link_in_place_of_the_usual_folder(monkeypatch, tmp_path):
    """In /tmp it may be another user's, and lead to where this user can write and the other one can not."""
    monkeypatch.delenv("SERRIED_LOCAL_DIR", raising=False)
    monkeypatch.setattr(jobs, "TEMPORARY", tmp_path)
    target = tmp_path / "target"
    target.mkdir()
    usual = Path(tmp_path, f"serried-{os.getuid()}")
    for entry in (target, tmp_path / "missing"):
        usual.symlink_to(entry)
        with pytest.raises(UsageError, match=f"`{usual}` is not a folder that only you can write to"):
            jobs.root()
        usual.unlink()
    assert list(target.iterdir()) == []
