"""What is left when one of our own processes is killed -9, and what is said about it."""

from __future__ import annotations

import os
import signal

import pytest

from serried.agent.attempt import Attempt
from serried.agent.attempts import finalize
from serried.base.files import read_journal

DEAF = "trap '' TERM; echo ready; while :; do sleep 1; done"
"""Ranks that stay for the whole grace after the first of them was killed."""


@pytest.fixture
def running(start, wait_until):
    """A run whose ranks have started a child each."""

    def begin(command="sleep 475 & echo ready; wait", **options):
        run = start(command, **options)
        last = run.plan.world_size - 1
        wait_until(lambda: run.events("started"))
        wait_until(lambda: "ready" in run.output(last, last // run.plan.allocation.ranks))
        return run

    return begin


def kill(pid):
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("role", "name"), [("node", "agent"), ("head", "head agent")])
def test_a_killed_agent_ends_the_run_and_leaves_nothing(  # noqa: PLR0917 - fixtures
    running, marked_processes, tmp_path, wait_until, role, name
):
    run = running()

    kill(run.pid_of(role))

    assert run.wait() == 137
    assert run.ending == ("FAILED", 137, "agent-killed", f"the {name} on {run.exit['nodes'][0]} was killed")
    wait_until(lambda: list(tmp_path.glob("serried-*/*")) == [])
    assert marked_processes(run.mark) == []


def test_a_killed_job_script_ends_the_run_and_leaves_nothing(running, marked_processes, wait_until):
    run = running()

    kill(run.process.pid)

    wait_until(lambda: run.events("ended") and run.pid_of("head") is None)
    assert run.ending == ("FAILED", 137, "job-script-killed", f"job.sh on {run.exit['nodes'][0]} was killed")
    assert marked_processes(run.mark) == []


def test_a_job_script_that_is_killed_as_the_ranks_end_well_costs_no_verdict(start, wait_until, tmp_path):
    release = tmp_path / "release"
    run = start(f"until test -e {release}; do sleep 0.05; done", ranks=2)
    wait_until(lambda: run.events("started"))
    head = run.pid_of("head")

    os.kill(head, signal.SIGSTOP)  # so that it hears of job.sh before it hears of the ranks
    release.touch()
    wait_until(lambda: len([event for event in journal(run) if event["event"] == "rank-exit"]) == 2)
    kill(run.process.pid)
    run.process.wait()
    os.kill(head, signal.SIGCONT)

    wait_until(lambda: run.events("ended") and run.pid_of("head") is None)
    assert run.events("orphaned")
    assert run.ending == ("COMPLETED", 0, None, "every rank exited with status 0")


def test_a_disk_that_takes_no_end_when_the_job_script_is_killed_keeps_no_rank_alive(
    running, marked_processes, wait_until
):
    run = running()
    end = run.place.attempt(1).exit
    end.mkdir()  # to root too, a write is refused now

    kill(run.process.pid)
    wait_until(lambda: run.events("ended"))
    wait_until(lambda: marked_processes(run.mark) == [])
    end.rmdir()

    wait_until(lambda: run.pid_of("head") is None)
    assert run.ending[:3] == ("FAILED", 137, "job-script-killed")


def killed_by_its_scheduler(run, wait_until, *, with_head=False):
    """job.sh is killed, and then its scheduler kills what is left, ranks before agents, as PBS does."""
    head, node = run.pid_of("head"), run.pid_of("node")
    rank = next(event["pid"] for event in journal(run) if event["event"] == "started")
    os.kill(head, signal.SIGSTOP)  # so that it hears of all of it at once
    kill(run.process.pid)
    run.process.wait()
    kill(rank)
    wait_until(lambda: [event for event in journal(run) if event["event"] == "rank-exit"])
    if with_head:
        kill(head)
        kill(node)
    else:
        os.kill(head, signal.SIGCONT)


def journal(run):
    return read_journal(run.place.attempt(1).node_events(0))


def test_a_rank_that_dies_with_its_job_script_is_not_the_cause(running, wait_until):
    run = running()

    killed_by_its_scheduler(run, wait_until)

    wait_until(lambda: run.events("ended") and run.pid_of("head") is None)
    host = run.exit["nodes"][0]
    assert run.ending == ("FAILED", 137, "job-script-killed", f"job.sh on {host} was killed")
    assert run.exit["first_failure"] is None


def test_a_rank_that_dies_with_all_agents_is_not_the_cause(running, wait_until):
    run = running()

    killed_by_its_scheduler(run, wait_until, with_head=True)

    work = Attempt.load(run.plan.directory, None, 1)
    assert finalize.assess(work, is_unrecorded=True).cause == "agent-killed"
    assert finalize.assess(work).cause == "signal"  # job.sh lives: it was this rank alone


def test_a_rank_that_was_killed_before_its_job_script_is_the_cause(running, wait_until):
    run = running(limit={"grace_seconds": 600}, command=DEAF)
    rank = next(event["pid"] for event in journal(run) if event["event"] == "started")
    kill(rank)
    wait_until(lambda: run.events("rank-failed"))

    kill(run.process.pid)

    wait_until(lambda: run.events("orphaned") and run.exit)
    assert run.ending[:3] == ("FAILED", 137, "signal")
    kill(run.pid_of("node"))  # and with it the other rank
    wait_until(lambda: run.pid_of("head") is None)


def test_an_attempt_that_has_ended_and_a_withdrawn_submission_do_not_run(start):
    run = start("echo once >>$SERRIED_RESULTS_DIR/ran", ranks=1)
    assert run.wait() == 0
    token = f"{run.plan.run}-2"
    (run.directory.claims / token).write_text("withdrawn")

    again = start(None, plan=run.plan)
    assert (again.wait(), "the run has ended already: COMPLETED" in again.log) == (0, True)
    late = start(None, plan=run.plan, token=token)
    assert (late.wait(), f"submission {token} was withdrawn" in late.log) == (0, True)
    assert (run.place.results / "ran").read_text() == "once\n"


def test_a_submission_of_another_job_does_not_run(start):
    run = start("sleep 0.2", ranks=1)
    other = start(None, plan=run.plan, job="78")

    assert sorted([run.wait(), other.wait()]) == [0, 0]
    assert sorted(path.name for path in run.place.attempts.iterdir()) == ["1"]


def test_a_scheduler_that_restarts_a_job_it_ended_gets_another_attempt(start, running, wait_until):
    run = running(limit={"restarts": 1})
    run.process.terminate()
    assert run.wait() == 143

    again = start(None, plan=run.plan)

    wait_until(lambda: again.events("started", attempt=2))
    again.process.terminate()
    assert again.wait() == 143
    assert again.exit["attempts"] == 2
