"""GPUs through NVIDIA's library, with the stand-in of tests/fake_nvml.py."""

from __future__ import annotations

import ctypes

import pynvml
import pytest

from fake_nvml import NOT_AVAILABLE, FakeGpu, FakeLibrary
from serried.agent.sampling import nvml, worker
from serried.agent.sampling.nvml import Nvml, select
from tables import for_each

GIB = 1 << 30


@pytest.fixture
def install(monkeypatch):
    def install_library(*gpus: FakeGpu, **options) -> FakeLibrary:
        library = FakeLibrary(list(gpus), **options)
        monkeypatch.setattr(nvml, "CDLL", lambda name: {"libnvidia-ml.so.1": library}[name])
        return library

    return install_library


H100 = FakeGpu(
    uuid="GPU-2ec24c42",
    name="NVIDIA H100 80GB HBM3",
    memory=85520809984,
    used=22534750208,
    reserved=503316480,
    busy=99,
    power=697_972,
    cap=700_000,
    celsius=53,
    clock=1335,
    throttled=4,
    ecc=0,
    sm_active=95.97637540327703,
    processes={644: 22525509632},
)
"""As the library of driver 580.159.04 reported a GPU under full load; `nvidia-smi` printed the same."""


def test_a_sample_has_every_value_that_the_driver_reports(install):
    install(H100)
    source = worker.open_source(None)
    assert source is not None
    assert source.name == "nvml"
    assert source.devices() == {
        0: {"name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-2ec24c42", "memory": 85520809984, "power_cap": 700.0}
    }
    sample = {
        "busy": 99,
        "memory": 22534750208,
        "power": 697.972,
        "temperature": 53,
        "clock": 1335,
        "throttled": ["power-cap"],
        "ecc_errors": 0,
    }
    assert source.read() == {0: sample}
    assert source.read() == {0: {**sample, "sm_active": 95.97637540327703}}  # needs two readings
    assert source.processes() == {0: {644: 22525509632}}


def test_zero_is_a_value(install):
    install(FakeGpu(busy=0, used=0, power=0, clock=0, throttled=1, sm_active=0.0, ecc=0))
    source = Nvml(None)
    source.read()
    zeros = dict.fromkeys(("busy", "memory", "power", "clock", "sm_active", "ecc_errors"), 0)
    assert source.read() == {0: {**zeros, "temperature": 61, "throttled": []}}


def test_values_that_a_gpu_does_not_have_are_missing(install):
    install(FakeGpu(busy=None, ecc=None, sm_active=None))
    sample = Nvml(None).read()[0]
    assert sample.keys() == {"memory", "power", "temperature", "clock", "throttled"}


def test_functions_that_a_driver_lacks_have_others_in_their_place(install):
    lacks = {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperature", "nvmlGpmQueryDeviceSupport"}
    install(FakeGpu(), missing=lacks)
    source = Nvml(None)
    source.read()
    sample = source.read()[0]
    assert (sample["memory"], sample["temperature"], "sm_active" in sample) == (21 * GIB, 61, False)


def test_errors_count_from_the_start_of_the_job(install):
    gpu = FakeGpu(ecc=3)
    install(gpu)
    source = Nvml(None)
    gpu.ecc = 5
    assert source.read()[0]["ecc_errors"] == 2


GPUS = ["GPU-aaaa", "GPU-bbbb"]
ORDERS = [
    ("1", ["GPU-bbbb"]),
    ("1,0", ["GPU-bbbb", "GPU-aaaa"]),
    ("GPU-b,0", ["GPU-bbbb", "GPU-aaaa"]),
    ("0,7,1", ["GPU-aaaa"]),  # CUDA stops at an unknown name
    ("0,-1,1", ["GPU-aaaa"]),
    ("0, 1 ,", ["GPU-aaaa", "GPU-bbbb"]),
    ("GPU-zzzz", []),
    ("NoDevFiles", []),
    ("", []),
    (None, ["GPU-aaaa", "GPU-bbbb"]),
]


@for_each("visible, expected", ORDERS)
def test_gpus_have_the_numbers_that_programs_of_the_job_use(visible, expected):
    assert [GPUS[chosen] for chosen in select(visible, GPUS)] == expected


def test_the_numbers_are_those_of_the_samples(install):
    install(FakeGpu(), FakeGpu(uuid="GPU-bbbb", busy=1))
    source = Nvml("1,0")
    assert [device["uuid"] for device in source.devices().values()] == ["GPU-bbbb", "GPU-aaaa"]
    assert [sample["busy"] for sample in source.read().values()] == [1, 97]


def test_a_gpu_that_the_control_group_hides_has_no_number(install):
    install(FakeGpu(is_hidden=True), FakeGpu(uuid="GPU-bbbb"))
    assert Nvml("0").devices()[0]["uuid"] == "GPU-bbbb"


def test_a_gpu_that_the_driver_loses_is_missing_and_its_error_remains(install):
    lost = FakeGpu()
    library = install(lost, FakeGpu(uuid="GPU-bbbb"))
    source = Nvml("0,1")
    lost.is_lost = True
    library.xids.append((lost, 79))
    assert source.read()[0] == {"xid": [79]}
    assert source.read().keys() == {1}
    assert source.devices().keys() == {0, 1}


def test_a_gpu_that_was_lost_before_the_start_keeps_its_number(install):
    install(FakeGpu(is_lost=True), FakeGpu(uuid="GPU-bbbb"))
    for visible in (None, "0,1", "GPU-aaaa,1"):
        source = Nvml(visible)
        assert (source.devices()[0], source.devices()[1]["uuid"]) == ({}, "GPU-bbbb")
        assert source.read().keys() == {1}


def test_a_mig_device_has_memory_and_active_sms_and_shares_the_temperature(install):
    devices = [
        FakeGpu(uuid=f"MIG-{number}", name="NVIDIA H200 MIG 1g.18gb", used=GIB, busy=None, instance=number, ecc=None)
        for number in (7, 9)
    ]
    install(FakeGpu(mig=devices, celsius=50))
    source = Nvml("MIG-9")
    assert source.devices()[0]["name"] == "NVIDIA H200 MIG 1g.18gb"
    source.read()
    sample = {"memory": GIB, "temperature": 50, "clock": 1980, "sm_active": 55.5, "throttled": ["power-cap"]}
    assert source.read() == {0: sample}
    assert Nvml("0").devices()[0]["uuid"] == "MIG-7"  # CUDA uses the first MIG device of a GPU


def test_processes_are_listed_by_gpu_also_when_there_are_many(install):
    many = dict.fromkeys(range(100, 300), GIB)
    install(FakeGpu(), FakeGpu(uuid="GPU-bbbb", processes={**many, 5: NOT_AVAILABLE}))
    assert Nvml("1,0").processes() == {0: {**many, 5: 0}}


def test_a_driver_that_does_not_answer_is_no_source(install, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    install(FakeGpu(), status=9)
    assert worker.open_source(None) is None


def test_layouts_are_those_of_nvidia_ml_py():
    pairs = {
        "_Utilization": pynvml.c_nvmlUtilization_t,
        "_Memory": pynvml.c_nvmlMemory_t,
        "_MemoryV2": pynvml.c_nvmlMemory_v2_t,
        "_Process": pynvml.c_nvmlProcessInfo_v2_t,
        "_Event": pynvml.c_nvmlEventData_t,
        "_GpmSupport": pynvml.c_nvmlGpmSupport_t,
        "_GpmMetric": pynvml.c_nvmlGpmMetric_t,
        "_Temperature": pynvml.c_nvmlTemperature_v1_t,
        "_FieldValue": pynvml.c_nvmlFieldValue_t,
    }
    for name, theirs in pairs.items():
        assert layout_of(getattr(nvml, name)) == layout_of(theirs)
    assert layout_of(nvml._GpmMetrics)[1][:-1] == layout_of(pynvml.c_nvmlGpmMetricsGet_t)[1][:-1]
    assert nvml._GpmMetrics.metrics.offset == pynvml.c_nvmlGpmMetricsGet_t.metrics.offset


def layout_of(structure: type[ctypes.Structure]) -> tuple[int, list[tuple[int, int]]]:
    fields = [getattr(structure, field[0]) for field in structure._fields_]
    return ctypes.sizeof(structure), [(field.offset, field.size) for field in fields]
