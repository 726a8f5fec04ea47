"""Loaders over real DataLoaders, with real workers of each start method."""

from __future__ import annotations

import io
import os
import random
import re
import signal
from itertools import chain

import pytest
import train_ranks

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")

from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: E402 - after the skip

from serried.train import shard  # noqa: E402
from serried.train.data import make_loader  # noqa: E402

pytestmark = pytest.mark.torch


class Stream(IterableDataset):
    """Data without a length, which begin anew whenever they are asked."""

    def __init__(self, total):
        self.total = total

    def __iter__(self):
        return iter(range(self.total))


class Noisy:
    """Each item with what its worker's generators gave for it."""

    def __init__(self, total):
        self.total = total

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        return index, random.random(), torch.rand(()).item()


class Whereabouts(Noisy):
    def __getitem__(self, index):
        return index, os.getpid()


def noisy(item):
    return item, random.random(), torch.rand(()).item()


def remember_the_data(_worker):
    get_worker_info().dataset.total = -1


class Total(Noisy):
    def __getitem__(self, index):
        return self.total


def loader(data, rank=0, world_size=1, **options):
    return make_loader(data, rank=rank, world_size=world_size, **options)


def numbers(batches):
    return [batch.tolist() for batch in batches]


def flat(batches):
    return [item for batch in batches for item in batch]


def first(loader, count):
    """The first batches of a pass that is then left, and the state after them."""
    batches = iter(loader)
    taken = [next(batches) for _ in range(count)]
    return taken, loader.state_dict()


EACH_KIND = pytest.mark.parametrize("data", [list(range(23)), Stream(23)], ids=["by index", "stream"])


@EACH_KIND
def test_ranks_share_an_epoch_equally_and_miss_nothing(data):
    ranks = [numbers(loader(data, rank, 4, batch_size=3, shuffle=8)) for rank in range(4)]
    assert [[len(batch) for batch in rank] for rank in ranks] == [[3, 3]] * 4
    assert {item for rank in ranks for batch in rank for item in batch} == set(range(23))


def test_a_plain_loop_shuffles_every_epoch_anew_and_the_same_on_all_ranks():
    ranks = [loader(list(range(20)), rank, 2, batch_size=5) for rank in range(2)]
    epochs = [[numbers(rank) for rank in ranks] for _ in range(3)]
    assert [sorted(flat(chain(*epoch))) for epoch in epochs] == [list(range(20))] * 3
    assert len({str(epoch) for epoch in epochs}) == 3


def test_whoever_sets_the_epoch_decides_the_order():
    one = loader(list(range(20)), batch_size=5)
    by_itself = [numbers(one) for _ in range(3)]
    other = loader(list(range(20)), batch_size=5)
    other.set_epoch(2)
    assert [numbers(other), numbers(other)] == [by_itself[2], by_itself[2]]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (range(23), {}),
        (Stream(23), {}),
        (range(23), {"num_workers": 2, "multiprocessing_context": "fork"}),
        (Stream(23), {"num_workers": 2, "multiprocessing_context": "fork"}),
    ],
    ids=lambda value: value.get("multiprocessing_context", "none") if isinstance(value, dict) else type(value).__name__,
)
def test_a_stopped_loader_goes_on_at_the_next_sample(data, options):
    whole = numbers(loader(data, 1, 2, batch_size=3, shuffle=8))
    taken, state = first(loader(data, 1, 2, batch_size=3, shuffle=8, **options), 2)
    other = loader(data, 1, 2, batch_size=3, shuffle=8, **options)
    other.load_state_dict(state)
    assert numbers(taken) + numbers(other) == whole
    fresh = loader(data, 1, 2, batch_size=3, shuffle=8)
    fresh.set_epoch(1)
    assert numbers(other) == numbers(fresh)


def test_batches_that_workers_hold_ready_do_not_count():
    _, state = first(loader(list(range(40)), batch_size=2, num_workers=2, prefetch_factor=4), 3)
    assert (state["samples"], state["finished"]) == (6, False)


@EACH_KIND
def test_another_world_goes_on_at_the_same_sample(data):
    options = {"shuffle": 8, "tail": "keep"}
    before = [first(loader(data, rank, 2, batch_size=3, **options), 2) for rank in range(2)]
    assert before[0][1] == before[1][1]
    ranks = [loader(data, rank, 3, batch_size=2, num_workers=rank % 2, **options) for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(before[0][1])
    taken = [numbers(batches) for batches, _ in before] + [numbers(rank) for rank in ranks]
    assert sorted(flat(chain(*taken))) == list(range(23))


def test_a_state_is_plain_enough_to_be_loaded_without_pickled_code():
    one = loader(list(range(10)), batch_size=2, seed=7)
    _, state = first(one, 2)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == {
        "epoch": 0,
        "samples": 4,
        "finished": False,
        "seed": 7,
        "global_batch": 2,
        "shuffle": True,
        "length": 10,
    }


def test_a_finished_epoch_is_not_begun_again_and_a_plain_loop_resumes_with_the_next():
    one, other, plain = (loader(list(range(10)), batch_size=5) for _ in range(3))
    list(one)
    for resumed in (other, plain):
        resumed.load_state_dict(one.state_dict())
    other.set_epoch(0)
    assert numbers(other) == []
    other.set_epoch(1)
    assert numbers(other) == numbers(plain) == numbers(one)


def test_a_loader_for_evaluation_is_whole_in_every_pass():
    one = loader(list(range(10)), batch_size=5, resume=False)
    _, state = first(one, 1)
    other = loader(list(range(10)), batch_size=5, resume=False)
    other.load_state_dict(state)
    other.set_epoch(0)
    assert (state, len(numbers(other))) == ({}, 2)


def test_the_saved_seed_orders_the_epoch_that_it_began():
    whole = numbers(loader(list(range(10)), batch_size=2, seed=1))
    taken, state = first(loader(list(range(10)), batch_size=2, seed=1), 2)
    other = loader(list(range(10)), batch_size=2, seed=2)
    other.load_state_dict(state)
    assert numbers(taken) + numbers(other) == whole


@pytest.mark.parametrize(("own", "seed"), [(None, 1), (2, 2)], ids=["the loader's", "its own"])
def test_a_shard_is_shuffled_by_its_own_seed_if_it_has_one(own, seed):
    data = shard(range(20), rank=0, world_size=1, shuffle=True, seed=own)
    assert numbers(loader(data, batch_size=5, seed=1)) == numbers(loader(list(range(20)), batch_size=5, seed=seed))


def test_a_changed_global_batch_or_length_warns_on_rank_0_alone():
    _, state = first(loader(list(range(40)), batch_size=6), 1)
    message = (
        "the global batch size changed from 6 to 12 (3 ranks of 4): sample order is unchanged, "
        "but step boundaries differ\n"
        "hint: batch_size=2 keeps it"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        loader(list(range(40)), 0, 3, batch_size=4).load_state_dict(state)
    loader(list(range(40)), 1, 3, batch_size=4).load_state_dict(state)
    with pytest.warns(UserWarning, match="the data's length changed from 40 to 41: the order changes too"):
        loader(list(range(41)), batch_size=6).load_state_dict(state)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_signals_for_the_whole_job_pass_workers_by(method):
    one = loader(Whereabouts(12), batch_size=2, num_workers=1, multiprocessing_context=method, prefetch_factor=1)
    batches = iter(one)
    items, pids = next(batches)
    pid = int(pids[0])
    assert pid != os.getpid()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        os.kill(pid, number)
    rest = list(batches)
    assert sorted(items.tolist() + [item for batch, _ in rest for item in batch.tolist()]) == list(range(12))
    assert {int(each) for _, own in rest for each in own} == {pid}


STUCK = """
import time, torch
from serried.train.data import make_loader

class Stuck:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index:
            time.sleep(6000)
        return index

torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2
loader = make_loader(Stuck(), rank=0, world_size=1, shuffle=False, num_workers=1, multiprocessing_context="fork")
print(next(iter(loader)).tolist(), loader._loader.num_workers, flush=True)
"""


def test_a_worker_that_is_stuck_does_not_hold_the_exit():
    (ended,) = train_ranks.run(STUCK, 1)
    assert (ended.status, ended.output, ended.errors) == (0, "[0] 1\n", "")


@pytest.mark.parametrize(
    "data", [Noisy(16), shard(Stream(16), rank=0, world_size=1, transform=noisy)], ids=["by index", "stream"]
)
def test_random_augmentation_in_workers_is_the_same_after_a_stop(data):
    options = {"batch_size": 2, "num_workers": 2, "collate_fn": list, "seed": 3}
    taken, state = first(loader(data, **options), 3)
    rest = loader(data, **options)
    rest.load_state_dict(state)
    whole = list(loader(data, **options))
    assert taken + list(rest) == whole
    assert len({noise for batch in whole for _, *noises in batch for noise in noises}) == 32


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_pass_draws_nothing_from_the_generator_that_the_model_draws_from(num_workers):
    before = torch.get_rng_state()
    list(loader(list(range(4)), batch_size=2, num_workers=num_workers))
    assert torch.equal(torch.get_rng_state(), before)


def test_items_that_are_batches_already_stay_what_they_are():
    data = [[0, 1], [2, 3], [4]]
    assert list(loader(data, batch_size=None, shuffle=False)) == data
    one = loader(lambda: (each for each in data), 1, 2, batch_size=None)
    assert (list(one), one.samples) == ([[2, 3], [2, 3]], 3)


def test_a_users_own_start_of_workers_sees_the_users_data():
    one = loader(Total(2), num_workers=1, worker_init_fn=remember_the_data, multiprocessing_context="fork")
    assert numbers(one) == [[-1], [-1]]


def test_a_loader_tells_what_it_is():
    data = list(range(10))
    one = loader(data, 0, 2, batch_size=2)
    list(one)
    told = (one.dataset is data, one.batch_size, one.global_batch, one.num_workers, one.epoch, one.samples, len(one))
    assert told == (True, 2, 4, 0, 0, 10, 3)
    assert one.waited_seconds > 0
    assert len(loader(data, 0, 2, batch_size=2, drop_last=True)) == len(loader(data, 0, 2, batch_size=2, tail="drop"))


def test_what_would_break_the_order_is_refused_and_a_stream_has_no_length():
    refused = {
        "sampler": "`shuffle` and the seed decide the order, so that it can be resumed; use a `Subset` to select items",
        "generator": "the order and the workers' random numbers follow from `st.session(seed=…)`",
    }
    for name, reason in refused.items():
        with pytest.raises(TypeError, match=f"^this loader does not take `{name}`: {re.escape(reason)}\nhint: or pass"):
            loader([1, 2], **{name: [0]})
    with pytest.raises(TypeError, match=r"^`drop_last=True` is `tail='drop'`, and not `tail='keep'`$"):
        loader([1, 2], drop_last=True, tail="keep")
    with pytest.raises(ValueError, match=r"^tail is 'cut'"):
        loader([1, 2], tail="cut")
    with pytest.raises(TypeError, match="data without a length"):
        len(loader(Stream(3)))


@pytest.mark.parametrize(("rank", "batches"), [(0, [[0, 4], [2, 6], [8]]), (1, [[1, 5], [3, 7], [9]])])
def test_a_shard_gives_every_worker_of_a_plain_loader_its_own(rank, batches):
    data = shard(range(10), rank=rank, world_size=2)
    assert numbers(DataLoader(data, batch_size=2, num_workers=2)) == batches


def test_a_shard_knows_its_rank_by_itself_and_resumes_in_the_middle_of_an_epoch(monkeypatch):
    for name, value in train_ranks.of_torch(1, 2, port=1).items():
        monkeypatch.setenv(name, value)
    assert list(shard("abcde", tail="repeat")) == ["b", "d", "d"]
    data = shard(range(10), rank=0, world_size=2, shuffle=4)
    data.set_epoch(1)
    whole = list(data)
    data.set_epoch(1, start=6)
    assert list(data) == whole[3:]


def test_only_a_ranks_own_items_are_transformed():
    seen = []
    data = shard(Stream(6), rank=1, world_size=3, transform=lambda item: seen.append(item) or item * 10)
    assert (list(data), seen) == ([10, 40], [1, 4])
