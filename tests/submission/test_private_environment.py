"""The environment that travels by a private file, through the shell's own reading of it and the agents'."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import serried
from building import a_plan
from serried.agent.attempt import Attempt
from serried.agent.comms.job_environment import EnvFile
from serried.base.files import read_environment, read_json, write_environment, write_json
from serried.schedulers.pbs.commands import FRAGMENT
from serried.schema.layout import RunDirectory
from serried.submission import script

HOSTILE = {
    "PLAIN": "a",
    "EMPTY": "",
    "LINES": "one\ntwo\n",
    "SHELL": "$(id) `id` \"'\\ *",
    "EQUALS": "a=b=c",
    "BYTES": "caf\udce9 ☃",
    "PATH": "/my/bin:/usr/bin:/bin",
    "BASH_FUNC_module%%": '() {  echo "loaded $1"\n}',
    "not a name": "dropped by the shell, which could not export it",
}

TAKE = (
    "import os, sys; from serried.agent.comms import job_environment\n"
    "job_environment.load(sys.argv[1], 'PBS_'); print(dict(os.environ))"
)
"""What a node's agent does with the file, and what it then has."""


PATH = {"PATH": "/usr/bin:/bin"}


def in_job_sh(folder: Path, given: dict[str, str], lines: str, **environ: str) -> dict[str, str]:
    """The environment in job.sh after it has taken `given` over and run `lines`."""
    write_environment(folder / "private", given)
    text = f"set -- k3f9q2-1 {folder / 'private'}\nserried_token=$1\n{FRAGMENT.cleanup}\n{lines}\nenv -0 > after"
    subprocess.run(["/bin/bash", "-c", text], cwd=folder, env={**PATH, **environ}, check=True)
    return read_environment(folder / "after")


def test_job_sh_takes_it_over_functions_of_the_shell_included_and_only_its_user_can_read_it(tmp_path: Path):
    after = in_job_sh(tmp_path, HOSTILE, "module x > loaded", PBS_JOBID="1.head")
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600
    assert read_environment(tmp_path / "private") == HOSTILE
    expected = {name: value for name, value in HOSTILE.items() if name.isidentifier()} | {
        "PATH": HOSTILE["PATH"] + ":/opt/pbs/bin",  # for PBS's own commands, after the user's
        "PBS_JOBID": "1.head",
    }
    assert {name: after.get(name) for name in expected} == expected
    assert (tmp_path / "loaded").read_text() == "loaded x\n"


def test_variables_of_the_user_do_not_change_those_of_job_sh(tmp_path: Path):
    own = ("serried_token", "serried_private", "SECONDS", "serried_name", "serried_entry", "token", "name")
    say = 'echo "$serried_token $serried_private $token $name $LAST $((SECONDS < 7777))" > said'
    in_job_sh(tmp_path, {**dict.fromkeys(own, "7777"), "LAST": "1"}, say)
    assert (tmp_path / "said").read_text() == f"k3f9q2-1 {tmp_path / 'private'} 7777 7777 1 1\n"


@pytest.mark.parametrize(("wanted", "expected"), [({}, None), ({"OMP_NUM_THREADS": "3"}, "3")])
def test_threads_are_the_users_wish_and_not_the_cpus_of_the_chunk(wanted, expected, tmp_path: Path):
    after = in_job_sh(tmp_path, wanted, "", NCPUS="8", OMP_NUM_THREADS="8")
    assert (after["NCPUS"], after.get("OMP_NUM_THREADS")) == ("8", expected)


@pytest.fixture
def job(tmp_path: Path) -> Callable[[], subprocess.CompletedProcess[str]]:
    """Runs job.sh as PBS does, on a node that cannot read the environment."""
    plan = a_plan(root=tmp_path, scheduler="pbs", nodes=1, ranks=1)
    directory = Path(plan.directory)
    directory.mkdir(parents=True)
    write_json(directory / "plan.json", plan.to_json())
    (directory / "job.sh").write_text(script.render(plan, python=sys.executable))
    (directory / "agent.pyz").write_bytes(script.agent().read())
    of_pbs = {"PATH": "/usr/bin:/bin", "PBS_JOBID": "7.head", "PBS_NODEFILE": "/dev/null"}

    def run() -> subprocess.CompletedProcess[str]:
        argv = ["/bin/bash", str(directory / "job.sh"), f"{plan.run}-1", str(tmp_path / "gone")]
        return subprocess.run(argv, env=of_pbs, cwd=directory, capture_output=True, text=True, check=False)

    return run


def test_a_node_that_cannot_read_it_says_so_as_the_end_of_the_run(job, tmp_path: Path):
    assert job().returncode == 70
    end = read_json(next(tmp_path.rglob("k3f9q2/exit.json"))) or {}
    message = f"{end['nodes'][0]}: the job's environment cannot be read here: {tmp_path / 'gone'}"
    assert (end["state"], end["cause"], end["message"]) == ("LAUNCH_FAILED", "launch", message)


def test_a_job_that_is_left_over_when_its_run_has_ended_is_no_failure(job, tmp_path: Path):
    """Its environment went with the run, as when PBS did not answer when its further jobs were withdrawn."""
    claims = next(tmp_path.rglob("k3f9q2")) / "claims"
    claims.mkdir()
    (claims / "k3f9q2-1").write_text("withdrawn")

    assert job().returncode == 0
    assert list(tmp_path.rglob("k3f9q2/exit.json")) == []


def taken(path: Path, **environ: str) -> dict[str, str]:
    """The environment of a node's agent after it has taken over the file."""
    environ = {"PATH": os.defpath, "PYTHONPATH": str(Path(serried.__file__).parents[1]), **environ}
    done = subprocess.run([sys.executable, "-c", TAKE, path], env=environ, capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stdout)


def test_a_node_takes_over_all_but_what_its_scheduler_tells_it_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MODEL", "big")
    monkeypatch.setenv("PBS_NODENUM", "0")
    plan = a_plan(root=tmp_path, scheduler="pbs")
    handover = EnvFile(str(tmp_path / "private"), Attempt(RunDirectory(tmp_path), plan, None, 3))
    handover.write({"SERRIED_KEY": "secret"})
    assert handover.path == tmp_path / "private-3"
    found = taken(handover.path, PBS_NODENUM="1", OWN="gone")
    expected = {"MODEL": "big", "SERRIED_KEY": "secret", "PBS_NODENUM": "1", "OWN": None}
    assert {name: found.get(name) for name in expected} == expected
    handover.remove()
    assert not handover.path.exists()


@pytest.mark.parametrize("of_job", [{"PBS_ARRAY_INDEX": "4", "PBS_ARRAY_ID": "1[].head"}, {}])  # one is no array to PBS
def test_each_node_knows_its_task_as_pbs_calls_it(of_job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in of_job.items():
        monkeypatch.setenv(name, value)
    plan = a_plan(root=tmp_path, scheduler="pbs")
    handover = EnvFile(str(tmp_path / "private"), Attempt(RunDirectory(tmp_path), plan, 4, 1))
    handover.write({})
    found = taken(handover.path, PBS_JOBID="1[4].head")
    expected = {"PBS_ARRAY_ID": None, "PBS_ARRAY_INDEX": "4", "PBS_JOBID": "1[4].head"} | of_job
    assert {name: found.get(name) for name in expected} == expected


OURS = {"TMPDIR": "/var/tmp/pbs.1", "CUDA_VISIBLE_DEVICES": "GPU-2"}
THEIRS = {"TMPDIR": "/home/ada/tmp", "CUDA_VISIBLE_DEVICES": "0,1"}


@pytest.mark.parametrize(("own", "expected"), [(OURS, OURS), ({}, THEIRS)])
def test_the_gpus_that_pbs_gives_to_a_process_are_not_those_of_another_node(own, expected, tmp_path: Path):
    after = in_job_sh(tmp_path, THEIRS, "", **own)
    node = taken(tmp_path / "private", **own)
    assert {name: after.get(name) for name in OURS} == expected
    assert {name: value for name, value in node.items() if name in OURS} == expected
