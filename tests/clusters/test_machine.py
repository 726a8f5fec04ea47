from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from serried.clusters import machine, slurm
from tables import for_each


def silent(_argv: list[str], _seconds: float, _environ: Mapping[str, str]) -> None:
    return None


@pytest.fixture
def without_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "PROC", tmp_path / "gpus")
    return tmp_path / "gpus"


FOUR = "0,1,2,3"
UUIDS = ("GPU-aaaa-1", "GPU-aaab-2")


def ids(environ: Mapping[str, str]) -> list[str]:
    return [device.id for device in machine.gpus(environ, silent)]


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


def test_slots_stand_for_cpus():
    assert machine.cpus({"SERRIED_LOCAL_SLOTS": "3"}) == 3


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
    found = machine.gpus({"PATH": str(tmp_path)}, lambda *_: listed)
    assert found == (machine.Device("0", "GPU-1"), machine.Device("1", "GPU-2"))


@pytest.mark.usefixtures("without_driver")
def test_a_machine_without_any_of_them_has_no_gpu(tmp_path: Path):
    assert ids({"PATH": str(tmp_path)}) == []


def test_partitions_are_read_with_their_limits_and_gpus():
    listed = """\
debug*|30:00|(null)
long|7-00:00:00|gpu:v100:4(S:0-1),gpu:a100_1g.5gb:7(S:0)
long|7-00:00:00|gpu:h100:8,shard:80
forever|infinite|gpu:2
"""
    assert slurm.partitions(listed) == {
        "partitions": {
            "debug": {"gpus": 0, "time": "30:00"},
            "long": {"gpus": 11, "time": "7-00:00:00"},
            "forever": {"gpus": 2},
        },
        "gpus_per_node": 11,
        "gpu_types": ["a100_1g.5gb", "h100", "v100"],
        "default_partition": "debug",
    }


@for_each("listed", ["", "\n", "slurm_load_partitions: Unable to contact slurm controller"])
def test_what_is_no_list_of_partitions_says_nothing(listed: str):
    assert slurm.partitions(listed) == {}


@pytest.mark.usefixtures("in_lab")
def test_a_real_slurm_answers():
    assert machine.slurm(os.environ) == {
        "partitions": {"lab": {"gpus": 4, "cpus": 16, "mem": "65536M", "nodes": 4}},
        "gpus_per_node": 4,
        "cpus_per_node": 16,
        "gpu_types": [],
        "default_partition": "lab",
    }


@pytest.mark.usefixtures("in_lab")
def test_a_real_slurm_has_a_name():
    assert (machine.site("slurm", os.environ), machine.site("pbs", os.environ)) == ("lab", "")
    assert machine.site("local", os.environ) == os.uname().nodename


def test_slurm_is_asked_once_within_minutes_and_again_where_its_configuration_is_another(tmp_path: Path):
    for program in ("sinfo", "slurm.conf"):
        (tmp_path / program).touch(0o755)
    environ = {"PATH": str(tmp_path), "SLURM_CONF": str(tmp_path / "slurm.conf"), "XDG_STATE_HOME": str(tmp_path)}
    answers = iter(["old*|infinite|", "new*|infinite|"])

    def names() -> list[str]:
        return list(machine.slurm(environ, lambda *_: next(answers))["partitions"])

    assert (names(), names()) == (["old"], ["old"])
    os.utime(tmp_path / "slurm.conf", (1, 1))
    assert names() == ["new"]


def test_a_distributions_packages_alone_are_no_cluster(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine.shutil, "which", lambda *_args, **_options: "/usr/bin/sbatch")
    monkeypatch.setattr(machine, "_SLURM_FILES", ())
    assert not machine.has_slurm({"PATH": "/usr/bin"})
    assert machine.has_slurm({"PATH": "/usr/bin", "SLURM_CONF": "/lab/slurm.conf"})


def test_a_sites_own_slurm_is_a_cluster(tmp_path: Path):
    (tmp_path / "sbatch").touch(0o755)
    assert machine.has_slurm({"PATH": str(tmp_path)})


def test_schedulers_say_how_large_an_array_may_be(fake_slurm, monkeypatch, tmp_path):
    fake_slurm()
    monkeypatch.setenv("FAKE_SLURM_ARRAY", "500")
    assert machine.array_limits("slurm", os.environ) == machine.ArrayLimits(below=500)
    assert machine.array_limits("local", os.environ) == machine.ArrayLimits()
    (tmp_path / "qstat").write_text("#!/bin/sh\n")
    (tmp_path / "qstat").chmod(0o755)
    said = (Path(__file__).parent / "pbs" / "qstat-B-f.txt").read_text()
    found = machine.array_limits("pbs", {**os.environ, "PATH": str(tmp_path)}, lambda *_: said)
    assert found == machine.ArrayLimits(elements=10_000)


def test_limits_are_read_where_they_are_said():
    config = "MailProg                = /bin/true\nMaxArraySize            = 1001\nMaxJobCount             = 10000\n"
    assert (slurm.limits(config), slurm.limits("")) == ((1001, 10_000), (None, None))
