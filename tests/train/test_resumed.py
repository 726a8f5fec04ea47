"""A resumed training computes the same numbers as an uninterrupted one, whatever makes its model parallel.

From three ranks on, how a sum is rounded depends on the order of its terms: with two, much that is wrong does not show.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import train_ranks

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
SCRIPT = Path(__file__).with_name("train_resumed.py")
DDP = ["Plain", "OneBucket", "Unused", "Views", "Frozen", "BatchNorm", "Hooked", "Accumulated", "Bare", "WrappedLate"]
if TORCH < (2, 2):
    DDP.remove("Hooked")  # DDP does not remember its hooks
ZERO = ["Zero", "ZeroViews"]


def train(folder, world_size, stops, kinds):
    """For each rank, what each kind of model had computed after each step: uninterrupted, and resumed."""
    ended = train_ranks.run(
        SCRIPT.read_text(), world_size, FOLDER=str(folder), STOPS=json.dumps(stops), KINDS=json.dumps(kinds)
    )
    return [{kind: (whole, resumed) for kind, whole, resumed in train_ranks.answers(each)} for each in ended]


@pytest.mark.parametrize(
    ("world_size", "stops", "kinds"),
    [
        pytest.param(4, [1, 4], [*DDP, "Two", *ZERO], id="4 ranks"),
        pytest.param(8, [1, 3], ["Plain", "Unused"], id="8 ranks"),
        pytest.param(4, [2, 5], ["Static", "StaticUnused"], id="a static graph"),
        pytest.param(4, [3], ["Large", "LargeUnused"], id="more than 25 MiB of gradients"),
        pytest.param(
            4,
            [1, 4],
            ["Sharded"],
            id="FSDP2",
            marks=pytest.mark.skipif(TORCH < (2, 7), reason="FSDP2 on CPUs takes torch 2.7"),
        ),
    ],
)
def test_a_resumed_step_is_bitwise_that_of_an_uninterrupted_run(tmp_path, world_size, stops, kinds):
    found = train(tmp_path, world_size, stops, kinds)
    for rank in found:
        assert list(rank) == kinds
        assert {kind: resumed for kind, (_, resumed) in rank.items()} == {
            kind: whole for kind, (whole, _) in rank.items()
        }
        assert {len(set(whole)) for whole, _ in rank.values()} == {6}


def test_the_order_that_torch_has_found_is_kept_and_no_other(tmp_path):
    """Neither DDP's first order, that of registration, nor its reverse: later steps overlap as well as ever."""
    train(tmp_path, 2, [1, 4], ["Plain", "Unused"])
    orders = [
        torch.load(tmp_path / f"step-{step}" / "replicated.pt", weights_only=True)["serried"]["parts"]["buckets"][
            "orders"
        ]
        for step in (1, 4)
    ]
    order = ["last.bias", "last.weight", "second.bias", "second.weight", "scale", "first.bias", "first.weight"]
    assert (sorted(orders[0][0]), orders[0]) == (sorted(order), orders[1])
    assert orders[0][0].index("second.weight") < orders[0][0].index("scale") < orders[0][0].index("first.weight")
    assert orders[0][1] is None


SPREAD = """
import json, os, torch
import serried.train as st
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
with st.session(directory=os.environ["ROOT"], seed=7) as run:
    torch.manual_seed(0)
    model = run.wrap(torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)))
    if run.world_size > 1 and "PLAIN" not in os.environ:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    ckpt = run.checkpoints(model=model, optimizer=optimizer, schedule=schedule, every=None)
    inner = getattr(optimizer, "optim", optimizer)
    resumed = {str(tuple(p.shape)): round(float(s["exp_avg"].double().abs().sum()), 9) for p, s in inner.state.items()}
    rate = optimizer.param_groups[0]["lr"], inner.param_groups[0]["lr"]
    model(torch.ones(4, 6)).square().mean().backward()
    optimizer.step()
    schedule.step()
    ckpt.step()
    learned = {str(tuple(p.shape)): round(float(s["exp_avg"].double().abs().sum()), 9) for p, s in inner.state.items()}
    ckpt.save(wait=True)
    print(json.dumps([ckpt.resumed_step, resumed, rate, learned]), flush=True)
"""


def merged(ended, number):
    """What the ranks have between them."""
    return {name: value for each in ended for name, value in train_ranks.answers(each)[0][number].items()}


def test_the_state_of_a_zero_redundancy_optimizer_goes_on_in_another_world(tmp_path):
    """From four ranks to two, to none of that optimizer, and back."""
    four = train_ranks.run(SPREAD, 4, ROOT=str(tmp_path))
    two = train_ranks.run(SPREAD, 2, ROOT=str(tmp_path))
    alone = train_ranks.run(SPREAD, 1, ROOT=str(tmp_path))
    again = train_ranks.run(SPREAD, 2, ROOT=str(tmp_path))
    plain = train_ranks.run(SPREAD, 2, ROOT=str(tmp_path), PLAIN="1")
    attempts = [four, two, alone, again, plain]
    assert [train_ranks.answers(each[0])[0][0] for each in attempts] == [None, 1, 2, 3, 4]
    assert [len(train_ranks.answers(each)[0][3]) for each in four] == [1, 1, 1, 1]
    for number, after in enumerate(attempts[1:]):
        assert merged(after, 1) == merged(attempts[number], 3)
    rates = [train_ranks.answers(each)[0][2] for attempt in attempts for each in attempt]
    assert rates == [
        [rate, rate]
        for rate, count in ((0.1, 4), (0.05, 2), (0.025, 1), (0.0125, 2), (0.00625, 2))
        for _ in range(count)
    ]


def test_a_zero_redundancy_optimizer_that_cannot_go_on_is_refused(tmp_path):
    script = SPREAD.replace("lr=0.1)", "lr=0.1, overlap_with_ddp=True)")
    ended = train_ranks.run(script, 2, ROOT=str(tmp_path))
    assert {each.status for each in ended} == {1}
    assert "`overlap_with_ddp=True` skips its first updates" in ended[0].errors


def test_a_torch_without_the_functions_used_keeps_its_own_buckets(monkeypatch):
    from serried.train import parallel

    monkeypatch.delattr(torch.nn.parallel.DistributedDataParallel, "_build_params_for_reducer")
    parallel._is_known_torch.cache_clear()
    try:
        assert not parallel._rebuilds(object())
    finally:
        parallel._is_known_torch.cache_clear()


FLAT = """
import os, warnings
import torch
import serried.train as st
from torch.distributed.fsdp import FullyShardedDataParallel

warnings.simplefilter("ignore")
with st.session(directory=os.environ["ROOT"], device="cpu") as run:
    model = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
    run.checkpoints(model=model)
"""


def test_flat_shards_which_torch_cannot_stage_are_refused(tmp_path):
    ended = train_ranks.run(FLAT, 2, ROOT=str(tmp_path))
    assert {each.status for each in ended} == {1}
    assert "hint: use `fully_shard` (FSDP2)" in ended[0].errors
