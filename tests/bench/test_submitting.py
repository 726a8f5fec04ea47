"""A run for each point, at most once, whatever interrupts the command."""

import os

import pytest

from serried.base.errors import SchedulerUnreachable, SubmissionRefused, SubmissionUncertain, UsageError
from serried.bench import results, submitting
from serried.bench.store import Bench, GridPoint, PointRun, find
from serried.bench.submitting import BenchRequest, check_passed, request_of, submit_missing
from serried.records.index import records

ONE = GridPoint(1, 1, "agent", "single", batch=8)
TWO = GridPoint(1, 2, "agent", "ddp", batch=8)
SILENT = GridPoint(1, 2, "agent", "ddp", batch=8, without_sync=True)
DP = GridPoint(1, 2, "single", "dp", batch=8)


@pytest.fixture
def bench(project, root, scheduler):
    """Two points of `python train.py`, all at once."""
    assert scheduler.accepts

    def make(*points, **options):
        request = BenchRequest(
            str(project),
            command=("python", "train.py"),
            overrides={"clusters.local.root": str(root), "resources.cpus": 1},
            cluster="local",
            name="train",
            **{"passed": {"batch_size": "{batch}"}, "parallel": 9, **options},
        )
        runs = tuple(map(PointRun, points or (ONE, TWO)))
        return Bench("b-abcd", "train", "2026-11-26T12:00:00Z", request.to_json(), runs)

    return make


def submit(bench, **options):
    return submit_missing(bench, os.environ, observe=None, **options)


def test_each_point_is_a_run_of_its_size(bench, scheduler):
    done = submit(bench(ONE, TWO, SILENT, DP))
    plans = {record.plan.name: record.plan for record in results.records(done).values()}
    shown = {
        name: (plan.allocation.ranks, plan.allocation.cpus, plan.command[-1], plan.launch.kind, plan.environment.env)
        for name, plan in plans.items()
    }
    assert shown == {
        "train-1x1-single": (1, 1, "--batch_size=8", "agent", {}),
        "train-1x2-agent": (2, 2, "--batch_size=8", "agent", {}),
        "train-1x2-agent-no-sync": (2, 2, "--batch_size=8", "agent", {"SERRIED_PARALLEL": "no-sync"}),
        "train-1x2-dp": (1, 1, "--batch_size=16", "single", {"SERRIED_PARALLEL": "dp"}),
    }
    assert {plan.limit.restarts for plan in plans.values()} == {0}
    assert find("b-abcd") == done
    assert len(scheduler.asked) == 4


def test_a_second_command_submits_nothing_again(bench, scheduler):
    done = submit(bench())
    assert submit(done) == done
    assert submit(bench()) == done  # the file counts, not what the caller has in hand
    assert len(scheduler.asked) == 2


def test_the_file_names_a_run_before_the_scheduler_is_called(bench, scheduler):
    seen = []
    scheduler.while_asked = lambda: seen.append(
        [(each.run is None, each.is_submitted) for each in find("b-abcd").entries]
    )
    submit(bench())
    assert seen == [[(False, False), (True, False)], [(False, True), (False, False)]]


def test_a_command_killed_before_the_record_leaves_a_point_to_submit(bench, scheduler, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(submitting, "deliver", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            submit(bench())
    lost = find("b-abcd").entries[0]
    assert (lost.run is None, lost.is_submitted, records()) == (False, False, [])
    done = submit(find("b-abcd"))
    assert [each.is_submitted for each in done.entries] == [True, True]
    assert done.entries[0].run != lost.run
    assert len(scheduler.asked) == 2


def test_a_command_interrupted_while_the_scheduler_accepts_keeps_the_run(bench, scheduler):
    scheduler.raises = KeyboardInterrupt()
    with pytest.raises(SubmissionUncertain) as raised:
        submit(bench())
    assert raised.value.hint.endswith("`serried bench continue` submits the other points")
    (record,) = records()
    assert find("b-abcd").entries[0] == PointRun(ONE, record.id)
    scheduler.raises = None
    done = submit(find("b-abcd"))
    assert done.entries[0] == PointRun(ONE, record.id, is_submitted=True)
    assert len(scheduler.asked) == 2


def test_a_submission_that_can_never_start_frees_its_point(bench, scheduler):
    scheduler.raises = KeyboardInterrupt()
    with pytest.raises(SubmissionUncertain):
        submit(bench())
    (record,) = records()
    scheduler.raises = None
    record.write_submission(record.submissions[0]._replace(state="failed"))  # as a later look finds out
    done = submit(find("b-abcd"))
    assert [each.is_submitted for each in done.entries] == [True, True]
    assert record.id not in {each.run for each in done.entries}


def test_a_scheduler_that_does_not_answer_leaves_the_points_to_submit(bench, scheduler):
    scheduler.raises = SchedulerUnreachable("slurm does not answer")
    scheduler.accepts = False
    with pytest.raises(SchedulerUnreachable):
        submit(bench())
    scheduler.raises, scheduler.accepts = None, True
    done = submit(find("b-abcd"))
    assert [each.is_submitted for each in done.entries] == [True, True]
    assert len(records()) == 2


def test_a_refused_point_keeps_the_reason_and_is_tried_again_later(bench, scheduler):
    scheduler.raises = SubmissionRefused("the account has no hours left")
    refused = submit(bench())
    assert [each.refusal for each in refused.entries] == ["the account has no hours left"] * 2
    assert [run.state for run in results.read(refused)[1]] == ["REFUSED", "REFUSED"]
    scheduler.raises = None
    assert [each.refusal for each in submit(refused).entries] == ["", ""]


@pytest.mark.parametrize(
    ("parallel", "second", "third"), [(2, [], ["train-1x1-single"]), (None, ["train-1x1-single"], ["train-1x2-agent"])]
)
def test_only_so_many_points_run_at_once_and_on_this_machine_one(bench, parallel, second, third):
    submit(bench(ONE, TWO, DP, parallel=parallel))
    afters = {record.plan.name: [after.name for after in record.plan.after] for record in records()}
    assert afters == {"train-1x1-single": [], "train-1x2-agent": second, "train-1x2-dp": third}


def test_a_deleted_run_is_not_submitted_again(bench, scheduler):
    done = submit(bench())
    for record in records():
        record.remove()
    assert [run.state for run in results.read(done)[1]] == ["DELETED", "DELETED"]
    assert submit(done) == done
    assert len(scheduler.asked) == 2


def test_a_failed_run_is_replaced_once(bench, scheduler):
    first = submit(bench(ONE, TWO, parallel=1))
    runs = [each.run for each in first.entries]
    replaced = submit(first, failed=[runs[0]])
    assert [each.run == run for each, run in zip(replaced.entries, runs, strict=True)] == [False, True]
    assert submit(first, failed=[runs[0]]) == replaced  # by a command that had looked before
    assert len(scheduler.asked) == 3


def test_a_point_starts_after_no_run_that_was_deleted(bench, scheduler):
    first = submit(bench(ONE, parallel=1))
    records()[0].remove()
    replaced = submit(first, failed=[first.entries[0].run])
    assert replaced.entries[0].is_submitted
    assert records()[0].plan.after == ()
    assert len(scheduler.asked) == 2


def test_what_a_point_cannot_fill_in_is_refused():
    for text, point, hint in (
        ("{batches}", ONE, "there are `{batch}`, `{global_batch}`, `{method}`, `{nodes}`, `{ranks}`"),
        ("{batch}", GridPoint(1, 1, "agent", "single"), "`--batch N` sets the batch"),
    ):
        with pytest.raises(UsageError) as raised:
            check_passed({"size": text}, [point])
        assert (raised.value.message, raised.value.hint) == (f"`--pass` cannot fill in `{text}`", hint)


def test_points_are_passed_as_numbers_and_texts(bench):
    request = request_of(bench(passed={"size": "{global_batch}", "how": "{method} on {nodes}"}))
    assert request.at(TWO).parameters == {"size": 16, "how": "ddp on 1"}
