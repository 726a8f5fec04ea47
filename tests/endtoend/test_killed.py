"""What dies before its time is told apart, ends the rest in time, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from place import Place, agents, job_script
from serried.base import processes

PYTHON = sys.executable
SLEEPS = ("--set", "limit.grace=2s", "--", PYTHON, "-c", "import time; print('up', flush=True); time.sleep(1000)")
IGNORES = ("--set", "limit.grace=2s", "--", "bash", "-c", "trap '' TERM; echo up; sleep 1000")
CONTINUES = "[ -e $SERRIED_CHECKPOINT_DIR/one ] && exit 0; echo 1 >$SERRIED_CHECKPOINT_DIR/one; sleep 1000"


@pytest.fixture
def own_tmp(monkeypatch):
    """Where no other run's job tidies up."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield folder


@pytest.fixture
def running(place, wait_until):
    """A run of two ranks that have started, and will not end by themselves."""

    def start(*command: str) -> str:
        run = place.submit("--ranks", "2", *(command or SLEEPS))
        directory = place.directory(run)
        wait_until(lambda: len(list(directory.glob("attempts/*/node-*/rank-*.log"))) >= 2)
        wait_until(lambda: all(log.read_text() for log in directory.glob("attempts/*/node-*/rank-*.log")))
        return run

    return start


def test_a_killed_node_agent_is_a_failure_and_its_ranks_are_gone(place, running, wait_until, marked_processes):
    run = running()
    jobs = where_its_folders_are(run, marked_processes)

    os.kill(agents(run, "node")[0], signal.SIGKILL)
    status, end = place.wait(run)

    assert (status, end["state"], end["cause"]) == (1, "FAILED", "agent-killed")
    wait_until(lambda: marked_processes(run) == [])
    wait_until(lambda: folders_in(jobs, run) == [])


def where_its_folders_are(run, marked_processes) -> Path:
    """On the node's disk, wherever its scheduler has that, by what the ranks were given there."""
    given = [processes.environment(pid).get("SLURM_TMPDIR") for pid in marked_processes(run)]
    (jobs,) = {Path(scratch).parents[1] for scratch in given if scratch}
    assert folders_in(jobs, run)
    return jobs


def folders_in(jobs: Path, run: str) -> list[str]:
    return [path.name for path in jobs.glob(f"{run}.*")]


def test_a_killed_head_agent_is_a_failure_and_its_ranks_are_gone(place, running, wait_until, marked_processes):
    run = running()

    os.kill(agents(run, "head")[0], signal.SIGKILL)
    status, end = place.wait(run)

    assert (status, end["state"]) == (1, "FAILED")
    wait_until(lambda: marked_processes(run) == [])


@pytest.mark.usefixtures("own_tmp")
def test_a_killed_job_script_is_a_failure_and_its_ranks_are_gone(place, running, wait_until, marked_processes):
    run = running(*IGNORES)
    jobs = where_its_folders_are(run, marked_processes)

    os.kill(job_script(run), signal.SIGKILL)
    status, end = place.wait(run)

    assert (status, end["state"]) == (1, "FAILED")
    wait_until(lambda: marked_processes(run) == [])
    wait_until(lambda: folders_in(jobs, run) == [])


def test_stop_ends_a_run_and_says_who(place, running, wait_until, marked_processes):
    run = running()

    stopped = place.serried("stop", "-y", run)

    assert stopped.returncode == 0, stopped.stderr
    assert place.wait(run)[1]["state"] == "CANCELLED"
    wait_until(lambda: marked_processes(run) == [])


@pytest.mark.slurm
def test_scancel_ends_a_run_that_never_comes_back(slurm, wait_until, marked_processes):
    run = slurm.submit("--ranks", "2", "--set", "limit.restarts=3", *SLEEPS)
    job = slurm.show(run)["job"]
    wait_until((slurm.attempt(run) / "node-0/rank-0.log").exists)

    subprocess.run(["scancel", job], env=dict(slurm.environ), check=True)
    status, end = slurm.wait(run)

    assert (status, end["state"]) == (1, "CANCELLED")
    wait_until(lambda: marked_processes(run) == [])
    wait_until(lambda: slurm.has_left_queue(job))
    assert not slurm.attempt(run, 2).exists()


def test_the_time_limit_is_told_as_such(place):
    run = place.submit("--ranks", "2", "--time", "1m" if place.cluster == "slurm" else "15s", *SLEEPS)

    status, end = place.wait(run)

    assert (status, end["state"], end["exit_code"], end["cause"]) == (1, "TIMEOUT", 124, "limit")


@pytest.mark.slurm
def test_the_first_failure_ends_the_ranks_of_every_node(slurm, wait_until, marked_processes):
    code = "import os, time\nif os.environ['RANK'] == '3': raise SystemExit(9)\ntime.sleep(1000)"
    run = slurm.submit("--nodes", "2", "--ranks", "2", "--set", "limit.grace=2s", "--", PYTHON, "-c", code)

    status, end = slurm.wait(run)

    assert (status, end["state"], end["exit_code"]) == (1, "FAILED", 9)
    first = slurm.why(run)["first_failure"]
    assert (first["rank"], first["node"], first["host"]) == (3, 1, end["node_names"][1])
    wait_until(lambda: marked_processes(run) == [])


def test_a_lost_node_ends_the_rest_and_is_named(slurm_of, wait_until, marked_processes):
    slurm, lab = slurm_of(nodes=2, settings={"SlurmdTimeout": "10"})
    run = slurm.submit("--nodes", "2", "--ranks", "2", *SLEEPS)
    directory = slurm.directory(run)
    wait_until(lambda: len(list(directory.glob("attempts/1/node-*/rank-*.log"))) == 4)

    lab.kill("n2")
    status, end = slurm.wait(run)

    assert (status, end["state"], end["cause"]) == (1, "NODE_FAIL", "node-lost")
    assert "n2" in end["message"]
    wait_until(lambda: marked_processes(run) == [])


def test_a_spare_node_takes_the_place_of_a_lost_one_in_a_job_that_outlives_it(slurm_of, tmp_path, wait_until):
    slurm, lab = slurm_of(nodes=3, settings={"SlurmdTimeout": "10"})
    go, spare = tmp_path / "go", ("--nodes", "2", "--spare-nodes", "1", "--ranks", "1", "--set", "limit.rounds=3")
    waits = f'echo "$RANK of $WORLD_SIZE on $SLURMD_NODENAME"; until [ -e {go} ]; do sleep 0.1; done'
    run = slurm.submit(*spare, "--", "bash", "-c", waits)
    log = slurm.attempt(run) / "node-1/rank-1.log"
    wait_until(lambda: log.exists() and log.read_text())

    def asked(*words: str) -> str:
        return subprocess.run(words, env=dict(slurm.environ), capture_output=True, text=True, check=True).stdout

    job = slurm.show(run)["job"]
    assert " NumNodes=3 " in asked("scontrol", "show", "job", job)
    steps = asked("squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i %N").split()
    assert steps[:2] == [f"{job}.0", "n[1-3]"]
    assert len(agents(run, "node")) == 3

    lab.kill("n2")
    wait_until(lambda: log.read_text() == "1 of 2 on n2\nserried: round 2\n1 of 2 on n3\n")
    wait_until(lambda: "down" in asked("sinfo", "--noheader", "--nodes=n2", "--format=%T"))
    go.touch()
    status, end = slurm.wait(run)

    assert (status, end["state"], end["attempt"]) == (0, "COMPLETED", 1), slurm.serried("why", run).stdout
    assert "recovered once" in end["message"]
    assert (end["nodes"], end["spare_nodes"]) == (2, 1)
    again = "round 2: the ranks start again, because node n2 was lost; n3 takes the place of n2"
    assert {"node 2 (n3) is ready", again, "rank 1 started on n3"} <= {
        it["event"] for it in slurm.show(run)["timeline"]
    }
    again, like = (
        json.loads(slurm.serried(*words, run, "--dry-run", "--json").stdout)
        for words in (["rerun"], ["doctor", "--like"])
    )
    assert [again["plan"]["allocation"][key] for key in ("nodes", "spare_nodes", "hosts")] == [2, 1, []]
    assert [like["plan"]["allocation"][key] for key in ("nodes", "spare_nodes", "hosts")] == [3, 0, ["n1", "n2", "n3"]]


def test_a_lost_first_node_is_never_a_success(slurm_of, wait_until):
    """Nor the end of a run whose next job waits."""
    slurm, lab = slurm_of(nodes=2, settings={"SlurmdTimeout": "10"})
    restarts = ("--set", "limit.continue=successor", "--set", "limit.restarts=1")
    goes_on = slurm.submit("--ranks", "1", *restarts, "--", "bash", "-c", CONTINUES)
    run = slurm.submit("--nodes", "2", "--ranks", "2", *SLEEPS)
    directory, other = slurm.directory(run), slurm.directory(goes_on)
    wait_until(lambda: len(list(directory.glob("attempts/1/node-*/rank-*.log"))) == 4)
    wait_until(lambda: list(other.glob("checkpoints/one")))
    wait_until(lambda: "submitted" in "".join(path.read_text() for path in other.glob("links/*.json")))

    lab.kill("n1")
    status, end = slurm.wait(run)

    assert (status, end["state"]) == (1, "NODE_FAIL")
    status, end = slurm.wait(goes_on)
    assert (status, end["state"], end["attempt"], end["node_names"]) == (0, "COMPLETED", 2, ["n2"])


def saves_when_asked(slurm, wait_until) -> str:
    """A run that has begun, saves when asked to, and has finished in its second attempt."""
    run = slurm.submit("--ranks", "1", "--set", "limit.restarts=1", "--", "bash", "-c", SAVES)
    wait_until((slurm.attempt(run) / "node-0/rank-0.log").exists)
    return run


def away_for_it(slurm: Place, tmp_path: Path) -> Place:
    """The same, but there the controller stays away for who wants to requeue until `cancelled` is there."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/bash
[[ " $* " != *" requeue "* || -e {tmp_path}/cancelled ]] || exit 1
exec {shutil.which("scontrol")} "$@"
""")
    program.chmod(0o755)
    return slurm.with_environ(PATH=f"{program.parent}:{slurm.environ['PATH']}")


SAVES = """
cd "$SERRIED_CHECKPOINT_DIR"
[ -e one ] && exit 0
while [ ! -e "$SERRIED_STOP_FILE" ]; do sleep 0.1; done
echo 1 >one
exit 85
"""
AWAY_SECONDS = 20


def test_a_controller_that_is_away_is_waited_for_when_ranks_start_and_when_a_job_requeues(
    slurm_of, project, tmp_path, wait_until
):
    slurm, lab = slurm_of(nodes=2)
    requeues, cancelled = (
        saves_when_asked(slurm, wait_until),
        saves_when_asked(away_for_it(slurm, tmp_path), wait_until),
    )
    first = [slurm.attempt(run) for run in (requeues, cancelled)]
    job = slurm.show(cancelled)["job"]
    reached, go = tmp_path / "reached", tmp_path / "go"
    slow = tmp_path / "python"
    slow.write_text(
        f'#!/bin/bash\ntouch {reached}\nuntil [[ -e {go} ]]; do sleep 0.1; done\nexec /usr/bin/python3 "$@"\n'
    )
    slow.chmod(0o755)
    (project / "serried.toml").write_text(f'[clusters.slurm]\npython = "{slow}"\n')
    starts = slurm.submit("--nodes", "2", "--ranks", "1", "--", PYTHON, "-c", "print('made it')")
    log = slurm.directory(starts) / "scheduler.log"
    wait_until(reached.exists)
    lab.stop("slurmctld")
    go.touch()
    for run in (requeues, cancelled):
        slurm.ask_to_save(run)

    wait_until(lambda: "Unable to contact slurm controller" in log.read_text())
    wait_until(lambda: all((attempt / "exit.json").exists() for attempt in first))
    away_since = max((attempt / "exit.json").stat().st_mtime for attempt in first)
    wait_until(lambda: time.time() - away_since > AWAY_SECONDS)
    lab.restart("slurmctld")
    subprocess.run(["scancel", job], env=dict(slurm.environ), check=True)
    (tmp_path / "cancelled").touch()

    assert slurm.wait(starts)[1]["state"] == "COMPLETED"
    status, end = slurm.wait(requeues)
    assert (status, end["state"], end["attempt"]) == (0, "COMPLETED", 2)
    assert slurm.wait(cancelled)[1]["state"] == "CANCELLED"
    assert not (first[1].parent / "2").exists()


def test_an_unreachable_controller_refuses_a_submit_and_leaves_nothing(slurm_of, tmp_path):
    slurm, lab = slurm_of(nodes=1)
    lab.kill("slurmctld")

    done = slurm.serried("submit", "--cluster", "slurm", "--ranks", "1", "--", "true")

    assert done.returncode == 3, done.stderr
    assert list((tmp_path / "scratch").rglob("plan.json")) == []
