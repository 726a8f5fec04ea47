"""Programs in the place of the ranks of two or three nodes on this machine, with torch and gloo."""

from __future__ import annotations

import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.runs]


def findings(run):
    """The id, level and nodes of each finding of part `pairs`."""
    entries = [entry for entry in run.events("checked") if entry["part"] == "pairs"]
    for e in entries:
        print(e["seconds"])
        for f in e["findings"]:
            print(f["id"], f["level"], f["seen"], f["hosts"])
    return [(it["id"], it["level"], tuple(it["hosts"])) for entry in entries for it in entry["findings"]]


def test_two_nodes_measure_each_check_and_start_their_ranks(start):
    run = start((sys.executable, "-c", "pass"), nodes=2, ranks=2, preflight=True)
    run.wait()
    print(run.log)
    checks = ["launch", "import-time", "matrix-product", "root-bandwidth", "disk-bandwidth", "all-reduce"]
    assert [name for name, _, _ in findings(run)] == checks
    assert "problem" not in [level for _, level, _ in findings(run)]
    assert run.exit["state"] == "COMPLETED"


def test_three_nodes(start):
    run = start((sys.executable, "-c", "pass"), nodes=3, ranks=1, preflight=True)
    run.wait()
    print(run.log)
    assert "problem" not in [level for _, level, _ in findings(run)]
