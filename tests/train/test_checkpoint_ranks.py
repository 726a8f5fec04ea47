"""Checkpoints of several ranks: real processes, gloo, kill -9, and another number of ranks afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import train_ranks

from serried.train.checkpoints import store

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

HEAD = """
import json, logging, os, random, sys, torch
import serried.train as st
from torch import nn

ROOT, STEPS = os.environ["ROOT"], int(os.environ["STEPS"])

def tell(**values):
    print(json.dumps(values), flush=True)

def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

def fingerprint(model, optimizer, ema=None):
    models = [each.state_dict() for each in (model, ema) if each is not None]
    own = [whole(each) for state in models for each in state.values()]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    kept = {names[id(p)]: each for p, each in optimizer.state.items()}
    state = [whole(each[key]) for _, each in sorted(kept.items()) for key in ("exp_avg", "exp_avg_sq", "step")]
    return [float(each.double().abs().sum()) for each in own + state]

def make():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
"""

REPLICATED = (
    HEAD
    + """
class Own:
    replicated = False
    def __init__(self): self.value = None
    def state_dict(self): return {"value": self.value}
    def load_state_dict(self, state): self.value = state["value"]

with st.session(directory=ROOT, seed=7) as run:
    model = run.wrap(make())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    ready = run.loader(torch.utils.data.DataLoader(range(8)))
    own = Own()
    ckpt = run.checkpoints(every="2 steps", model=model, optimizer=optimizer, own=own)
    first, losses = ckpt.resumed_step, []
    while ckpt.steps < STEPS:
        own.value = [run.rank, ckpt.steps] if own.value is None else own.value
        loss = model(torch.randn(4, 6)).square().mean() + random.random()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        ckpt.step()
    ckpt.wait()
    known = [ckpt.last_step, ckpt.failures]
    tell(rank=run.rank, resumed=first, losses=losses, own=own.value, known=known)
"""
)


def run(script, root, steps, world_size=2, **changes):
    return train_ranks.run(script, world_size, ROOT=str(root), STEPS=str(steps), **changes)


def told(ended):
    assert ended.status == 0, ended.errors
    return json.loads(ended.output.splitlines()[-1])


def whole_steps(root):
    return [checkpoint.step for checkpoint in store.whole(Path(root))]


def test_every_rank_goes_on_with_its_own_random_numbers_and_state(tmp_path):
    uninterrupted = [told(rank) for rank in run(REPLICATED, tmp_path / "whole", 6)]
    first = [told(rank) for rank in run(REPLICATED, tmp_path / "parts", 4)]
    second = [told(rank) for rank in run(REPLICATED, tmp_path / "parts", 6)]
    assert [rank["resumed"] for rank in second] == [4, 4]
    assert [one["losses"] + two["losses"] for one, two in zip(first, second, strict=True)] == [
        rank["losses"] for rank in uninterrupted
    ]
    assert second[0]["losses"] != second[1]["losses"]
    assert [rank["own"] for rank in second] == [[0, 0], [1, 0]]
    assert [rank["known"] for rank in second] == [[6, 0], [6, 0]]
    names = sorted(path.name for path in (tmp_path / "parts" / "step-6").iterdir())
    assert names == ["COMPLETE", "rank-0.pt", "rank-1.pt", "replicated.pt"]


def test_another_number_of_ranks_goes_on_with_the_model_and_new_random_numbers(tmp_path):
    for ended in run(REPLICATED, tmp_path, 2):
        assert told(ended)["known"] == [2, 0]
    (only,) = run(REPLICATED, tmp_path, 4, world_size=1)
    assert told(only)["resumed"] == 2
    said = f"checkpoint {tmp_path}/step-2 was saved with 2 ranks, now 1: "
    assert re.findall(rf"^{re.escape(said)}(.*)$", only.errors, re.MULTILINE) == [
        "`own` had a state per rank and keeps its initial state",
        "per-rank random states were reset",
        "loader 0 cannot be resumed mid-epoch; its epoch restarts and some samples repeat",
    ]
    assert [told(rank)["resumed"] for rank in run(REPLICATED, tmp_path, 6)] == [4, 4]


KILLED = (
    HEAD
    + """
class Large:
    def __init__(self): self.value = torch.zeros(6 << 20, dtype=torch.int64)
    def state_dict(self): return {"value": self.value}
    def load_state_dict(self, state): self.value = state["value"]

with st.session(directory=ROOT) as run:
    large = Large()
    ckpt = run.checkpoints(every="1 step", large=large)
    tell(rank=run.rank, pid=os.getpid(), writer=ckpt._saver._writer.pid, resumed=ckpt.resumed_step)
    while ckpt.steps < STEPS:
        large.value += 1
        ckpt.step()
        run.barrier()
    ckpt.wait()
    tell(rank=run.rank, value=int(large.value[0]))
"""
)


def began(pid):
    """When a process began, which tells it from a later one with its pid; None when it is gone."""
    try:
        fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_during_a_save_leaves_no_writer_and_the_checkpoint_before(tmp_path, victim, wait_until):
    port = train_ranks.free_port()
    variables = [train_ranks.of_torch(rank, 2, port) for rank in range(2)]
    ranks = train_ranks.start(KILLED, variables=variables, ROOT=str(tmp_path), STEPS="1000000")
    try:
        said = [json.loads(rank.stdout.readline()) for rank in ranks]
        pids = [each["writer"] for each in said]
        writers = [(pid, began(pid)) for pid in pids]
        wait_until(lambda: whole_steps(tmp_path), what="a first checkpoint")
        wait_until(lambda: list(tmp_path.glob("step-*.tmp/replicated.pt")), what="a save that goes on")
        os.kill(said[victim]["pid"], signal.SIGKILL)
        wait_until(lambda: began(pids[victim]) != writers[victim][1], what="the end of the rank's writer")
    finally:
        train_ranks.finish_now(ranks)
    wait_until(lambda: not any(began(pid) == moment for pid, moment in writers), what="the end of all writers")
    newest = whole_steps(tmp_path)[0]
    again = run(KILLED, tmp_path, newest + 1)
    for ended in again:
        assert told(ended)["value"] == newest + 1
    assert json.loads(again[0].output.splitlines()[0])["resumed"] == newest
    assert not list(tmp_path.glob("*.tmp"))


def test_a_rank_whose_disk_is_full_costs_the_checkpoint_and_rank_0_says_whose(tmp_path):
    fill = (
        "import resource; run.rank == 1 and resource.prlimit(ckpt._saver._writer.pid, resource.RLIMIT_FSIZE, (64, 64))"
    )
    ended = run(REPLICATED.replace("    first, losses", f"    {fill}\n    first, losses"), tmp_path, 2)
    problems = [re.findall(r"checkpoint of step 2 was NOT saved.*: (.*)", each.errors) for each in ended]
    assert problems == [["rank 1 could not write its part"], ["File too large"]]
    assert list(tmp_path.glob("step-*")) == []


SHARDED = (
    HEAD
    + """
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 2.4 and 2.5
    from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh

class Ema:
    def __init__(self, model): self.values = {name: each.detach().clone() for name, each in model.named_parameters()}
    def update(self, model):
        for name, each in model.named_parameters():
            self.values[name].lerp_(each.detach(), 0.1)
    def state_dict(self): return dict(self.values)
    def load_state_dict(self, state): self.values = dict(state)

with st.session(directory=ROOT, seed=7) as run:
    model = make()
    if os.environ["SHARD"] == "yes":
        mesh = init_device_mesh("cpu", (run.world_size,))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    ema = Ema(model)
    local = os.environ["DISKS"] % run.rank if "DISKS" in os.environ else None
    ckpt = run.checkpoints(every="1 step", local=local, model=model, optimizer=optimizer, ema=ema)
    before = fingerprint(model, optimizer, ema) if ckpt.resumed_step else None
    generator = torch.Generator().manual_seed(ckpt.steps)
    while ckpt.steps < STEPS:
        loss = model(torch.randn(4, 6, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        BEFORE_STEP
        ckpt.step()
    ckpt.wait()
    after = fingerprint(model, optimizer, ema)
    tell(rank=run.rank, resumed=ckpt.resumed_step, before=before, after=after, failures=ckpt.failures)
"""
)


def run_sharded(root, steps, world_size, shard="yes", before_step="pass", **changes):
    return run(SHARDED.replace("BEFORE_STEP", before_step), root, steps, world_size, SHARD=shard, **changes)


fsdp2_on_cpus = pytest.mark.skipif(torch.__version__ < "2.7", reason="FSDP2 of this torch needs a GPU")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`saved(ranks, shard)`: checkpoints of steps 1 and 2, and what the ranks said; written once."""
    known = {}

    def write(ranks, shard):
        if (ranks, shard) not in known:
            root = tmp_path_factory.mktemp("saved")
            known[ranks, shard] = root, [told(rank) for rank in run_sharded(root, 2, ranks, shard)]
        return known[ranks, shard]

    return write


@fsdp2_on_cpus
@pytest.mark.parametrize(
    ("writers", "readers"),
    [((2, "yes"), (1, "yes")), ((2, "yes"), (1, "no")), ((1, "yes"), (2, "yes")), ((1, "no"), (2, "yes"))],
    ids=["2 to 1", "2 to 1 unsharded", "1 to 2", "1 unsharded to 2"],
)
def test_sharded_state_comes_back_on_any_number_of_ranks(tmp_path, saved, writers, readers):
    root, written = saved(*writers)
    shutil.copytree(root, tmp_path / "copy")
    read = [told(rank) for rank in run_sharded(tmp_path / "copy", 3, *readers)]
    assert {rank["failures"] for rank in written + read} == {0}
    assert [rank["resumed"] for rank in read] == [2] * readers[0]
    assert [rank["before"] for rank in read] == [written[0]["after"]] * readers[0]
    assert whole_steps(tmp_path / "copy") == [3, 2, 1]


SPREAD = (
    HEAD
    + """
try:
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor
except ImportError:  # torch before 2.5
    from torch.distributed._tensor import DeviceMesh, Shard, distribute_tensor

class Table:
    def __init__(self, mesh): self.rows = distribute_tensor(torch.zeros(5, 3), mesh, [Shard(0)])
    def state_dict(self): return {"rows": self.rows}
    def load_state_dict(self, state): self.rows = state["rows"]

with st.session(directory=ROOT) as run:
    table = Table(DeviceMesh("cpu", list(range(run.world_size))))
    ckpt = run.checkpoints(every="1 step", table=table)
    while ckpt.steps < STEPS:
        table.rows += 1
        ckpt.step()
        table.rows += 0  # while it is written
    ckpt.wait()
    tell(rank=run.rank, resumed=ckpt.resumed_step, failures=ckpt.failures, rows=table.rows.full_tensor().tolist())
"""
)


@pytest.mark.skipif(torch.__version__ < "2.4", reason="sharded state needs torch 2.4")
def test_what_is_spread_without_fsdp_comes_back_too(tmp_path):
    for steps, resumed in ((2, None), (3, 2)):
        for rank in map(told, run(SPREAD, tmp_path, steps)):
            assert (rank["resumed"], rank["failures"], rank["rows"]) == (resumed, 0, [[float(steps)] * 3] * 5)


@pytest.mark.skipif(torch.__version__ >= "2.4", reason="this torch can save sharded state")
def test_a_torch_that_cannot_save_sharded_state_says_so(tmp_path):
    for ended in run(SPREAD, tmp_path, 1):
        assert "sharded state cannot be saved with torch 2." in ended.errors


@fsdp2_on_cpus
def test_a_sharded_checkpoint_has_each_ranks_shards_in_its_complete(saved):
    checkpoint = store.whole(saved(2, "yes")[0])[0]
    assert checkpoint.sharded == ["model", "optimizer", "ema"]
    shards = [f"sharded/{name}" for name in (".metadata", "__0_0.distcp", "__1_0.distcp")]
    assert sorted(checkpoint.files) == ["rank-0.pt", "rank-1.pt", "replicated.pt", *shards]
    assert store.find_damage(checkpoint) is None
    umask = os.umask(0o077)  # in a run that is not shared, agents give ranks this one
    os.umask(umask)
    modes = {path.stat().st_mode & 0o777 for path in checkpoint.path.rglob("*") if path.is_dir()}
    assert modes == {0o750 & ~umask}


@fsdp2_on_cpus
def test_shards_on_the_disks_of_two_nodes_are_gathered_where_they_last(tmp_path, saved):
    for rank in range(2):
        (tmp_path / f"disk-{rank}").mkdir()
    root = tmp_path / "checkpoints"
    ranks = [told(rank) for rank in run_sharded(root, 2, 2, DISKS=str(tmp_path / "disk-%s"))]
    assert [rank["failures"] for rank in ranks] == [0, 0]
    newest, usual = store.whole(root)[0], store.whole(saved(2, "yes")[0])[0]
    assert (newest.step, sorted(newest.files), store.find_damage(newest)) == (2, sorted(usual.files), None)
    assert [path for path in tmp_path.glob("disk-*/**/*") if path.is_file()] == []
    (again,) = run_sharded(root, 2, 1)
    assert told(again)["before"] == ranks[0]["after"]


@fsdp2_on_cpus
def test_a_rank_that_cannot_do_its_part_of_a_sharded_save_does_not_leave_the_others_waiting(tmp_path):
    """Its random numbers, here, cannot be kept at step 1; the shards are everybody's all the same."""
    spoil = "random.getstate = (lambda: (3, [0], object())) if run.rank == 1 and ckpt.steps == 0 else getstate"
    ended = run_sharded(tmp_path, 2, 2, before_step=f"getstate = random.Random().getstate; {spoil}")
    assert [told(rank)["failures"] for rank in ended] == [1, 1]
    assert "checkpoint of step 1 was NOT saved; training continues: rank 1 could not write its part" in ended[0].errors
    assert whole_steps(tmp_path) == [2]


def test_a_rank_that_fails_does_not_wait_for_parts_that_will_never_come(tmp_path):
    die = "run.rank == 1 and ckpt.steps == 1 and os.kill(os.getpid(), 9)"
    step = "        ckpt.step()\n"
    first, second = run(REPLICATED.replace(step, f"        {die}\n{step}"), tmp_path, 4)
    assert (first.status, second.status) == (1, -9)
    assert not list(tmp_path.glob("step-2"))
