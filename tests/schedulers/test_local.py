"""What the local scheduler adds to the contract: a queue without a daemon, GPUs, restarts, and honest deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from building import a_plan
from serried import processes
from serried.contract import names
from serried.errors import SubmissionRefused
from serried.plan import Limit
from serried.processes import Process, identify
from serried.schedulers.local import argv, marked, slots
from serried.schedulers.local.here import run_here
from serried.schedulers.local.marked import members
from serried.schedulers.local.scheduler import Local
from serried.schedulers.local.state import JobFolder, new_folder, prune
from serried.schedulers.local.task import Task


class Machine:
    """This machine's queue, in a folder of its own, and jobs made of bash."""

    def __init__(self, tmp_path, wait_until):
        self.local = Local()
        self.folder = tmp_path / "local"
        self.scratch = tmp_path / "scratch"
        self.wait_until = wait_until
        self.jobs = []

    def plan(self, script, run="k3f9q2", **allocation):
        plan = a_plan(run, root=self.scratch, scheduler="local", **{"nodes": 1, "cpus": 1} | allocation)
        directory = Path(plan.directory)
        directory.mkdir(parents=True)
        (directory / "job.sh").write_text(script)
        return replace(plan, site=replace(plan.site, kill_wait_seconds=60))

    def submit(self, plan):
        job = self.local.submit(self.local.submission(plan, f"{plan.run}-1", os.environ))
        self.jobs.append(job)
        return job

    def one(self, job):
        (found,) = self.local.poll([job]).values()
        return found

    def await_state(self, job, state):
        self.wait_until(lambda: self.one(job).state == state, what=f"{job} to be {state}: {self.one(job)}")
        return self.one(job)

    def await_end(self, job):
        self.wait_until(lambda: all(each.state in names.ENDED for each in self.local.poll([job]).values()))
        return self.local.poll([job])

    def supervisor(self, job):
        return Process(**JobFolder(self.folder / "jobs" / job).about["supervisor"])


@pytest.fixture
def machine(tmp_path, monkeypatch, wait_until):
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setenv("SERRIED_LOCAL_SLOTS", "2")
    monkeypatch.setenv("SERRIED_LOCAL_GPUS", "0,1,2,3")
    made = Machine(tmp_path, wait_until)
    yield made
    made.local.cancel(made.jobs)
    for job in made.jobs:
        wait_until(lambda job=job: not made.supervisor(job).is_alive)


@pytest.mark.parametrize(("ending", "state"), [("limit", names.PENDING), ("cancel", names.CANCELLED)])
def test_a_job_that_has_saved_as_its_limit_came_is_run_again(machine, ending, state):
    """It was told by TERM; its status says that it may go on all the same. Nothing goes on after a cancellation."""
    plan = machine.plan("trap 'exit 85' TERM; touch ready; while :; do sleep 0.05; done", time_seconds=3600)
    request = argv.of_plan(replace(plan, limit=Limit(lead_seconds=0, restarts=1)), f"{plan.run}-1")
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


def test_a_job_knows_when_its_limit_comes(machine):
    plan = machine.plan("echo $SERRIED_JOB_END >end; touch done; sleep 600", time_seconds=3600)
    before = time.time()
    machine.submit(plan)
    machine.wait_until((Path(plan.directory) / "done").exists)
    assert before + 3600 <= float((Path(plan.directory) / "end").read_text()) <= time.time() + 3600


def test_the_command_says_what_is_asked_for():
    plan = replace(a_plan(root="/scratch", scheduler="local", gpus=2, indices=range(10)), limit=Limit(60, restarts=1))
    plan = replace(plan, array=replace(plan.array, parallel=4))
    made = Local().submission(plan, "k3f9q2-1", {"PATH": "/bin", "SERRIED_JOB": "7"})
    assert made.argv == (
        sys.executable,
        "-I",
        str(argv.PROGRAM),
        "--job-name=train-k3f9q2-1",
        "--chdir=/scratch/digits/train/k3f9q2",
        "--gpus=2",
        "--time=3600",
        "--lead=60",
        "--kill-wait=30",
        "--array=0-9%4",
        "--requeue",
        "--",
        "/bin/bash",
        "/scratch/digits/train/k3f9q2/job.sh",
        "k3f9q2-1",
    )
    assert made.environment == {"PATH": "/bin"}


@pytest.mark.parametrize("changes", [{}, {"gpus": 3}, {"time_seconds": None}, {"indices": [1, 5, 6]}])
def test_what_the_command_says_is_what_the_supervisor_hears(changes):
    request = argv.of_plan(a_plan(scheduler="local", **changes), "k3f9q2-1")
    assert argv.parse(request.argv()[3:]) == request


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
    script = f"touch {count}/$$; ls {count} | wc -l >> {count}.log; sleep 0.2; rm {count}/$$"
    machine.await_end(machine.submit(machine.plan(script, indices=range(8))))
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


def test_a_job_without_gpus_sees_none(machine):
    plan = machine.plan('echo "[$CUDA_VISIBLE_DEVICES]" > gpus')
    machine.await_end(machine.submit(plan))
    assert (Path(plan.directory) / "gpus").read_text() == "[]\n"


def test_more_gpus_than_the_machine_has_are_refused_and_leave_no_job(machine):
    with pytest.raises(SubmissionRefused, match="asks for 5 GPUs; this machine has 4"):
        machine.submit(machine.plan("true", gpus=5))
    assert machine.local.find("k3f9q2-1") is None


def test_more_cpus_than_the_machine_has_are_shared(machine):
    assert machine.await_end(machine.submit(machine.plan("true", cpus=64))) != {}


def test_a_job_that_asks_to_be_run_again_is_with_the_count_of_restarts(machine):
    plan = machine.plan('echo "$SERRIED_RESTART_COUNT" >> counts; [[ $SERRIED_RESTART_COUNT == 2 ]] || exit 85')
    job = machine.submit(replace(plan, limit=Limit(restarts=5)))
    found = machine.await_state(job, names.COMPLETED)
    assert ((Path(plan.directory) / "counts").read_text(), found.restarts) == ("0\n1\n2\n", 2)


def test_85_without_leave_to_restart_is_a_failure(machine):
    found = machine.await_state(machine.submit(machine.plan("exit 85")), names.FAILED)
    assert found.exit_code == 85


def test_85_of_a_run_whose_end_is_written_is_a_failure(machine):
    plan = machine.plan("echo '{}' > exit.json; exit 85")
    found = machine.await_state(machine.submit(replace(plan, limit=Limit(restarts=5))), names.FAILED)
    assert (found.exit_code, found.restarts) == (85, 0)


def test_a_cancelled_job_that_asks_to_be_run_again_is_not(machine):
    plan = machine.plan("trap 'exit 85' TERM; touch up; sleep 600 & wait")
    job = machine.submit(replace(plan, limit=Limit(restarts=5)))
    machine.wait_until((Path(plan.directory) / "up").exists)
    machine.local.cancel([job])
    assert machine.await_state(job, names.CANCELLED).restarts == 0


def test_what_a_job_leaves_behind_is_swept_also_from_another_session(machine):
    plan = machine.plan("(setsid nohup sleep 600 > /dev/null 2>&1 & echo $! > pid); sleep 0.2")
    machine.await_end(machine.submit(plan))
    machine.wait_until(lambda: identify(int((Path(plan.directory) / "pid").read_text())) is None)


def test_a_killed_job_sh_takes_its_children_with_it(machine):
    plan = machine.plan("setsid sleep 600 & echo $! > pid; sleep 0.1; kill -9 $$")
    found = machine.await_state(machine.submit(plan), names.FAILED)
    assert (found.exit_code, found.signal) == (137, 9)
    machine.wait_until(lambda: identify(int((Path(plan.directory) / "pid").read_text())) is None)


def test_a_job_that_cannot_be_started_is_a_failed_launch_and_no_mystery(machine):
    plan = machine.plan("true")
    blocker = machine.submit(machine.plan("sleep 600", run="aaaaaa", cpus=2))
    machine.await_state(blocker, names.RUNNING)
    job = machine.submit(plan)
    Path(plan.directory).rename(Path(plan.directory).with_name("moved"))
    machine.local.cancel([blocker])
    assert machine.await_state(job, names.LAUNCH_FAILED).reason == "No such file or directory"


def test_a_job_survives_the_session_that_submitted_it(machine):
    plan = machine.plan("sleep 600")
    program = (
        f"import json, os, sys; sys.path[:0] = {sys.path!r}\n"
        "from serried.plan import Plan; from serried.schedulers.local.scheduler import Local\n"
        "plan = Plan.from_json(json.loads(sys.argv[1])); local = Local()\n"
        "print(local.submit(local.submission(plan, plan.run + '-1', os.environ)), flush=True); sys.stdin.read()"
    )
    terminal = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(plan.to_json())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    job = terminal.stdout.readline().strip()
    machine.jobs.append(job)
    machine.await_state(job, names.RUNNING)
    os.killpg(terminal.pid, signal.SIGHUP)
    terminal.communicate()
    assert machine.one(job).state == names.RUNNING
    machine.supervisor(job).send(signal.SIGHUP)
    assert machine.one(job).state == names.RUNNING


def test_when_the_supervisor_is_killed_the_job_ends_and_is_not_called_running_for_ever(machine):
    plan = machine.plan("trap 'touch told; exit 1' TERM; setsid sleep 600 & echo $! > pid; touch up; wait")
    job = machine.submit(plan)
    machine.wait_until((Path(plan.directory) / "up").exists)
    machine.await_state(job, names.RUNNING)  # the supervisor has written down which process that is
    machine.supervisor(job).send(signal.SIGKILL)
    found = machine.await_state(job, names.NODE_FAIL)
    assert (found.reason, (Path(plan.directory) / "told").exists()) == ("SupervisorGone", True)
    assert "killed" in machine.local.explain(found.reason)
    machine.wait_until(lambda: identify(int((Path(plan.directory) / "pid").read_text())) is None)
    with slots.locked(machine.folder) as table:
        assert table.taken == []


def test_a_job_whose_supervisor_is_gone_is_running_while_its_script_is_and_can_be_cancelled(machine):
    script = "trap '' TERM; sleep 600 & echo $! > first; touch up; wait; trap 'exit 1' TERM; touch on; sleep 600 & wait"
    plan = machine.plan(script)
    job = machine.submit(plan)
    machine.wait_until((Path(plan.directory) / "up").exists)
    machine.await_state(job, names.RUNNING)  # the supervisor has written down which process that is
    machine.supervisor(job).send(signal.SIGKILL)
    machine.wait_until(lambda: machine.one(job).reason == "SupervisorGone")
    assert machine.one(job).state == names.RUNNING
    os.kill(int((Path(plan.directory) / "first").read_text()), signal.SIGKILL)
    machine.wait_until((Path(plan.directory) / "on").exists)
    machine.local.cancel([job])
    machine.await_state(job, names.NODE_FAIL)


def test_a_job_that_ends_while_somebody_looks_has_not_failed(machine, monkeypatch):
    plan = machine.plan("while [ ! -e go ]; do sleep 0.05; done")
    job = machine.submit(plan)
    machine.await_state(job, names.RUNNING)
    standings = JobFolder.standings

    def read_and_end(folder):
        monkeypatch.setattr(JobFolder, "standings", standings)
        found = standings(folder)
        (Path(plan.directory) / "go").touch()
        machine.wait_until(lambda: not machine.supervisor(job).is_alive)
        return found

    monkeypatch.setattr(JobFolder, "standings", read_and_end)
    assert [machine.one(job).state for _ in range(2)] == [names.RUNNING, names.COMPLETED]


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
    prune(machine.folder)
    assert (machine.local.poll([old]), machine.one(running).state) == ({}, names.RUNNING)


def test_without_proc_a_job_is_known_by_ps(monkeypatch):
    monkeypatch.setattr(processes, "HAS_PROC", False)
    child = subprocess.Popen(["bash", "-c", "sleep 600 & wait"], start_new_session=True)
    try:
        identity = identify(child.pid)
        assert identity.is_alive
        found = [each.pid for each in members(child.pid, "unused")]
        assert child.pid in found
        assert len(found) in {1, 2}  # the sleep may not have started
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert not identity.is_alive


def here(machine, plan, **options):
    started = []
    ended = run_here(plan, f"{plan.run}-1", os.environ, on_start=started.append, **options)
    return ended.status, machine.one(started[0])


def test_a_run_here_returns_the_exit_status_and_is_a_job_as_any(machine):
    status, job = here(machine, machine.plan("exit 3"))
    assert (status, job.state, job.exit_code) == (3, names.FAILED, 3)
    assert machine.local.find("k3f9q2-1") == job.id


def test_a_run_here_ticks_while_it_runs(machine):
    plan = machine.plan("until [ -e go ]; do sleep 0.05; done")
    ticks = []

    def tick():
        ticks.append(1)
        if len(ticks) == 3:
            (Path(plan.directory) / "go").touch()

    assert here(machine, plan, tick=tick)[0] == 0
    assert len(ticks) >= 3


def test_a_run_here_takes_idle_gpus_at_once_and_the_queue_sees_them_taken(machine):
    machine.await_state(machine.submit(machine.plan("sleep 600", run="aaaaaa", gpus=2)), names.RUNNING)
    plan = machine.plan('echo "$CUDA_VISIBLE_DEVICES" > gpus', run="bbbbbb", gpus=2)
    seen = []

    def look():
        with slots.locked(machine.folder) as table:
            seen.append(table.free("gpu", ("0", "1", "2", "3")))

    here(machine, plan, tick=look)
    assert (Path(plan.directory) / "gpus").read_text() == "2,3\n"
    assert [] in seen


def test_a_job_that_ends_before_we_looked_at_it_holds_its_slots_until_it_was_swept(machine, monkeypatch):
    ours = os.getpid()
    monkeypatch.setattr(processes, "identify", lambda pid: identify(pid) if pid == ours else None)
    free = []

    def look():
        with slots.locked(machine.folder) as table:
            free.append(table.free("cpu", ("0", "1")))

    here(machine, machine.plan("true", cpus=2), tick=look)
    assert free == [[]] * (len(free) - 1) + [["0", "1"]]


def test_a_run_here_takes_the_gpus_it_was_told_to(machine):
    plan = machine.plan('echo "$CUDA_VISIBLE_DEVICES" > gpus', gpus=2)
    here(machine, plan, gpu_ids=("3", "1"))
    assert (Path(plan.directory) / "gpus").read_text() == "3,1\n"


def test_a_run_here_does_not_wait_for_a_full_machine(machine):
    machine.await_state(machine.submit(machine.plan("sleep 600", run="aaaaaa", cpus=2)), names.RUNNING)
    assert here(machine, machine.plan("true", run="bbbbbb", cpus=2))[0] == 0


def test_a_run_here_can_be_cancelled_from_elsewhere(machine):
    started = []
    plan = machine.plan("sleep 600")
    ended = run_here(plan, "k3f9q2-1", os.environ, on_start=started.append, tick=lambda: machine.local.cancel(started))
    assert (ended, machine.one(started[0]).state) == ((143, False), names.CANCELLED)


def test_an_interrupt_is_passed_on_as_TERM_and_the_handlers_come_back(machine):  # noqa: N802 - the signal's name
    plan = machine.plan("trap 'touch told; exit 9' TERM; touch up; sleep 600 & wait")
    before = signal.getsignal(signal.SIGINT)
    sent = []

    def interrupt_once():
        if not sent and (Path(plan.directory) / "up").exists():
            sent.append(1)
            signal.raise_signal(signal.SIGINT)

    status, job = here(machine, plan, tick=interrupt_once)
    assert (status, job.state, (Path(plan.directory) / "told").exists()) == (9, names.CANCELLED, True)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_interrupt_kills(machine):
    plan = machine.plan("trap '' TERM; touch up; sleep 600 & wait")
    plan = replace(plan, site=replace(plan.site, kill_wait_seconds=600))

    def interrupt():
        if (Path(plan.directory) / "up").exists():
            signal.raise_signal(signal.SIGINT)

    assert here(machine, plan, tick=interrupt)[0] == 137


def test_parents_hear_of_an_end_before_their_children_also_where_pids_began_anew(monkeypatch):
    """An agent whose rank dies before it has heard would call that the rank's own failure."""
    job = [Process(7, "1000"), Process(9, "998"), Process(8, "1001")]
    told = []
    monkeypatch.setattr(marked, "members", lambda *_: job)
    monkeypatch.setattr(Process, "send", lambda process, _: told.append(process.pid))
    assert (marked.signal_all(None, "mark", signal.SIGTERM), told) == (3, [9, 7, 8])
