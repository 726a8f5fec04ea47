"""Jobs of the local scheduler and their supervisors die, and no process stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from serried.base import processes
from serried.base.processes import Process, identify
from serried.schedulers.local import jobs
from serried.schedulers.local.jobs import JobFolder, locked_slots, members
from serried.schema import names

SLEEPS = r"""until [ "$(tr '\0' ' ' </proc/$(<pid)/cmdline)" = 'sleep 600 ' ]; do sleep 0.05; done"""
"""Waits until `setsid` has made the process that `pid` names a session of its own, and run `sleep`."""


def test_what_a_job_leaves_behind_is_swept_also_from_another_session(machine):
    plan = machine.plan(f"(setsid nohup sleep 600 > /dev/null 2>&1 & echo $! > pid); {SLEEPS}")
    machine.await_end(machine.submit(plan))
    machine.wait_until(lambda: identify(int((Path(plan.directory) / "pid").read_text())) is None)


def test_a_killed_job_sh_takes_its_children_with_it(machine):
    plan = machine.plan(f"setsid sleep 600 & echo $! > pid; {SLEEPS}; kill -9 $$")
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
        "from serried.schema.plan import Plan; from serried.schedulers.local.commands import Local\n"
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
    with locked_slots(machine.folder) as table:
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


def test_parents_hear_of_an_end_before_their_children_also_where_pids_began_anew(monkeypatch):
    """An agent whose rank dies before it has heard would call that the rank's own failure."""
    job = [Process(7, "1000"), Process(9, "998"), Process(8, "1001")]
    told = []
    monkeypatch.setattr(jobs, "members", lambda *_: job)
    monkeypatch.setattr(Process, "send", lambda process, _: told.append(process.pid))
    assert (jobs.signal_all(None, "mark", signal.SIGTERM), told) == (3, [9, 7, 8])
