"""What this machine has: a private folder, slots, GPUs."""

from __future__ import annotations

import os

import pytest

from serried.errors import UsageError
from serried.schedulers.local import machine
from tables import for_each


def test_memory_in_use_is_read_of_each_gpu(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, 40123'\necho '1, 3'\necho '2, [N/A]'\necho 'No devices were found'\n")
    program.chmod(0o755)
    told = machine.used_mb({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (told, machine.used_mb({"PATH": str(tmp_path / "empty")})) == ({"0": 40123, "1": 3}, {})


def test_there_is_a_slot_for_each_cpu_unless_told_otherwise():
    assert len(machine.cpu_slots({})) == len(os.sched_getaffinity(0))
    assert machine.cpu_slots({"SERRIED_LOCAL_SLOTS": "3"}) == ("0", "1", "2")


@for_each("text", ["0", "-1", "two", "1.5"])
def test_a_slot_count_that_is_none_is_an_error(text):
    with pytest.raises(UsageError, match="not a number of slots"):
        machine.cpu_slots({"SERRIED_LOCAL_SLOTS": text})


def test_the_folder_is_private(monkeypatch, tmp_path):
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "a" / "local"))
    assert machine.root().stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_refused(monkeypatch, tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local").chmod(0o777)
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    with pytest.raises(UsageError, match="only you can write to"):
        machine.root()


def test_a_link_in_place_of_the_folder_is_refused(monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "local").symlink_to(tmp_path / "mine")
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    with pytest.raises(UsageError, match="only you can write to"):
        machine.root()
