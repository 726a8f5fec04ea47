"""All points of a bench together."""

import dataclasses

import pytest

from serried.bench.results import RunFigures, results
from serried.bench.store import GridPoint

ONE = GridPoint(1, 1, "agent", "single", batch=8)
TWO = GridPoint(1, 2, "agent", "ddp", batch=8)
FOUR = GridPoint(2, 2, "agent", "ddp", batch=8)


def measured(point, rate, device="NVIDIA V100", **more):
    own = {"batch": point.batch, "gpus": point.world, "step_median": 8 * point.world / rate, **more}
    return point, RunFigures("k3f9q2", "COMPLETED", "", 100, rate, device=device, **own)


def table(found):
    return [
        (str(row.point), row.samples_per_second, row.speed_up, row.efficiency, row.node_efficiency)
        for row in found.rows
    ]


def test_speed_up_and_efficiency_against_one_rank_and_one_node():
    found = results([measured(ONE, 100.0), measured(TWO, 180.0), measured(FOUR, 320.0)])
    assert table(found) == [
        ("1x1 single", 100.0, 1.0, 1.0, 1.0),
        ("1x2 agent", 180.0, 1.8, 0.9, 1.0),
        ("2x2 agent", 320.0, 3.2, 0.8, 320 / 180 / 2),
    ]
    assert [row.cost for row in found.rows] == [1e6 / 100 / 3600, 2e6 / 180 / 3600, 4e6 / 320 / 3600]
    assert found.advice == [
        "cheapest: 1x1 single, 2.78 GPU-hours for a million samples",
        "fastest: 2x2 agent, 320 samples/s for 1.25 times the cost",
        "largest with an efficiency of 70% or more: 2x2 agent",
    ]
    assert found.notes == ("one repeat each: the spread is unknown, and small differences mean nothing (`--repeat 3`)",)


def test_repeats_have_a_mean_and_a_spread():
    again = dataclasses.replace(TWO, repeat=1)
    found = results([measured(ONE, 100.0), measured(TWO, 150.0), measured(again, 250.0)])
    row = found.rows[1]
    assert (row.samples_per_second, row.repeats, round(row.deviation, 4)) == (200.0, 2, 0.3536)
    assert found.notes == ("repeats differ by more than 10%: do others use the same nodes? (`--exclusive`)",)


def test_another_gpu_than_the_others_is_named_and_not_averaged():
    again = dataclasses.replace(TWO, repeat=1)
    alone = measured(FOUR, 999.0, "NVIDIA H100")
    found = results([measured(ONE, 100.0), measured(TWO, 180.0), measured(again, 900.0, "NVIDIA H100"), alone])
    assert table(found)[1:] == [("1x2 agent", 180.0, 1.8, 0.9, 1.0), ("2x2 agent", 999.0, None, None, None)]
    assert [row.problems for row in found.rows] == [
        (),
        ("k3f9q2 ran on NVIDIA H100, not on NVIDIA V100",),
        ("k3f9q2 ran on NVIDIA H100, not on NVIDIA V100",),
    ]
    assert len(found.compared) == 2


def test_the_gpu_that_was_requested_counts_even_if_most_runs_had_another():
    others = [measured(point, 100.0 * point.world, "NVIDIA H100", gpu_type="v100l") for point in (ONE, TWO)]
    found = results([*others, measured(FOUR, 300.0, "Tesla V100-SXM2-32GB", gpu_type="v100l")])
    assert (found.device, [row.is_comparable for row in found.rows]) == ("Tesla V100-SXM2-32GB", [False, False, True])
    found = results(others)
    assert (found.device, [row.is_comparable for row in found.rows]) == ("NVIDIA H100", [True, True])
    assert found.notes[1] == "GPUs of the type v100l were requested, and no run had them"


@pytest.mark.parametrize(
    ("gpu_type", "device", "is_same"),
    [
        ("nvidia_h100_80gb_hbm3_1g.10gb", "NVIDIA H100 80GB HBM3", True),
        ("rtx6000", "Quadro RTX 6000", True),
        ("a100", "NVIDIA H100", False),
        ("a100", "NVIDIA A100-SXM4-40GB and NVIDIA H100", False),
        ("", "NVIDIA H100", True),
        ("gpu", "NVIDIA H100", True),
    ],
)
def test_the_word_of_a_scheduler_for_a_gpu_is_known_in_its_name(gpu_type, device, is_same):
    alone = results([measured(ONE, 100.0, device, gpu_type=gpu_type)])
    assert any("were requested" in note for note in alone.notes) != is_same


def test_a_gpu_that_no_sampler_reported_is_not_another_one():
    found = results([measured(ONE, 100.0), measured(TWO, 180.0, "unknown GPU"), measured(FOUR, 300.0, "unknown GPU")])
    assert (found.device, len(found.compared)) == ("NVIDIA V100", 3)


def test_another_batch_than_requested_or_than_the_others_is_named_and_compared_with_nothing():
    found = results([measured(ONE, 100.0), measured(TWO, 180.0, batch=16)])
    expected = (("k3f9q2 had 16 samples per rank and step, not 8",), None)
    assert (found.rows[1].problems, found.rows[1].speed_up) == expected
    free = [dataclasses.replace(point, batch=None) for point in (ONE, TWO, FOUR)]
    batches = [measured(point, 100.0 * point.world, batch=size) for point, size in zip(free, (8, 8, 4), strict=True)]
    expected = [(), (), ("k3f9q2 had 4 samples per rank and step, not 8",)]
    assert [row.problems for row in results(batches).rows] == expected


def test_a_strong_point_has_its_own_batch():
    strong = dataclasses.replace(TWO, scaling="strong", batch=4)
    found = results([measured(ONE, 100.0), measured(TWO, 180.0), measured(strong, 150.0)])
    assert table(found)[2] == ("1x2 agent strong", 150.0, 1.5, 0.75, 1.0)
    assert found.rows[2].problems == ()


def test_a_point_that_failed_is_a_row_with_its_reason():
    failed = RunFigures("abcdef", "FAILED", "rank 3 on n2 exited with status 1: out of memory")
    found = results([measured(ONE, 100.0), (TWO, failed), (FOUR, RunFigures("bcdefg", "PENDING", "it waits"))])
    assert table(found)[1:] == [("1x2 agent", None, None, None, None), ("2x2 agent", None, None, None, None)]
    expected = [(), ("abcdef: rank 3 on n2 exited with status 1: out of memory",), ()]
    assert [row.problems for row in found.rows] == expected
    assert (found.open_runs, found.advice) == (1, [])


def test_without_a_point_of_one_rank_the_efficiency_of_nodes_is_known():
    found = results([measured(TWO, 180.0), measured(FOUR, 320.0)])
    assert table(found)[1] == ("2x2 agent", 320.0, None, None, 320 / 180 / 2)
    assert "no point has one rank: speed-up and efficiency against it are unknown" in found.notes


def test_the_share_of_the_communication_needs_a_run_that_the_library_confirms():
    without = dataclasses.replace(TWO, without_sync=True)
    faster = measured(without, 240.0, without_sync=True, spread=0.2)
    found = results([measured(ONE, 100.0), measured(TWO, 180.0, spread=0.0), faster])
    row = found.rows[1]
    assert (row.communication, row.spread, row.samples_per_second) == (0.25, 0.2, 180.0)
    ignored = results([measured(ONE, 100.0), measured(TWO, 180.0), measured(without, 180.0)])
    assert ignored.rows[1].communication is None
    assert ignored.notes_on_steps == (
        "the share of the communication is unknown: only `run.wrap` of the library can leave it out",
    )


def test_a_run_without_synchronisation_on_another_gpu_counts_for_nothing():
    without = dataclasses.replace(TWO, without_sync=True)
    faster = measured(without, 900.0, "NVIDIA H100", without_sync=True, spread=0.2)
    (_, row) = results([measured(ONE, 100.0), measured(TWO, 180.0, spread=0.0), faster]).rows
    assert (row.communication, row.spread) == (None, 0.0)
    assert row.problems == ("k3f9q2 ran on NVIDIA H100, not on NVIDIA V100",)


def test_few_steps_are_said_to_be_few():
    point, run = measured(ONE, 100.0)
    assert results([(point, dataclasses.replace(run, steps=3))]).rows[0].problems == ("only 3 steps measured",)


def test_dp_without_gpus_has_no_speed_up():
    dp = GridPoint(1, 2, "single", "dp", batch=8)
    found = results([measured(ONE, 100.0, "CPU", cpus=1), measured(dp, 100.0, "CPU", cpus=1)])
    assert table(found)[1] == ("1x2 dp", 100.0, None, None, None)
    assert found.notes[1] == "dp without GPUs is one process that does the work of all ranks: it has no speed-up"


def test_runs_of_different_code_are_said_to_be_so():
    found = results([measured(ONE, 100.0, code="a.tar"), measured(TWO, 180.0, code="b.tar")])
    assert found.notes[1] == "the runs have 2 different versions of the code"
