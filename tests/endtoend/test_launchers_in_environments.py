"""Every launcher in every environment, on two nodes with two ranks each: all ranks are in it, and the one that fails is
named with its status.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

import containing

LAUNCHERS = ("agent", "torchrun", "srun", "mpirun")
ENVIRONMENTS = ("venv", "conda", "apptainer", "ch-run")

RANK = """\
import os, pathlib, sys, time
rank, met = int(os.environ["RANK"]), pathlib.Path(os.environ["SERRIED_RESULTS_DIR"])
inside = pathlib.Path("/etc/serried-image")
mark = inside.read_text().strip() if inside.exists() else os.environ.get("CONDA_DEFAULT_ENV", "")
half = met.joinpath(f".{rank}")
half.write_text(f"{sys.prefix} {mark}")
half.rename(met / f"{rank}-of-{os.environ['WORLD_SIZE']}")
while len(list(met.glob("*-of-4"))) < 4:
    time.sleep(0.02)
if rank == 1:
    print("leaving", flush=True)
    sys.exit(3)
time.sleep(1000)
"""


def make_prefix(folder: Path) -> Path:
    """A Python of its own, with the packages of the tests' own (torchrun is one)."""
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    packages.mkdir(parents=True)
    packages.joinpath("tests.pth").write_text(sysconfig.get_path("purelib"))
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    return folder


@pytest.fixture(params=ENVIRONMENTS)
def chosen(request, slurm, tmp_path):
    """A place, the tables of serried.toml that choose an environment there, and what its ranks have to find."""
    prefix = make_prefix(tmp_path / "an environment")
    if request.param == "venv":
        return slurm, containing.table("experiments.x.environment", {"venv": str(prefix)}), f"{prefix} "
    if request.param == "conda":
        (prefix / "conda-meta").mkdir()
        return slurm, containing.table("experiments.x.environment", {"conda": str(prefix)}), f"{prefix} {prefix.name}"
    path = containing.path_with(request.param)
    image = containing.skeleton(tmp_path / "image")
    if request.param == "apptainer":
        image = containing.build(image, tmp_path / "image.sif", path)
    said = {"image": str(image), "runtime": request.param, "binds": [*containing.needed(), str(prefix)]}
    tables = containing.table("experiments.x.container", said)
    tables += containing.table("experiments.x", {"command": [str(prefix / "bin" / "python"), "rank.py"]})
    return type(slurm)(slurm.cluster, slurm.project, {**slurm.environ, "PATH": path}), tables, f"{prefix} inside"


@pytest.mark.slurm
def test_ranks_are_in_it_and_the_one_that_fails_is_named_under_each_launcher(chosen, wait_until, marked_processes):
    place, tables, expected = chosen
    (place.project / "rank.py").write_text(RANK)
    command = "" if "command" in tables else containing.table("experiments.x", {"command": ["python", "rank.py"]})
    (place.project / "serried.toml").write_text(command + tables)
    sizes = ("--nodes", "2", "--ranks", "2", "--cpus", "1", "--mem", "50M", "--set", "limit.grace=3s")

    runs = {kind: place.submit("x", *sizes, "--launch", kind) for kind in LAUNCHERS}

    for kind, run in runs.items():
        status, end = place.wait(run)
        assert (status, end["exit_code"]) == (1, 3), f"{kind}: {place.serried('why', run).stdout}"
        failure = place.why(run)["first_failure"]
        assert end["message"] == f"rank 1 on {failure['host']} exited with status 3"
        assert (failure["rank"], failure["tail"]) == (1, ["leaving"]), kind
        wait_until(lambda run=run: marked_processes(f"{run}/") == [], what=f"{kind} has left processes")
        found = {path.name: path.read_text() for path in (place.directory(run) / "results").iterdir()}
        assert found == {f"{rank}-of-4": expected for rank in range(4)}, kind
