from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from serried.base.errors import UsageError
from serried.schedulers.local import cluster
from tables import for_each


def silent(_argv: list[str], _seconds: float, _environ: Mapping[str, str]) -> None:
    return None


@pytest.fixture
def without_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cluster, "PROC", tmp_path / "gpus")
    return tmp_path / "gpus"


FOUR = "0,1,2,3"
UUIDS = ("GPU-aaaa-1", "GPU-aaab-2")


def ids(environ: Mapping[str, str]) -> list[str]:
    return [device.id for device in cluster.gpus(environ, silent)]


@for_each(
    ("given", "visible", "expected"),
    [
        ("", None, []),
        (FOUR, None, ["0", "1", "2", "3"]),
        (FOUR, "", []),
        (FOUR, "0,1,3", ["0", "1", "3"]),
        (FOUR, "3, 1", ["3", "1"]),
        (FOUR, "-1", []),
        (FOUR, "0,-1,2", ["0"]),
        ("0,1", "1,7,0", ["1"]),
        (FOUR, "GPU-ab,GPU-cd", ["GPU-ab", "GPU-cd"]),
        ("0", "MIG-ab,MIG-cd", ["MIG-ab", "MIG-cd"]),
    ],
)
def test_visible_devices_are_read_as_cuda_does(given: str, visible: str | None, expected: list[str]):
    environ = {"SERRIED_LOCAL_GPUS": given, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    assert ids(environ) == expected


@pytest.mark.usefixtures("without_driver")
@pytest.mark.parametrize("visible", ["0,1", "GPU-ab"])
def test_devices_that_are_not_there_are_not_counted(visible: str):
    assert ids({"CUDA_VISIBLE_DEVICES": visible, "PATH": ""}) == []


def test_cpus_are_those_that_we_may_use_unless_the_user_sets_another_number():
    assert cluster.cpus({}) == len(os.sched_getaffinity(0))
    assert cluster.cpus({"SERRIED_LOCAL_SLOTS": "3"}) == 3


@for_each("text", ["0", "-1", "two", "1.5"])
def test_an_invalid_number_of_slots_is_an_error(text: str):
    with pytest.raises(UsageError, match="not a number of slots"):
        cluster.cpus({"SERRIED_LOCAL_SLOTS": text})


def test_memory_in_use_is_read_for_each_gpu(tmp_path: Path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, 40123'\necho '1, 3'\necho '2, [N/A]'\necho 'No devices were found'\n")
    program.chmod(0o755)
    used = cluster.used_mb({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (used, cluster.used_mb({"PATH": str(tmp_path / "empty")})) == ({"0": 40123, "1": 3}, {})


def driver(folder: Path, uuids: tuple[str, ...]) -> None:
    """As /proc has it, whose order is nobody's."""
    for number in (1, 0):
        one = folder / f"0000:{number + 1:02x}:00.0"
        one.mkdir(parents=True)
        (one / "information").write_text(
            f"Model: \t\t A100\nIRQ:   \t\t 1\nGPU UUID: \t {uuids[number]}\nBus Type: \t PCIe\n"
        )


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["0", "1"]), ("GPU-aaab-2,GPU-aaaa-1", ["1", "0"]), ("GPU-aaab", ["1"]), ("GPU-bb,0", []), ("1", ["1"])],
)
def test_the_drivers_folder_tells_of_gpus_by_index_and_uuid(
    without_driver: Path, visible: str | None, expected: list[str]
):
    driver(without_driver, UUIDS)
    assert ids({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_uuids_that_a_driver_does_not_tell_yet_are_believed(without_driver: Path):
    driver(without_driver, ("GPU-????????-????", "GPU-????????-????"))
    assert ids({"CUDA_VISIBLE_DEVICES": "GPU-aaab-2"}) == ["GPU-aaab-2"]


@pytest.mark.usefixtures("without_driver")
def test_nvidia_smi_is_asked_where_there_is_no_such_folder(tmp_path: Path):
    (tmp_path / "nvidia-smi").touch(0o755)
    listed = "GPU 0: A100 (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-1)\nGPU 1: A100 (UUID: GPU-2)\n"
    found = cluster.gpus({"PATH": str(tmp_path)}, lambda *_: listed)
    assert found == (cluster.Device("0", "GPU-1"), cluster.Device("1", "GPU-2"))


@pytest.mark.usefixtures("without_driver")
def test_a_machine_without_any_of_them_has_no_gpu(tmp_path: Path):
    assert ids({"PATH": str(tmp_path)}) == []
