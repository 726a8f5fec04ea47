"""Ranks that leave their session: on request, and while others are still in it."""

from __future__ import annotations

import pytest
import train_ranks

from serried.schema import failure_report

pytest.importorskip("torch", reason="needs torch: pip install torch")

pytestmark = pytest.mark.torch

LEAVES = """
import atexit, gc, os
gc.unfreeze()
os.chdir(os.environ["PLACE"])
atexit.register(lambda: os.write(1, b"frozen\\n" if gc.get_freeze_count() > 50_000 else b"not frozen\\n"))
import serried.train as st

class Table:
    def __init__(self):
        self.itself, self.file = self, open("table.csv", "w")

table = Table()
with st.session() as run:
    table.file.write("1,2,3")
    if os.environ["HOW"] == "stopped":
        run.saved_for_stop(3)
"""


@pytest.mark.parametrize(("how", "status", "said"), [("stopped", 85, "frozen\n"), ("done", 0, "not frozen\n")])
def test_a_rank_that_was_asked_to_stop_spares_its_last_collections_and_loses_nothing(tmp_path, how, status, said):
    (ended,) = train_ranks.run(LEAVES, 1, PLACE=str(tmp_path), HOW=how)
    assert (ended.status, ended.output, (tmp_path / "table.csv").read_text()) == (status, said, "1,2,3"), ended.errors


EARLY = """
import os, signal, sys, torch, torch.distributed as dist
import serried.train as st
from serried.train import group
group.WATCH_SECONDS = 0.2
with st.session(metrics_file=os.environ["METRICS"]) as run:
    model = run.wrap(torch.nn.Linear(2, 1))
    tensor = torch.tensor([5.0])
    while True:
        model(torch.ones(1, 2)).sum().backward()
        if run.rank == LEAVER:
            break
        run.log(loss=tensor)
        CALL
        print("computed with", tensor, flush=True)
print("exits", flush=True)
"""


def start(script, tmp_path, world_size=2):
    """Ranks of an agent, each with its own file for metrics."""
    port = train_ranks.free_port()
    variables = [
        train_ranks.of_torch(rank, world_size, port)
        | {"SERRIED_STOP_FILE": str(tmp_path / "stop"), "SERRIED_FAILURE_REPORT": str(tmp_path / "failing")}
        | {"METRICS": str(tmp_path / f"metrics-{rank}")}
        for rank in range(world_size)
    ]
    return train_ranks.finish(train_ranks.start(script, variables=variables))


def reports(tmp_path):
    return {each.rank: each.report for each in failure_report.take(str(tmp_path / "failing"))}


@pytest.mark.parametrize(
    ("left", "call"),
    [
        (0, "dist.all_reduce(tensor)"),  # as large as that of a last barrier
        (1, "run.barrier()"),
        (0, "model(torch.ones(1, 2)).sum().backward()"),
    ],
)
def test_a_rank_that_others_wait_for_is_named_and_nothing_is_computed_without_it(tmp_path, left, call):
    other = 1 - left
    ended = start(EARLY.replace("LEAVER", str(left)).replace("CALL", call), tmp_path)
    assert [(each.status, each.output) for each in ended] == [(1, "")] * 2, ended[other].errors
    message = f"TrainError: rank {left} has left the session, and rank {other} waits for it at <string>:"
    assert message in ended[other].errors
    found = reports(tmp_path)
    assert found[other].error.startswith(f"serried.train.errors.{message}")
    assert [found[rank].lost_peer for rank in (left, other)] == [True, False]
    assert '"loss": 5.0' in (tmp_path / f"metrics-{other}").read_text()


ALONE = """
import sys, torch, torch.distributed as dist
import serried.train as st
from serried.train import group
group.WATCH_SECONDS = 0.05
looks, count = [], group.count_collectives
group.count_collectives = lambda: looks.append(1) or count()
with st.session() as run:
    model = torch.nn.Linear(2, 1)
    try:
        if run.rank:
            dist.send(torch.ones(1), 0)  # so that rank 0 has made more calls
            raise StopIteration
        for other in (1, 2):
            dist.recv(torch.ones(1), other)
        while len(looks) < 10:
            model(torch.ones(1, 2)).sum().backward()
        END
    except StopIteration:
        pass
print("exits", flush=True)
"""


def test_ranks_that_have_left_merely_wait_for_one_that_works_alone(tmp_path):
    ended = start(ALONE.replace("END", "pass"), tmp_path, world_size=3)
    assert [(each.status, each.output) for each in ended] == [(0, "exits\n")] * 3, ended[0].errors
    assert reports(tmp_path) == {}


@pytest.mark.parametrize(
    ("end", "status"), [("raise ValueError('bad')", 1), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9)]
)
def test_a_rank_that_fails_ends_the_wait_of_those_that_have_left(tmp_path, end, status):
    ended = start(ALONE.replace("END", end), tmp_path, world_size=3)
    assert [each.status for each in ended] == [status, 1, 1], ended[1].errors
    found = reports(tmp_path)
    assert [found[rank].lost_peer for rank in (1, 2)] == [True, True]
    assert status == -9 or (found[0].error, found[0].order) == ("ValueError: bad", 1)
