"""No item twice and none never: any ranks, any workers, stopped anywhere, gone on with by others."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.train.data.order import ReaderLayout, count_steps, pick, steps
from serried.train.data.sources import Shard, Streamed, source_of
from tables import for_each

WORLDS = st.integers(1, 4)
BATCHES = st.integers(1, 3)
WORKERS = st.integers(1, 3)
TOTALS = st.integers(0, 40)
TAILS = st.sampled_from(["repeat", "drop", "keep"])


@dataclass(frozen=True)
class Segment:
    """One attempt: so many ranks, workers, and steps until it is stopped."""

    world_size: int
    batch_size: int
    workers: int
    steps: int


LAYOUTS = st.builds(
    lambda rank, world, batch, tail: ReaderLayout(rank % world, world, batch, tail),
    st.integers(0, 3),
    WORLDS,
    BATCHES,
    TAILS,
)
SEGMENTS = st.lists(st.builds(Segment, WORLDS, BATCHES, WORKERS, st.integers(0, 5)), max_size=4)
LAST = st.builds(Segment, WORLDS, BATCHES, WORKERS, st.just(1000))


class Words:
    """Data without a length, that begin anew whenever they are asked."""

    def __init__(self, total):
        self.total = total

    def __iter__(self):
        return iter(range(self.total))


def source(total, *, streamed, shuffle=False):
    return source_of(Words(total) if streamed else range(total), shuffle)


def batches_of(source, layout, workers, start, *, seed=0, epoch=0):
    """A rank's steps in order, from its workers by turns as torch's DataLoader asks them: (position after, items)."""
    turns = [source.blocks(replace(layout, worker=k, workers=workers), seed, epoch, start) for k in range(workers)]
    while turns:
        for turn in list(turns):
            block = next(turn, None)
            if block is None:
                turns.remove(turn)
            else:
                yield block


def attempt(source, segment, tail, start, **order):
    """Steps over all ranks, each a list of the ranks' items, and where the next attempt goes on."""
    layouts = [ReaderLayout(rank, segment.world_size, segment.batch_size, tail) for rank in range(segment.world_size)]
    ranks = [list(islice(batches_of(source, each, segment.workers, start, **order), segment.steps)) for each in layouts]
    position = max((rank[-1][0] for rank in ranks if rank), default=start)
    taken = [[rank[step][1] if step < len(rank) else [] for rank in ranks] for step in range(max(map(len, ranks)))]
    return taken, position


def epoch_of(source, segments, tail, **order):
    """All steps of an epoch that one attempt after another works off."""
    position, taken = 0, []
    for segment in segments:
        more, position = attempt(source, segment, tail, position, **order)
        taken += more
    return taken


def items(taken):
    return [item for step in taken for rank in step for item in rank]


@settings(deadline=None)
@given(TOTALS, SEGMENTS, LAST, st.booleans(), st.sampled_from([False, 1, 7]))
def test_every_item_comes_once_whoever_goes_on_wherever_it_stopped(total, segments, last, streamed, shuffle):
    taken = epoch_of(source(total, streamed=streamed, shuffle=shuffle), [*segments, last], "keep")
    assert sorted(items(taken)) == list(range(total))


@settings(deadline=None)
@given(TOTALS, SEGMENTS, LAST, st.booleans())
def test_dropping_leaves_out_less_than_a_step_at_the_end_and_nothing_comes_twice(total, segments, last, streamed):
    taken = items(epoch_of(source(total, streamed=streamed), [*segments, last], "drop"))
    assert sorted(taken) == list(range(len(taken)))
    assert total - len(taken) < last.world_size * last.batch_size


@settings(deadline=None)
@given(TOTALS, SEGMENTS, LAST, st.booleans())
def test_repeating_leaves_out_nothing_and_repeats_less_than_one_item_a_rank(total, segments, last, streamed):
    widest = max(segment.world_size for segment in [*segments, last])
    taken = Counter(items(epoch_of(source(total, streamed=streamed), [*segments, last], "repeat")))
    assert sorted(taken) == list(range(total))
    assert taken.total() - total < widest


@settings(deadline=None)
@given(TOTALS, st.integers(0, 40), LAST, st.sampled_from(["repeat", "drop"]), st.booleans())
def test_ranks_are_equally_long_on_request(total, start, segment, tail, streamed):
    taken, _ = attempt(source(total, streamed=streamed), segment, tail, min(start, total))
    assert [len({len(rank) for rank in step}) for step in taken] == [1] * len(taken)


@settings(deadline=None)
@given(TOTALS, LAST, st.integers(0, 12), TAILS, st.tuples(st.booleans(), st.sampled_from([False, 5])))
def test_a_stopped_epoch_goes_on_as_if_it_had_not(total, layout, stop, tail, kind):
    streamed, shuffle = kind
    data = source(total, streamed=streamed, shuffle=shuffle)
    assert epoch_of(data, [replace(layout, steps=stop), layout], tail) == epoch_of(data, [layout], tail)


@settings(deadline=None)
@given(TOTALS, st.lists(st.tuples(WORLDS, WORKERS), min_size=1, max_size=3), st.integers(0, 6), st.booleans())
def test_steps_hold_the_same_items_in_every_world_while_the_global_batch_stays(total, worlds, stop, streamed):
    data = source(total, streamed=streamed, shuffle=6)
    alone = [sorted(items([step])) for step in epoch_of(data, [Segment(1, 12, 1, 1000)], "keep")]
    segments = [Segment(world, 12 // world, workers, stop) for world, workers in worlds]
    taken = epoch_of(data, [*segments, replace(segments[-1], steps=1000)], "keep")
    assert [sorted(items([step])) for step in taken] == alone


@settings(deadline=None)
@given(TOTALS, LAYOUTS, WORKERS, st.integers(0, 45))
def test_data_with_a_length_and_data_without_are_shared_out_alike(total, layout, workers, start):
    streamed, indexed = (source(total, streamed=streamed) for streamed in (True, False))
    assert list(batches_of(streamed, layout, workers, start)) == list(batches_of(indexed, layout, workers, start))


@settings(deadline=None)
@given(TOTALS, LAYOUTS, WORKERS)
def test_the_length_of_an_epoch_is_known_without_reading_it(total, layout, workers):
    assert count_steps(total, layout) == len(list(batches_of(source(total, streamed=True), layout, workers, 0)))


@settings(deadline=None)
@given(TOTALS, LAYOUTS)
def test_the_length_of_a_shard_is_the_number_of_a_ranks_items(total, layout):
    shard = Shard(range(total), layout=layout)
    assert (bool(shard), len(shard)) == (True, len(list(shard)))
    with pytest.raises(TypeError, match=r"^data without a length: "):
        len(Shard(lambda: iter(range(3)), layout=layout))


@settings(deadline=None)
@given(TOTALS, WORLDS, WORKERS)
def test_with_blocks_of_one_item_i_is_for_shard_i_modulo_shards(total, world_size, workers):
    shards = world_size * workers
    for rank in range(world_size):
        for worker in range(workers):
            layout = ReaderLayout(rank, world_size, worker=worker, workers=workers)
            mine = list(chain.from_iterable(step.positions for step in steps(total, 0, layout)))
            assert mine == [i for i in range(total) if i % shards == worker * world_size + rank]


@pytest.mark.torch
def test_each_seed_and_epoch_has_an_order_of_its_own_with_every_item():
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    for total, shuffle in ((500, True), (500, 500), (40, 5)):
        data, whole = source(total, streamed=False, shuffle=shuffle), list(range(total))
        orders = [tuple(data.indices(seed, epoch)(whole)) for seed in range(3) for epoch in range(3)]
        assert len({*orders, tuple(whole)}) == 10
        assert all(sorted(order) == whole for order in orders)
        assert tuple(data.indices(0, 0)(whole)) == orders[0]


@settings(deadline=None)
@given(TOTALS, st.integers(1, 9), st.integers(0, 45), st.integers(0, 3))
def test_windows_are_shuffled_alike_in_data_with_a_length_and_without(total, window, start, epoch):
    layout = ReaderLayout(0, 1)
    sources = [source(total, streamed=streamed, shuffle=window) for streamed in (True, False)]
    streamed, indexed = (list(chain(*(block for _, block in s.blocks(layout, 7, epoch, start)))) for s in sources)
    assert streamed == indexed


class Tape(Words):
    """Data that can begin in the middle, and tell what was asked of them."""

    def __init__(self, total):
        super().__init__(total)
        self.asked = []
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def iter_from(self, position):
        self.asked.append(position)
        return iter(range(position, self.total))


def test_data_that_can_begin_in_the_middle_are_not_read_up_to_there():
    tape = Tape(100)
    layout = ReaderLayout(1, 2, 3, "repeat")
    assert list(Streamed(tape, False).blocks(layout, 0, 4, 90)) == [(96, [91, 93, 95]), (100, [97, 99])]
    assert (tape.asked, tape.epochs) == ([88], [4])


def test_a_function_that_makes_an_iterable_is_called_for_every_pass():
    data = source_of(lambda: (letter for letter in "abc"), False)
    assert [[list(data.blocks(ReaderLayout(0, 1), 0, 0, 0))] for _ in range(2)] == [
        [[(1, ["a"]), (2, ["b"]), (3, ["c"])]]
    ] * 2


@for_each(
    "data, shuffle, message",
    [
        ((i for i in range(3)), False, "a generator can be read only once, and an epoch needs to read it again"),
        (zip("ab", "cd", strict=True), False, "a zip can be read only once, and an epoch needs to read it again"),
        (3, False, "a int cannot be read: it has neither `__getitem__` with `__len__`, nor `__iter__`"),
        ({1, 2}, True, "data without `__getitem__` and `__len__` cannot be shuffled as a whole"),
        ([1, 2], -1, "shuffle is -1"),
        ([1, 2], "yes", "shuffle is 'yes'"),
    ],
)
def test_what_cannot_be_read_every_epoch_is_refused(data, shuffle, message):
    with pytest.raises(TypeError) as refused:
        source_of(data, shuffle)
    assert str(refused.value).splitlines()[0] == message


@for_each(
    "layout, message",
    [
        ({"rank": 2, "world_size": 2}, "rank 2 of 2: ranks count from 0 to world_size - 1"),
        ({"rank": 0, "world_size": 1, "batch_size": 0}, "batch_size is 0; it must be 1 or more"),
        ({"rank": 0, "world_size": 1, "tail": "cut"}, "tail is 'cut'\nhint: one of repeat, drop, keep"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(layout, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ReaderLayout(**layout)


def test_each_step_is_announced_before_its_first_item_is_read():
    said = []

    def stream():
        for item in range(8):
            said.append(f"read {item}")
            yield item

    layout = ReaderLayout(0, 1, 2, worker=1, workers=2)
    for _, block in pick(stream(), layout, begin=lambda first: said.append(f"begin {first}")):
        said.append(block)
    assert said == [
        *("read 0", "read 1", "begin 2", "read 2", "read 3", [2, 3]),
        *("read 4", "read 5", "begin 6", "read 6", "read 7", [6, 7]),
    ]
