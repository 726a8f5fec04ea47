"""The private folder of this machine's queue."""

from __future__ import annotations

import pytest

from serried.errors import UsageError
from serried.schedulers.local import jobs


def test_the_folder_is_private(monkeypatch, tmp_path):
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "a" / "local"))
    assert jobs.root().stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_refused(monkeypatch, tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local").chmod(0o777)
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    with pytest.raises(UsageError, match="only you can write to"):
        jobs.root()


def test_a_link_in_place_of_the_folder_is_refused(monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "local").symlink_to(tmp_path / "mine")
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    with pytest.raises(UsageError, match="only you can write to"):
        jobs.root()
