"""HPC_helper's settings and published figures."""

import pytest

from serried.bench import hpc_helper
from serried.bench.measure import RunFigures
from serried.bench.results import results
from serried.errors import UsageError


def test_its_points_are_those_of_the_comparison():
    points = hpc_helper.points([2, 1], 4, ["torchrun", "mpirun"], 768, 1)
    assert list(map(str, points)) == ["1x1 single", "1x4 dp", "1x4 torchrun", "2x4 torchrun", "2x4 mpirun"]
    assert {point.batch for point in points} == {768}


def run_of(seconds, **logged):
    known = {"train_seconds": seconds, "train_samples": 300_000.0, "epochs": 5.0, **logged}
    return RunFigures("k3f9q2", "COMPLETED", "", 395, 1.0, 768.0, device="V100", gpus=1, logged=known)


def test_our_figures_stand_beside_the_published_ones():
    points = hpc_helper.points([1], 4, ["torchrun"], 768, 1)
    runs = [run_of(300.0), RunFigures("bcdefg", "FAILED", "out of memory"), run_of(100.0)]
    found = hpc_helper.compare(results(zip(points, runs, strict=True)))
    ours = [(str(each.point), each.seconds, each.rate, each.efficiency, each.state) for each in found]
    assert ours == [
        ("1x1 single", 300.0, 1000.0, 1.0, "COMPLETED"),
        ("1x4 dp", None, None, None, "FAILED"),
        ("1x4 torchrun", 100.0, 3000.0, 0.75, "COMPLETED"),
        ("2x4 mpirun", None, None, None, "-"),
        ("2x4 torchrun", None, None, None, "-"),
    ]
    published = [
        [f"{rate:.0f} {share:.1%}" if rate else None for rate, share in zip(*pair, strict=True)]
        for pair in ((each.published, each.published_efficiency) for each in found)
    ]
    assert published == [
        ["826 100.0%", "969 100.0%", "706 100.0%"],
        ["2899 87.8%", "2627 67.8%", "2240 79.4%"],
        ["3202 97.0%", "3521 90.9%", "2646 93.7%"],
        ["5386 81.6%", "6383 82.4%", "4926 87.2%"],
        [None, "6329 81.7%", "4950 87.7%"],
    ]


def test_a_run_that_did_not_reach_its_last_epoch_has_no_seconds():
    points = hpc_helper.points([1], 1, ["torchrun"], 768, 1)
    found = hpc_helper.compare(results([(points[0], run_of(300.0, epochs=4.0))]))
    assert found[0].seconds is None


def test_a_smaller_benchmark_has_fewer_and_smaller_images():
    assert (hpc_helper.scale(1.0).batch, hpc_helper.scale(1.0).settings) == (768, {})
    small = hpc_helper.scale(0.01)
    assert (small.batch, small.settings) == (8, {"images": 600, "size": 32, "width": 16})
    for share in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(UsageError):
            hpc_helper.scale(share)


def test_data_without_a_file_of_mnist_is_refused(tmp_path):
    for name in hpc_helper.FILES:
        (tmp_path / f"{name}.gz").touch()
    hpc_helper.check_data(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UsageError) as raised:
        hpc_helper.check_data(tmp_path)
    assert raised.value.message == f"`{tmp_path}` does not have `train-labels-idx1-ubyte`, with or without `.gz`"
