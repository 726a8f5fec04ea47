"""A recorded run: examples/digits for 180 epochs, two ranks on two CPUs of a busy machine, as its sampler wrote it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from serried.records import samples
from serried.records.rules import judge
from serried.records.samples import Measurements, measured_of
from serried.records.usage import Usage
from serried.schema.layout import TaskDirectory

RECORDED = Path(__file__).parent / "recorded" / "two-ranks-on-two-cpus.jsonl"


@pytest.fixture
def measured(tmp_path):
    path = TaskDirectory(tmp_path).attempt(1).samples(0)
    path.parent.mkdir(parents=True)
    shutil.copy(RECORDED, path)
    return measured_of(samples.read(TaskDirectory(tmp_path)))


def test_a_real_run_is_measured(measured):
    (node,) = measured.nodes
    assert (node.host, node.cpus, node.memory_scope) == ("vm", 2, "node")
    assert node.cpu is not None
    assert node.cpu.mean == pytest.approx(1.99, abs=0.02)
    assert node.seconds == pytest.approx(540, abs=60)
    assert [rank.rank for rank in measured.ranks] == [0, 1]
    assert (measured.gpus, measured.damaged, measured.one_in) == ((), 0, 1)


def test_a_real_run_that_uses_its_cpus_gets_no_notes(measured):
    usage = Usage("g66h8h", state="COMPLETED", seconds=558, limit_seconds=10800, ranks=2, cpus=2, measured=measured)
    assert judge(usage) == []


def test_measurements_survive_json(measured):
    assert Measurements.from_json(measured.to_json()) == measured
