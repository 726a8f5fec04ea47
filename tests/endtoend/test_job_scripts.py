"""Job scripts run unmodified, as the scheduler's own command would run them, with a record and the exit's truth."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest

from place import Place

TWO_NODES = """#!/bin/bash
#SBATCH --job-name=resnet
#SBATCH --nodes=2 --ntasks-per-node=2 --gres=gpu:1
#SBATCH --time=00:10:00
#SBATCH --output=logs/%x-%j.out
echo "arguments: $# <$2>"
echo "in $PWD, submitted from $SLURM_SUBMIT_DIR as $SLURM_JOB_NAME"
echo "$SLURM_NTASKS tasks on $SLURM_NNODES nodes, GPU $CUDA_VISIBLE_DEVICES"
srun bash -c 'echo "task $SLURM_PROCID on node $SLURM_NODEID"' | sort
sleep 1000 &
exit ${CODE:-0}
"""


def script(place: Place, text: str, name: str = "train.sbatch") -> str:
    (place.project / name).write_text(text)
    return name


@pytest.mark.slurm
def test_a_script_runs_as_with_sbatch_and_its_exit_is_the_truth(slurm: Place):
    (slurm.project / "logs").mkdir()
    run = slurm.submit(script(slurm, TWO_NODES), "--", "a", "b  c")
    code, end = slurm.wait(run)
    assert (code, end["state"]) == (0, "COMPLETED"), slurm.why(run)
    expected = (
        f"arguments: 2 <b  c>\nin {slurm.project}, submitted from {slurm.project} as resnet\n"
        "4 tasks on 2 nodes, GPU 0\n"
        "task 0 on node 0\ntask 1 on node 0\ntask 2 on node 1\ntask 3 on node 1\n"
    )
    assert slurm.serried("logs", run).stdout == expected
    (log,) = (slurm.project / "logs").iterdir()  # where `--output` says
    assert log.name.startswith("resnet-")
    assert log.read_text() == expected


@pytest.mark.slurm
def test_the_exit_status_of_a_script_fails_the_run_and_flags_win_over_directives(slurm: Place):
    failing = dataclasses.replace(slurm, environ={**slurm.environ, "CODE": "3"})
    run = failing.submit("--nodes", "1", "--gpus", "2", "--time", "5m", script(slurm, TWO_NODES))
    code, end = slurm.wait(run)
    assert (code, end["state"], end["exit_code"]) == (1, "FAILED", 3)
    assert end["message"].startswith("the script on n")
    assert end["message"].endswith(" exited with status 3")
    why = slurm.why(run)
    assert why["first_failure"]["rank"] is None
    assert "2 tasks on 1 nodes, GPU 0,1\n" in slurm.serried("logs", run).stdout
    assert why["advice"] == [
        f"read all output of the rank: serried logs {run}",
        "try it here: serried run train.sbatch",
    ]


def test_what_a_script_wrote_the_next_submission_finds(place: Place):
    name = script(place, "#!/bin/bash\nmkdir -p out; n=$(cat out/last 2>/dev/null); echo $((n + 1)) | tee out/last\n")
    outputs = []
    for _ in range(2):
        run = place.submit(name)
        assert place.wait(run)[0] == 0, place.why(run)
        outputs.append(place.serried("logs", run).stdout)
    assert outputs == ["1\n", "2\n"]
    assert (place.project / "out" / "last").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def test_each_task_of_an_array_has_its_own_end(place: Place):
    task = "#!/bin/bash\n#SBATCH --array=1-3%2\necho task $SLURM_ARRAY_TASK_ID\nexit $((SLURM_ARRAY_TASK_ID == 2))\n"
    name = script(place, task)
    run = place.submit(name)
    assert place.wait(run)[0] == 1
    assert [place.serried("logs", f"{run}/{task}").stdout for task in (1, 2, 3)] == [f"task {n}\n" for n in (1, 2, 3)]
    assert "COMPLETED 1,3, FAILED 2" in place.serried("show", run).stdout


def test_stop_ends_a_script_and_its_programs(place: Place):
    name = script(place, "#!/bin/bash\ntrap 'echo trapped; exit 7' TERM\necho started\nsleep 1000 & wait\n")
    run = place.submit(name)
    end = time.monotonic() + 60
    while place.serried("logs", run).stdout != "started\n":
        assert time.monotonic() < end, place.why(run)
        time.sleep(0.2)
    assert place.serried("stop", "--now", "--yes", run).returncode == 0
    assert place.wait(run)[1]["state"] == "CANCELLED"
    assert place.serried("logs", run).stdout == "started\ntrapped\n"


def test_scripts_of_other_interpreters_run_as_they_are(place: Place):
    python = script(place, "#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:])\nsys.exit(4)\n", "job")
    run = place.submit(python, "--", "{task}", "%j")
    code, end = place.wait(run)
    assert (code, end["exit_code"]) == (1, 4)
    assert place.serried("logs", run).stdout == "['{task}', '%j']\n"


def test_run_runs_a_script_here(local: Place):
    ran = local.serried(
        "run", script(local, "#!/bin/bash\n#SBATCH -J mine\necho $SLURM_JOB_NAME $SLURM_NTASKS; exit 5\n")
    )
    assert (ran.returncode, ran.stdout) == (5, "mine 1\n")
    assert "the script on " in ran.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("#!/bin/bash\r\necho hi\r\n", "`job.sh` has DOS line breaks (CR LF)"),
        ("#SBATCH -N1\necho hi\n", "`job.sh` does not begin with `#!` and an interpreter"),
        ("#!/bin/bash\n#SBATCH hetjob\n", "line 2 of `job.sh`: Serried does not support heterogeneous jobs"),
    ],
)
def test_what_sbatch_refuses_is_refused_before_anything_is_written(local: Place, content: str, message: str):
    (local.project / "job.sh").write_bytes(content.encode())
    ran = local.serried("submit", "job.sh")
    assert ran.returncode == 2
    assert message in ran.stderr
    assert not list(local.project.glob("*/"))
