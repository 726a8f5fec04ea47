"""job.sh, byte for byte."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from building import a_plan
from serried import schedulers
from serried.schedulers.slurm.commands import FRAGMENT
from serried.schema import names
from serried.schema.plan import Container, Environment, Limit, UserScript
from serried.submission import script
from serried.submission.plan import divide_indices
from tables import for_each

GOLDEN = Path(__file__).parent / "golden"


def in_parts(plan, size):
    """The plan, its array in jobs of at most so many tasks."""
    return plan._replace(array=plan.array._replace(offsets=divide_indices(plan.array.indices, size)))


def drawing(plan):
    """The plan, its jobs run one trial after another."""
    return plan._replace(array=plan.array._replace(draws=True))


def with_environment(**said):
    return a_plan(root="/scratch/ada")._replace(environment=Environment(**said))


ADA = a_plan(root="/scratch/ada")
ARRAY = a_plan(root="/scratch/ada", indices=range(3), gpus=2)
PBS = a_plan(root="/scratch/ada", scheduler="pbs")
PBS_ARRAY = a_plan(root="/scratch/ada", scheduler="pbs", indices=range(3), gpus=2)
LOCAL = a_plan(root="/scratch/ada", scheduler="local")

PLANS = {
    "slurm": ADA,
    "slurm-array": ARRAY,
    "slurm-parts": in_parts(a_plan(root="/scratch/ada", indices=range(9)), 4),
    "slurm-workers": drawing(ARRAY),
    "pbs": PBS,
    "pbs-array": PBS_ARRAY,
    "pbs-parts": in_parts(a_plan(root="/scratch/ada", scheduler="pbs", indices=range(9)), 4),
    "pbs-workers": drawing(PBS_ARRAY),
    "local": a_plan(root="/home/ada/runs", scheduler="local", nodes=1),
    "local-workers": drawing(a_plan(root="/home/ada/runs", scheduler="local", nodes=1, indices=range(3))),
    "inside-slurm": LOCAL._replace(site=LOCAL.site._replace(inside="slurm")),
    "inside-pbs": LOCAL._replace(site=LOCAL.site._replace(inside="pbs")),
    "modules": with_environment(modules=("gcc/11", "cuda toolkit"), module_purge=True, venv="/home/ada/it's mine"),
    "conda": with_environment(conda="/home/ada/conda/envs/a $(id)", setup="module load tiny\nulimit -l unlimited"),
    "shell-slurm": ADA,
    "shell-pbs": PBS,
    "pyxis": with_environment(env={"NCCL_DEBUG": "INFO"})._replace(
        container=Container("nvcr.io#nvidia/pytorch:24.10-py3", "pyxis", binds=("/data:/data:ro", "/it's"))
    ),
    "hostile": a_plan(root="/tmp/a b'$(id)`id`\"%j", scheduler="local", nodes=1),
}


RENDER = {"shell-slurm": script.render_shell, "shell-pbs": script.render_shell}


@for_each("name", PLANS)
def test_job_sh_is_a_function_of_the_plan(name):
    text = RENDER.get(name, script.render)(
        PLANS[name], python="/home/ada/.venv/bin/python", command=["sbatch", "--comment=a b", "job.sh"]
    )

    assert text == (GOLDEN / f"{name}.sh").read_text()


def test_setup_sh_is_a_function_of_the_plan():
    assert script.render_setup(PLANS["conda"]) == (GOLDEN / "setup.sh").read_text()
    assert script.render_setup(PLANS["modules"]) is None


@pytest.mark.parametrize("name", [*PLANS, "setup"])
def test_job_sh_is_short_and_has_nothing_that_shellcheck_minds(name):
    path = GOLDEN / f"{name}.sh"
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is missing: apt-get install shellcheck")

    result = subprocess.run([checker, path], capture_output=True, text=True, check=False)

    assert (result.stdout, len(path.read_text().splitlines()) < 110) == ("", True)


def test_a_path_with_a_newline_is_refused():
    with pytest.raises(ValueError, match="newline"):
        script.render(a_plan(root="/a\nb"), python="python3")


def test_job_sh_has_the_python_of_the_profile_and_the_umask_of_a_group():
    plan = a_plan(root="/r")
    named = plan._replace(site=plan.site._replace(python="/opt/py thon"), share="group")
    text = script.render(named, python="python3")
    assert "\nfor serried_python in '/opt/py thon' ''; do\n" in text
    assert "\numask 027\n" in text


STUB = """\
import json, os, signal, sys, time
role, words = sys.argv[1], sys.argv[2:]
trial = words[words.index("--ended" if role == "draw" else "--task") + 1]
with open("calls", "a") as file:
    final = words[words.index("--final") + 1 :] if role == "finish" else []
    print(json.dumps([role, trial, *final]), file=file)
if [role, trial] == json.loads(os.environ["AT"]):
    if role == "head":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getsid(0), signal.SIGTERM)
    time.sleep(0.5)
if role == "head" and os.environ.get("UP_TO") == trial:
    time.sleep(60)
if role == "draw":
    print(int(trial or -1) + 1)
if role == "finish":
    print("done")
"""
"""An agent whose trials complete. In the call `AT`, job.sh gets TERM. The trial `UP_TO` runs for long."""


@pytest.fixture
def calls(tmp_path):
    """The calls of the agent by a job that draws trials, each a role, a trial and the end as job.sh knows it."""
    plan = drawing(a_plan(root=tmp_path, scheduler="local", nodes=1, indices=range(9)))
    directory = Path(plan.directory)
    directory.mkdir(parents=True)
    (directory / "agent.pyz").write_text(STUB)
    (directory / "job.sh").write_text(script.render(plan, python=sys.executable))

    def run(at, up_to="", **environ):
        environ |= {
            "PATH": "/usr/bin:/bin",
            "SERRIED_JOB": "1",
            "SERRIED_TASK": "0",
            "AT": json.dumps(at),
            "UP_TO": up_to,
        }
        argv = ["/bin/bash", directory / "job.sh", "k3f9q2-1"]
        subprocess.run(argv, env=environ, start_new_session=True, capture_output=True, check=False, timeout=60)
        return [json.loads(line) for line in (directory / "calls").read_text().splitlines()]

    return run


BEGINNING = [["draw", ""], ["head", "0"], ["finish", "0", ""], ["draw", "0"]]


@pytest.mark.parametrize("moment", [["head", "1"], ["finish", "1"]])
def test_a_job_that_is_cancelled_as_its_trial_ends_draws_no_further_one(calls, moment):
    final = "cancel" if moment[0] == "head" else ""
    assert calls(moment) == [*BEGINNING, ["head", "1"], ["finish", "1", final]]


def test_a_job_that_is_cancelled_while_it_draws_ends_the_trial_as_cancelled(calls):
    found = calls(["draw", "0"], up_to="1")
    assert [call for call in found if call != ["head", "1"]] == [*BEGINNING, ["finish", "1", "cancel"]]


def own_names(text):
    """The variables and functions of a script in lower case."""
    code = re.sub(r"(?m)#.*$|'[^'\n]*'", "", text)
    variables = re.findall(r"(?<![-\w.$%?])([a-z_]+)\+?=(?!=)", code) + re.findall(r"\b(?:for|local) ([a-z_]+)", code)
    return {*variables, *re.findall(r"(?m)^([a-z_]+)\(\)", code), *re.findall(r"\(\(([a-z_]+) =", code)}


@for_each("name", PLANS)
def test_names_of_job_sh_leave_those_of_the_user_alone(name):
    """A variable that the user exported stays exported, so an assignment would change the programs' environment."""
    own = own_names((GOLDEN / f"{name}.sh").read_text())
    assert "serried_agent" in own
    assert {word for word in own if not word.startswith("serried_")} == set()


def test_variables_of_the_user_do_not_change_what_job_sh_does(calls):
    own = own_names((GOLDEN / "local-workers.sh").read_text())
    assert {"serried_began", "serried_final", "serried_late", "serried_trial", "serried_try"} <= own
    assert calls(["finish", "1"], **dict.fromkeys(own, "a b")) == [*BEGINNING, ["head", "1"], ["finish", "1", ""]]


def launcher(plan):
    return schedulers.script(plan.site.inside or plan.site.scheduler).launcher(plan)


def test_the_launcher_says_everything_about_its_step():
    assert launcher(a_plan(nodes=3, gpus=2, cpus=6)) == (
        "srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --cpus-per-task=6 --gpu-bind=none --overlap --export=ALL "
        "--kill-on-bad-exit=1 --wait=0 --input=none --unbuffered --job-name=serried"
    )
    assert launcher(a_plan(scheduler="local")) == ""


def on_site(**facts):
    plan = a_plan(scheduler=facts.get("scheduler", "pbs"))
    return plan._replace(site=plan.site._replace(**facts))


def test_the_profile_chooses_what_starts_agents_on_pbs():
    hydra = 'mpiexec -n {nodes} -ppn 1 -hostfile "$PBS_NODEFILE"'

    assert launcher(on_site()) == "pbsdsh --"
    assert launcher(on_site(launcher="pbsdsh")) == "pbsdsh --"
    own = launcher(on_site(launcher="pbs_tmrsh"))
    assert own.startswith("/bin/bash -c 'PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin\nfor ")  # a profile may have reset it
    assert own.endswith("\nwait' 2")
    assert launcher(on_site(launcher=hydra)) == hydra.replace("{nodes}", "2")
    sized = on_site(launcher="start {nodes} {ranks} {gpus} {other}")
    assert launcher(sized) == "start 2 2 0 {other}"
    assert launcher(on_site(scheduler="local", inside="pbs")).endswith("\nwait' 2")


def test_agent_pyz_is_the_same_bytes_and_holds_the_agent_and_what_it_shares_with_the_submitting_side(tmp_path):
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(script.agent().read())
    assert agent.read_bytes() == script.agent().read()
    rooms = {name.split("/")[1] for name in zipfile.ZipFile(agent).namelist() if "/" in name}
    assert rooms == {"__init__.py", "__init__.pyc", "agent", "base", "schema"}


def variables_of_a_script(plan, prefix, **environ):
    """What a job script finds, by the lines of job.sh before its start."""
    text = script.render(plan, python="python3")
    lines = [line for line in text.splitlines() if line.startswith("export ") and prefix in line]
    program = "\n".join([*lines, f'for name in ${{!{prefix}@}}; do echo "$name=${{!name}}"; done'])
    done = subprocess.run(["bash", "-c", program], env=environ, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def of_script(plan, **said):
    user = UserScript("/home/ada/digits/exp/a b.sbatch", ("/bin/bash",), folder="/home/ada/digits/exp", **said)
    return plan._replace(script=user)


@for_each("plan", [
    in_parts(a_plan(indices=(1, 4, 6, 8)), 2),
    a_plan(indices=(1, 4, 6, 8), limit=Limit(restarts=1, continue_by=names.SUCCESSOR)),
])  # fmt: skip
def test_an_array_of_several_jobs_is_one_array_to_a_program(plan):
    found = variables_of_a_script(plan, "SLURM_ARRAY_TASK_", SLURM_ARRAY_TASK_COUNT="1", SLURM_ARRAY_TASK_MIN="0")

    assert {name: found[f"SLURM_ARRAY_TASK_{name}"] for name in ("COUNT", "MIN", "MAX", "STEP")} == {
        "COUNT": "4", "MIN": "1", "MAX": "8", "STEP": "2"
    }  # fmt: skip


@for_each("scheduler, own, folder", [
    ("slurm", {"SLURM_ARRAY_TASK_ID": "7"}, "SLURM_SUBMIT_DIR"),
    ("pbs", {"PBS_ARRAY_INDEX": "7"}, "PBS_O_WORKDIR"),
])  # fmt: skip
def test_a_script_finds_the_copy_of_the_code_of_its_task(scheduler, own, folder):
    plan = of_script(a_plan(root="/a $(b)", scheduler=scheduler, indices=range(9)))
    apart = plan._replace(source=plan.source._replace(tree_per_task=True))

    assert variables_of_a_script(plan, folder, **own)[folder] == f"{plan.directory}/source/exp"
    assert variables_of_a_script(apart, folder, **own)[folder] == f"{plan.directory}/tasks/7/source/exp"


def test_without_a_python_it_says_so(tmp_path):
    plan = a_plan(root=str(tmp_path), scheduler="local", nodes=1)
    named = plan._replace(site=plan.site._replace(python="/nosuch/python"))
    Path(plan.directory).mkdir(parents=True)
    job = tmp_path / "job.sh"
    job.write_text(script.render(named, python="python3"))

    result = subprocess.run(["bash", job, "t-1"], env={"SERRIED_JOB": "1"}, capture_output=True, text=True, check=False)

    assert result.returncode == 70
    assert "no Python 3.9 or later" in result.stderr


@pytest.mark.parametrize(("restarts", "final"), [(1, "requeue"), (0, "cancel")])
def test_a_controller_that_is_away_is_asked_again_whether_it_requeued_the_job(tmp_path, restarts, final):
    scontrol = tmp_path / "scontrol"
    answer = f"[[ -e asked ]] || {{ touch asked; exit 1; }}\necho 'JobId=7 Restarts={restarts} x'\n"
    scontrol.write_text(f"#!/bin/bash\n{answer}")
    scontrol.chmod(0o700)
    lines = ("serried_final=cancel", "sleep() { :; }", FRAGMENT.functions, FRAGMENT.script_ended, "echo $serried_final")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    ended = subprocess.run(
        ["bash"], input="\n".join(lines), env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (ended.stdout, ended.stderr) == (f"{final}\n", "")
