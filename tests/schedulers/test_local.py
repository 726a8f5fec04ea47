"""What the local scheduler adds to the contract: a queue without a daemon, GPUs, and restarts."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

import pytest

from building import a_plan
from serried.base.errors import SubmissionRefused
from serried.schedulers.local import commands, supervisor
from serried.schedulers.local.commands import Local
from serried.schedulers.local.jobs import new_folder
from serried.schedulers.local.supervisor import Task
from serried.schema import names
from serried.schema.plan import Limit
from tables import for_each


@pytest.mark.parametrize(("ending", "state"), [("limit", names.PENDING), ("cancel", names.CANCELLED)])
def test_a_job_that_has_saved_as_its_limit_came_is_run_again(machine, ending, state):
    """It was told by TERM; its status says that it may go on all the same. Nothing goes on after a cancellation."""
    plan = machine.plan("trap 'exit 85' TERM; touch ready; while :; do sleep 0.05; done", time_seconds=3600)
    plan = plan._replace(limit=Limit(warn_before_seconds=0, restarts=1))
    request = commands.parse(commands.supervisor_command(plan, f"{plan.run}-1"))
    task = Task(request, new_folder(machine.folder), "-", os.environ)
    task.start(("0",))
    machine.wait_until((Path(plan.directory) / "ready").exists)
    if ending == "cancel":
        task.cancel()
    else:
        task._began -= 3600

    def has_left():
        task.step(lambda _: None)
        return not task.is_running

    machine.wait_until(has_left)
    assert (task.standing.state, task.standing.restarts) == (state, 1 if ending == "limit" else 0)


def test_an_end_does_not_read_a_file_of_every_task_of_a_large_array(machine, monkeypatch):
    looks = []
    monkeypatch.setattr(supervisor.layout, "unended_trial", lambda *looked: looks.append(looked))
    plan = machine.plan("exit $((85 * SERRIED_TASK))", indices=(0, 1))
    request = commands.parse(commands.supervisor_command(plan, f"{plan.run}-1"))
    for index in (0, 1):
        task = Task(dataclasses.replace(request, requeue=True), new_folder(machine.folder), str(index), os.environ)
        task.start(("0",))
        while task.is_running:
            task.step(lambda _: None)
        assert len(looks) == index


def test_a_task_that_waits_for_slots_does_not_wait_for_a_job_that_ended_before(machine):
    before = machine.submit(machine.plan("true", run="aaaaaa"))
    machine.await_end(before)
    machine.await_state(machine.submit(machine.plan("sleep 600", run="bbbbbb", gpus=4)), names.RUNNING)
    plan = machine.plan("true", run="cccccc", gpus=4, indices=(0, 1))
    after = machine.local.submit(machine.local.submission(plan, "cccccc-1", os.environ, after=before))
    machine.jobs.append(after)
    machine.wait_until(lambda: machine.local.poll([after])[after, 0].reason == "Resources")
    assert machine.local.poll([after])[after, 1].reason == ""


def test_a_job_knows_when_its_limit_comes_and_without_gpus_sees_none(machine):
    plan = machine.plan('echo $SERRIED_JOB_END >end; echo "[$CUDA_VISIBLE_DEVICES]" >gpus', time_seconds=3600)
    before = time.time()
    machine.await_end(machine.submit(plan))
    assert before + 3600 <= float((Path(plan.directory) / "end").read_text()) <= time.time() + 3600
    assert (Path(plan.directory) / "gpus").read_text() == "[]\n"


def test_the_command_says_what_is_asked_for():
    plan = a_plan(root="/scratch", scheduler="local", gpus=2, indices=range(10))._replace(limit=Limit(60, restarts=1))
    plan = plan._replace(array=plan.array._replace(parallel=4))
    made = Local().submission(plan, "k3f9q2-1", {"PATH": "/bin", "SERRIED_JOB": "7"})
    assert made.argv == (
        sys.executable,
        "-I",
        commands.COMMAND[-1],
        "--job-name=train-k3f9q2-1",
        "--chdir=/scratch/digits/train/k3f9q2",
        "--gpus=2",
        "--time=3600",
        "--warn-before=60",
        "--kill-wait=30",
        "--array=0-9%4",
        "--requeue",
        "--",
        "/bin/bash",
        "/scratch/digits/train/k3f9q2/job.sh",
        "k3f9q2-1",
    )
    assert made.environment == {"PATH": "/bin"}


@for_each(
    ("changes", "expected"),
    [
        ({}, {"pool": "cpu", "need": 4, "time_seconds": 3600, "tasks": ("-",), "parallel": None}),
        ({"gpus": 3}, {"pool": "gpu", "need": 3}),
        ({"time_seconds": None}, {"time_seconds": None, "warn_before_seconds": 0}),
        ({"indices": [6, 1, 5]}, {"tasks": ("1", "5", "6")}),
    ],
)
def test_the_supervisor_reads_its_request_from_its_command(changes, expected):
    command = commands.supervisor_command(a_plan(scheduler="local", **changes), "k3f9q2-1")
    request = vars(commands.parse(command))
    assert {name: request[name] for name in expected} == expected
    assert request["command"][-1] == "k3f9q2-1"


def test_jobs_start_in_the_order_they_came(machine):
    order = machine.folder.parent / "order"
    blocker = machine.submit(machine.plan("sleep 600", run="aaaaaa", cpus=2))
    machine.await_state(blocker, names.RUNNING)
    runs = ("bbbbbb", "cccccc", "dddddd")
    later = [machine.submit(machine.plan(f"echo {run} >> {order}", run=run, cpus=2)) for run in runs]
    queue = ["Resources", "Priority", "Priority"]
    machine.wait_until(lambda: [machine.one(job).reason for job in later] == queue)
    machine.local.cancel([blocker])
    machine.await_end(later[2])
    assert order.read_text().split() == list(runs)


def test_no_more_runs_at_once_than_there_are_slots(machine):
    count = machine.folder.parent / "count"
    count.mkdir()
    go = machine.folder.parent / "go"
    script = (
        f"touch {count}/$$; ls {count} | wc -l >> {count}.log; until [ -e {go} ]; do sleep 0.05; done; rm {count}/$$"
    )
    job = machine.submit(machine.plan(script, indices=range(8)))
    machine.wait_until(lambda: len(list(count.iterdir())) == 2)
    go.touch()
    machine.await_end(job)
    assert max(map(int, Path(f"{count}.log").read_text().split())) <= 2


def test_two_jobs_with_two_gpus_each_see_different_ones(machine):
    script = 'echo "$CUDA_VISIBLE_DEVICES" > gpus; sleep 600'
    for run in ("aaaaaa", "bbbbbb"):
        machine.await_state(machine.submit(machine.plan(script, run=run, gpus=2)), names.RUNNING)

    def seen():
        return sorted(path.read_text() for path in machine.scratch.glob("*/*/*/gpus"))

    machine.wait_until(lambda: seen() == ["0,1\n", "2,3\n"])


def test_a_job_keeps_to_the_gpus_that_the_user_left_visible(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    plan = machine.plan('echo "$CUDA_VISIBLE_DEVICES" > gpus', gpus=1)
    machine.await_end(machine.submit(plan))
    assert (Path(plan.directory) / "gpus").read_text() == "3\n"


def test_more_gpus_than_the_machine_has_are_refused_and_leave_no_job(machine):
    with pytest.raises(SubmissionRefused, match="this machine has 4 GPUs; the job needs 5"):
        machine.submit(machine.plan("true", gpus=5))
    assert machine.local.find("k3f9q2-1") is None


def test_more_cpus_than_the_machine_has_are_shared(machine):
    assert machine.await_end(machine.submit(machine.plan("true", cpus=64))) != {}


def test_a_job_that_asks_to_be_run_again_is_with_the_count_of_restarts(machine):
    plan = machine.plan('echo "$SERRIED_RESTART_COUNT" >> counts; [[ $SERRIED_RESTART_COUNT == 2 ]] || exit 85')
    job = machine.submit(plan._replace(limit=Limit(restarts=5)))
    found = machine.await_state(job, names.COMPLETED)
    assert ((Path(plan.directory) / "counts").read_text(), found.restarts) == ("0\n1\n2\n", 2)


@pytest.mark.parametrize(("script", "restarts"), [("exit 85", 0), ("echo '{}' > exit.json; exit 85", 5)])
def test_85_without_leave_to_restart_or_with_its_end_written_is_a_failure(machine, script, restarts):
    job = machine.submit(machine.plan(script)._replace(limit=Limit(restarts=restarts)))
    failed = machine.await_state(job, names.FAILED)
    assert (failed.exit_code, failed.restarts) == (85, 0)


def test_ids_do_not_come_back_after_the_folder_was_emptied(tmp_path):
    first = new_folder(tmp_path).number
    second = new_folder(tmp_path).number
    assert second > first > 10_000


def test_jobs_that_ended_long_ago_are_forgotten_and_others_are_not(machine):
    old = machine.submit(machine.plan("true", run="aaaaaa"))
    machine.await_end(old)
    running = machine.submit(machine.plan("sleep 600", run="bbbbbb"))
    machine.await_state(running, names.RUNNING)
    machine.wait_until(lambda: not machine.supervisor(old).is_alive)
    machine.jobs.remove(old)
    for job in (old, running):
        os.utime(machine.folder / "jobs" / job, (0, 0))
    new_folder(machine.folder)
    assert (machine.local.poll([old]), machine.one(running).state) == ({}, names.RUNNING)
