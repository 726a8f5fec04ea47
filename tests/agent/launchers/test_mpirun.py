"""Ranks that a real mpirun starts on two nodes, and the remote shell that it does so by."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from serried.schema.plan import Launch

MPIRUN = Launch("mpirun")
LONG = {"grace_seconds": 60}
"""For what mpirun leaves behind to end by itself."""


@pytest.fixture
def mpirun(start):
    if shutil.which("mpirun") is None:
        reason = "needs an mpirun: apt-get install openmpi-bin"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    def begin(command, **options):
        return start(command, nodes=2, launch=MPIRUN, **{"limit": LONG, **options})

    return begin


@pytest.fixture
def acting(start, tmp_path):
    """`acting(SCRIPT)`: a run whose mpirun is SCRIPT, and which it ends before it has started a rank."""

    def begin(script, **options):
        program = tmp_path / "bin" / "mpirun"
        program.parent.mkdir()
        program.write_text(f"#!/bin/bash\n{script}\n")
        program.chmod(0o755)
        path = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
        return start("true", nodes=2, launch=MPIRUN, environment=path, **options)

    return begin


def said(run, node=0):
    log = run.place.attempt(1).launcher_log(node)
    return log.read_text().splitlines() if log.exists() else []


def test_ranks_are_told_who_they_are_in_mpis_words_and_in_torchs(mpirun, marked_processes):
    told = "echo $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_LOCAL_RANK $OMPI_COMM_WORLD_SIZE"
    run = mpirun(f"{told} $RANK $LOCAL_RANK $WORLD_SIZE $SLURMD_NODENAME $TOKEN; command -v ssh; true",
                 environment={"TOKEN": "of-the-user", "PATH": "/usr/bin:/bin"})  # fmt: skip

    assert run.wait() == 0, run.log
    lines = [run.output(rank, rank // 2).splitlines()[0] for rank in range(4)]
    assert lines == [f"{r} {r % 2} 4 {r} {r % 2} 4 fake{r // 2 + 1} of-the-user" for r in range(4)]
    assert not any("serried" in run.output(rank, rank // 2) for rank in range(4)), "ranks see our remote shell"
    assert run.ending == ("COMPLETED", 0, None, "every rank exited with status 0")
    assert marked_processes(run.mark) == []


def test_each_of_mpiruns_daemons_has_a_folder_that_goes_with_the_attempt(mpirun, tmp_path, wait_until):
    """In one that two daemons share, the first to leave takes the other's files along; in /tmp, KILL leaves them."""
    run = mpirun("echo $TMPDIR $PMIX_SERVER_TMPDIR $SERRIED_STOP_FILE; exec sleep 100")
    wait_until(lambda: all(run.output(rank, rank // 2) for rank in range(4)))
    told = [run.output(rank, rank // 2).split() for rank in range(4)]
    assert told == [told[0], told[0], told[2], told[2]]
    for temporary, daemons, stop_file in (told[0], told[2]):
        assert (temporary, Path(daemons).is_dir()) == (str(tmp_path), True)
        assert Path(daemons).is_relative_to(Path(stop_file).parent)
    assert told[0][2] != told[2][2]
    for pid in filter(None, (run.pid_of("mpirun", "-n"), run.pid_of("remote", "fake2"))):
        os.kill(pid, signal.SIGKILL)
    run.wait()
    wait_until(lambda: not any(Path(stop_file).parent.exists() for _, _, stop_file in told))
    assert not list(tmp_path.glob("ompi*"))


@pytest.mark.parametrize(
    ("line", "ending"),
    [
        ("exit 3", ("FAILED", 3, "exit", "exited with status 3")),
        ("kill -KILL $PPID; sleep 100", ("FAILED", 137, "signal", "was killed by signal 9")),
    ],
)
def test_a_failing_rank_is_named_as_under_agents(mpirun, marked_processes, line, ending):
    seconds = {"launchers.head_side.SETTLE_SECONDS": 120.0}
    run = mpirun(f"echo ready $RANK; test $RANK = 2 || sleep 100; {line}", seconds=seconds)

    assert run.wait() == ending[1], run.log
    assert run.ending == (*ending[:3], f"rank 2 on fake2 {ending[3]}")
    failure = run.exit["first_failure"]
    assert (failure["rank"], failure["tail"][0]) == (2, "ready 2")
    assert marked_processes(run.mark) == []


def test_ranks_that_are_asked_to_save_have_time_for_it_and_leave_one_by_one(mpirun, warn, wait_until):
    """An mpirun alone would end rank 1 as soon as rank 0 had left with 85."""
    wait = "until test -e $SERRIED_STOP_FILE; do sleep 0.1; done"
    run = mpirun(f"echo ready; {wait}; test $RANK = 1 && sleep 2 && echo saved; exit 85")
    wait_until(lambda: len(run.events("started")) == 2)
    warn(run)
    run.wait()
    assert run.output(1).splitlines()[-1] == "saved"
    ended = {exit_["rank"]: exit_["exit_code"] for event in run.events("node-ended") for exit_ in event["exits"]}
    assert ended == dict.fromkeys(range(4), 85)


def test_ranks_can_save_when_the_scheduler_ends_mpirun_as_well(mpirun, wait_until):
    """Preemption: TERM comes to every process at once, and mpirun alone would kill its ranks two seconds later."""
    save = "trap '' TERM; for i in 1 2 3 4 5 6; do sleep 0.5; done; echo saved; exit 0"
    run = mpirun(f'trap "{save}" TERM; echo ready; while :; do sleep 0.1; done', limit=LONG)
    wait_until(lambda: all("ready" in run.output(rank, rank // 2) for rank in range(4)))
    os.kill(run.pid_of("mpirun", "-n"), signal.SIGTERM)
    run.process.terminate()
    run.wait()
    assert [run.output(rank, rank // 2).splitlines()[-1] for rank in range(4)] == ["saved"] * 4


def test_a_run_can_be_cancelled(mpirun, wait_until, marked_processes):
    run = mpirun("echo ready; sleep 100")
    wait_until(lambda: len(run.events("started")) == 2)
    run.process.terminate()

    assert run.wait() == 143
    assert run.ending[:2] == ("CANCELLED", 143)
    assert marked_processes(run.mark) == []


def test_an_mpirun_that_starts_nothing_is_quoted(start):
    run = start("true", nodes=2, launch=Launch("mpirun", options=("--no-such-option",)))

    assert run.wait() == 70, run.log
    state, status, cause, message = run.ending
    assert (state, status, cause) == ("LAUNCH_FAILED", 70, "launch")
    assert message.startswith("`mpirun` on fake1 exited with status 1, before it had started a rank: ")


def test_a_daemon_that_dies_as_it_begins_ends_the_attempt(start, tmp_path):
    """Detached, as Open MPI would have it, nobody would see it die, and mpirun would wait forever."""
    daemon = tmp_path / "orted"
    daemon.write_text('#!/bin/sh\ncase "$*" in *--daemonize*) exit 0;; esac\necho "no room"; exit 9\n')
    daemon.chmod(0o755)
    options = [word for dialect in ("orte", "prte") for word in ("--mca", f"{dialect}_launch_agent", str(daemon))]
    run = start("true", nodes=2, launch=Launch("mpirun", options=tuple(options)))

    assert run.wait() == 70, run.log
    assert run.ending[0] == "LAUNCH_FAILED"
    assert "no room" in said(run) + said(run, 1)  # mpirun wants a daemon on both, and the first to die ends all


SHELL = 'ssh() { $OMPI_MCA_plm_rsh_agent "$@"; }\n'


def test_the_remote_shell_runs_a_command_on_any_node_and_brings_its_status_back(acting):
    run = acting(
        SHELL
        + """
ssh -x fake1 'echo on $SLURMD_NODENAME; exit 7'; echo first $?
ssh -o BatchMode=yes fake2.example.org "echo on '$(echo quoted)' \\$SLURMD_NODENAME \\$SERRIED_MARK"; echo second $?
ssh fake2 'kill -9 $$'; echo third $?
ssh elsewhere true; echo fourth $?
exit 5
"""
    )
    run.wait()
    assert said(run) == [
        "on fake1",
        "first 7",
        "second 0",
        "third 137",
        "serried: `elsewhere` is not a node of this attempt: fake1, fake2",
        "fourth 255",
    ]
    assert said(run, 1) == [f"on quoted fake2 {run.plan.run}/-/1"]
    assert run.ending[3] == "`mpirun` on fake1 exited with status 5, before it had started a rank: fourth 255"


def test_what_a_remote_shell_has_started_ends_with_it_and_with_the_attempt(acting, wait_until, marked_processes):
    run = acting(
        SHELL
        + """
(exec $OMPI_MCA_plm_rsh_agent fake2 'trap "echo told; exit" TERM; echo up; while :; do sleep 0.1; done') & first=$!
said=$SERRIED_RUN_DIR/attempts/1/node-1/launcher.log
until grep -q up $said; do sleep 0.1; done
kill $first; until grep -q told $said; do sleep 0.1; done
ssh fake2 'trap "" TERM; echo deaf; sleep 100'
""",
        seconds={"launchers.node_side.END_SECONDS": 120.0},
    )
    wait_until(lambda: "deaf" in said(run, 1))
    assert [line for line in said(run, 1) if line != "Terminated"] == ["up", "told", "deaf"]
    run.process.terminate()
    assert run.wait() == 143
    assert marked_processes(run.mark) == []
