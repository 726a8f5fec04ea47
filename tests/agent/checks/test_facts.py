"""What a node's worker reads on this machine, and from stand-ins for devices that it lacks."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fake_nvml import FakeGpu, FakeLibrary
from serried.agent.checks import facts, worker
from serried.agent.checks.facts import Address, GpuFacts, NodeFacts, Port
from serried.agent.sampling import nvml
from serried.schema import codec

GIB = 1 << 30


def test_addresses_are_those_that_the_system_lists():
    listed = facts.addresses()
    assert Address("lo", "127.0.0.1", "255.0.0.0", 65536) in listed
    for address in listed:
        assert address.mtu == int(Path(f"/sys/class/net/{address.interface}/mtu").read_text())


@pytest.mark.parametrize(("capabilities", "memlock"), [("0000000000000000", 65536), ("000001ffffffffff", None)])
def test_limits_are_the_workers_own(tmp_path, capabilities, memlock):
    (tmp_path / "self").mkdir(exist_ok=True)
    (tmp_path / "self/status").write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    program = f"import json; from serried.agent.checks import facts; facts.linux.PROC = {str(tmp_path)!r}"
    argv = ["prlimit", "--memlock=65536:65536", "--nofile=300:300", sys.executable, "-c"]
    argv.append(f"{program}; print(json.dumps(facts.limits()))")
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    assert (found["memlock"], found["open-files"]) == (memlock, 300)


def test_ports_are_those_of_sys(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "SYSTEM", tmp_path)
    assert facts.ports() == ()
    folder = tmp_path / "infiniband/mlx5_0/ports/1"
    folder.mkdir(parents=True)
    (folder / "state").write_text("4: ACTIVE\n")
    (folder / "rate").write_text("200 Gb/sec (4X HDR)\n")
    assert facts.ports() == (Port("mlx5_0/1", "ACTIVE", "200 Gb/sec (4X HDR)"),)


def test_stale_files_of_other_programs_and_users_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "SHARED_MEMORY", str(tmp_path))
    for name in ("nccl-ab12cd", "torch_77_1", "sem.other"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    assert facts.stale_bytes() == 16384


def test_gpus_are_seen_with_their_errors_and_who_uses_them(monkeypatch):
    known = FakeGpu(used=30 * GIB, ecc=3, throttled=1 << 7, action=1, rows=(0, 1, 1, 0), processes={1: GIB, 2: GIB})
    lost = FakeGpu(uuid="GPU-bbbb", is_lost=True)
    monkeypatch.setattr(nvml, "CDLL", lambda _: FakeLibrary([known, lost]))
    seen = GpuFacts("NVIDIA H200", 150 * GIB, 30 * GIB, 1, True, 3, True, False, ("power-brake",), "reset")
    assert facts.gpus(None, lambda pid: pid == 2) == (seen, GpuFacts())

    old = FakeLibrary(
        [FakeGpu(ecc=None, throttled=0)], missing={"nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows"}
    )
    monkeypatch.setattr(nvml, "CDLL", lambda _: old)
    assert facts.gpus(None, lambda _: False) == (GpuFacts("NVIDIA H200", 150 * GIB, 20 * GIB),)


OWN = os.getpid()
"""A process that lives."""


@pytest.mark.parametrize(
    ("gpu", "changes", "unfit"),
    [
        (FakeGpu(used=GIB >> 2, ecc=0), {}, ""),
        (FakeGpu(used=20 * GIB, processes={OWN: 20 * GIB}), {"is_suspect": False}, ""),
        (FakeGpu(used=20 * GIB, processes={1 << 30: 20 * GIB}), {"is_shared": True, "is_suspect": False}, ""),
        (FakeGpu(processes={1 << 30: 20 * GIB}), {}, "GPU 0 still has 21.5 GB in use 0 s after its processes ended"),
        (FakeGpu(used=0, ecc=0, throttled=0, action=1), {}, "GPU 0 needs a reset"),
        (FakeGpu(used=0, ecc=2, action=1), {"is_suspect": False}, ""),
        (
            FakeGpu(used=0, ecc=2, throttled=0, rows=(0, 1, 0, 1)),
            {},
            "GPU 0 had 2 memory errors and has memory that cannot be replaced",
        ),
        (FakeGpu(is_lost=True), {}, "GPU 0 does not answer the driver"),
        (FakeGpu(used=0, ecc=0), {"ports": ["mlx5_0/1"]}, "port mlx5_0/1 is missing"),
        (FakeGpu(used=0, ecc=0), {"claim": "/gone"}, "it cannot read the run directory: No such file or directory"),
    ],
)
def test_a_node_is_looked_at_again_before_another_round(tmp_path, monkeypatch, gpu, changes, unfit):
    monkeypatch.setattr(facts, "SYSTEM", tmp_path)
    monkeypatch.setattr(nvml, "CDLL", lambda _: FakeLibrary([gpu]))
    monkeypatch.setattr(worker, "MEMORY_SECONDS", 0.0)
    asked = order(tmp_path, has_gpus=True, gpus=None, is_suspect=True, is_shared=False, ports=[])
    assert worker.look_again({**asked, **changes}) == unfit


def test_a_driver_that_hangs_makes_a_node_unfit(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "TICKS", 1)
    monkeypatch.setattr(facts, "unclaimed_bytes", lambda _: threading.Event().wait())
    asked = order(tmp_path, has_gpus=True, gpus=None)
    assert worker.look_again(asked) == "the GPU driver gave no answer"


def test_without_a_driver_gpus_are_unknown(monkeypatch):
    monkeypatch.setattr(nvml, "CDLL", lambda _: FakeLibrary([], status=9))
    assert facts.gpus(None, lambda _: False) is None
    assert facts.unclaimed_bytes(None) == {}


def order(tmp_path, **changes):
    claim = tmp_path / "attempt.json"
    claim.write_text(json.dumps({"token": "k3f9q2-1", "job": "77"}))
    own = {"node": 0, "nodes": 2, "key": "00" * 32, "disk": str(tmp_path), "root": str(tmp_path), "claim": str(claim)}
    own |= {"command": sys.executable, "workdir": "/", "variables": {}, "chosen": {}, "has_gpus": False}
    return {**own, **changes}


def look(tmp_path, **changes):
    """Through JSON, as the head gets it."""
    return codec.known(NodeFacts, json.loads(json.dumps(worker.look(order(tmp_path, **changes)))))


def test_all_facts_arrive_at_the_head(tmp_path):
    found = look(tmp_path)
    assert (found.failed, found.silent) == ({}, ())
    assert found.claim == "k3f9q2-1 77"
    assert found.versions["python"] == platform.python_version()
    assert found.versions["kernel"] == os.uname().release
    assert found.disk.size > found.disk.free > 0


def test_only_a_job_of_several_nodes_opens_a_port(tmp_path):
    assert look(tmp_path).port > 0
    assert look(tmp_path, nodes=1).port == 0


def test_torch_is_read_from_the_ranks_environment_without_an_import(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.9.1+cu128'\ncuda = '12.8'\n")
    (tmp_path / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    found = look(tmp_path, variables={"PYTHONPATH": str(tmp_path)}).versions
    assert (found["torch"], found["nccl"]) == ("2.9.1+cu128", "2.27.5")


@pytest.mark.parametrize("command", ["", "/no/such/python"])
def test_a_python_that_cannot_be_run_has_no_version(tmp_path, command):
    assert "python" not in look(tmp_path, command=command).versions


def test_the_ranks_python_is_the_commands_own_or_that_of_path(tmp_path):
    (tmp_path / "python3").touch(mode=0o700)
    assert worker.find_python("python3.12", "/w", "/x") == ""
    assert worker.find_python("train.sh", "/w", f"/x:{tmp_path}") == f"{tmp_path}/python3"
    assert worker.find_python("env/bin/python", "/w", "/x") == "/w/env/bin/python"


def test_a_check_that_fails_or_hangs_does_not_touch_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "TICKS", 3)
    monkeypatch.setattr(worker, "VERSIONS_TICKS", 0)
    never = threading.Event()
    found, failed, silent = worker.run({"a": never.wait, "b": lambda: 1 / 0, "c": lambda: {"root": 1}})
    assert (found, silent) == ({"root": 1}, ["a"])
    assert failed == {"b": "ZeroDivisionError: division by zero"}
    never.set()
    assert "disk" in look(tmp_path, disk="/no/such/folder").failed
