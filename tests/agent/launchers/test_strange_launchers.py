"""Launchers that do not do what they were asked to: an srun that is a few lines of bash, real agents."""

from __future__ import annotations

import os
import signal

import pytest

from serried.base.files import read_journal
from serried.schema.plan import Launch


def task(rank):
    return f"SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID={rank} SLURM_LOCALID={rank}"


@pytest.fixture
def by_srun(start, tmp_path):
    """Starts two ranks by an srun whose lines are given; `"$@"` is what it is to start."""

    def begin(lines, command="echo $FROM_THE_JOB $RANK; exit 0", **options):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "srun").write_text(f"#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\n{lines}\n")
        (folder / "srun").chmod(0o755)
        own = {"PATH": f"{folder}:{os.environ['PATH']}", "FROM_THE_JOB": "a b"}
        return start(command, launch=Launch("srun"), environment=own, limit={"grace_seconds": 60}, **options)

    return begin


BEGUN = """until grep -qs '"started"' "$SERRIED_RUN_DIR/attempts/1/node-0/events.jsonl"; do sleep 0.05; done"""
"""Till its node has told that a rank runs."""

EARLY = "`srun` on HOST exited with status 5, before it had started a rank: no such partition"


@pytest.mark.parametrize(
    ("lines", "ending"),
    [
        (
            f'{task(0)} "$@" & {BEGUN}; {task(0)} "$@" & wait',
            ("FAILED", 1, "launcher", "`srun` has started rank 0 twice"),
        ),
        ("echo no such partition >&2; exit 5", ("LAUNCH_FAILED", 70, "launch", EARLY)),
    ],
)
def test_a_launcher_that_goes_wrong_is_named_with_what_it_did(by_srun, marked_processes, lines, ending):
    run = by_srun(lines, "sleep 100")

    assert run.wait() == ending[1], run.log
    assert run.ending == (*ending[:3], ending[3].replace("HOST", run.exit["nodes"][0]))
    assert marked_processes(run.mark) == []


def test_a_rank_to_which_a_launcher_passes_nothing_on_has_the_jobs_environment(by_srun):
    """And a launcher that fails after its ranks have ended well changes nothing."""
    own = "env -i PATH=/usr/bin:/bin FROM_THE_JOB=theirs"
    run = by_srun(f'{own} {task(0)} "$@" & {own} {task(1)} "$@" & wait; exit 3')

    assert run.wait() == 0, run.log
    assert [run.output(rank) for rank in (0, 1)] == ["a b 0\n", "a b 1\n"]
    assert run.ending == ("COMPLETED", 0, None, "every rank exited with status 0")


def test_a_launcher_that_does_not_end_after_its_ranks_is_ended(by_srun, marked_processes):
    run = by_srun(f'{task(0)} "$@" & {task(1)} "$@" & sleep 300', "exit 4")

    assert run.wait() == 4, run.log
    assert run.ending[:3] == ("FAILED", 4, "exit")
    assert marked_processes(run.mark) == []


def started_ranks(run):
    told = read_journal(run.place.attempt(1).node_events(0))
    return {entry["rank"] for entry in told if entry["event"] == "started"}


@pytest.mark.parametrize("role", ["node", "head"])
def test_ranks_under_a_launcher_end_with_the_agent_of_their_node_and_with_the_head(
    by_srun, wait_until, marked_processes, role
):
    run = by_srun(f'{task(0)} "$@" & {task(1)} "$@" & wait', "(setsid sleep 472 &); sleep 100")
    wait_until(lambda: len(started_ranks(run)) == 2)
    os.kill(run.pid_of(role), signal.SIGKILL)

    assert run.wait() == 137, run.log
    assert run.ending[:3] == ("FAILED", 137, "agent-killed")
    assert marked_processes(run.mark) == []
