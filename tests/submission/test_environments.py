"""Which environment a run has, decided before anything is touched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from building import a_plan
from serried import config
from serried.base import processes
from serried.base.errors import EnvironmentFailed, UsageError
from serried.schema.plan import Environment, Source
from serried.submission import environments, prepare
from serried.submission.environments import choose, find_conda, job_environment
from serried.submission.plan import make_plan


@pytest.fixture
def venv(project: Path) -> Path:
    return make_venv(project / "my venv")


def make_venv(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    (folder / "bin" / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    return folder


def make_conda(folder: Path) -> Path:
    (folder / "conda-meta").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder


def asked(**environment):
    return {"overrides": {f"environment.{name}": value for name, value in environment.items()}}


def test_the_chosen_environment_is_in_the_plan_and_first_on_path_in_place_of_the_active_one(ask, venv):
    prepared = ask(**asked(venv="my venv"))
    assert prepared.plan.environment.venv == prepared.environment["VIRTUAL_ENV"] == str(venv)
    assert prepared.environment["PATH"].split(":")[0] == str(venv / "bin")

    shell = {"PATH": "/old/bin:/usr/bin", "VIRTUAL_ENV": "/old", "PYTHONHOME": "/odd", "CONDA_PREFIX": "/c"}
    path = {"PATH": "/x/e/bin:/old/bin:/usr/bin"}
    assert job_environment(Environment(venv="/x/e"), shell) == {**path, "VIRTUAL_ENV": "/x/e"}
    conda = {"CONDA_PREFIX": "/x/e", "CONDA_DEFAULT_ENV": "e"}
    assert job_environment(Environment(conda="/x/e"), shell) == {**path, **conda}


def test_a_folder_that_is_no_environment_is_refused_before_anything_is_touched(ask, venv, root):
    (venv.parent / "data").mkdir()
    (venv.parent / "gone").mkdir()
    (venv.parent / "gone" / "pyvenv.cfg").write_text("")
    for given, words in (
        ({"venv": "nowhere"}, f"the virtual environment `{venv.parent}/nowhere` does not exist"),
        ({"venv": "data"}, "`.*/data` is not a virtual environment: it has no `pyvenv.cfg`"),
        ({"venv": "gone"}, "`.*/gone/bin` has no Python"),
        ({"conda": "./data"}, "`.*/data` is not a conda environment: it has no `conda-meta`"),
        ({"setup": "if true"}, "`environment.setup` is not valid bash"),
    ):
        with pytest.raises(UsageError, match=words):
            ask(**asked(**given))
    assert not root.exists()


@pytest.mark.usefixtures("venv")
def test_a_check_that_fails_says_why_and_submits_nothing(ask, root):
    with pytest.raises(EnvironmentFailed, match=r"the check `import no_such_thing` failed in `.*/my venv`") as failure:
        ask(**asked(venv="my venv", check="import no_such_thing"))

    assert (failure.value.details or "").endswith("ModuleNotFoundError: No module named 'no_such_thing'")
    assert not root.exists()
    assert ask(**asked(venv="my venv", check="false")).plan.environment.check == ""


def test_a_check_sees_the_environment_its_variables_and_what_setup_does(ask, venv, project):
    (project / "local_module.py").write_text("")
    code = f"""
import os, resource, sys, local_module
assert sys.prefix == {str(venv)!r}, sys.prefix
assert os.environ["SAID"] == "a 'b'" and os.environ["DONE"] == "yes"
assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
"""
    said = asked(venv="my venv", setup="ulimit -S -c 0\nexport DONE=yes", check=code)
    said["overrides"]["environment.env.SAID"] = "a 'b'"

    assert ask(**said).plan.environment.check == code.strip("\n")


def test_where_modules_are_loaded_the_active_environment_comes_before_theirs():
    active = Path(sys.executable).parent.parent
    modules = Environment(modules=("python/3.12",))

    assert choose(modules, {"VIRTUAL_ENV": str(active)}).venv == str(active)
    assert choose(modules, {}) == modules
    assert choose(Environment(), {"VIRTUAL_ENV": str(active)}) == Environment()


def test_a_conda_environment_is_found_by_its_name_wherever_conda_keeps_them(tmp_path):
    root = make_conda(tmp_path / "miniforge3")
    named = make_conda(root / "envs" / "named")
    elsewhere = make_conda(tmp_path / "scratch" / "envs" / "elsewhere")
    noted = make_conda(tmp_path / "my project" / "noted")
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"{noted}\n/gone/envs/gone\n")
    home = {"HOME": str(tmp_path), "PATH": os.defpath}

    scratch = {"CONDA_ENVS_PATH": str(elsewhere.parent)}
    for name, environ, expected in (
        ("base", home, root),
        ("named", home, named),
        ("noted", home, noted),
        ("elsewhere", {**home, **scratch}, elsewhere),
        ("elsewhere", {**home, "CONDA_PREFIX": str(elsewhere)}, elsewhere),
        (str(noted), {}, noted),
    ):
        assert find_conda(name, environ) == expected
    with pytest.raises(UsageError, match="the conda environment `namd` does not exist") as error:
        find_conda("namd", home)
    assert error.value.hint == "did you mean `named`?"


def test_the_strongest_source_says_whether_it_is_a_virtual_or_a_conda_environment(ask, project):
    prefix = make_conda(project / "prefix")
    (project / "serried.toml").write_text(
        '[experiments.a]\ncommand = "true"\nenvironment.venv = ".venv"\n[experiments.a.on.local.environment]\n'
        'conda = "./prefix"\n'
    )

    chosen = ask(experiment="a", command=None).plan.environment

    assert (chosen.venv, chosen.conda) == (None, str(prefix))


def test_the_job_that_builds_has_a_gpu_where_the_profile_says_so_and_is_paid_for_as_the_run(project):
    said = {"resources.nodes": 3, "resources.gpus": 4, "resources.account": "def-ada", "environment.env.A": "b"}
    resolved = config.resolve(None, ("true",), said, "narval", project, {"HOME": str(project), "USER": "ada"})
    run = make_plan(resolved, run_id="k3f9q2", created="2026-11-21T00:00:00Z")

    asked = {where: prepare._resolved(run, resolved, where, {"LOG": "/l"}) for where in ("job", "gpu-job")}
    jobs = {where: make_plan(it, run_id="k3f9q3", created=run.created) for where, it in asked.items()}

    sizes = {where: (job.allocation.nodes, job.allocation.gpus, job.allocation.ranks) for where, job in jobs.items()}
    assert sizes == {"job": (1, 0, 1), "gpu-job": (1, 1, 1)}
    assert {job.allocation.account for job in jobs.values()} == {"def-ada"}
    said = {(job.source.snapshot, *job.environment.env.items(), job.name) for job in jobs.values()}
    assert said == {(False, ("A", "b"), ("LOG", "/l"), "environment")}


def absent_on_a_cluster(prepared, command=None):
    """Warnings about programs if the ranks start elsewhere."""
    plan = prepared.plan._replace(site=prepared.plan.site._replace(is_this_machine=False))
    plan = plan._replace(command=command) if command else plan
    return [*environments.absences(plan, prepared.environment, None)]


def test_a_program_that_is_not_here_is_a_risk_unless_something_may_bring_it(ask, project):
    (project / "train.sh").write_text("true\n")
    warning = "the command's program `{}` is not in {} here, or cannot be run; compute nodes may have it"

    def warned(command, **environment):
        return absent_on_a_cluster(ask(**asked(**environment)), command)

    (risk,) = warned(("pythn", "train.py"))
    assert (risk, risk.code) == (warning.format("pythn", "PATH"), "command-not-found")
    for program in ("./train.sh", "/no such/python"):
        assert warned((program,)) == [warning.format(program, f"`{project}`")]
    (project / "train.sh").chmod(0o755)
    assert warned(("./train.sh",)) == []
    assert warned(("pythn",), setup="PATH=/elsewhere:$PATH") == []
    assert warned(("python", "train.py")) == []
    for command, hint in (
        (("train.sh",), "`./train.sh` starts the file of this folder"),
        (("train.py", "a"), "python train.py"),
        (("python train.py",), "a program and its arguments are words of their own: leave the quotes out"),
    ):
        with pytest.raises(UsageError) as refused:
            warned(command)
        assert (refused.value.hint, refused.value.code) == (hint, "command-not-found")


def test_an_interpreter_of_a_job_script_that_is_not_here_is_refused_where_it_starts_here(ask, project):
    (project / "job.sh").write_text("#!/bin/bash\ntrue\n")
    prepared = ask(command=("job.sh",), is_script=True)
    script = prepared.plan.script._replace(interpreter=("/no/such/bash",))
    prepared = prepared._replace(plan=prepared.plan._replace(script=script))
    absent = "`/no/such/bash`, the interpreter of `job.sh`, is not here, or cannot be run"
    assert absent_on_a_cluster(prepared) == [f"{absent}; compute nodes may have it"]
    with pytest.raises(UsageError, match=absent):
        [*environments.absences(prepared.plan, prepared.environment, None)]


def test_mpi_that_is_not_here_is_warned_of_unless_something_may_bring_it(ask, monkeypatch, tmp_path):
    for program in ("python", "true"):  # what ranks run, and what stands for the scheduler
        (tmp_path / program).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))

    def warned(kind, **environment):
        prepared = ask(**asked(**environment))
        launch = prepared.plan.launch._replace(kind=kind)
        return absent_on_a_cluster(prepared._replace(plan=prepared.plan._replace(launch=launch)))

    assert warned("mpirun") == ["neither `mpirun` nor `mpiexec` is in PATH here; compute nodes may have it"]
    assert warned("agent") == warned("mpirun", setup="PATH=/opt/mpi/bin:$PATH") == []
    (tmp_path / "mpiexec").symlink_to("/bin/true")
    assert warned("mpirun") == []


def test_a_virtual_environment_that_lies_idle_in_the_project_is_pointed_out(ask, project, monkeypatch):
    make_venv(project / ".venv")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    said = '`.venv` is not active, so ranks use the Python on PATH: `environment.venv = ".venv"` selects it'

    assert said in ask().warnings
    assert said not in ask(command=(".venv/bin/python", "train.py")).warnings
    assert said not in ask(**asked(venv=".venv")).warnings
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    assert said not in ask().warnings


def test_an_image_in_the_project_is_no_part_of_the_snapshot(ask, project):
    (project / "torch.sif").write_text("gigabytes")
    (project / "root").mkdir()
    (project / "root" / "file").write_text("of an image")

    taken = {}
    for image in ("torch.sif", "root"):
        prepared = ask(overrides={"container.image": image, "container.runtime": "apptainer"})
        assert prepared.plan.container.image == str(project / image)
        taken[image] = {"torch.sif", "root/file"} & set(prepared.survey.files)

    assert taken == {"torch.sif": {"root/file"}, "root": {"torch.sif"}}


def plan_with(environment, folder):
    return a_plan()._replace(environment=environment, source=Source(str(folder), "."))


def test_the_python_is_found_whatever_setup_prints(tmp_path):
    for setup in ("printf 'no newline'", "exec >&2", "set -u", "# nothing", "cat <<E\n{x}\nE"):
        found = environments.about(plan_with(Environment(setup=setup), tmp_path), os.environ)
        assert sorted(found) == ["prefix", "python", "torch"]


def test_background_processes_of_setup_are_neither_waited_for_nor_left(tmp_path, wait_until):
    setup = f"export FOO=bar\nsleep 1000 & echo $! >'{tmp_path}/pid'"
    environment = Environment(setup=setup, check="import os; assert os.environ['FOO'] == 'bar'")
    environments.check(plan_with(environment, tmp_path), os.environ)
    wait_until(lambda: processes.identify(int((tmp_path / "pid").read_text())) is None)


def test_a_check_does_not_pass_where_setup_ends_before_it(tmp_path):
    message = "the check `pass` failed in the active environment with status 70"
    for setup, said in (("exit 0", []), ("echo 'no scratch here'; false; true", ["no scratch here"])):
        with pytest.raises(EnvironmentFailed, match=message) as caught:
            environments.check(plan_with(Environment(setup=setup, check="pass"), tmp_path), os.environ)
        assert (caught.value.details or "").splitlines() == [*said, "a line of setup ended it"]
