"""`serried rerun` of an array: of the tasks that did not complete, or of all, under the same numbers."""

from __future__ import annotations

import os

import pytest

from building import an_ending
from serried.api import Run
from serried.base.errors import SchedulerUnreachable, UsageError
from serried.base.files import make_directory, write_json
from serried.records.index import Selection
from serried.schedulers.interface import Job
from serried.schema.plan import Array, Resume
from serried.schema.reasons import Reason
from serried.submission.again import MoreTrials, prepare_again
from serried.submission.deliver import deliver
from serried.sweeps.definition import Parameter, SweepDefinition


def end(record, states):
    """exit.json of each task, and a checkpoint of the even ones."""
    for task, state in states.items():
        place = record.where.task(task)
        make_directory(place.checkpoints)
        if task % 2 == 0:
            (place.checkpoints / "epoch-1.ckpt").write_text("weights")
        write_json(place.exit, {**an_ending(record.id, state, task=task), "attempts": 1})
    return record


def again(record, **options):
    return prepare_again(Selection(record), os.environ, **options)


def error_of(record, **options):
    with pytest.raises(UsageError) as raised:
        again(record, **options)
    return raised.value


@pytest.fixture
def jobs(scheduler, monkeypatch):
    """The answer of the scheduler for tasks of job 1."""
    answer = {}
    monkeypatch.setattr(scheduler, "poll", lambda ids, since=None: dict(answer))  # noqa: ARG005 - as it is called
    return answer


@pytest.fixture
def array(ask, project):
    """Six tasks, each with its own command; tasks 1 to 4 did not complete."""
    (project / "commands.txt").write_text("".join(f"python train.py {word}\n" for word in "abcdef"))
    record = deliver(ask(command=None, each=project / "commands.txt", parallel=2))
    states = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "COMPLETED")
    return end(record, dict(enumerate(states)))


def test_further_trials_of_a_sweep_are_those_that_its_record_does_not_have(ask):
    drawn = SweepDefinition({"lr": Parameter("uniform", numbers={"min": 0.1, "max": 0.9})}, method="random", run_cap=2)
    record = deliver(ask(sweep=drawn)._replace(trials=({"lr": 0.1}, {"lr": 0.2})))

    prepared = again(record, added=MoreTrials(record.plan.sweep, {2: {"lr": 0.3}}))

    assert (prepared.plan.array.indices, prepared.trials, prepared.each) == ((2,), ({"lr": 0.3},), ())
    assert again(record, tasks=[1]).trials == ({"lr": 0.2},)


def test_without_a_choice_the_states_are_counted_and_nothing_is_prepared(array):
    error = error_of(array)
    assert (error.message, error.hint) == (
        f"run `{array.id}` is an array: 2 COMPLETED, 1 FAILED, 1 TIMEOUT, 1 NODE_FAIL, 1 CANCELLED",
        "`--failed` repeats the 4 tasks that did not complete, `--all` all 6",
    )


def test_failed_tasks_keep_their_numbers_commands_checkpoints_and_throttle(array):
    prepared = again(array, failed=True)

    assert prepared.plan.array == Array((1, 2, 3, 4), 2, each=True)
    assert [command[-1] for command in prepared.each] == ["b", "c", "d", "e"]
    paths = [str(array.where.task(task).checkpoints / "epoch-1.ckpt") if task in (2, 4) else "" for task in range(1, 5)]
    assert prepared.plan.resume == Resume(tuple(paths), array.id)
    assert (prepared.plan.rerun_of, prepared.notes, prepared.warnings) == (array.id, (), ())
    assert again(array, failed=True, fresh=True).plan.resume is None

    second = end(deliver(prepared), {1: "COMPLETED", 2: "COMPLETED", 3: "COMPLETED", 4: "FAILED"})
    assert second.command_of(4)[-1] == "e"
    assert again(second, failed=True).plan.array == Array((4,), 2, each=True)
    warning = f"run `{second.id}` repeats tasks 1-4 of `{array.id}` already"
    assert again(array, failed=True).warnings == (f"{warning}; for its failures: `serried rerun {second.id} --failed`",)


def test_all_tasks_are_repeated_if_the_user_says_so(array):
    assert again(array, failed=False).plan.array == Array((*range(6),), 2, each=True)


def test_repeats_keep_their_seeds(ask):
    record = end(deliver(ask(repeat=4)), dict(enumerate(("COMPLETED", "COMPLETED", "FAILED", "COMPLETED"))))
    assert again(record, failed=True).plan.array == Array((2,), None, repeat=4)


def test_tasks_that_have_not_ended_are_left_out_with_a_note(ask, jobs):
    record = deliver(ask(array="0-4"))
    jobs.update(
        {("1", task): Job("1", task, state) for task, state in ((2, "RUNNING"), (3, "PENDING"), (4, "PENDING"))}
    )
    end(record, {0: "COMPLETED", 1: "FAILED"})

    prepared = again(record, failed=True)

    assert prepared.plan.array == Array((1,), None)
    note = f"tasks of `{record.id}` that have not ended are left out: 1 RUNNING, 2 PENDING"
    assert (prepared.notes, prepared.warnings) == ((note,), ())


def test_nothing_failed_is_a_code_that_commands_recognise(ask, jobs):
    record = deliver(ask(array="0-1"))
    jobs[("1", 1)] = Job("1", 1, "RUNNING")
    end(record, {0: "COMPLETED"})
    error = error_of(record, failed=True)
    assert (error.code, error.message, error.hint) == (
        Reason.NO_TASK_FAILED,
        f"no task of `{record.id}` has failed so far: 1 COMPLETED, 1 RUNNING",
        f"serried wait {record.id}",
    )
    assert error_of(record).hint == "no task has failed; `--all` repeats all 2"
    end(record, {1: "COMPLETED"})
    error = error_of(record, failed=True)
    assert (error.code, error.message) == (Reason.NO_TASK_FAILED, f"all 2 tasks of `{record.id}` are COMPLETED")


def test_a_silent_scheduler_leaves_open_if_a_task_failed(ask, scheduler, monkeypatch):
    record = end(deliver(ask(array="0-1")), {0: "COMPLETED"})

    def poll(ids, since=None):  # noqa: ARG001
        raise SchedulerUnreachable("no answer")

    monkeypatch.setattr(scheduler, "poll", poll)
    with pytest.raises(SchedulerUnreachable, match="no task of"):
        again(record, failed=True)


def test_what_is_no_choice_needs_none(ask, array):
    single = end(deliver(ask(array="7")), {7: "COMPLETED"})
    assert again(single).plan.array == Array((7,), None)
    hint = "`--failed` and `--all` select tasks of an array"
    plain = deliver(ask())
    error = error_of(plain, failed=True)
    assert (error.message, error.hint) == (f"`{plain.id}` is not an array", hint)
    with pytest.raises(UsageError, match="is one task of an array"):
        prepare_again(Selection(array, 3), os.environ, failed=False)


def test_a_run_that_was_never_submitted_is_repeated_as_a_whole(array):
    for path in array.directory.submissions.iterdir():
        path.unlink()
    os.utime(array.directory.plan, (1, 1))
    assert again(array, failed=True).plan.array == Array((*range(6),), 2, each=True)


def test_python_makes_the_same_choice(array):
    run = Run(array)
    with pytest.raises(UsageError, match="is an array: 2 COMPLETED"):
        run.rerun()
    again = run.rerun(failed=True, name="again")
    assert [task.id for task in again.tasks] == [f"{again.id}/{task}" for task in range(1, 5)]
    assert again.name == "again"
