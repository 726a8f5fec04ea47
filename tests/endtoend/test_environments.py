"""The environment of the ranks, on every node: real modules, a virtual environment, lines of setup; and what fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from place import Place

INSTALLED = [folder for folder in ("/usr/share/modules", "/usr/share/lmod/lmod") if Path(folder, "init/bash").exists()]
needs_modules = pytest.mark.skipif(not INSTALLED, reason="modules are missing: apt-get install environment-modules")
"""Or lmod: Debian has either."""

RANK = """
import json, os, resource, shutil, sys
names = ("FIRST", "SECOND", "THIRD", "FOURTH", "STALE", "FROM_SETUP", "SERRIED_SETUP")
said = {name: os.environ.get(name) for name in names}
said["limit"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
said["prefix"], said["python"] = sys.prefix, shutil.which("python")
print(json.dumps(said, sort_keys=True))
"""


def make_venv(folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    (folder / "bin" / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")


def with_modules(place: Place, folder: Path) -> Place:
    """The same place, where `module load` finds three modules, one of them loaded already."""
    for name in ("first", "second", "stale"):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.0").write_text(f"#%Module1.0\nsetenv {name.upper()} yes\n")
    environ = {**place.environ, "MODULEPATH": str(folder)}
    load = f"source {INSTALLED[0]}/init/bash; module load stale; env -0"
    done = subprocess.run(["/bin/bash", "-c", load], env=environ, capture_output=True, text=True, check=True)
    loaded = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    assert loaded["STALE"] == "yes", done.stderr
    return Place(place.cluster, place.project, {**loaded, "TMPDIR": "/that/no/node/has"})


def nodes_of(place: Place) -> int:
    return 1 if place.cluster == "local" else 2


@needs_modules
def test_every_rank_has_the_modules_the_environment_and_what_setup_does(place: Place, tmp_path: Path):
    place = with_modules(place, tmp_path / "modules")
    for name in ("third", "fourth"):
        (place.project / "more" / name).mkdir(parents=True)
        (place.project / "more" / name / "1.0").write_text(f"#%Module1.0\nsetenv {name.upper()} yes\n")
    make_venv(place.project / "it's mine")
    (place.project / "rank.py").write_text(RANK)
    (place.project / "serried.toml").write_text(
        f"""
[experiments.train]
command = "python rank.py"
resources = {{ nodes = {nodes_of(place)}, ranks = 2, mem = "100M" }}
[experiments.train.environment]
venv = "it's mine"
modules = ["use more", "third/1.0", "fourth/1.0", "unload fourth/1.0", "first/1.0"]
module_purge = true
setup = '''
ulimit -S -n 321
module load second
export FROM_SETUP="a 'b' $(echo c)"
(while sleep 1; do :; done) & # who watches the ranks is not one of them
setsid sleep 600 >/dev/null 2>&1 &
'''
check = "import os; assert os.environ['SECOND']"
"""
    )

    others = ["srun", *(["mpirun"] if shutil.which("mpirun") else [])] if place.cluster == "slurm" else []
    runs = [place.submit("train", "--set", f"launch.kind={kind}") for kind in ("agent", *others)]

    prefix = str(place.project / "it's mine")
    own = {
        "FIRST": "yes",
        "SECOND": "yes",
        "THIRD": "yes",
        "FOURTH": None,
        "STALE": None,
        "FROM_SETUP": "a 'b' c",
        "SERRIED_SETUP": None,
    }
    expected = {**own, "limit": 321, "prefix": prefix, "python": f"{prefix}/bin/python"}
    for run in runs:
        assert place.wait(run)[0] == 0, place.why(run)
        logs = sorted(place.directory(run).glob("attempts/1/node-*/rank-*.log"))
        assert [json.loads(log.read_text()) for log in logs] == [expected] * 2 * nodes_of(place)


@needs_modules
def test_what_cannot_be_had_on_a_node_ends_the_launch_in_its_own_words(place: Place, tmp_path: Path):
    place = with_modules(place, tmp_path / "modules")
    (place.project / "serried.toml").write_text(
        f"""
[defaults]
command = "touch trained"
resources = {{ nodes = {nodes_of(place)}, ranks = 1, mem = "100M" }}
environment.check = false
[experiments.module]
environment.modules = ["first/1.0", "no such/1.0"]
[experiments.setup]
environment.setup = "[[ ${{SLURM_NODEID:-${{PBS_NODENUM:-1}}}} == 0 ]] || {{ echo no scratch here >&2; false; }}"
"""
    )
    runs = {name: place.submit(name, "--set", "project.snapshot=false") for name in ("module", "setup")}
    ends = {name: place.wait(run)[1] for name, run in runs.items()}

    assert [(end["state"], end["exit_code"]) for end in ends.values()] == [("LAUNCH_FAILED", 70)] * 2
    assert "'module load no such/1.0' failed: " in ends["module"]["message"]
    assert "no such/1.0" in ends["module"]["message"].partition("failed: ")[2]
    assert ends["setup"]["message"].endswith("`setup` failed: `false` ended with status 1: no scratch here")
    assert not (place.project / "trained").exists()


def test_setup_starts_where_ranks_start(place: Place):
    """In the tree of the run or of the task, or in place, like the `check` before the submit."""
    folder = place.project / "inner folder"
    folder.mkdir()
    (folder / "env.sh").write_text("export FROM_FILE=$PWD\ncd /\n")
    (folder / "marker").touch()
    (place.project / "serried.toml").write_text(
        f"""
[defaults]
command = ["bash", "-c", "echo $FROM_FILE; pwd"]
workdir = "inner folder"
resources = {{ nodes = {nodes_of(place)}, ranks = 1, mem = "100M" }}
environment.setup = "if [ ! -f marker ]; then exit 1; fi\\nsource env.sh"
environment.check = "import os; assert os.getcwd() == os.environ['FROM_FILE']"
[experiments.train]
"""
    )
    runs = [
        place.submit("train"),
        place.submit("train", "--set", "project.snapshot=false"),
        place.submit("train", "--array", "0-1", "--nodes", "1"),
    ]
    for run in runs:
        assert place.wait(run)[0] == 0, place.why(run)
    said = [
        [log.read_text().splitlines() for log in sorted(place.directory(run).glob("**/node-*/rank-*.log"))]
        for run in runs
    ]
    trees = [place.directory(runs[0]) / "source", place.project]
    trees += [place.directory(runs[2]) / "tasks" / str(task) / "source" for task in range(2)]
    first, in_place, *tasks = [[str(tree / "inner folder")] * 2 for tree in trees]
    assert said == [[first] * nodes_of(place), [in_place] * nodes_of(place), tasks]


CONDA = """#!/bin/bash
# Makes what conda would: `conda env create --quiet --prefix PREFIX --file FILE`.
[[ "$1 $2 $3 $4 $6" == "env create --quiet --prefix --file" ]] || exit 2
grep -q 'name: fine' "$7" || { echo "PackagesNotFoundError: no-such-thing"; exit 1; }
mkdir -p "$5"/conda-meta "$5"/bin "$5"/etc/conda/activate.d
ln -s PYTHON "$5"/bin/python
echo 'export FROM_HOOK="hook of $CONDA_DEFAULT_ENV"' >"$5"/etc/conda/activate.d/hook.sh
"""


def with_conda(place: Place, folder: Path) -> Place:
    """The same place with that program on PATH; real conda is in no package index."""
    folder.mkdir()
    program = folder / "conda"
    program.write_text(CONDA.replace("PYTHON", str(Path(sys.base_prefix) / "bin" / "python3")))
    program.chmod(0o755)
    environ = {**place.environ, "PATH": f"{folder}:{place.environ['PATH']}"}
    return Place(place.cluster, place.project, environ)


@pytest.mark.slurm
def test_an_environment_is_built_by_a_job_where_the_profile_says_so(slurm: Place, tmp_path: Path):
    place = with_conda(Place(slurm.cluster, slurm.project / "a {seed} b", slurm.environ), tmp_path / "bin")
    place.project.mkdir()
    (place.project / "environment.yml").write_text("name: fine\n")
    (place.project / "serried.toml").write_text(
        """
[clusters.slurm]
build = "job"
[experiments.train]
command = "printenv CONDA_PREFIX"
resources = { ranks = 1, mem = "100M" }
environment.conda = true
"""
    )

    run = place.submit("train")

    assert place.wait(run)[0] == 0, place.why(run)
    prefix = place.show(run)["plan"]["environment"]["conda"]
    assert Path(prefix).parent == place.project / ".serried" / "environments"
    assert place.serried("logs", run).stdout.strip() == prefix
    listed = json.loads(place.serried("ps", "--all", "--json").stdout)["runs"]
    assert ("COMPLETED", "slurm") in [(it["state"], it["cluster"]) for it in listed if it["name"] == "environment"]


def test_a_conda_environment_is_shown_built_checked_run_in_and_cleaned_away(local: Place, tmp_path: Path):
    place = with_conda(local, tmp_path / "bin")
    (place.project / "environment.yml").write_text("name: broken\n")
    (place.project / "serried.toml").write_text(
        """
[experiments.train]
command = "python -c 'import os; print(os.environ[\\"CONDA_PREFIX\\"], os.environ[\\"FROM_HOOK\\"])'"
[experiments.train.environment]
conda = true
check = "import os; assert os.environ['FROM_HOOK']"
"""
    )

    def env(verb: str, *arguments: str) -> tuple[int, str]:
        done = place.serried("env", verb, *arguments)
        return done.returncode, done.stdout or done.stderr

    # As it is, no job could have it: that is no matter here.
    never = ("--set", "launch.kind=single", "--set", "resources.nodes=2", "--set", "resources.gpus=64")
    status, said = env("build", *never)
    assert (status, "PackagesNotFoundError: no-such-thing" in said) == (1, True)
    (place.project / "environment.yml").write_text("name: fine\n")
    status, said = env("check")
    assert (status, said.splitlines()[0]) == (
        1,
        f"error: the environment is not built yet, from `{place.project}/environment.yml`",
    )
    status, prefix = env("build")
    prefix = prefix.strip()
    assert (status, Path(prefix).parent) == (0, place.project / ".serried" / "environments")
    assert json.loads(env("show", "--json", *never)[1])["environment"] == {
        "prefix": prefix,
        "source": str(place.project / "environment.yml"),
        "ready": True,
        "where": "here",
        "modules": [],
        "module_purge": False,
        "setup": "",
        "check": "import os; assert os.environ['FROM_HOOK']",
        "container": None,
    }
    assert sorted(json.loads(env("check", "--json")[1])["found"]) == ["prefix", "python", "torch"]
    assert json.loads(env("build", "--json")[1])["was_there"] is True

    done = place.serried("run", "train")
    assert (done.returncode, done.stdout) == (0, f"{prefix} hook of {Path(prefix).name}\n")

    assert env("clean") == (0, "")
    (place.project / "environment.yml").write_text("name: fine too\n")
    assert json.loads(env("clean", "--dry-run", "--json")[1])["removed"] == [prefix]
    assert Path(prefix).exists()
    (place.project / "other.yml").write_text("name: fine\n")
    with (place.project / "serried.toml").open("a") as file:
        file.write('[experiments.train.on.slurm.environment]\nconda = "other.yml"\n')
    other = env("build", "--cluster", "slurm")[1].strip()
    assert Path(other).exists()
    assert env("clean") == (0, f"{prefix}\n")  # and not the other, which only runs on Slurm have
    assert not Path(prefix).exists()
