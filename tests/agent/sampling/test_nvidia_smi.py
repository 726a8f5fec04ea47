"""GPUs through `nvidia-smi`, with a stand-in that prints values as drivers have been seen to print them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from serried.agent.sampling.gpus import open_source
from serried.agent.sampling.nvidia_smi import NvidiaSmi
from serried.protocol import names

GIB = 1 << 30
FIRST = "GPU-1a, NVIDIA A100-SXM4-80GB, 81920, 400.00, 97, 71000, 398.51, 61, 1410, 2, 0x0000000000000004"
SECOND = "GPU-2b, NVIDIA A100-SXM4-80GB, 81920, 400.00, 0, 4, 61.02, 30, 210, 0, 0x0000000000000001"


@pytest.fixture
def smi(monkeypatch, tmp_path):
    """Installs a `nvidia-smi` that prints `rows`, knows only some fields, and exits with `status`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("serried.agent.sampling.nvml.LIBRARY", "libnvidia-ml-absent.so.1")

    def install(*rows: str, unknown: str = "no-such-field", apps: str = "", status: int = 0) -> None:
        text = "\n".join(rows)
        script = f"""#!/bin/sh
        case "$1" in
        *{unknown}*) echo 'Field "{unknown}" is not a valid field to query.'; exit 2;;
        *--query-compute-apps*) printf '%s\\n' {shlex.quote(apps)};;
        *) printf '%s\\n' {shlex.quote(text)}; exit {status};;
        esac
        """
        program = Path(tmp_path, "nvidia-smi")
        program.write_text(script)
        program.chmod(0o755)

    return install


def test_a_sample_has_every_value_that_the_command_prints(smi):
    smi(FIRST, SECOND)
    source = open_source("1,0")
    assert source is not None
    assert source.name == "nvidia-smi"
    device = {"name": "NVIDIA A100-SXM4-80GB", "memory": 80 * GIB, "power_cap": 400.0}
    assert source.devices() == {0: {**device, "uuid": "GPU-2b"}, 1: {**device, "uuid": "GPU-1a"}}
    assert source.read()[1] == {
        "busy": 97,
        "memory": 71000 << 20,
        "power": 398.51,
        "temperature": 61,
        "clock": 1410,
        "throttled": ["power-cap"],
        "ecc_errors": 0,
    }
    assert source.read()[0]["throttled"] == []


@pytest.mark.parametrize("unknown", ["clocks_event_reasons", "reasons.active"])
def test_a_driver_that_does_not_know_a_field_is_asked_without_it(smi, unknown):
    has_reasons = unknown == "clocks_event_reasons"
    smi(FIRST if has_reasons else FIRST.rpartition(",")[0], unknown=unknown)
    source = NvidiaSmi(None)
    assert ("throttled" in source.read()[0]) == has_reasons
    assert source.read()[0]["busy"] == 97


ODD = [
    "GPU-1a, Tesla K80, 11441, [N/A], [Not Supported], 0, ERR!, [GPU requires reset], [Unknown Error], [N/A], [N/A]",
    "GPU-1a, GeForce, 11441, nan, -1, 0, 1e999, N/A, , [Insufficient Permissions], 0xzz",
]


@pytest.mark.parametrize("row", ODD)
def test_what_is_no_number_is_missing(smi, row):
    smi(row)
    source = NvidiaSmi(None)
    assert source.read() == {0: {"memory": 0}}
    assert source.devices()[0].keys() == {"name", "uuid", "memory"}


def test_lost_gpus_are_missing_whether_they_are_printed_or_not(smi):
    smi(FIRST, SECOND)
    source = NvidiaSmi("0,1")
    smi(FIRST, ", ".join(["GPU-2b", *["[GPU is lost]"] * 10]), status=15)
    assert source.read().keys() == {0}
    smi("Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error", SECOND, status=255)
    assert source.read().keys() == {1}
    assert source.devices().keys() == {0, 1}


def test_a_command_that_prints_no_values_is_an_error_and_not_a_loss_of_all_gpus(smi):
    smi(FIRST)
    source = NvidiaSmi(None)
    smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", status=9)
    with pytest.raises(OSError, match="no values"):
        source.read()


def test_a_command_that_hangs_is_an_error(smi, monkeypatch, tmp_path):
    smi(FIRST)
    source = NvidiaSmi(None)
    monkeypatch.setattr("serried.agent.sampling.nvidia_smi.SECONDS", 0.2)
    Path(tmp_path, "nvidia-smi").write_text(f"#!{sys.executable}\nimport time; time.sleep(60)")
    with pytest.raises(OSError, match="not answered"):
        source.read()


def test_a_mig_device_is_listed_without_values(smi):
    smi(FIRST)
    source = NvidiaSmi("MIG-7c")
    assert (source.devices(), source.read()) == ({0: {"name": "MIG device", "uuid": "MIG-7c"}}, {0: {}})


def test_processes_are_listed_by_gpu(smi):
    smi(FIRST, SECOND, apps="GPU-2b, 4711, 1024\nGPU-2b, 4712, [N/A]\nGPU-9z, 1, 1\nNo running processes found")
    assert NvidiaSmi("1").processes() == {0: {4711: GIB, 4712: 0}}


def test_the_command_does_not_count_as_a_process_that_the_program_left_behind(smi, monkeypatch, tmp_path):
    monkeypatch.setenv(names.MARK, "k3f9q2/-/1")
    smi(FIRST)
    program = Path(tmp_path, "nvidia-smi")
    program.write_text(f"#!/bin/sh\nenv > {tmp_path}/environ\necho '{FIRST}'\n")
    NvidiaSmi(None)
    environ = Path(tmp_path, "environ").read_text().splitlines()
    assert f"{names.SIDE_COMMAND}=1" in environ
    assert [entry for entry in environ if entry.startswith(f"{names.MARK}=")] == []


def test_a_node_without_the_command_has_no_source(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("serried.agent.sampling.nvml.LIBRARY", "libnvidia-ml-absent.so.1")
    monkeypatch.setattr("serried.agent.sampling.amdgpu.SYS", tmp_path)
    assert open_source(None) is None
