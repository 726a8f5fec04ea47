"""`run.first`: one rank prepares, the others wait, and an error reaches them all."""

from __future__ import annotations

import threading
import time

import pytest
import train_ranks

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch.distributed as dist

from serried.train import group
from serried.train.errors import TrainError
from serried.train.group import RunFirst
from serried.train.identities import Identity

pytestmark = pytest.mark.torch

UNEVEN = [Identity(rank, 4, local, size, node) for rank, local, size, node in
          [(0, 0, 3, 0), (1, 1, 3, 0), (2, 2, 3, 0), (3, 0, 1, 1)]]  # fmt: skip
"""Three ranks on node 0 and one on node 1."""


def together(program, ranks=UNEVEN, nodes=2, store=None):
    """Run `program(preparing, rank)` for every rank in a thread of its own; what each returned or raised, by rank."""
    store = store or dist.HashStore()
    ended = {}

    def run(who):
        try:
            ended[who.rank] = program(RunFirst(who, store, nodes), who.rank)
        except BaseException as error:  # noqa: BLE001 - it is what the test asks for
            ended[who.rank] = error

    threads = [threading.Thread(target=run, args=(who,)) for who in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [ended[who.rank] for who in ranks]


@pytest.mark.parametrize(("scope", "firsts"), [("job", [0]), ("node", [0, 3])])
def test_others_enter_once_all_who_prepare_have_left(scope, firsts):
    made = []

    def program(preparing, rank):
        with preparing.first(scope) as is_first:
            if is_first:
                time.sleep(0.2 if rank == 0 else 0)  # an error would show: the others would enter too early
                made.append(rank)
            return is_first, sorted(made)

    seen = together(program)
    assert [is_first for is_first, _ in seen] == [rank in firsts for rank in range(4)]
    assert [found for is_first, found in seen if not is_first] == [firsts] * (4 - len(firsts))


def test_one_within_another_and_one_after_another_do_not_meet():
    def program(preparing, rank):
        seen = []
        with preparing.first("node") as outer, preparing.first("job") as inner:
            seen.append((outer, inner))
        for _ in range(2):
            with preparing.first("job") as is_first:
                if is_first:  # the others do not come here
                    with preparing.first("job"), preparing.first("job"):
                        seen.append(rank)
        with preparing.first("node") as is_first:
            seen.append(is_first)
        return seen

    assert together(program) == [
        [(True, True), 0, 0, True],
        [(False, False), False],
        [(False, False), False],
        [(True, False), True],
    ]


@pytest.mark.parametrize("error", [ValueError("no space, it's “full”\nat all"), KeyboardInterrupt(), SystemExit(3)])
def test_what_fails_for_one_fails_for_all_with_its_text(error):
    def program(preparing, rank):
        with preparing.first("node") as is_first:
            if is_first and rank == 3:
                raise error
        return "went on"

    first, *others, failed = together(program)
    assert failed is error
    for each in (first, *others):
        assert isinstance(each, TrainError)
        assert each.message.startswith("rank 3 on ")
        assert each.message.endswith(f"failed while others waited for it: {type(error).__name__}: {error}")


def test_one_who_prepares_and_is_not_heard_of_any_more_is_given_up(monkeypatch):
    monkeypatch.setattr(group, "SILENT_SECONDS", 0.3)
    given_up = threading.Event()

    def program(preparing, rank):
        with preparing.first("job") as is_first:
            assert not is_first or given_up.wait(120)
        return rank

    def others(preparing, rank):
        try:
            return program(preparing, rank)
        finally:
            if rank == 1:
                given_up.set()

    first, second, *_ = together(others, UNEVEN[:2], 1)
    assert first == 0
    assert isinstance(second, TrainError)
    assert "no heartbeat from a preparing rank" in second.message


class Hours:
    """A store, and a clock that goes on by five seconds with each beat of a heart that is written there."""

    def __init__(self, seconds):
        self._store = dist.HashStore()
        self._seconds = seconds
        self.now = 0.0
        self.are_over = threading.Event()

    def __getattr__(self, name):
        return getattr(self._store, name)

    def add(self, key, amount):
        value = self._store.add(key, amount)
        if amount and key.endswith("/beats"):
            self.now += 5.0
            if self.now > self._seconds:
                self.are_over.set()
        return value

    def monotonic(self):
        return self.now

    sleep = staticmethod(time.sleep)


def test_a_heart_beats_while_something_is_prepared(monkeypatch):
    hours = Hours(2 * group.SILENT_SECONDS)
    monkeypatch.setattr(group, "time", hours)
    monkeypatch.setattr(group, "HEARTBEAT_SECONDS", 0.01)

    def program(preparing, rank):
        with preparing.first("job") as is_first:
            assert not is_first or hours.are_over.wait(120)
        return rank

    assert together(program, store=hours) == [0, 1, 2, 3]


def test_who_was_stopped_itself_does_not_take_the_others_for_silent(monkeypatch):
    """As a scheduler suspends a job: all of it, and whoever wakes up first has heard of nobody for hours."""
    hours = Hours(0)
    looks = []
    went_on = threading.Event()

    def sleep(seconds):
        time.sleep(seconds)
        if hours.are_over.is_set():  # the other has been heard
            looks.append(seconds)
        if len(looks) == 2:
            hours.now += 10 * group.SILENT_SECONDS
        if len(looks) == 3:
            went_on.set()

    hours.sleep = sleep
    monkeypatch.setattr(group, "time", hours)

    def program(preparing, rank):
        try:
            with preparing.first("job") as is_first:
                assert not is_first or went_on.wait(120)
        finally:
            went_on.set()
        return rank

    assert together(program, UNEVEN[:2], 1, hours) == [0, 1]


def test_alone_it_is_free_and_a_wrong_scope_is_refused():
    alone = RunFirst(Identity(), None, 1)
    with alone.first("job") as outer, alone.first("node") as inner:
        assert (outer, inner) == (True, True)
    with pytest.raises(ValueError, match="`scope` is 'rank': it can be 'job' or 'node'"), alone.first("rank"):
        pass


SCRIPT = """\
import os, pathlib, time
from datetime import timedelta
import torch
import serried.train as st

def let_the_group_wait(seconds):
    set_timeout = getattr(torch.distributed.distributed_c10d, "_set_pg_timeout", None)
    if set_timeout is not None:  # torch 2.4 and later
        set_timeout(timedelta(seconds=seconds))

with st.session() as run:
    run.barrier()
    let_the_group_wait(0.5)
    waits = pathlib.Path(os.environ["PLACE"], "waits")
    if run.rank == 1:
        waits.touch()
    with run.first() as is_first:
        while is_first and not waits.exists():
            time.sleep(0.02)
        if is_first:
            time.sleep(1)  # twice the limit of the group
    let_the_group_wait(600)
    run.barrier()
    print(is_first, flush=True)
    with run.first("node") as is_first:
        if is_first:
            raise OSError("disk full")
"""


def test_no_time_out_of_the_process_group_ends_the_wait(tmp_path):
    ended = train_ranks.run(SCRIPT, 2, PLACE=str(tmp_path))
    assert [(each.status, each.output) for each in ended] == [(1, "True\n"), (1, "False\n")]
    assert "OSError: disk full" in ended[0].errors
    assert "failed while others waited for it: OSError: disk full\n" in ended[1].errors


UNNUMBERED = """\
import torch.distributed as dist
import serried.train as st
dist.init_process_group("gloo")
with st.session() as run:
    with run.first("node") as is_first:
        print(is_first, flush=True)
dist.destroy_process_group()
"""


def test_nodes_with_different_numbers_of_ranks_are_counted_where_the_launcher_has_no_numbers_for_them():
    """As under Open MPI: rank 2, alone on the second node, would be on a third by what it knows of its own."""
    port = train_ranks.free_port()
    places = [(0, 2), (1, 2), (0, 1)]
    variables = [
        train_ranks.of_torch(rank, 3, port) | {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(size)}
        for rank, (local, size) in enumerate(places)
    ]
    ended = train_ranks.finish(train_ranks.start(UNNUMBERED, variables=variables))
    assert [(each.status, each.output) for each in ended] == [(0, "True\n"), (0, "False\n"), (0, "True\n")]
