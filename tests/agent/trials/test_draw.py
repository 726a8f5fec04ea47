"""The role `draw`: which trial a job runs next, with many jobs at once and some of them killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time

import pytest

from building import a_plan
from serried.agent.options import parse
from serried.agent.trials import draw
from serried.base.files import write_json
from serried.schema import layout, names
from serried.schema.layout import RunDirectory
from serried.schema.reasons import Reason
from serried.submission.plan import divide_indices

HOUR = 3600


@pytest.fixture
def make(tmp_path, monkeypatch):
    def written(trials=6, *, time_seconds=HOUR, part=0):
        plan = a_plan(root=tmp_path, indices=range(trials), time_seconds=time_seconds)
        array = plan.array._replace(draws=True, offsets=divide_indices(plan.array.indices, part) if part else ())
        plan = plan._replace(array=array)
        run = RunDirectory(tmp_path / "k3f9q2")
        run.path.mkdir()
        write_json(run.plan, plan.to_json())
        monkeypatch.setenv(names.RUN_DIR, str(run.path))
        return run

    return written


def draws(worker, ended=None, *, longest=0, left=HOUR, may_have_one=None):
    """What job `worker` prints: after the trial `ended`, or at its start."""
    words = ["k3f9q2-1", "--job", "812", "--task", str(worker), "--end", str(time.time() + left)]
    words += [] if ended is None else ["--ended", str(ended), "--longest", str(longest)]
    return draw.answer(parse(words), may_have_one=ended is None if may_have_one is None else may_have_one)


def end(run, trial, state=names.COMPLETED, cause=None, **facts):
    write_json(run.task(trial).exit, {"state": state, "cause": cause, **facts})


def test_a_job_runs_its_own_trial_and_then_those_whose_jobs_wait(make):
    run = make(4)
    assert draws(0) == "0"
    assert draws(1) == "1"
    end(run, 0)
    assert draws(0, 0) == "2"
    assert [layout.worker_of(run, trial) for trial in range(4)] == [0, 1, 0, 3]


def test_a_job_whose_trial_is_taken_draws_another_when_it_starts(make):
    run = make(4)
    draws(0)
    end(run, 0)
    draws(0, 0)
    assert draws(1) == "2"


def test_the_jobs_that_wait_for_nothing_are_named_by_the_schedulers_indices(make):
    run = make(9, part=4)
    for worker in (0, 5):
        draws(worker)
    for trial in (1, 2, 3, 4, 6, 7, 8):
        end(run, 0)
        assert draws(0, 0) == str(trial)
    assert draws(0, 0) == "idle 1-3"
    end(run, 5)
    assert draws(5, 5) == "idle 0,2-3"
    assert draws(6) == "idle 0,3"
    assert draws(8) == "idle"


def test_a_job_that_starts_again_resumes_its_unended_trial(make):
    run = make(4)
    draws(0)
    end(run, 0)
    assert draws(0, 0) == "1"
    assert draws(0, 0, may_have_one=True) == "1", "a draw that failed after its claim is lost"
    assert draws(0) == "1"
    end(run, 1)
    assert draws(0) == "2"


@pytest.mark.parametrize(
    ("state", "cause", "job", "resumed"),
    [
        pytest.param(names.CANCELLED, Reason.CANCEL, "812", True, id="preempted: agents saw TERM"),
        pytest.param(names.PREEMPTED, Reason.PREEMPT, "812", True, id="preempted"),
        pytest.param(names.NODE_FAIL, Reason.NODE_LOST, "812", True, id="a node was lost"),
        pytest.param(names.CANCELLED, Reason.CANCEL, "811", False, id="in another job"),
        pytest.param(names.CANCELLED, Reason.USER, "812", False, id="stopped by its user"),
        pytest.param(names.FAILED, Reason.FAILURE, "812", False, id="failed"),
    ],
)
def test_a_job_that_the_scheduler_restarts_resumes_its_interrupted_trial(make, state, cause, job, resumed):
    run = make(4)
    draws(0)
    end(run, 0, job="812")
    assert draws(0, 0) == "1"
    end(run, 1, state, cause, job=job)
    assert draws(0) == ("1" if resumed else "2")


@pytest.mark.parametrize(
    ("limit", "longest", "left", "trial"),
    [
        pytest.param(HOUR, 60, HOUR, "1", id="plenty"),
        pytest.param(HOUR, 1000, 60 + 1600, "1", id="enough"),
        pytest.param(HOUR, 1000, 60 + 1400, "", id="not once more with room to spare"),
        pytest.param(HOUR, 1, 30, "", id="after the stop notice"),
        pytest.param(None, 10**6, -1, "1", id="without a limit"),
    ],
)
def test_no_further_trial_begins_when_time_is_nearly_over(make, limit, longest, left, trial):
    run = make(time_seconds=limit)
    draws(0)
    end(run, 0)
    assert draws(0, 0, longest=longest, left=left) == trial


@pytest.mark.parametrize(
    ("ended", "continues"),
    [
        pytest.param((names.COMPLETED,), True, id="completed"),
        pytest.param((names.COMPLETED, Reason.PRUNED), True, id="pruned"),
        pytest.param((names.FAILED, Reason.FAILURE), True, id="failed"),
        pytest.param((names.FAILED, Reason.FAILURE, 9), False, id="killed"),
        pytest.param((names.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY), False, id="out of memory"),
        pytest.param((names.FAILED, Reason.AGENT_KILLED), False, id="its agent was killed"),
        pytest.param((names.NODE_FAIL, Reason.NODE_LOST), False, id="a node was lost"),
        pytest.param((names.LAUNCH_FAILED, Reason.LAUNCH), False, id="not started"),
        pytest.param((names.TIMEOUT, Reason.LIMIT), False, id="at the limit"),
        pytest.param((names.CANCELLED, Reason.USER), False, id="stopped by its user"),
        pytest.param((None,), False, id="unknown"),
    ],
)
def test_a_job_draws_only_after_an_end_that_is_certain(make, ended, continues):
    state, cause, number = (*ended, None, None)[:3]
    run = make()
    draws(0)
    if state:
        end(run, 0, state, cause, first_failure={"signal": number} if number else None)
    assert draws(0, 0) == ("1" if continues else "")


def test_a_trial_that_a_user_has_stopped_is_not_drawn(make):
    run = make(3)
    run.task(1).path.mkdir(parents=True)
    run.task(1).worker.write_text(names.WITHDRAWN)
    draws(0)
    end(run, 0)
    assert draws(0, 0) == "2"
    assert layout.worker_of(run, 1) == 1


def test_no_trial_is_run_twice_or_left_by_many_jobs_of_which_some_are_killed(make):
    """The role itself, as job.sh starts it. A killed job is started again, as a scheduler does."""
    trials = 12
    run = make(trials, time_seconds=None)
    ran: list[int] = []
    chance = random.Random(4)

    def job(worker):
        ended = ""
        while True:
            words = ["draw", "k3f9q2-1", "--job", "812", "--task", str(worker), "--ended", ended]
            process = subprocess.Popen(
                [sys.executable, "-m", "serried.agent", *words], stdout=subprocess.PIPE, text=True
            )
            if chance.random() < 0.3:
                time.sleep(chance.random() * 0.2)
                process.kill()
                process.communicate()
                ended = ""
                continue
            answer = process.communicate()[0].strip()
            if answer.startswith("idle"):
                return
            ran.append(int(answer))
            end(run, answer)
            ended = answer

    jobs = [threading.Thread(target=job, args=(worker,)) for worker in range(4)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    assert sorted(ran) == list(range(trials))
    owners = [json.loads(run.task(trial).worker.read_text()) for trial in range(trials)]
    assert set(owners) <= {0, 1, 2, 3}
