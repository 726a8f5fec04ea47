"""Serried's own code for runs: packed once until it changes, and stored once, whoever removes it meanwhile."""

from __future__ import annotations

import os
import shutil
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
def house(tmp_path, monkeypatch):
    """A Serried of our own to change, and a home of our own for what is kept of it."""
    house = tmp_path / "installed" / "serried"
    for room in {*script.AGENT, *script.LIBRARY}:  # with what Python has compiled of it
        shutil.copytree(script.HOUSE / room, house / room)
    monkeypatch.setattr(script, "HOUSE", house)
    monkeypatch.setattr(script, "PACKAGE", house / "schema" / "library_init.py")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return house


@pytest.fixture
def packed(house, monkeypatch):  # noqa: ARG001 - it replaces the house
    """`packed()`: the bytes of agent.pyz and library.zip, and how many of the two had to be packed for it."""
    times = []
    pack = script._packed
    monkeypatch.setattr(script, "_packed", lambda entries: times.append(1) or pack(entries))

    def read():
        times.clear()
        return script.agent().read(), script.library().read(), len(times)

    return read


def kept(tmp_path):
    return sorted((tmp_path / "state" / "serried" / "cache").iterdir())


def test_the_archives_are_packed_once_and_anew_when_a_module_has_changed(packed, house, tmp_path):
    agent, library, times = packed()
    assert times == 2
    assert packed() == (agent, library, 0)
    assert [path.stat().st_mode & 0o777 for path in kept(tmp_path)] == [0o600, 0o600]

    changed, state = house / "agent" / "attempt.py", (house / "agent" / "attempt.py").stat()
    changed.write_bytes(changed.read_bytes().replace(b'"""', b"'''", 2))
    os.utime(changed, ns=(state.st_atime_ns, state.st_mtime_ns))  # as long as it was, and by its own account as old
    agent, _, times = packed()
    assert (times, b"'''" in agent) == (1, True)
    assert packed()[2] == 0

    (house / "schema" / "new.py").write_text("NEW = 'a module more'\n")
    assert [b"a module more" in archive for archive in packed()[:2]] == [True, True]
    (house / "schema" / "new.py").unlink()
    assert [b"a module more" in archive for archive in packed()[:2]] == [False, False]
    assert len(kept(tmp_path)) == 2


def test_an_incomplete_archive_and_the_byte_code_of_another_python_are_packed_anew(packed, tmp_path, monkeypatch):
    agent, library, _ = packed()
    for path in kept(tmp_path):
        path.write_bytes(path.read_bytes()[:-1])
    assert packed() == (agent, library, 2)

    monkeypatch.setattr(script.importlib.util, "MAGIC_NUMBER", b"\0\0\r\n")
    assert packed()[2] == 2


def test_where_nothing_can_be_kept_the_archives_are_packed_each_time(packed, tmp_path):
    (tmp_path / "state").write_text("no directory")
    agent, library, _ = packed()
    assert packed() == (agent, library, 2)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def put(tmp_path, store):
    """`put(NAME)`: the path of agent.pyz in a run directory of that name."""

    def put(name: str, where: Path = store) -> Path:
        (tmp_path / name).mkdir()
        script.put(Content.of(CONTENT), tmp_path / name / "agent.pyz", where, MODES)
        return tmp_path / name / "agent.pyz"

    return put


def test_the_same_content_is_stored_once_and_is_young_again(store, put):
    put("first")
    (stored,) = store.iterdir()
    os.utime(stored, (1, 1))
    before = stored.stat().st_ino
    other = put("other")

    assert list(store.iterdir()) == [stored]
    assert (stored.stat().st_ino, stored.stat().st_mtime > 1) == (before, True)
    assert (other.readlink(), other.read_bytes()) == (stored, CONTENT)


@pytest.mark.parametrize("left", [None, CONTENT[:-1]], ids=["removed", "cut short"])
def test_what_is_not_there_whole_is_stored_anew(store, put, left):
    put("first")
    (stored,) = store.iterdir()
    stored.unlink()
    if left is not None:
        stored.write_bytes(left)

    assert put("other").read_bytes() == stored.read_bytes() == CONTENT


def test_the_run_names_it_before_it_is_looked_for(tmp_path, put, monkeypatch):
    """So that nobody who looks at the runs first and removes then takes it away from one."""
    seen = []
    write = files.write_bytes
    link = tmp_path / "first" / "agent.pyz"
    monkeypatch.setattr(files, "write_bytes", lambda *given: seen.append(link.is_symlink()) or write(*given))
    put("first")
    assert seen == [True]


def test_many_at_once_store_one(store, put):
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda name=str(number): paths.append(put(name))) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(list(store.iterdir())) == 1
    assert [path.read_bytes() == CONTENT for path in paths] == [True] * 8


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
ANOTHERS = pytest.param("another's", marks=AS_ROOT)


def spoil(path: Path, how: str, aside: Path) -> None:
    """Let `path` be one that another user can have written."""
    if how == "another's":
        os.chown(path, os.getuid() + 1, -1)
    elif how == "writable":
        path.chmod(0o777 if path.is_dir() else 0o666)
    else:
        path.rename(aside)
        path.symlink_to(aside)


@pytest.mark.parametrize("how", [ANOTHERS, "writable", "a link"])
def test_a_file_that_others_can_have_written_is_replaced(tmp_path, store, put, how):
    """It has the right name and size, and nothing else tells it from ours."""
    put("first")
    (stored,) = store.iterdir()
    stored.write_bytes(CONTENT[::-1])
    spoil(stored, how, tmp_path / "elsewhere")

    assert put("other").read_bytes() == CONTENT
    state = stored.lstat()
    assert (state.st_uid, state.st_mode) == (os.getuid(), stat.S_IFREG | MODES.file)


@pytest.mark.parametrize("how", [ANOTHERS, "writable", "a link", "in a writable one"])
def test_where_others_can_write_to_the_store_a_run_has_its_own(tmp_path, put, how):
    around = tmp_path / "root" / ".serried"
    store = around / "agents"
    put("first", store)
    (stored,) = store.iterdir()
    stored.write_bytes(CONTENT[::-1])
    if how == "in a writable one":
        spoil(around, "writable", tmp_path)
    else:
        spoil(store, how, tmp_path / "elsewhere")

    own = put("other", store)

    assert (own.is_symlink(), own.read_bytes()) == (False, CONTENT)
    assert stored.read_bytes() == CONTENT[::-1]


def test_where_the_store_cannot_be_written_a_run_has_its_own(put, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(files, "make_directory", refuse)
    own = put("first")
    assert (own.is_symlink(), own.read_bytes()) == (False, CONTENT)
