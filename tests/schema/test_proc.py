"""What a process was started with."""

from __future__ import annotations

import time

import pytest

from serried.base import linux

STARTING = ["S", *["1"] * 46, "0", "0"]
"""Amid an exec it has memory, and its environment has no beginning yet."""


@pytest.fixture
def process(tmp_path, monkeypatch):
    """`process(FIELDS, ENTRIES)`: /proc says that of process 7, and nobody sleeps."""

    def says(fields, entries):
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7" / "stat").write_text(f"7 (a) Z (b) {' '.join(fields)}\n")
        (tmp_path / "7" / "environ").write_bytes(entries)

    monkeypatch.setattr(linux, "PROC", str(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))
    return says


def test_a_program_that_is_just_being_started_is_looked_at_again(process, monkeypatch):
    process(STARTING, b"")
    monkeypatch.setattr(time, "sleep", lambda _: process(STARTING, b"MARK=1\0"))

    assert linux.environ(7) == b"MARK=1\0"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        pytest.param(20, "0", id="a thread of the kernel has no memory"),
        pytest.param(0, "Z", id="a zombie"),
        pytest.param(slice(47, 49), ["4096", "4096"], id="one that was started with none"),
    ],
)
def test_what_has_no_environment_is_not_waited_for(process, place, says):
    fields = [*STARTING]
    fields[place] = says
    process(fields, b"")

    assert linux.environ(7) == b""
