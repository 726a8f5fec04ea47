"""Figures from the lines that runs write."""

import dataclasses
import shutil

import pytest

from building import RunOnDisk
from serried.base.errors import UsageError
from serried.base.files import write_json
from serried.bench.results import NO_STEP, RankSteps, RunFigures, combined, measure, printed, rank_steps, warm_up_steps
from serried.bench.store import GridPoint
from serried.records.status import RunStatus, Verdict
from serried.schema.series import Entry, step_line

pytestmark = pytest.mark.usefixtures("state_home")
TWO = GridPoint(1, 2, "agent", "ddp")


def steps(*times, first=1):
    return [Entry(1000.0 + at, first + number, {"loss": 0.1}) for number, at in enumerate(times)]


def rate(step, per_second, samples, **more):
    named = {"steps_per_second": per_second, "samples_per_second": samples, **more}
    return Entry(2000.0, step, {f"serried/{name}": value for name, value in named.items()})


def test_the_warm_up_is_a_share_or_a_number():
    assert [warm_up_steps(text, 95) for text in ("10%", "0%", "12.5%", "20", "0")] == [10, 0, 12, 20, 0]
    for text in ("", "ten", "100%", "-1", "1.5", "10 %x"):
        with pytest.raises(UsageError) as raised:
            warm_up_steps(text, 10)
        assert raised.value.message == f"`--warm-up {text}` is neither a share nor a number of steps"


def test_steps_after_the_warm_up_count():
    lines = [*steps(0, 5, 6, 7, 9), rate(5, 1.0, 64.0, wait_share=0.25)]
    found = rank_steps(lines, "2")
    assert found == RankSteps(3, 4.0, (1.0, 1.0, 2.0), 64.0, 0.25, first_at=1000.0)


def test_the_pause_of_an_evaluation_does_not_count():
    """The epoch's line has the number of its last step, and comes after the evaluation."""
    lines = [*steps(0, 1, 2), Entry(1050.0, 3, {"accuracy": 0.9}), *steps(51, 52, first=4)]
    assert dataclasses.astuple(rank_steps(lines, "0"))[:3] == (4, 4.0, (1.0, 1.0, 1.0, 1.0))


def test_a_line_may_stand_for_several_steps_and_a_clock_may_be_set_back():
    moments = ((1000.0, 10), (1010.0, 20), (400.0, 30), (420.0, 40), (None, 60))
    lines = [*(Entry(at, step, {}) for at, step in moments), Entry(None, None, {}, resumed=3)]
    found = rank_steps(lines, "0")
    assert (found.steps, found.seconds, found.step_seconds) == (20, 30.0, (1.0, 2.0))


def test_all_ranks_make_the_figures_of_a_run():
    quick = RankSteps(90, 90.0, (1.0,) * 90, 32.0, 0.1, first_at=5.0)
    slow = RankSteps(90, 90.0, (1.0,) * 80 + (1.5,) * 10, 32.0, 0.3, first_at=5.0)
    found = combined([quick, slow], TWO)
    assert found == RunFigures(
        None, "", "", 90, samples_per_second=64.0, batch=32.0, step_median=1.0, step_p95=1.5, spread=0.0, data_wait=0.2
    )


def test_the_batch_of_dp_is_that_of_one_gpu():
    found = combined([RankSteps(10, 10.0, (1.0,) * 10, 128.0, first_at=5.0)], GridPoint(1, 4, "single", "dp"))
    assert (found.batch, found.samples_per_second, found.spread) == (32.0, 128.0, None)


def test_without_the_librarys_loader_the_batch_is_the_given_one_or_unknown():
    ranks = [RankSteps(10, 10.0, (1.0,) * 10, first_at=5.0)] * 2
    assert combined(ranks, dataclasses.replace(TWO, batch=16)).samples_per_second == 32.0
    unknown = combined(ranks, TWO)
    assert (unknown.is_measured, unknown.reason) == (False, "the size of its batch is unknown: give it as `--batch`")


def test_a_program_without_steps_has_a_reason():
    assert combined([RankSteps()], TWO).reason == NO_STEP
    assert combined([rank_steps(steps(0), "10%")], TWO).reason == "too few steps after the warm-up"


def test_printed_rates_are_taken_as_they_are():
    found = printed([1.0, 100.0, 120.0, float("nan"), 110.0], [9.0, 0.1, 0.2], "1", TWO)
    assert found == RunFigures(None, "", "", 3, samples_per_second=110.0, step_median=0.15000000000000002)
    assert printed([], [], "10%", TWO).reason == "it reported no samples per second"
    assert printed([5.0], [], "1", TWO).reason == "too few values after the warm-up"
    assert printed([5.0], [], "10%", TWO).samples_per_second == 5.0


def figures_of(run, state="COMPLETED", message="", **options):
    status = RunStatus(run.record, run.record.summary, Verdict(state, message=message))
    return measure(status, TWO, warm_up="0", **options)


def test_a_run_is_measured_from_its_files(tmp_path):
    run = RunOnDisk(tmp_path, nodes=1)
    attempt = run.attempt(started=990.0)
    for rank, late in ((0, 0.0), (1, 0.5)):
        lines = [*steps(*(late + at for at in range(21))), rate(21, 1.0, 8.0, without_sync=1.0)]
        path = attempt.metrics(0, rank)
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{step_line(line.t, line.step, line.values)}\n" for line in lines))
    found = figures_of(run)
    assert found == RunFigures(
        "k3f9q2", "COMPLETED", "", 20, 16.0, 8.0, 1.0, 1.0, 0.0, startup_seconds=10.0, cpus=4, without_sync=True
    )
    stopped = figures_of(run, "TIMEOUT", "hit its time limit")
    assert stopped == dataclasses.replace(found, state="TIMEOUT")


def test_a_run_that_failed_keeps_its_reason_though_it_has_steps(tmp_path):
    run = RunOnDisk(tmp_path, nodes=1)
    run.log(0, "warming up\n10 images/s\n20 images/s step 0.5\n30 images/s\n")
    write_json(run.attempt().claim, {"started": 990.0})
    rates = {"source": r"stdout:(?P<samples_per_second>\d+) images/s(?: step (?P<step_seconds>\S+))?"}
    found = figures_of(run, **rates)
    assert (found.samples_per_second, found.step_median, found.reason) == (20.0, 0.5, "")
    message = "rank 1 on n2 exited with status 1: out of memory"
    failed = figures_of(run, "FAILED", message, **rates)
    assert (failed.is_measured, failed.reason) == (False, message)
    assert figures_of(run).reason == NO_STEP


@pytest.mark.parametrize(
    ("source", "figures"),
    [
        (r"(?P<steps_per_second>[\d.]+)it/s", (64.0, 0.25, "")),
        (r"step took (?P<step_seconds>[\d.]+) s", (32.0, 0.5, "")),
        (r"([\d.]+) images/s", (100.0, None, "")),
        (r"nothing (\d+)", (None, None, "it reported no samples per second")),
    ],
)
def test_a_program_may_report_steps_instead(tmp_path, source, figures):
    run = RunOnDisk(tmp_path, nodes=1)
    run.log(0, "1/3, 1.00it/s\r2/3, 4.00it/s\r3/3, 4.00it/s\nstep took 0.5 s, 100 images/s\n")
    write_json(run.attempt().claim, {"started": 990.0})
    status = RunStatus(run.record, run.record.summary, Verdict("COMPLETED"))
    found = measure(status, dataclasses.replace(TWO, batch=8), warm_up="10%" if "it/s" in source else "0",
                    source=f"stdout:{source}")  # fmt: skip
    assert (found.samples_per_second, found.step_median, found.reason) == figures
    without = measure(status, TWO, warm_up="0", source=r"stdout:(?P<steps_per_second>\d+)it/s")
    assert without.reason == "the size of its batch is unknown: give it as `--batch`"


def test_a_program_may_write_its_speed_to_a_file(tmp_path):
    run = RunOnDisk(tmp_path, nodes=1)
    write_json(run.attempt().claim, {"started": 990.0})
    run.where.results.mkdir()
    (run.where.results / "speed.jsonl").write_text('{"rate": 1}\n{"rate": 30}\n{"rate": 10}\n{"rate": 2')
    status = RunStatus(run.record, run.record.summary, Verdict("COMPLETED"))
    found = measure(status, TWO, warm_up="1", source="file:speed.jsonl:rate")
    assert (found.samples_per_second, found.steps, found.reason) == (20.0, 2, "")


def test_a_run_whose_directory_is_gone_says_so(tmp_path):
    run = RunOnDisk(tmp_path, nodes=1)
    shutil.rmtree(run.where.path, ignore_errors=True)
    assert figures_of(run).reason == "its run directory was deleted"
