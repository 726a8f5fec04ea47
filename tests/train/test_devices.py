"""Which device a rank takes, by which backend ranks talk, and what a model is wrapped in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tables import for_each

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

from serried.train import group, parallel  # noqa: E402 - after the skip
from serried.train.errors import DeviceError, StartError  # noqa: E402 - after the skip
from serried.train.identities import Identity  # noqa: E402 - after the skip

RANK_2 = Identity(2, 4, 2, 4, 0, "torchrun")
ALONE = Identity()
CPU, GPU, MPS = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps")


@pytest.fixture
def gpus(monkeypatch):
    """`gpus(n)`: as if this rank saw n of them."""

    def see(count):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)  # noqa: ARG005

    see(0)
    return see


@pytest.mark.parametrize(
    ("visible", "asked", "device"),
    [(4, None, "cuda:2"), (1, None, "cuda:0"), (8, None, "cuda:2"), (4, "cuda:3", "cuda:3"), (4, "cpu", "cpu")],
    ids=["by local rank", "its only one", "more than ranks", "as asked", "none"],
)
def test_a_rank_takes_the_gpu_of_its_local_rank_or_the_only_one_it_sees(gpus, visible, asked, device):
    gpus(visible)
    assert parallel.choose_device(RANK_2, asked) == torch.device(device)


def test_without_a_gpu_it_is_the_cpu_or_apples_for_one_rank_and_too_few_gpus_are_an_error(gpus, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert parallel.choose_device(ALONE) == CPU
    with pytest.raises(DeviceError, match="this rank needs a GPU and sees none"):
        parallel.choose_device(RANK_2, "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert [parallel.choose_device(who).type for who in (ALONE, RANK_2)] == ["mps", "cpu"]
    with pytest.raises(DeviceError, match="Apple's GPU serves one rank"):
        parallel.choose_device(RANK_2, "mps")
    gpus(2)
    for local_rank in range(4):
        with pytest.raises(DeviceError, match="4 ranks on this node see 2 GPUs"):
            parallel.choose_device(replace(RANK_2, rank=local_rank, local_rank=local_rank))


@for_each(
    "device, asked, backend",
    [
        (CPU, None, "gloo"),
        (GPU, None, "cpu:gloo,cuda:nccl"),  # gloo too, or nothing could be saved in the background
        (GPU, "nccl", "cpu:gloo,cuda:nccl"),
        (GPU, "gloo", "gloo"),
        (CPU, "mpi", "mpi"),
        (GPU, "cpu:mpi,cuda:ucc", "cpu:mpi,cuda:ucc"),
    ],
)
def test_the_backend_suits_the_device(device, asked, backend):
    assert group.choose_backend(device, asked) == backend
    with pytest.raises(StartError, match="the backend `nccl` needs a GPU"):
        group.choose_backend(CPU, "nccl")


def test_one_rank_is_left_bare_and_dataparallel_is_for_one_process(gpus):
    gpus(0)
    model = torch.nn.Linear(2, 1)
    assert parallel.wrap(model, ALONE, CPU) is model
    assert parallel.wrap(model, ALONE, CPU, "dp") is model
    with pytest.raises(DeviceError, match="DataParallel works in one process only"):
        parallel.wrap(model, RANK_2, CPU, "dp")
    with pytest.raises(ValueError, match="`parallel` must be `ddp`, `dp` or `none`, not 'tp'"):
        parallel.wrap(model, ALONE, CPU, "tp")
    assert isinstance(parallel.wrap(torch.nn.DataParallel(model), ALONE, CPU), torch.nn.DataParallel)
