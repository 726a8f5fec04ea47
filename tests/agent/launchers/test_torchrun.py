"""Ranks that a real torchrun starts: real job.sh, real agents, small programs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from serried.schema.names import elastic_id
from serried.schema.plan import Launch

PYTHON = sys.executable
BESIDE = f"{Path(PYTHON).parent}:{os.environ['PATH']}"


pytestmark = pytest.mark.torch


@pytest.fixture
def torchrun(start):
    def begin(command, max_restarts=0, **options):
        own = {"environment": {"PATH": BESIDE}, "limit": {"grace_seconds": 60}}
        return start(command, launch=Launch("torchrun", max_restarts), **own, **options)

    return begin


def test_torchrun_tells_its_ranks_who_they_are_and_its_own_words_have_a_log(torchrun, marked_processes):
    run = torchrun("echo $RANK $LOCAL_RANK $WORLD_SIZE $TORCHELASTIC_RUN_ID $PYTHONPATH")

    assert run.wait() == 0, run.log
    library = run.directory.library
    told = f"2 {elastic_id(run.plan.run + '1')} {library}"
    assert [run.output(rank).splitlines()[0][: len(told) + 4] for rank in (0, 1)] == [f"0 0 {told}", f"1 1 {told}"]
    assert run.ending == ("COMPLETED", 0, None, "every rank exited with status 0")
    assert run.place.attempt(1).launcher_log(0).exists()
    assert marked_processes(run.mark) == []


HELD = """
spawn = system.spawn
def spawn_and_wait(*words, **options):
    child = spawn(*words, **options)
    while os.environ["RANK"] == "1":
        signal.pause()
    return child
system.spawn = spawn_and_wait
"""


@pytest.mark.parametrize(
    ("line", "code", "ending"),
    [
        ("exit 3", "", ("FAILED", 3, "exit", "exited with status 3")),
        ("kill -KILL $PPID; sleep 100", "", ("FAILED", 137, "signal", "was killed by signal 9")),
        # Before it has reported its start.
        ("kill -KILL $PPID; sleep 100", HELD, ("FAILED", 137, "signal", "was killed by signal 9")),
    ],
)
def test_a_failing_rank_is_named_as_under_agents(torchrun, marked_processes, line, code, ending):
    failing = f"echo ready $RANK; test $RANK = 1 || sleep 100; {line}"
    patient = {"launchers.head_side.SETTLE_SECONDS": 120.0}
    run = torchrun(failing, seconds=patient, code={"launchers.programs": code} if code else {})

    assert run.wait() == ending[1], run.log
    assert run.ending == (*ending[:3], f"rank 1 on {run.exit['nodes'][0]} {ending[3]}")
    failure = run.exit["first_failure"]
    assert (failure["rank"], failure["tail"][0]) == (1, "ready 1")
    assert marked_processes(run.mark) == []


def test_ranks_that_are_asked_to_save_have_time_for_it_and_leave_one_by_one(torchrun, warn):
    """Torchrun alone would end rank 1 as soon as rank 0 had left with 85."""
    run = torchrun(
        "echo ready; until test -e $SERRIED_STOP_FILE; do sleep 0.1; done; "
        "test $RANK = 1 && sleep 2 && echo saved; exit 85"
    )
    warn(run)
    run.wait()
    assert run.output(1).splitlines()[-1] == "saved"
    assert [exit_["exit_code"] for event in run.events("node-ended") for exit_ in event["exits"]] == [85, 85]


def test_torchrun_that_gives_up_leaves_the_failure_of_the_last_ranks(torchrun):
    run = torchrun("echo run; test $RANK = 1 || sleep 100; exit $((7 + TORCHELASTIC_RESTART_COUNT))", max_restarts=1)

    assert run.wait() == 8, run.log
    assert run.ending[:3] == ("FAILED", 8, "exit")
    assert run.output(1).splitlines() == ["run", "serried: torchrun restarts rank 1", "run"]


def test_a_launcher_that_is_not_there_is_named(start):
    run = start("true", launch=Launch("torchrun"), environment={"PATH": "/usr/bin:/bin"})
    assert run.wait() == 70
    told = f"`torchrun` on {run.exit['nodes'][0]} cannot be started: no such file or directory"
    assert run.ending == ("LAUNCH_FAILED", 70, "no-launcher", told)


def test_a_launcher_that_is_killed_is_named_and_its_ranks_are_ended(torchrun, wait_until, marked_processes):
    run = torchrun("echo ready; sleep 100")
    wait_until(lambda: len(run.events("started")) == 1 and run.output(1))
    os.kill(run.pid_of("--no-python"), signal.SIGKILL)

    assert run.wait() == 137, run.log
    assert run.ending[:3] == ("FAILED", 137, "launcher")
    assert marked_processes(run.mark) == []


FAILS_ONCE = """
import os, sys, time
import torch.distributed as group
group.init_process_group("gloo")
flag = os.environ["SERRIED_RESULTS_DIR"]
is_first = not os.path.exists(flag)
group.barrier()
if is_first and os.environ["RANK"] == "1":
    os.makedirs(flag)
    sys.exit(5)
time.sleep(600 if is_first else 0)
group.barrier()
group.destroy_process_group()
"""


def test_torchruns_on_several_nodes_start_ranks_again_that_one_nodes_failure_took_down(
    torchrun, torch_python, tmp_path
):
    """Each counts its own failures, and ranks that met under that count would wait for each other for ever."""
    (tmp_path / "fails_once.py").write_text(FAILS_ONCE)
    run = torchrun([*torch_python, str(tmp_path / "fails_once.py")], max_restarts=1, nodes=2, ranks=1)

    assert run.wait() == 0, run.log
    assert run.exit["nodes"] == ["fake1", "fake2"]
