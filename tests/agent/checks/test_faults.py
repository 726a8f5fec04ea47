"""Real attempts on nodes that are namespaces: the checks name the node or the pair with a fault, and no other."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

import preflight_faults as faults
from node_spaces import Fault
from serried import schedulers
from serried.schema.checks import PROBLEM

COUNT = 3
WITH_FIREWALL = {faults.firewall_one_way, faults.mtu_of_node}

pytestmark = pytest.mark.runs


@pytest.fixture(autouse=True)
def _namespaces(monkeypatch):
    monkeypatch.setattr(schedulers, "NAMES", schedulers.NAMES)  # an attempt registers one
    words = ["unshare", "--net", "--mount", "--uts", "ip", "link", "add", "name", "lan", "type", "bridge"]
    needed = ("unshare", "nsenter", "ip", "nft")
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        pytest.skip(f"apt-get install iproute2 nftables util-linux: no {', '.join(missing)}")
    if os.getuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("this user may make no network namespaces")


@pytest.mark.parametrize(
    "kind",
    [
        faults.wrong_interface,
        faults.loopback_name,
        faults.wrong_address,
        faults.firewall_one_way,
        faults.mtu_of_node,
        faults.memlock,
        faults.full_memory,
        faults.full_disk,
        faults.other_torch,
        faults.stale_files,
        faults.hung_check,
    ],
)
def test_the_node_or_pair_with_a_fault_is_named(kind, tmp_path):
    fault = kind(faults.Draw(1), COUNT)

    seen = faults.attempt(COUNT, tmp_path, fault)

    assert faults.verdict(fault, seen, COUNT) == "right", seen


@pytest.mark.parametrize("count", [2, 3, 4])
def test_nodes_without_a_fault_have_no_problem_and_start_their_ranks(count, tmp_path):
    seen = faults.attempt(count, tmp_path, Fault("none"))

    assert (seen.findings(PROBLEM), seen.state) == ([], "COMPLETED")
    assert [part["part"] for part in seen.checked] == ["nodes", "pairs"]
