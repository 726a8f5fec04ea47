"""The grid of a bench."""

import pytest

from serried.base.errors import UsageError
from serried.bench.store import GridPoint, grid


def shown(points):
    return [f"{point} {point.batch} {point.repeat}{' no-sync' * point.without_sync}" for point in points]


def test_one_rank_is_one_point_and_dp_stays_on_one_node():
    points = grid(nodes=[2, 1], ranks=[1, 2], launches=["agent", "mpirun"], methods=["dp", "ddp"], batch=8)
    ways = ["1x1 single", "1x2 dp", *(f"{size} {way}" for size in ("1x2", "2x1", "2x2") for way in ("agent", "mpirun"))]
    assert shown(points) == [f"{way} 8 0" for way in ways]


def test_strong_scaling_divides_the_batch_and_shares_the_point_of_one_rank():
    points = grid(nodes=[1], ranks=[1, 2, 4], launches=["agent"], scalings=["weak", "strong"], batch=8)
    expected = ["1x1 single 8 0", "1x2 agent 8 0", "1x2 agent strong 4 0", "1x4 agent 8 0", "1x4 agent strong 2 0"]
    assert shown(points) == expected


def test_all_points_come_before_the_second_repeat_each_followed_by_its_run_without_synchronisation():
    points = grid(nodes=[1], ranks=[1, 2], launches=["agent"], repeats=2, communication=True)
    runs = ("1x1 single None {}", "1x2 agent None {}", "1x2 agent None {} no-sync")
    assert shown(points) == [run.format(repeat) for repeat in (0, 1) for run in runs]


def test_a_process_of_dp_loads_the_batches_of_all_gpus():
    dp = GridPoint(1, 4, "single", "dp", batch=8)
    ddp = GridPoint(2, 4, "agent", "ddp", batch=8)
    assert (dp.processes, dp.words["batch"], dp.words["global_batch"]) == (1, 32, 32)
    assert (ddp.processes, ddp.words["batch"], ddp.words["global_batch"]) == (4, 8, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scalings": ["strong"], "batch": None}, "`--scaling strong` needs `--batch`"),
        ({"scalings": ["strong"], "batch": 9}, "`--batch 9` cannot be divided among 2 ranks"),
        ({"nodes": [2], "methods": ["dp"]}, "no point is left"),
        ({"repeats": 600}, "these are 600 runs, and a bench has at most 500"),
    ],
)
def test_a_grid_that_cannot_be(options, message):
    with pytest.raises(UsageError) as raised:
        grid(**{"nodes": [1], "ranks": [2], "launches": ["agent"], **options})
    assert raised.value.message == message
