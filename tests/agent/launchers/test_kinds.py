"""What of a launcher's variables a rank keeps, and what its node knows better."""

from __future__ import annotations

import os

import pytest

from building import a_plan
from serried.agent.attempt import Attempt
from serried.agent.launchers import kinds
from serried.schema import launchers
from serried.schema.layout import RunDirectory
from serried.schema.plan import Launch


@pytest.fixture
def work(tmp_path, monkeypatch):
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "2,3", "SLURMD_NODENAME": "n2"}.items():
        monkeypatch.setenv(name, value)
    return lambda kind: Attempt(RunDirectory(tmp_path), a_plan("r1")._replace(launch=Launch(kind)), None, 1)


def test_a_launcher_on_another_node_does_not_say_which_gpus_this_one_has(work):
    of_the_first = {"SERRIED_MARK": "r1/-/1", "CUDA_VISIBLE_DEVICES": "0,1", "SLURMD_NODENAME": "n1", "PMI_RANK": "2"}
    told = {"SERRIED_MARK": "r1/-/1", "PMI_RANK": "2", "CUDA_VISIBLE_DEVICES": "2,3", "SLURMD_NODENAME": "n2"}
    assert kinds.rank_environment(work("mpirun"), of_the_first) == told


def test_a_step_of_slurms_knows_its_gpus_by_itself(work):
    own = {"SERRIED_MARK": "r1/-/1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert kinds.rank_environment(work("srun"), own) == own


def test_a_launcher_that_hands_nothing_down_adds_to_what_the_agent_has(work):
    handed = kinds.rank_environment(work("horovodrun"), {"PATH": "/tmp/ssh:/usr/bin", "HOROVOD_RANK": "1", "LANG": "C"})
    handed.pop("PYTEST_CURRENT_TEST")
    assert handed == {"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "2,3", "SLURMD_NODENAME": "n2", "HOROVOD_RANK": "1"}


def test_the_only_rank_of_all_needs_nobody_to_say_so():
    assert kinds.read((launchers.TORCHRUN,), {}, 1) == kinds.RankIdentity(0, 1, 0, 0)
    assert kinds.read((launchers.TORCHRUN,), {}, 2) is None
