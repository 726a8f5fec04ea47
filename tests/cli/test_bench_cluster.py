"""`serried bench launch`, `checkpoint`, `stage`, `submit` and `allreduce`: here, and on two nodes of a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from place import Place, environment
from serried.bench.cluster import bus_factor
from serried.train.probes import sizes
from waiting import until

SMALL = ("--cpus", "1", "--mem", "500M", "--time", "10m")
SCHEDULER = """\
COMMAND  MEDIAN  LEAST  MOST
submit a job  N  N  N
query its state  N  N  N
cancel it  N  N  N

the scheduler needs N of each `serried submit`
"""
STAGED = """\
NODE  FILES  SIZE  TAKES  FILES/S  BANDWIDTH
n1  20  20.0 kB  N  N
n2  20  20.0 kB  N  N

staging delays ranks by N; it pays off if epochs save more than that
"""
TORCH = ("--python", sys.executable)
ACCEPT = f'{shutil.which("sbatch")} "$@" >/dev/null'
CTRL_C = "kill -INT $PPID\nexec tail -f /dev/null"
TERM = "kill -TERM $PPID\nexec tail -f /dev/null"
CTRL_C_ONCE = f'[ -e "$0.once" ] || {{ touch "$0.once"\n{CTRL_C}\n}}'


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "scratch").mkdir()
    return folder


@pytest.fixture
def here(project, tmp_path):
    variables = {"SERRIED_LOCAL_DIR": str(tmp_path / "local"), "SERRIED_LOCAL_SLOTS": "8", "OMP_NUM_THREADS": "1"}
    return Place("local", project, environment(tmp_path, variables))


@pytest.fixture
def slurm(project, tmp_path, lab):
    return Place("slurm", project, {**environment(tmp_path, lab.variables), "OMP_NUM_THREADS": "1"})


def bench(place, *arguments):
    return place.serried("bench", arguments[0], "--cluster", place.cluster, *arguments[1:], timeout=600)


def masked(text):
    """Without times and rates."""
    text = re.sub(r"\b[\d.,]+ (us|ms|s|[kMGT]?B/s)(?!\w)|\b\d+m\d\ds\b|\b\d+(\.\d+)?%", "N", text)
    return re.sub(r" {2,}", "  ", text.replace("less than N", "N"))


def replaced(place, tmp_path, command, lines):
    """The place with another command of the scheduler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / command).write_text(f"#!/bin/sh\n{lines}\n")
    (folder / command).chmod(0o755)
    return Place(place.cluster, place.project, {**place.environ, "PATH": f"{folder}:{place.environ['PATH']}"})


def jobs(place):
    return subprocess.run(
        ["squeue", "--noheader"], env=dict(place.environ), capture_output=True, text=True, check=True
    ).stdout


def left(tmp_path):
    """Files below the root of runs, and records, without programs that runs share."""
    found = [*(tmp_path / "scratch").rglob("*"), *(tmp_path / "home").rglob("serried/runs/[!.]*")]
    return [str(path) for path in found if path.is_file() and ".serried/agents" not in str(path)]


@pytest.mark.slurm
def test_the_scheduler_is_measured_and_no_job_no_record_and_no_file_stays(slurm, tmp_path):
    done = bench(slurm, "submit", *SMALL, "--rounds", "2")
    assert (done.returncode, masked(done.stdout), done.stderr) == (
        0,
        SCHEDULER,
        "",
    )  # fmt: skip
    assert (jobs(slurm), left(tmp_path)) == ("", [])


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("command", "lines", "status"),
    [
        ("squeue", "echo 'slurm_load_jobs error: Unable to contact' >&2\nexit 1", 3),
        ("sbatch", f"{ACCEPT}\necho hello", 3),
        ("squeue", CTRL_C, 130),
        ("squeue", TERM, 143),
        ("sbatch", f"{ACCEPT}\n{CTRL_C}", 130),
        ("scancel", f'{CTRL_C_ONCE}\nexec {shutil.which("scancel")} "$@"', 130),
    ],
)
def test_a_job_is_cancelled_after_a_signal_and_if_the_scheduler_gives_no_proper_answer(
    slurm, tmp_path, command, lines, status
):
    done = bench(replaced(slurm, tmp_path, command, lines), "submit", *SMALL)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert (jobs(slurm), left(tmp_path)) == ("", [])


@pytest.mark.slurm
def test_a_job_that_cannot_be_cancelled_is_named(slurm, tmp_path):
    lines = "echo 'scancel: error: Unable to contact slurm controller' >&2\nexit 1"
    done = bench(replaced(slurm, tmp_path, "scancel", lines), "submit", *SMALL)
    (job,) = jobs(slurm).split()[:1]
    assert (done.returncode, done.stderr.splitlines()[-1]) == (3, f"hint: job {job} is held in the queue: cancel it")
    assert left(tmp_path) == []
    subprocess.run(["scancel", job], env=dict(slurm.environ), check=True)


@pytest.mark.torch
@pytest.mark.slurm
def test_each_stage_from_submit_to_the_first_step_on_two_nodes_is_measured(slurm):
    done = bench(slurm, "launch", "--nodes", "2", "--ranks", "1", *SMALL, *TORCH, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [stage["name"] for stage in found["stages"]] == [
        "submit",
        "queue and job script",
        "agents connected",
        "data staged",
        "ranks started",
        "first line of Python",
        "imports",
        "ranks connected",
        "first step",
    ]
    assert sum(stage["seconds"] for stage in found["stages"]) == pytest.approx(found["seconds"])
    assert slurm.show(found["run"])["state"] == "COMPLETED"


@pytest.mark.slurm
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_serried_lab_run_leaves_no_job_of_the_bench(slurm, lab, tmp_path, number):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    python.chmod(0o755)
    serried = (sys.executable, "-m", "serried")
    launch = (*serried, "bench", "launch", "--cluster", "slurm", *SMALL, "--python", str(python))
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        running = subprocess.Popen(
            [*serried, "lab", "run", "--name", lab.name, "--", *launch],
            cwd=slurm.project, env={**slurm.environ, "SERRIED_LAB_ROOT": str(lab.spec.directory.parent)},
            stderr=file, start_new_session=True,
        )  # fmt: skip
    until(lambda: running.poll() is not None or list((tmp_path / "scratch").rglob("rank-0.log")))
    assert running.poll() is None, errors.read_text()
    # Ctrl-C and a closed terminal reach the whole group; kill reaches `serried lab run` alone.
    (os.kill if number == signal.SIGTERM else os.killpg)(running.pid, number)
    assert running.wait() == 128 + number, errors.read_text()
    until(lambda: jobs(slurm) == "")


@pytest.mark.slurm
def test_staging_to_two_nodes_is_measured_and_its_source_deleted(slurm, tmp_path):
    disk = f"clusters.slurm.local_disk={tmp_path}/disk-$SLURMD_NODENAME"
    sizes = ("--files", "20", "--size", "1k", "--nodes", "2")
    done = bench(slurm, "stage", *sizes, *SMALL, "--set", disk)
    assert (done.returncode, re.sub(r"  [\d,]+  N", "  N", masked(done.stdout))) == (
        0,
        STAGED,
    ), done.stderr
    assert list(tmp_path.rglob(".serried-bench")) == []


@pytest.mark.torch
def test_all_reduces_have_the_bus_bandwidth_of_nccl_tests(here):
    done = bench(here, "allreduce", "--ranks", "2", "--from", "4k", "--to", "64k", *TORCH, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ranks"], found["nodes"]) == (2, 1)
    assert [(row["backend"], row["bytes"]) for row in found["rows"]] == [
        ("gloo", 4000), ("gloo", 16_000), ("gloo", 64_000)
    ]  # fmt: skip
    assert [row["busbw"] for row in found["rows"]] == [row["bytes"] / row["seconds"] for row in found["rows"]]
    assert [bus_factor(ranks) for ranks in (1, 2, 4, 8)] == [0.0, 1.0, 1.5, 1.75]
    assert [sizes(least, 64) for least in (4, 5, 64)] == [[4, 16, 64], [5, 20, 64], [64]]


@pytest.mark.torch
def test_a_checkpoint_is_measured_on_each_file_system_and_none_stays(here, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    words = ("--size", "200k", "--rounds", "1", "--to", str(target), "--to", "local", "--to", "/proc/none", *TORCH)
    done = bench(here, "checkpoint", *words)
    lines = masked(done.stdout).splitlines()
    kind = lines[1].split()[1]
    assert (done.returncode, [lines[0], lines[1].split()[1:], lines[2].split()[::2], *lines[3:]]) == (
        0,
        [
            "TO  FILE SYSTEM  STALL  DURABLE  BANDWIDTH  TORCH.SAVE",
            [kind, "N", "N", "N", "N"],
            ["local", "N", "N"],
            "",
            "a checkpoint every 5 minutes costs a training N of its time",
        ],
    ), done.stderr
    assert done.stderr == "warning: cannot write to `/proc/none`: No such file or directory\n"
    assert list(target.iterdir()) == []


def test_a_python_without_torch_is_named_with_its_error(here, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    done = bench(here, "allreduce", "--ranks", "2", "--python", str(python))
    assert (done.returncode, "ModuleNotFoundError: No module named 'torch'" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (("allreduce",), "`serried bench allreduce` needs two ranks or more", "--nodes 2, or --ranks 2"),
        (
            ("allreduce", "--from", "2M", "--to", "1M"),
            "`--from` must be 4 bytes or more, and not more than `--to`",
            "--from 1k --to 64M",
        ),
        (("checkpoint", "--size", "3x"), "`--size 3x` is not a size", "for example `100k`, `64M` or `1.5G`"),
        (("checkpoint", "--size", "1"), "a state of 1 B measures nothing", "--size 1M or more"),
        (("launch", "job.sbatch"), "a job script has a program of its own", "name an experiment, for its resources"),
        (("submit",), "this machine has no scheduler", "--cluster NAME; `serried clusters` lists them"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(here, tmp_path, words, error, hint):
    (here.project / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --time=5\n")
    done = bench(here, *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {error}\n\nhint: {hint}\n")
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", ["launch", "checkpoint", "allreduce", "stage"])
def test_a_dry_run_prints_the_job_and_leaves_nothing(here, tmp_path, name):
    done = bench(here, name, "--ranks", "2", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert (plan["name"], plan["source"]["snapshot"]) == (f"bench-{name}", False)
    assert left(tmp_path) == []


@pytest.mark.parametrize("words", [("submit", "--cluster", "slurm"), ("launch",), ("stage", "train")])
def test_the_only_experiment_has_the_resources_and_a_named_one_too(here, words):
    clusters = "[clusters.slurm]\nscheduler = 'slurm'\nroot = '/tmp'\n"
    own = "command = 'python train.py'\nresources = { cpus = 3 }\nenvironment = { env = { A = '1' } }\n"
    (here.project / "serried.toml").write_text(f"[experiments.train]\n{own}{clusters}")
    plan = json.loads(bench(here, *words, "--dry-run", "--json").stdout)["plan"]
    assert (plan["allocation"]["cpus"], plan["environment"]["env"], plan["name"]) == (
        3, {"A": "1"}, f"bench-{words[0]}"
    )  # fmt: skip
    assert "train.py" not in plan["command"]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_cluster_that_copies_no_data_says_so(here, tmp_path, more):
    done = bench(here, "stage", "--files", "2", "--size", "1k", *more)
    assert (done.returncode, done.stdout, done.stderr) == (
        1, "", "error: this cluster copies no data to nodes: ranks read it where it is\n\nhint: serried docs data\n"
    )  # fmt: skip
    assert list(tmp_path.rglob(".serried-bench")) == []
