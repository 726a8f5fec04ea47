"""The samples of a run in a few numbers, also where readers leave lines out and the last line is incomplete."""

from __future__ import annotations

import json

import pytest

from sampled import GIB, a_gpu, a_rank, flat
from serried.records import samples
from serried.records.samples import Measurements, NodeFigures, RankFigures, measured_of
from serried.schema.layout import TaskDirectory

ABOUT = {"t": 100.0, "host": "n1", "interval": 5.0, "node": {"cpus": 8}, "gpus": {"0": {"name": "NVIDIA H200"}}}


@pytest.fixture
def measure(tmp_path):
    """The measurements of a node with those lines, of which at most `most` are read."""

    def of(lines, most=2000):
        path = TaskDirectory(tmp_path).attempt(1).samples(0)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in [ABOUT, *lines]), encoding="utf-8")
        return measured_of(samples.read(TaskDirectory(tmp_path), most_lines=most))

    return of


def a_line(at, *, gpu=None, rank=None, **node):
    return {
        "t": 100.0 + 30 * at,
        "seconds": 30.0,
        "node": {"memory": flat(40 * GIB), **node},
        "gpus": {} if gpu is None else {"0": gpu},
        "ranks": {} if rank is None else {"0": rank},
    }


IDLE, BUSY = a_gpu(1.0), a_gpu(95.0)


def test_an_idle_phase_lasts_from_its_first_to_its_last_line(measure):
    (gpu,) = measure([a_line(at, gpu=IDLE if 10 <= at < 40 else BUSY) for at in range(100)]).gpus
    assert gpu.holding_seconds == 900.0
    # Where lines are left out, a long phase is seen, and short pauses are none.
    pauses = measure([a_line(at, gpu=IDLE if at % 10 < 2 else BUSY) for at in range(4000)], most=100)
    (gpu,) = measure([a_line(at, gpu=IDLE if at >= 2000 else BUSY) for at in range(4000)], most=100).gpus
    assert pauses.one_in > 30
    assert pauses.gpus[0].holding_seconds == 0.0
    assert gpu.holding_seconds == pytest.approx(30 * 2000, rel=0.1)


def test_the_peak_of_memory_is_in_the_lines_after_it(measure):
    lines = [a_line(at, memory_peak=(100 if at >= 2501 else 40) * GIB) for at in range(4000)]
    (node,) = measure(lines, most=50).nodes
    assert node.memory == (40 * GIB, 40 * GIB, 100 * GIB)


def test_a_gpu_is_lost_after_two_minutes_without_it(measure):
    # The last line; a driver that hung for a minute; three minutes.
    for missing, lost_at in ((1, None), (3, None), (6, 100.0 + 30 * 93)):
        last = 100 - missing
        lines = [a_line(at, gpu=BUSY if at < last else {"xid": [79]} if missing == 6 else None) for at in range(100)]
        assert (missing, measure(lines).gpus[0].lost_at) == (missing, lost_at)
    lines = [a_line(at, gpu=None if at == 3999 else BUSY) for at in range(4000)]
    assert measure(lines, most=50).gpus[0].lost_at is None  # one line, where others are left out


def test_the_rate_of_steps_is_counted_and_not_averaged_unless_the_clock_jumps(measure):
    assert measure([a_line(at, rank=a_rank(4.0, step=60 * at)) for at in range(100)]).ranks[0].steps_per_second == 2.0
    lines = [a_line(at + (10_000 if at > 50 else 0), rank=a_rank(4.0, step=60 * at)) for at in range(100)]
    assert measure(lines).ranks[0].steps_per_second == 4.0


def test_nodes_that_were_not_read_count_in_the_throughput_as_much_as_the_others():
    node, rank = NodeFigures("n0", 0), RankFigures(0, "n0", 0, samples_per_second=100.0)
    assert Measurements((node,), ranks=(rank,)).samples_per_second == 100.0
    assert Measurements((node,), ranks=(rank,), unread=3).samples_per_second == 400.0
    assert Measurements((node,), unread=3).samples_per_second is None
