"""What runs bring along of Serried is stored once, whoever else stores it or removes it meanwhile."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from serried.base import files
from serried.submission import script
from serried.submission.script import Content

MODES = files.MODES["user"]
CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_the_same_content_is_stored_once_and_is_young_again(tmp_path, store):
    script.put(Content.of(CONTENT), tmp_path / "agent.pyz", store, MODES)
    (stored,) = store.iterdir()
    os.utime(stored, (1, 1))
    before = stored.stat().st_ino

    (tmp_path / "other").mkdir()
    script.put(Content.of(CONTENT), tmp_path / "other" / "agent.pyz", store, MODES)

    assert list(store.iterdir()) == [stored]
    assert (stored.stat().st_ino, stored.stat().st_mtime > 1) == (before, True)
    assert (tmp_path / "other" / "agent.pyz").readlink() == stored
    assert (tmp_path / "other" / "agent.pyz").read_bytes() == CONTENT


@pytest.mark.parametrize("left", [None, CONTENT[:-1]], ids=["removed", "cut short"])
def test_what_is_not_there_whole_is_stored_anew(tmp_path, store, left):
    script.put(Content.of(CONTENT), tmp_path / "agent.pyz", store, MODES)
    (stored,) = store.iterdir()
    stored.unlink()
    if left is not None:
        stored.write_bytes(left)
    (tmp_path / "other").mkdir()

    script.put(Content.of(CONTENT), tmp_path / "other" / "agent.pyz", store, MODES)

    assert stored.read_bytes() == CONTENT


def test_the_run_names_it_before_it_is_looked_for(tmp_path, store, monkeypatch):
    """So that nobody who looks at the runs first and removes then takes it away from one."""
    seen = []
    write = files.write_bytes
    monkeypatch.setattr(
        files, "write_bytes", lambda *given: seen.append((tmp_path / "agent.pyz").is_symlink()) or write(*given)
    )
    script.put(Content.of(CONTENT), tmp_path / "agent.pyz", store, MODES)
    assert seen == [True]


def test_many_at_once_store_one(tmp_path, store):
    def submit(number: int) -> None:
        (tmp_path / str(number)).mkdir()
        script.put(Content.of(CONTENT), tmp_path / str(number) / "agent.pyz", store, MODES)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(list(store.iterdir())) == 1
    assert all((tmp_path / str(number) / "agent.pyz").read_bytes() == CONTENT for number in range(8))


def test_where_the_store_is_another_users_a_run_has_its_own(tmp_path, store, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(files, "make_directory", refuse)
    script.put(Content.of(CONTENT), tmp_path / "agent.pyz", store, MODES)
    assert not (tmp_path / "agent.pyz").is_symlink()
    assert (tmp_path / "agent.pyz").read_bytes() == CONTENT


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.mark.parametrize("what", [pytest.param("another's", marks=AS_ROOT), "writable", "a link"])
def test_a_file_that_others_can_have_written_is_replaced(tmp_path, store, what):
    """It has the right name and size, and nothing else tells it from ours."""
    script.put(Content.of(CONTENT), tmp_path / "agent.pyz", store, MODES)
    (stored,) = store.iterdir()
    stored.write_bytes(CONTENT[::-1])
    if what == "another's":
        os.chown(stored, os.getuid() + 1, -1)
    elif what == "writable":
        stored.chmod(0o666)
    else:
        stored.rename(tmp_path / "elsewhere")
        stored.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "other").mkdir()

    script.put(Content.of(CONTENT), tmp_path / "other" / "agent.pyz", store, MODES)

    assert (tmp_path / "other" / "agent.pyz").read_bytes() == CONTENT
    state = stored.lstat()
    assert (state.st_uid, state.st_mode) == (os.getuid(), stat.S_IFREG | MODES.file)


@pytest.mark.parametrize("what", [pytest.param("another's", marks=AS_ROOT), "writable", "a link", "in a writable one"])
def test_where_others_can_write_to_the_store_a_run_has_its_own(tmp_path, what):
    around = tmp_path / "root" / ".serried"
    store = around / "agents"
    script.put(Content.of(CONTENT), tmp_path / "agent.pyz", store, MODES)
    (stored,) = store.iterdir()
    stored.write_bytes(CONTENT[::-1])
    if what == "another's":
        os.chown(store, os.getuid() + 1, -1)
    elif what == "a link":
        store.rename(tmp_path / "elsewhere")
        store.symlink_to(tmp_path / "elsewhere")
    else:
        (store if what == "writable" else around).chmod(0o777)
    (tmp_path / "other").mkdir()
    own = tmp_path / "other" / "agent.pyz"

    script.put(Content.of(CONTENT), own, store, MODES)

    assert (own.is_symlink(), own.read_bytes()) == (False, CONTENT)
    assert stored.read_bytes() == CONTENT[::-1]
