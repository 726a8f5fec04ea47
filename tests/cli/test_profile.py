"""`serried profile`, as it is typed: here, as a job of a real Slurm, and with programs that have no steps."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from place import Place, environment

pytestmark = pytest.mark.torch

TRAIN = """
import os, sys, torch
import serried.train as st

with st.session() as run:
    model = run.wrap(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = run.loader(torch.utils.data.TensorDataset(torch.randn(80, 3)), batch_size=2)
    for epoch in run.epochs(int(sys.argv[1])):
        for step, (x,) in enumerate(loader):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
            if step == int(sys.argv[2]):
                os.kill(os.getpid(), 9)
"""
TEN = "`--steps 10:20` profiles steps 11 to 20, ten steps"
FOR_EVER, NEVER = "1000000", "-1"


@pytest.fixture
def place(request, tmp_path):
    cluster = getattr(request, "param", "local")
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    (tmp_path / "scratch").mkdir()
    variables = request.getfixturevalue("lab").variables if cluster == "slurm" else {"SERRIED_LOCAL_SLOTS": "8"}
    return Place(cluster, project, {**environment(tmp_path, variables), "OMP_NUM_THREADS": "1"})


@pytest.fixture
def profile(place, torch_python):
    def run(*arguments, epochs=FOR_EVER, kill_at=NEVER):
        return place.serried("profile", *arguments, "--", *torch_python, "train.py", epochs, kill_at, timeout=600)

    return run


def masked(text):
    """Without what differs between machines: times, shares, the operators of a version of torch."""
    head, _, rest = text.partition("CALLS  CPU")
    _, _, end = rest.partition("\n\n")
    lines = re.sub(r"  +", "  ", re.sub(r"\b[\d.]+ (us|ms|s|kB)\b", "TIME", f"{head}…\n\n{end}"))
    return re.sub(r"\d+%", "N%", lines)


def test_an_endless_training_is_profiled_and_ended(place, profile):
    done = profile("--ranks", "2", "--steps", "3:5", "--rank", "1,0", "--memory", "--name", "net")
    assert (done.returncode, done.stderr) == (
        0, "warning: `--memory` needs CUDA, and the profiled ranks used no GPU\n"
    )  # fmt: skip
    run = done.stdout.split()[1].rstrip(",")
    shown = place.show(run)
    assert (shown["name"], shown["state"]) == ("net.profile", "COMPLETED")
    assert place.why(run)["meaning"] == "`serried profile` ended it once the steps were profiled"
    folder = f"{shown['directory']}/profiles"
    host = done.stdout.splitlines()[3].split()[1]
    assert masked(done.stdout) == (
        f"run {run}, steps 4 to 5\n\n"
        f"RANK  NODE  STEP  DATA WAIT  GPU IDLE\n0  {host}  TIME  N%  -\n1  {host}  TIME  N%  -\n\n"
        "OPERATOR, RANK 0  …\n\n"
        f"{masked_meaning(done.stdout)}\n"
        f"trace of rank 0: {folder}/rank-0.json.gz (TIME)\n"
        f"trace of rank 1: {folder}/rank-1.json.gz (TIME)\n"
        "open it: https://ui.perfetto.dev, `Open trace file`; it stays in your browser\n"
    )
    assert max(len(line) for line in done.stdout.splitlines() if folder not in line) <= 80
    again = place.serried("profile", "--show", run)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    found = json.loads(place.serried("profile", "--show", "last", "--json").stdout)
    assert [(one["rank"], one["state"], one["steps"], one["gpu"], one["trace"]) for one in found["ranks"]] == [
        (0, "written", [3, 5], None, f"{folder}/rank-0.json.gz"),
        (1, "written", [3, 5], None, f"{folder}/rank-1.json.gz"),
    ]


def masked_meaning(text):
    """The sentence about the shares, which depend on the machine."""
    (line,) = (line for line in text.splitlines() if line.startswith(("no GPU took part", "the training waits")))
    return line


@pytest.mark.slurm
@pytest.mark.parametrize("place", ["slurm"], indirect=True)
def test_a_job_of_two_nodes_is_profiled_on_its_second_node(place, profile):
    sizes = ("--nodes", "2", "--ranks", "1", "--cpus", "1", "--mem", "500M", "--time", "10m")
    done = profile("--cluster", "slurm", *sizes, "--rank", "1", "--steps", "2:4", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (rank,) = found["ranks"]
    assert (rank["rank"], rank["steps"], place.show(found["run"])["state"]) == (1, [2, 4], "COMPLETED")
    assert Path(rank["trace"]).is_file()


@pytest.mark.slurm
@pytest.mark.parametrize("place", ["slurm"], indirect=True)
def test_ranks_that_a_job_script_starts_are_profiled_too(place, torch_python):
    lines = ["#!/bin/bash", "#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --mem=500M --time=10"]
    words = shlex.join([*torch_python, "train.py", FOR_EVER, NEVER])
    (place.project / "job.sbatch").write_text("\n".join([*lines, f"srun {words}", ""]))
    done = place.serried("profile", "job.sbatch", "--cluster", "slurm", "--rank", "1", "--steps", "2:4", "--json")
    assert done.returncode == 0, done.stderr
    assert [(rank["rank"], rank["steps"]) for rank in json.loads(done.stdout)["ranks"]] == [(1, [2, 4])]


def test_a_training_that_ends_early_is_reported_with_steps_that_it_has(profile):
    done = profile("--steps", "100:110", epochs="1")
    assert (done.returncode, done.stdout, done.stderr) == (
        1, "", "error: rank 0 ended after 40 steps, before step 101\n\nhint: --steps 20:30\n"
    )  # fmt: skip
    done = profile("--steps", "38:60", epochs="1")
    assert (done.returncode, done.stdout.splitlines()[0].partition(", ")[2]) == (0, "steps 39 to 40")
    assert "\nthe program ended after step 40, so the profile has no more steps\n" in done.stdout


def test_the_failure_of_the_training_comes_first_and_the_state_of_the_profile_can_be_read(place, profile):
    done = profile("--steps", "3:30", kill_at="9")
    assert done.returncode == 1
    found = re.match(r"error: run (\w{6}) ended FAILED: rank 0 on \S+ was killed by signal 9", done.stderr)
    assert found, done.stderr
    shown = place.serried("profile", "--show", found[1])
    assert (shown.returncode, shown.stderr) == (
        1,
        f"error: rank 0 has no profile: the run ended FAILED while it recorded\n\nhint: serried why {found[1]}\n",
    )


@pytest.mark.parametrize(
    ("code", "error", "hint"),
    [
        (
            "pass",
            "rank 0 wrote no profile: its program does not use the training library",
            "put `import serried.train.profile` at its top",
        ),
        (
            "import serried.train.profile",
            "rank 0 took no step",
            "without an optimizer, call `serried.train.profile.step()` after each step",
        ),
    ],
)
def test_a_program_without_steps_is_told_what_to_do(place, torch_python, code, error, hint):
    (place.project / "train.py").write_text(code)
    done = place.serried("profile", "--", *torch_python, "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {error}\n\nhint: {hint}\n")


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["--steps", "20:10"], "`--steps 20:10` is not a range of steps", TEN),
        (["--steps", "5"], "`--steps 5` is not a range of steps", TEN),
        (["--rank", "-1"], "`--rank -1` is not a list of ranks", "for example `--rank 0,3`"),
        (["--ranks", "0"], "`--ranks` is the number of ranks on each node", "ranks to profile: --rank 0"),
        (["--rank", "2", "--ranks", "2"], "rank 2 does not exist: the run has ranks 0 to 1", "--rank 0"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_before_anything_runs(place, tmp_path, arguments, error, hint):
    done = place.serried("profile", *arguments, "--", sys.executable, "train.py")
    assert (done.returncode, done.stderr) == (2, f"error: {error}\n\nhint: {hint}\n")
    assert list((tmp_path / "home").rglob("runs/*")) == []


def test_a_run_that_was_not_profiled_has_no_profile_and_no_folder_for_it(place):
    run = place.submit("--", sys.executable, "-c", "pass")
    place.wait(run)
    done = place.serried("profile", "--show", run)
    assert (done.returncode, done.stderr) == (
        2, f"error: run `{run}` was not profiled\n\nhint: serried profile EXPERIMENT\n"
    )  # fmt: skip
    assert not (place.directory(run) / "profiles").exists()


def test_a_dry_run_shows_the_job_and_leaves_nothing(profile, tmp_path):
    done = profile("--dry-run", "--json", "--steps", "3:5")
    plan = json.loads(done.stdout)["plan"]
    request = '{"steps": [3, 5], "ranks": [0], "memory": false}'
    assert (done.returncode, plan["environment"]["env"]["SERRIED_PROFILE"]) == (0, request)
    assert list((tmp_path / "home").rglob("runs/*")) == []
