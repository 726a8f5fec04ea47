"""What a run directory holds of Serried is packed once, and anew when any of it has changed."""

from __future__ import annotations

import os
import shutil

import pytest

from serried.submission import script


@pytest.fixture(autouse=True)
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
def packed(tmp_path, monkeypatch):
    """`packed()`: the bytes of agent.pyz and library.zip, and how many of the two had to be packed for it."""
    times = []
    pack = script._packed
    monkeypatch.setattr(script, "_packed", lambda entries: times.append(1) or pack(entries))

    def write():
        times.clear()
        (tmp_path / "agent.pyz").write_bytes(script.agent().read())
        (tmp_path / "library.zip").write_bytes(script.library().read())
        return (tmp_path / "agent.pyz").read_bytes(), (tmp_path / "library.zip").read_bytes(), len(times)

    return write


def kept(tmp_path):
    return sorted((tmp_path / "state" / "serried" / "cache").iterdir())


def test_it_is_packed_once(packed, tmp_path):
    agent, library, times = packed()

    assert times == 2
    assert packed() == (agent, library, 0)
    assert [path.stat().st_mode & 0o777 for path in kept(tmp_path)] == [0o600, 0o600]


def test_what_has_changed_is_packed_anew(packed, house, tmp_path):
    packed()
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


def test_the_byte_code_of_another_python_is_not_taken(packed, monkeypatch):
    packed()
    monkeypatch.setattr(script.importlib.util, "MAGIC_NUMBER", b"\0\0\r\n")

    assert packed()[2] == 2


def test_what_is_kept_in_part_is_not_taken(packed, tmp_path):
    agent, library, _ = packed()
    for path in kept(tmp_path):
        path.write_bytes(path.read_bytes()[:-1])

    assert packed() == (agent, library, 2)


def test_where_nothing_can_be_kept_it_is_packed_each_time(packed, tmp_path):
    (tmp_path / "state").write_text("no directory")
    agent, library, _ = packed()

    assert packed() == (agent, library, 2)
