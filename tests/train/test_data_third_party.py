"""Loaders that come ready: they pass through, and keep their place."""

from __future__ import annotations

import os

import pytest
from train_ranks import answers, run

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")

from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402 - after the skip

from serried.train.data import make_loader  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 asks for it
]


class Tape:
    """The smallest loader that keeps a state."""

    def __init__(self, items):
        self.items = items
        self.position = 0

    def __iter__(self):
        while self.position < len(self.items):
            self.position += 1
            yield self.items[self.position - 1]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def tape():
    return Tape([torch.tensor([item]) for item in range(6)])


def of_torch():
    return DataLoader(list(range(12)), batch_size=2)


def of_torch_with_workers():
    return DataLoader(list(range(12)), batch_size=2, num_workers=2, persistent_workers=True)


def of_torch_shuffled():
    sampler = DistributedSampler(list(range(12)), num_replicas=2, rank=0)
    return DataLoader(list(range(12)), batch_size=1, sampler=sampler)


def of_torchdata(num_workers=0):
    """Where torchdata is missing the test is skipped, and with CI=true it fails."""
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("needs torchdata: pip install torchdata")
    return StatefulDataLoader(list(range(12)), batch_size=2, num_workers=num_workers)


def of_torchdata_with_workers():
    return of_torchdata(2)


EACH = pytest.mark.parametrize(
    "make",
    [tape, of_torch, of_torch_with_workers, of_torch_shuffled, of_torchdata, of_torchdata_with_workers],
    ids=lambda make: make.__name__,
)


def adopted(loader, rank=0, world_size=1, **options):
    return make_loader(loader, rank=rank, world_size=world_size, **options)


def numbers(batches):
    return [batch.tolist() for batch in batches]


def stopped(make, count, epoch=0):
    """A loader that is left after `count` batches: those, and its state."""
    loader = adopted(make())
    for before in range(epoch):
        loader.set_epoch(before)
        list(loader)
    loader.set_epoch(epoch)
    batches = iter(loader)
    return numbers(next(batches) for _ in range(count)), loader.state_dict()


@EACH
def test_it_goes_on_where_it_stopped_and_then_begins_the_next_epoch(make):
    whole = adopted(make())
    epochs = []
    for epoch in range(3):
        whole.set_epoch(epoch)
        epochs.append(numbers(whole))
    taken, state = stopped(make, 2, epoch=1)
    other = adopted(make())
    other.load_state_dict(state)
    other.set_epoch(1)
    assert taken + numbers(other) == epochs[1]
    other.set_epoch(2)
    assert numbers(other) == epochs[2]


@EACH
def test_a_finished_epoch_is_not_begun_again_whether_its_end_was_seen_or_not(make):
    taken, state = stopped(make, 6)
    assert len(taken) == 6
    one = adopted(make())
    one.set_epoch(0)
    list(one)
    for finished in (state, one.state_dict()):
        other = adopted(make())
        other.load_state_dict(finished)
        assert other.state_dict() == finished  # it is not lost before the first pass
        other.set_epoch(0)
        assert numbers(other) == []
        other.set_epoch(1)
        assert len(numbers(other)) == 6


def test_an_epoch_that_is_left_behind_does_not_shorten_the_next():
    _, state = stopped(tape, 2)
    other = adopted(tape())
    other.load_state_dict(state)
    other.set_epoch(1)
    assert numbers(other) == [[0], [1], [2], [3], [4], [5]]


def test_what_the_loader_has_of_its_own_is_reached_through():
    loader = of_torch()
    one = adopted(loader)
    assert (one.loader is loader, one.dataset is loader.dataset, one.batch_size, len(one)) == (True, True, 2, 6)
    assert not hasattr(one, "nonsense")


def test_another_world_an_order_that_is_lost_and_options_are_refused_or_warned_of():
    _, state = stopped(of_torch, 2)
    with pytest.raises(ValueError, match="was saved by rank 0 of 1, and this is rank 0 of 2\nhint: give its dataset"):
        adopted(of_torch(), 0, 2).load_state_dict(state)
    with pytest.raises(
        TypeError,
        match="a ready loader takes no options: num_workers, shuffle\nhint: pass them where the loader is created",
    ):
        adopted(of_torch(), shuffle=True, num_workers=2)

    def shuffled():
        return DataLoader(list(range(12)), batch_size=2, shuffle=True)

    _, state = stopped(shuffled, 2)
    other = adopted(shuffled())
    other.load_state_dict(state)
    with pytest.warns(UserWarning, match="torch's global generator shuffles this loader"):
        list(other)


def test_its_workers_ignore_signals_for_the_whole_job_too():
    loader = of_torch_with_workers()
    batches = iter(adopted(loader))
    next(batches)
    for worker in loader._iterator._workers:
        os.kill(worker.pid, 15)
    assert len(list(batches)) == 5


def test_nothing_imports_torchdata():
    program = (
        "import sys; from serried.train.data import make_loader; from torch.utils.data import DataLoader\n"
        "for data in ([1, 2], DataLoader([1, 2])): list(make_loader(data, rank=0, world_size=1))\n"
        "print([name for name in sys.modules if name.startswith('torchdata')])"
    )
    (ended,) = run(program, 1)
    assert (ended.status, ended.output) == (0, "[]\n"), ended.errors


SPLITS = """
import json, torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler, IterableDataset, Subset
from torch.utils.data import TensorDataset, random_split
import serried.train as st

class Files(Dataset):
    def __init__(self, root, items):
        self.root, self.items, self.cache = root, items, {}
    def __len__(self):
        return len(self.items)
    def __getitem__(self, index):
        return self.items[index]

class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(9))

def split(data, seed):
    return random_split(data, [80, 20], torch.Generator().manual_seed(seed))[0]

def answer(data):
    try:
        run.loader(data, resume=False)
    except st.TrainError as error:
        return "random_split" in error.hint and "train_test_split" in error.hint
    return False

def seen(own):
    data = TensorDataset(torch.arange(100))
    subset = split(data, own)
    return {
        "subset": subset, "nested": Subset(subset, range(9)), "concat": ConcatDataset([subset, data]),
        "list": list(subset.indices), "wrapped": Files("/", subset),
        "shard": st.shard(subset), "sampler": DataLoader(subset, sampler=DistributedSampler(subset)),
        "length": range(100 + own),
    }

with st.session(seed=1) as run:
    data = TensorDataset(torch.arange(100))
    same = [data, TensorDataset(torch.randn(100, 2)), *seen(0).values(), DataLoader(split(data, run.rank)), Numbers()]
    accepted = [answer(each) for each in same]
    refused = {name: answer(each) for name, each in seen(run.rank).items()}
    refused["random"] = answer(random_split(data, [80, 20])[0])
    cached = Files("/", range(4))
    cached.cache = [torch.ones(1) if number % 2 == run.rank else None for number in range(4)]
    list(run.loader(range(4)))
    print(json.dumps([any(accepted), [name for name, is_refused in refused.items() if not is_refused]]))
    print(json.dumps([answer(cached), answer(Subset(cached, [run.rank, 1]))]))
"""


def test_data_that_differ_between_ranks_are_refused():
    for each in run(SPLITS):
        assert answers(each) == [[False, []], [False, True]], each.errors
