"""What every scheduler keeps to, whatever it is made of."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from serried import schedulers
from serried.base.errors import UsageError
from serried.schema import names, successor_commands
from serried.schema.layout import RunDirectory
from serried.schema.plan import Limit

arrays = pytest.mark.usefixtures("arrays")
"""On schedulers with array jobs."""


def shown(jobs):
    return {task: (job.state, job.exit_code) for task, job in sorted(jobs.items(), key=str)}


def states(jobs):
    return {job.state for job in jobs.values()}


def test_a_job_has_its_token_folder_and_environment_and_keeps_what_it_writes_private(bench, monkeypatch):
    flavour = "bitter\nsweet $(id) é"
    monkeypatch.setenv("FLAVOUR", flavour)
    # As if submitted from within a job of any scheduler.
    foreign = [f"{prefix}X" for _, its in schedulers.every() for prefix in its.dialect.prefixes]
    for name in (*foreign, names.JOB, names.MARK, names.TASK):
        monkeypatch.setenv(name, "outer")
    plan = bench.plan('echo "$1"; pwd; umask > mask; printf %s "$FLAVOUR" > flavour; env > variables')
    before = time.time()
    job = bench.submit(plan, f"{plan.run}-7")
    ended = bench.await_end(job)

    assert shown(ended) == {None: (names.COMPLETED, 0)}
    assert before - 60 < ended[None].ended < time.time() + 60  # by the scheduler's own clock
    run = RunDirectory(Path(plan.directory))
    assert run.scheduler_log().read_text() == f"{plan.run}-7\n{plan.directory}\n"
    assert run.scheduler_log().stat().st_mode & 0o077 == 0
    assert (run.path / "mask").read_text().strip() == "0077"
    assert (run.path / "flavour").read_text() == flavour
    assert "=outer" not in (run.path / "variables").read_text()
    assert (bench.scheduler.find(f"{plan.run}-7"), bench.scheduler.find(f"{plan.run}-70")) == (job, None)


def test_a_job_that_fails_is_failed_with_its_exit_code_and_cancelling_it_then_is_no_error(bench):
    job = bench.submit(bench.plan("exit 3"))
    assert shown(bench.await_end(job)) == {None: (names.FAILED, 3)}
    bench.scheduler.cancel([job, "999999"])
    assert shown(bench.jobs(job)) == {None: (names.FAILED, 3)}


def test_a_running_job_is_on_a_node_and_ends_with_TERM_when_it_is_cancelled(bench):  # noqa: N802 - the signal's name
    plan = bench.plan("trap 'echo term > heard; exit 0' TERM; touch up; sleep 600 & wait")
    job = bench.submit(plan, f"{plan.run}-11")
    (running,) = bench.await_state(job, names.RUNNING).values()
    assert (running.id, running.task, len(running.nodes), running.ended) == (job, None, 1, None)
    assert (bench.scheduler.find(f"{plan.run}-11"), bench.scheduler.find(f"{plan.run}-1")) == (job, None)
    unknown = job.replace(job.partition(".")[0], "999999")
    assert set(bench.scheduler.poll([job, unknown, bench.task(unknown, 3)])) == {(job, None)}

    bench.wait_until((Path(plan.directory) / "up").exists)
    bench.scheduler.cancel([job])
    assert states(bench.await_end(job)) == {names.CANCELLED}
    assert (Path(plan.directory) / "heard").read_text() == "term\n"


def test_what_everybody_can_see_of_a_job_holds_no_value_of_its_environment(bench, monkeypatch):
    if not bench.backend.listing:
        pytest.skip("a fake shows nobody anything")
    canary = f"canary-{os.urandom(8).hex()}"  # everybody sees other tests, too
    monkeypatch.setenv("WANDB_API_KEY", canary)
    job = bench.submit(bench.plan(f"[[ $WANDB_API_KEY == {canary} ]] && sleep 600"))
    bench.await_state(job, names.RUNNING)
    # By another user, where the tests may become one.
    other = {"user": "nobody"} if os.geteuid() == 0 and bench.scheduler.name == "pbs" else {}
    words = bench.backend.listing.split()
    seen = subprocess.run(words, capture_output=True, text=True, errors="replace", check=True, **other)
    assert (bench.jobs(job)[None].name in seen.stdout, canary in seen.stdout) == (True, False)


def test_a_job_without_room_is_pending_with_a_reason_and_never_runs_once_cancelled(bench):
    plan = bench.blocked(bench.plan("touch ran"))
    job = bench.submit(plan)
    (pending,) = bench.await_state(job, names.PENDING).values()
    bench.wait_until(lambda: bench.jobs(job)[None].reason)
    assert bench.scheduler.explain(bench.jobs(job)[None].reason) != ""
    assert pending.nodes == ()

    bench.scheduler.cancel([job])
    assert states(bench.await_end(job)) == {names.CANCELLED}
    assert not (Path(plan.directory) / "ran").exists()


def test_a_job_that_ignores_TERM_is_killed(bench, monkeypatch):  # noqa: N802 - the signal's name
    monkeypatch.setenv("FAKE_SLURM_KILL_WAIT", "1")
    plan = bench.plan("trap '' TERM; touch up; sleep 600")
    job = bench.submit(plan._replace(site=plan.site._replace(kill_wait_seconds=1)))
    bench.wait_until((Path(plan.directory) / "up").exists)
    bench.scheduler.cancel([job])
    assert states(bench.await_end(job)) == {names.CANCELLED}


def test_a_job_is_warned_before_its_time_limit_and_timed_out_at_it(bench):
    script = "trap 'echo warned > heard' USR1; sleep 600 & while kill -0 $!; do wait $!; done"
    plan = bench.plan(script, time_seconds=bench.backend.limit)
    job = bench.submit(plan)
    assert states(bench.await_end(job, seconds=600)) == {names.TIMEOUT}
    assert (Path(plan.directory) / "heard").exists() == bench.backend.warns


@arrays
def test_the_tasks_of_an_array_have_their_own_states_and_logs(bench):
    plan = bench.plan('echo "$task"; exit "$task"', indices=[0, 2, 4])
    job = bench.submit(plan)
    assert bench.scheduler.find(f"{plan.run}-1") == job
    assert shown(bench.await_end(job)) == {0: (names.COMPLETED, 0), 2: (names.FAILED, 2), 4: (names.FAILED, 4)}
    run = RunDirectory(Path(plan.directory))
    assert [run.scheduler_log(index).read_text() for index in (0, 2, 4)] == ["0\n", "2\n", "4\n"]


@arrays
def test_one_task_can_be_cancelled_and_asked_for_by_itself(bench):
    job = bench.submit(bench.plan("sleep 600", indices=range(2)))
    bench.await_state(job, names.RUNNING)
    bench.scheduler.cancel([bench.task(job, 1)])
    bench.wait_until(lambda: bench.jobs(job)[1].state == names.CANCELLED)
    assert {task: each.state for task, each in bench.jobs(bench.task(job, 1)).items()} == {1: names.CANCELLED}
    assert bench.jobs(job)[0].state == names.RUNNING


@arrays
def test_no_more_tasks_run_at_once_than_allowed(bench):
    plan = bench.plan("mkdir alone || exit 1; sleep 0.5; rmdir alone", indices=range(3))
    plan = plan._replace(array=plan.array._replace(parallel=1))
    assert states(bench.await_end(bench.submit(plan))) == {names.COMPLETED}


def after(bench, plan, job, task=""):
    """Submit `plan` to come after `job`."""
    submission = bench.scheduler.submission(plan, f"{plan.run}-2", os.environ, after=job, task=task)
    bench.submitted.append(bench.scheduler.submit(submission))
    return bench.submitted[-1]


def test_a_job_that_comes_after_another_waits_for_its_end_however_that_is(bench):
    first = bench.plan("until [ -e go ]; do sleep 0.05; done; exit 3")
    job = bench.submit(first)
    later = after(bench, bench.plan(f"test -e {first.directory}/go"), job)
    bench.await_state(job, names.RUNNING)
    bench.wait_until(lambda: bench.jobs(later)[None].state == names.PENDING)
    (Path(first.directory) / "go").touch()
    assert shown(bench.await_end(later)) == {None: (names.COMPLETED, 0)}
    assert shown(bench.jobs(job)) == {None: (names.FAILED, 3)}


@arrays
def test_a_job_for_one_task_comes_after_that_task_alone(bench):
    if not bench.backend.awaits_tasks:
        plan = bench.plan("true", indices=range(2))._replace(limit=Limit(restarts=1, continue_by="successor"))
        with pytest.raises(UsageError, match="no job wait for one task"):
            bench.submit(plan)
        return
    plan = bench.plan('[ "$task" = 1 ] || sleep 600', indices=range(2))
    job = bench.submit(plan)
    stands = {0: names.RUNNING, 1: names.COMPLETED}
    bench.wait_until(lambda: {task: each.state for task, each in bench.jobs(job).items()} == stands)
    later = after(bench, plan, bench.task(job, 1), "1")
    assert shown(bench.await_end(later)) == {1: (names.COMPLETED, 0)}
    assert bench.jobs(job)[0].state == names.RUNNING


def test_a_job_can_ask_how_another_stands_and_cancel_it(bench):
    plan = bench.plan("sleep 600")._replace(limit=Limit(restarts=1, continue_by="successor"))
    job = bench.submit(plan)
    bench.await_state(job, names.RUNNING)
    commands = bench.scheduler.commands(plan, {})

    def call(words, **more):
        done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **more})
        return done.returncode, done.stdout.strip()

    before = call(successor_commands.fill(commands.ask, job=job))
    call(successor_commands.fill(commands.cancel, job=job))
    bench.await_end(job)
    assert (before, call(successor_commands.fill(commands.ask, job=job))) == ((0, "RUNNING"), (0, "CANCELLED"))
    assert call(successor_commands.fill(commands.ask, job="999999")) == (0, "")
    if "FAKE_SLURM_STATE" in os.environ:
        assert call(successor_commands.fill(commands.ask, job=job), FAKE_SLURM_MODE="unreachable") == (1, "")


def test_many_jobs_take_one_question(bench):
    jobs = [bench.submit(bench.plan("true")) for _ in range(3)]
    before = sum(bench.scheduler.calls.values())
    assert {job for job, _ in bench.scheduler.poll(jobs)} == set(jobs)
    assert sum(bench.scheduler.calls.values()) - before <= 1


HOSTILE = ["it's", "a b", "é☃", "$(id)", "-rf", "a\\b", "x#y", "%j", "50%% off", "line\nbreak", " trailing ", "n" * 200]


def test_a_run_directory_may_have_any_name(bench):
    problems = {}
    for name in HOSTILE:
        bench.root = bench.root.parent / name
        plan = bench.plan("pwd")
        state = shown(bench.await_end(bench.submit(plan)))
        log = Path(plan.directory) / "scheduler.log"
        said = log.read_text() if log.exists() else None
        if (state, said) != ({None: (names.COMPLETED, 0)}, plan.directory + "\n"):
            problems[name] = (state, said, sorted(path.name for path in Path(plan.directory).iterdir()))
    assert problems == {}


def test_a_name_of_any_kind_is_submitted_and_found(bench):
    for name in HOSTILE:
        plan = bench.plan("true", name=name)
        job = bench.submit(plan)
        assert bench.scheduler.find(f"{plan.run}-1") == job
