"""GPUs in use by others, with stand-ins for the driver, and AMD GPUs, from a stand-in for /sys/class."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serried.agent.sampling.gpus import Amdgpu, GpuSource, in_use, is_marked
from serried.schema import names

GIB = 1 << 30


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path, "kfd/kfd/topology/nodes/0", gpu_id="0", properties="cpu_cores_count 64\ndrm_render_minor 0\n")
    for number, minor in ((1, 128), (2, 129), (10, 130)):
        node = f"kfd/kfd/topology/nodes/{number}"
        write(tmp_path, node, gpu_id=f"{number}000", properties=f"simd_count 440\ndrm_render_minor {minor}\n")
        device = f"drm/renderD{minor}/device"
        write(tmp_path, device, gpu_busy_percent="93\n", mem_info_vram_used=str(9 * GIB), unique_id=f"ab{number}")
        write(tmp_path, device, mem_info_vram_total=str(64 * GIB), product_name="AMD Instinct MI250X")
        sensors = {"power1_average": "410000000", "power1_cap": "560000000", "temp1_input": "51000"}
        write(tmp_path, f"{device}/hwmon/hwmon{number}", freq1_input="1700000000", **sensors)
    return tmp_path


def write(root: Path, folder: str, **files: str) -> None:
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)


def test_a_sample_has_every_value_that_the_driver_shows(root):
    source = Amdgpu("0", root)
    assert source.devices() == {
        0: {"name": "AMD Instinct MI250X", "uuid": "GPU-ab1", "memory": 64 * GIB, "power_cap": 560.0}
    }
    assert source.read() == {0: {"busy": 93, "memory": 9 * GIB, "power": 410.0, "temperature": 51.0, "clock": 1700.0}}


def test_gpus_have_the_numbers_that_programs_of_the_job_use(root, monkeypatch):
    assert [device["uuid"] for device in Amdgpu(None, root).devices().values()] == ["GPU-ab1", "GPU-ab2", "GPU-ab10"]
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,GPU-AB1,7,1")
    assert [device["uuid"] for device in Amdgpu("0", root).devices().values()] == ["GPU-ab10", "GPU-ab1"]


def test_a_gpu_that_the_driver_loses_is_missing(root):
    source = Amdgpu(None, root)
    for file in (root / "drm/renderD129/device").rglob("*"):
        if file.is_file():
            file.unlink()
    assert source.read().keys() == {0, 2}


def test_processes_are_listed_by_gpu(root):
    write(root, "kfd/kfd/proc/4711", vram_1000=str(GIB), vram_2000="0")
    assert Amdgpu("1,0", root).processes() == {1: {4711: GIB}}


def test_a_machine_without_amd_gpus_has_none(tmp_path):
    assert Amdgpu(None, tmp_path).devices() == {}


GB = 10**9
OWN = 10


class Stub(GpuSource):
    """A driver with such processes on GPU 1, `p10=BYTES`."""

    def __init__(self, **processes: int) -> None:
        self._processes = {int(pid[1:]): used for pid, used in processes.items()}

    def devices(self):
        return {1: {}}

    def read(self):
        return {}

    def processes(self):
        return {1: self._processes}


def test_processes_of_others_are_counted_and_neither_own_ones_nor_a_display():
    def others(**processes: int) -> list[dict]:
        return in_use(Stub(**processes), lambda pid: pid == OWN)

    assert others(p10=4 * GB, p20=3 * GB, p30=2 * GB) == [{"gpu": 1, "processes": 2, "memory": 5 * GB}]
    assert others(p20=0) == [{"gpu": 1, "processes": 1, "memory": 0}]  # not known
    assert others(p10=9 * GB) == others(p20=GB // 50) == []


def test_processes_of_the_attempt_have_its_mark():
    environ = {**os.environ, names.MARK: "k3f9q2.1"}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE) as child:
        assert is_marked(child.pid, "k3f9q2.1")
        assert not is_marked(child.pid, "k3f9q2.2")
        child.kill()
    assert not is_marked(child.pid, "k3f9q2.1")
