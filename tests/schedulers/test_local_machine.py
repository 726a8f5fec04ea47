"""What this machine has: a private folder, slots, GPUs."""

from __future__ import annotations

import os

import pytest

from serried.errors import UsageError
from serried.schedulers.local import machine
from serried.schedulers.local.machine import Device

DRIVER = """\
0, GPU-aaaa, 40123
1, GPU-bbbb, 3
2, GPU-cccc, [N/A]
No devices were found
"""


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch):
    monkeypatch.setattr(machine.shell, "which", lambda name: None)  # noqa: ARG005 - nothing is installed


def ids(environment):
    return [device.id for device in machine.gpus(environment)]


def test_the_driver_s_table_is_read():
    assert machine.devices_in(DRIVER) == (
        Device("0", "GPU-aaaa", 40123),
        Device("1", "GPU-bbbb", 3),
        Device("2", "GPU-cccc", 0),
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, []),
        ({"SERRIED_LOCAL_GPUS": ""}, []),
        ({"SERRIED_LOCAL_GPUS": "0,1,2,3"}, ["0", "1", "2", "3"]),
        ({"SERRIED_LOCAL_GPUS": "0,1,2,3", "CUDA_VISIBLE_DEVICES": "3,1"}, ["3", "1"]),
        ({"SERRIED_LOCAL_GPUS": "0,1,2,3", "CUDA_VISIBLE_DEVICES": ""}, []),
        ({"SERRIED_LOCAL_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "1,7"}, ["1"]),
        ({"SERRIED_LOCAL_GPUS": "0", "CUDA_VISIBLE_DEVICES": "MIG-1234"}, ["MIG-1234"]),
    ],
)
def test_the_visible_gpus_are_those_that_we_may_use(environment, expected):
    assert ids(environment) == expected


def test_gpus_named_by_uuid_are_the_same_gpus(monkeypatch):
    monkeypatch.setattr(machine, "_ask_driver", lambda: machine.devices_in(DRIVER))
    assert ids({"CUDA_VISIBLE_DEVICES": "GPU-bbbb,GPU-aaaa"}) == ["1", "0"]


def test_there_is_a_slot_for_each_cpu_unless_told_otherwise():
    assert len(machine.cpu_slots({})) == len(os.sched_getaffinity(0))
    assert machine.cpu_slots({"SERRIED_LOCAL_SLOTS": "3"}) == ("0", "1", "2")


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
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
