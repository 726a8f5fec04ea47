"""Which launcher a plan has, and which pairs of launcher, command and cluster are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from serried import config
from serried.errors import UsageError
from serried.plan import Launch, Plan, plan


@pytest.fixture
def planned(tmp_path: Path):
    def make(command: str, cluster: str = "slurm", **settings) -> Plan:
        told = {name.replace("__", "."): value for name, value in settings.items()}
        words = tuple(command.split())
        environ = {"HOME": str(tmp_path), "PATH": "", "CUDA_VISIBLE_DEVICES": "", "SCRATCH": "/scratch/ada"}
        return plan(config.resolve(None, words, told, cluster, tmp_path, environ), run_id="k3f9q2", created="")

    return make


def test_agents_start_the_ranks_by_default(planned):
    assert planned("python train.py").launch == Launch("agent", 0, ())


def test_a_single_process_has_all_gpus_of_its_node(planned):
    made = planned("python train.py", launch__kind="single", resources__gpus=4)
    assert (made.launch.kind, made.allocation.ranks, made.allocation.gpus, made.allocation.cpus) == ("single", 1, 4, 8)


REFUSED = [
    (
        {"launch__kind": "single", "resources__nodes": 2},
        "python train.py",
        '`launch.kind = "single"` is one process, and 2 nodes were asked for',
    ),
    (
        {"launch__kind": "single", "resources__ranks": 4},
        "python train.py",
        '`launch.kind = "single"` is one process, and 4 ranks were asked for',
    ),
    (
        {"resources__ranks": 4},
        "torchrun --nproc-per-node=4 train.py",
        "`torchrun` starts ranks of its own, and 4 ranks on each node would each start it",
    ),
    (
        {"resources__ranks": 2},
        "/opt/conda/bin/python3.11 -m torch.distributed.launch train.py",
        "`torchrun` starts ranks of its own, and 2 ranks on each node would each start it",
    ),
    (
        {"resources__ranks": 2},
        "/opt/bin/accelerate launch train.py",
        "`accelerate` starts ranks of its own, and 2 ranks on each node would each start it",
    ),
    (
        {"resources__nodes": 2},
        "srun python train.py",
        "the command begins with `srun`, which each of 2 ranks would start anew",
    ),
    (
        {"resources__gpus": 2, "resources__extra": ["--gpus-per-task=1"]},
        "python train.py",
        "`--gpus-per-task=1` hides the GPUs of a node from each other's ranks",
    ),
    ({"launch__max_restarts": 3}, "python train.py", "`launch.max_restarts` is torchrun's"),
    (
        {"launch__options": ["-v"]},
        "python train.py",
        "`launch.options` are a launcher's, and with `agent` there is none",
    ),
]


@pytest.mark.parametrize(("settings", "command", "message"), REFUSED)
def test_a_wrong_pair_is_refused_with_the_reason(planned, settings, command, message):
    with pytest.raises(UsageError) as refusal:
        planned(command, **settings)
    assert refusal.value.message == message


@pytest.mark.parametrize("command", ["torchrun --standalone --nproc-per-node=4 train.py", "accelerate launch train.py"])
def test_what_starts_its_own_ranks_may_be_started_once(planned, command):
    assert planned(command, resources__gpus=4, launch__kind="single").command == tuple(command.split())
