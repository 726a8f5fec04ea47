"""`run_here` starts a job in the foreground, without waiting in the queue."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from serried.base import processes
from serried.base.processes import identify
from serried.schedulers.local.jobs import locked_slots
from serried.schedulers.local.supervisor import run_here
from serried.schema import names


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
        with locked_slots(machine.folder) as table:
            seen.append(table.free("gpu", ("0", "1", "2", "3")))

    here(machine, plan, tick=look)
    assert (Path(plan.directory) / "gpus").read_text() == "2,3\n"
    assert [] in seen


def test_a_job_that_ends_before_we_looked_at_it_holds_its_slots_until_it_was_swept(machine, monkeypatch):
    ours = os.getpid()
    monkeypatch.setattr(processes, "identify", lambda pid: identify(pid) if pid == ours else None)
    free = []

    def look():
        with locked_slots(machine.folder) as table:
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
    plan = plan._replace(site=plan.site._replace(kill_wait_seconds=600))

    def interrupt():
        if (Path(plan.directory) / "up").exists():
            signal.raise_signal(signal.SIGINT)

    assert here(machine, plan, tick=interrupt)[0] == 137
