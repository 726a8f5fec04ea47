from __future__ import annotations

import json
import time

from serried.schedulers.interface import Job


def test_all_succeeded_is_0(serried, make):
    make().ending()
    done = serried("wait", "last")
    assert (done.code, done.out, done.err) == (0, "", "k3f9q2 train COMPLETED after 10m00s\n")
    assert serried("wait", "last", "--timeout", "soon").code == 2


def test_one_that_did_not_is_1_and_its_own_status_is_in_the_json(serried, make):
    make("aaaaaa").ending()
    make("bbbbbb").ending("FAILED", exit_code=85)
    done = serried("wait", "aaaaaa", "bbbbbb", "--json")
    assert done.code == 1
    expected = [("aaaaaa", "COMPLETED", 0), ("bbbbbb", "FAILED", 85)]
    assert [(run["id"], run["state"], run["exit_code"]) for run in json.loads(done.out)["runs"]] == expected


def test_a_lost_run_did_not_succeed(serried, make, clock):
    make()
    done = serried("wait", "last")
    assert done.code == 1
    assert "k3f9q2 train LOST: the scheduler does not list it, and it left no exit.json" in done.err
    assert clock.passed > 90


def test_files_end_the_waiting_and_the_scheduler_is_asked_ever_more_seldom(serried, make, slurm, clock):
    run = make()
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [lambda: None] * 600 + [run.ending]
    done = serried("wait", "last")
    assert done.code == 0
    assert 590 < clock.passed < 620
    assert len(slurm.polls) < 30


def test_a_timeout_gives_up_and_lets_the_run_go_on(serried, make, slurm, clock):
    make()
    slurm.tell(Job("123", None, "RUNNING"))
    done = serried("wait", "last", "--timeout", "5m")
    assert done.code == 124
    assert done.err.endswith("error: k3f9q2 did not end within 5m\n\nhint: serried wait k3f9q2 continues to wait\n")
    assert 300 <= clock.passed < 302


def test_ctrl_c_ends_the_waiting_and_not_the_run(serried, make, slurm, monkeypatch):
    make()
    slurm.tell(Job("123", None, "RUNNING"))

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    done = serried("wait", "last")
    assert (done.code, done.err) == (130, "\nnote: stopped waiting; the runs continue (see serried ps)\n")
    assert slurm.cancelled == []


def test_one_task_of_an_array_can_be_waited_for(serried, make, slurm):
    make(indices=[0, 1]).ending(task=1)
    slurm.tell(Job("123", 0, "RUNNING"))
    done = serried("wait", "last/1")
    assert (done.code, done.err) == (0, "k3f9q2/1 train COMPLETED after 10m00s\n")


def test_a_silent_scheduler_does_not_end_the_waiting(serried, make, slurm, clock):
    run = make()
    run.attempt()
    slurm.answers = False
    clock.then = [lambda: None] * 100 + [run.ending]
    assert serried("wait", "last").code == 0


def test_a_preempted_run_that_waits_for_its_nodes_is_asked_about_ever_more_seldom(serried, make, slurm, clock):
    run = make().ending("CANCELLED", exit_code=143, cause="cancel")
    slurm.tell(Job("123", None, "PENDING"))
    clock.then = [lambda: None] * 600 + [lambda: slurm.tell(Job("123", None, "COMPLETED")), run.ending]
    assert serried("wait", "last").code == 0
    assert clock.passed > 300
    assert len(slurm.polls) < 40


def test_while_the_scheduler_is_silent_a_cancelled_run_may_yet_go_on(serried, make, slurm, clock):
    run = make().ending("CANCELLED", exit_code=143, cause="cancel")
    slurm.answers = False
    clock.then = [lambda: None] * 100 + [lambda: setattr(slurm, "answers", True), run.ending]
    slurm.tell(Job("123", None, "RUNNING"))
    done = serried("wait", "last")
    assert (done.code, clock.passed > 90) == (0, True)


def test_several_runs_end_one_after_the_other(serried, make, slurm, clock):
    runs = [make("aaaaaa", job="1"), make("bbbbbb", job="2")]
    for job in "12":
        slurm.tell(Job(job, None, "RUNNING"))
    clock.then = [runs[1].ending, lambda: None, runs[0].ending]
    done = serried("wait", "aaaaaa", "bbbbbb", "aaaaaa")
    assert done.code == 0
    assert done.err == "aaaaaa train COMPLETED after 10m00s\nbbbbbb train COMPLETED after 10m00s\n"


def test_what_a_run_waits_for_is_said_once_and_again_when_it_is_something_else(serried, make, slurm, clock):
    """One that its owner or PBS holds waits for ever."""
    run = make()
    waits = [Job("123", None, "PENDING", reason=reason) for reason in ("Priority", "JobHeldUser", "Resources")]
    slurm.tell(waits[0])
    clock.then = [*[lambda: None] * 100, lambda: slurm.tell(waits[1]), *[lambda: None] * 100]
    clock.then += [lambda: slurm.tell(waits[2]), lambda: slurm.tell(Job("123", None, "RUNNING")), run.ending]
    done = serried("wait", "last", "--json")
    assert done.err == (
        "k3f9q2 train PENDING: it waits because of Priority\nk3f9q2 train PENDING: it waits because of JobHeldUser\n"
    )
    assert (done.code, json.loads(done.out)["runs"][0]["state"]) == (0, "COMPLETED")


def test_what_can_never_start_is_not_waited_for_once_it_is_certain(serried, make, slurm, clock):
    run = make()
    stuck = Job("123", None, "PENDING", reason="DependencyNeverSatisfied")
    slurm.tell(stuck)
    clock.then = [lambda: slurm.tell(Job("123", None, "PENDING", reason="Dependency")), *[lambda: None] * 9]
    clock.then += [lambda: slurm.tell(stuck)]
    done = serried("wait", run.record.id)
    assert done.code == 1
    assert done.err.endswith(
        "error: k3f9q2 never starts: what it waits for was deleted\n\n"
        "hint: serried why k3f9q2; serried stop k3f9q2 removes it from the queue\n"
    )
    assert 10 < clock.passed < 60


def test_a_job_that_asks_for_more_than_there_is_is_not_waited_for(serried, make, slurm):
    make()
    slurm.tell(Job("123", None, "PENDING", reason="QOSMaxNodePerJobLimit"))
    done = serried("wait", "last")
    assert done.code == 1
    assert "error: k3f9q2 never starts: it waits because of QOSMaxNodePerJobLimit\n" in done.err
