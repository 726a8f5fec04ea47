"""Scripts whose every line becomes a setting, and lines that keep a script."""

from __future__ import annotations

from typing import Any

import pytest

from serried import importing
from serried.errors import UsageError
from tables import for_each

HEAD = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=4 --mem=8G --time=60\n"


def settings_of(script: str, **options: Any) -> dict[str, Any]:
    imported = importing.read(script.encode(), "job.sh", **options)
    assert imported.script is None, imported.reasons
    return dict(imported.settings)


def reasons_of(script: str, **options: Any) -> dict[int, str]:
    imported = importing.read(script.encode(), "job.sh", **options)
    assert (imported.script, imported.settings) == ("job.sh", {"script": "job.sh"})
    return {reason.line: reason.why for reason in imported.reasons}


REQUESTED = {
    "project.snapshot": False,
    "command": "python t.py",
    "launch.kind": "single",
    "resources.nodes": 1,
    "resources.ranks": 1,
    "resources.cpus": 4,
    "resources.mem_per_node": "8G",
    "resources.time": "1h",
}


@for_each(
    ("lines", "settings"),
    [
        ("", {}),
        ('# a comment\n\nset -euo pipefail\nset -x\ncd $SLURM_SUBMIT_DIR\ncd "${SLURM_SUBMIT_DIR}"\n', {}),
        ('echo "at $(date) on $(hostname -s) ${X} $?"\ndate +%s\nhostname\n', {}),
        ("nvidia-smi\nwhich python\ngcc --version\n", {}),
        ("module purge\nmodule use /opt/m\nmodule load a/1 b\nml c\nmodule unload a\nmodule list\n",
         {"environment.module_purge": True, "environment.modules": ["use /opt/m", "a/1", "b", "c", "unload a"]}),
        ("module load a\nsource .venv/bin/activate\n", {"environment.modules": ["a"], "environment.venv": ".venv"}),
        ("module purge\n. /opt/v/bin/activate\n", {"environment.module_purge": True, "environment.venv": "/opt/v"}),
        ("conda activate torch26\n", {"environment.conda": "torch26"}),
        ("export A=1 B=\"x y\" C='$HOME'\nexport N=$SLURM_CPUS_PER_TASK\nexport D=$A/x E=\n",
         {"environment.env.A": "1", "environment.env.B": "x y", "environment.env.C": "$HOME", "environment.env.N": "4",
          "environment.env.D": "1/x", "environment.env.E": ""}),
    ],
)  # fmt: skip
def test_lines_become_settings(lines: str, settings: dict[str, Any]):
    assert settings_of(f"{HEAD}{lines}python t.py\n") == {**REQUESTED, **settings}


@for_each(
    ("line", "why"),
    [
        ("X=1", "a variable, `X`, that is not exported"),
        ("export X", "an export of a variable without a value"),
        ("export PATH=/a:$PATH", "only bash knows the value of `PATH`"),
        ("export PATH=/a", "`PATH` changes more than the program"),
        ("export SRUN_CPUS_PER_TASK=4", "`SRUN_CPUS_PER_TASK` changes more than the program"),
        ("export WANDB_API_KEY=1", "a secret has no place in serried.toml"),
        ("export A=$(cat a)", "only bash knows the value of `A`"),
        ("set -a", "an option of the shell"),
        ("cd sub", "it changes the folder"),
        ("cd $PBS_O_WORKDIR", "it changes the folder"),
        ("set -u; echo $UNSET", "a variable may be unset, which `set -u` refuses"),
        ("cd $SLURM_SUBMIT_DIR/sub", "it changes the folder"),
        ("module load $M", "a module that only bash knows, or an option"),
        ("module swap a b", "`module swap`"),
        ("module use modules", "`module use`"),
        ("source env.sh", "only bash knows what the file does"),
        ("source ~/.venv/bin/activate", "only bash knows what the file does"),
        ("source /opt/miniconda3/bin/activate", "only bash knows what the file does"),
        ("conda activate $E", "`conda` with another command than `activate NAME`"),
        ("echo a > b", "a redirection, a pipe, a list or a command in the background"),
        ("echo a && echo b", "a redirection, a pipe, a list or a command in the background"),
        ('echo "${X:=1}"', "`echo` is not recognised"),
        ('echo "$(rm x)"', "`echo` is not recognised"),
        (': "${LR:=0.1}"', "`:` is not recognised"),
        ("printf -v X 1", "`printf` is not recognised"),
        ("hostname me", "`hostname` is not recognised"),
        ("mkdir -p out", "`mkdir` is not recognised"),
        ("ulimit -n 512", "`ulimit` is not recognised"),
        ("wait", "`wait` before the end of the script"),
        ("trap 'x' TERM", "`trap` is not recognised"),
        ("if true; then", "`if` begins a compound command"),
        ("f() { x; }", "parentheses begin or end a function, a list or a subshell"),
        ("cat <<END", "a here-document begins"),
        ("python other.py\n", None),
    ],
)
def test_a_line_that_is_not_recognised_keeps_the_script(line: str, why: str | None):
    found = reasons_of(f"{HEAD}{line}\npython t.py\n")
    assert found == ({3: why} if why else {5: "a command follows the launch"})


@for_each(
    ("before", "after"),
    [
        ("export A=1", "module load a"),
        ("source v/bin/activate", "module load a"),
        ("export A=1", "source v/bin/activate"),
        ("module load a", "module purge"),
        ("conda activate a", "source v/bin/activate"),
    ],
)
def test_an_order_that_serried_does_not_have_keeps_the_script(before: str, after: str):
    assert list(reasons_of(f"{HEAD}{before}\n{after}\npython t.py\n")) == [4]


@for_each(
    ("requests", "line", "why"),
    [
        ("--mem=1G", 0, "it requests no time limit: the scheduler's default holds"),
        ("--time=1", 0, "it requests no memory: the scheduler's default holds"),
        ("--time=1 --mem=1G --ntasks=6 --nodes=4", 0, "the scheduler decides how tasks share the nodes"),
        ("--time=1 --mem=1G --ntasks=6", 0, "the scheduler decides how tasks share the nodes"),
        ("--time=1 --mem=1G --nodes=1-2", 0, "the scheduler decides how tasks share the nodes"),
        ("--time=1 --mem=1G --nodes=2 --ntasks=4", 0, "the scheduler decides how tasks share the nodes"),
        ("--time=1 --mem=1G --gpus-per-node=4", 0, "1 CPUs are not a whole number for each of 4"),
        ("--time=1 --mem=1G --gpus-per-task=1", 2, "only the scheduler knows all that `--gpus-per-task` does"),
        ("--time=1 --mem=1G --exclusive", 2, "only the scheduler knows all that `--exclusive` does"),
        ("--time=1 --mem=1G --gres=gpu:1,tmp:5G", 2, "only the scheduler knows all that `--gres` does"),
        ("--time=1 --mem=1G --hint=nomultithread", 2, "only the scheduler knows all that `--hint` does"),
        ("--time=1 --mem=1G --chdir=/x", 0, "a directive sets the folder of the script"),
        ("--time=1 --mem=1G --dependency=singleton", 0, "a directive sets a dependency"),
        ("--time=1 --mem=1G --requeue", 2, "only the scheduler knows all that `--requeue` does"),
        ("--time=1 --mem=1G --signal=USR1@60", 0, "a directive sets a warning signal"),
        ("--time=1 --mem=1G --export=NONE", 0, "a directive sets the variables that the script inherits"),
        ("--time=1 --mem=1G --export=ALL,API_KEY=1", 0, "a directive sets a secret"),
    ],
)
def test_a_request_that_only_the_scheduler_understands_keeps_the_script(requests: str, line: int, why: str):
    assert reasons_of(f"#!/bin/bash\n#SBATCH {requests}\nsrun python t.py\n")[line] == why


def test_requests_are_those_of_the_script():
    script = (
        "#!/bin/bash\n#SBATCH -J big -N 2 --ntasks-per-node=4 --gres=gpu:a100:4 -c 6 --mem-per-cpu=2G -t 1-0\n"
        "#SBATCH -A lab -p long --qos=high --constraint=a&b --exclude=n1 --mail-type=END --mail-type=FAIL -a 0-9%2\n"
        "#SBATCH --export=ALL,A=1\nsrun python t.py --i $SLURM_ARRAY_TASK_ID\n"
    )
    imported = importing.read(script.encode(), "job.sh")
    assert (imported.name, imported.script) == ("big", None)
    assert dict(imported.settings) == {
        "project.snapshot": False,
        "command": "python t.py --i {task}",
        "launch.kind": "srun",
        "array": "0-9%2",
        "resources.nodes": 2,
        "resources.gpus": 4,
        "resources.gpu_type": "a100",
        "resources.cpus": 6,
        "resources.mem_per_cpu": "2G",
        "resources.time": "1d",
        "resources.account": "lab",
        "resources.partition": "long",
        "resources.qos": "high",
        "resources.constraint": ["a", "b"],
        "resources.mail_type": ["END", "FAIL"],
        "resources.extra": ["--exclude=n1"],
        "environment.env.A": "1",
    }


PBS = "#!/bin/bash\n#PBS -l select=2:ncpus=8:ngpus=4:mpiprocs=4:mem=64gb -l walltime=1:00:00 -l place=scatter -V\n"


def test_a_pbs_script_that_goes_to_its_project_is_taken_over():
    settings = settings_of(f"{PBS}module load a\ncd $PBS_O_WORKDIR\nmpirun -np 8 python t.py\n")
    assert (settings["launch.kind"], settings["resources.nodes"], settings["resources.gpus"]) == ("mpirun", 2, 4)


def test_a_pbs_script_that_starts_at_home_stays():
    assert reasons_of(f"{PBS}mpirun -np 8 python t.py\n") == {
        3: "the scheduler starts the script in your home: `cd $PBS_O_WORKDIR` is missing"
    }
    assert 0 in reasons_of(PBS.replace(" -V", "") + "cd $PBS_O_WORKDIR\nmpirun -np 8 python t.py\n")


def test_variables_of_another_scheduler_are_unknown():
    body = "cd $PBS_O_WORKDIR\nmpirun -np 8 python t.py "
    assert settings_of(f"{PBS}#PBS -J 0-3\n{body}$PBS_ARRAY_INDEX\n")["command"] == "python t.py {task}"
    assert list(reasons_of(f"{PBS}#PBS -J 0-3\n{body}$SLURM_ARRAY_TASK_ID\n")) == [5]
    assert list(reasons_of(f"{HEAD}#SBATCH -a 0-3\npython t.py $PBS_ARRAY_INDEX\n")) == [4]
    assert list(reasons_of(f"{PBS}cd $SLURM_SUBMIT_DIR\nmpirun -np 8 python t.py\n")) == [3, 4]


def test_a_line_that_prints_what_may_be_unset_stays_after_set_u():
    assert reasons_of(f"{HEAD}set -u\necho $UNSET\npython t.py\n") == {
        4: "a variable may be unset, which `set -u` refuses"
    }
    assert settings_of(f"{HEAD}set -u\nexport A=1\necho $A ${{SLURM_JOB_ID}}\npython t.py\n")["command"]


def test_a_script_of_pbs_without_an_interpreter_runs_as_it_is():
    found = reasons_of(f"{PBS}cd $PBS_O_WORKDIR\nmpirun -np 8 python t.py\n".partition("\n")[2])
    assert found == {0: "it begins without `#!`: the scheduler chooses the shell"}


def test_a_project_that_runs_copies_runs_the_script_and_one_in_place_needs_no_key():
    script = f"{HEAD}python t.py\n"
    assert list(reasons_of(script, runs_copies=True)) == [0]
    assert "project.snapshot" not in settings_of(script, runs_copies=False)


@for_each(
    ("first", "is_command"),
    [
        ("#!/bin/bash", True),
        ("#! /bin/bash -e", True),
        ("#!/usr/bin/env bash", True),
        ("#!/bin/sh", False),
        ("#!/bin/bash -l", False),
        ("#!/bin/csh", False),
        ("#!/bin/zsh", False),
        ("#!/usr/bin/env python3", False),
    ],
)
def test_an_interpreter_that_is_not_read_runs_its_script(first: str, is_command: bool):
    script = HEAD.replace("#!/bin/bash", first) + "python t.py\n"
    if is_command:
        assert settings_of(script) == REQUESTED
    else:
        assert reasons_of(script) == {1: "only bash is read, without the profile of a login shell"}


@for_each("line", ["set -e", "set -euo pipefail", "set -o errexit"])
def test_a_line_after_the_program_counts_unless_a_failure_ends_the_script(line: str):
    script = f"{HEAD}python t.py\necho done\n"
    assert reasons_of(script) == {4: "the status of this line is that of the script"}
    assert settings_of(script.replace("python", f"{line}\npython")) == REQUESTED
    assert settings_of(script.replace("#!/bin/bash", "#!/bin/bash -e")) == REQUESTED
    assert settings_of(script.replace("python", "srun python"))["launch.kind"] == "srun"


def test_a_script_without_a_launch_runs_as_it_is():
    assert reasons_of(f"{HEAD}echo hello\n") == {0: "no line starts a program"}


def test_windows_line_breaks_are_read_and_refused_where_the_script_has_to_run():
    script = f"{HEAD}python t.py\n".replace("\n", "\r\n")
    assert settings_of(script) == REQUESTED
    with pytest.raises(UsageError) as refusal:
        importing.read(script.replace("python", "mkdir x\r\npython").encode(), "my job.sh")
    assert refusal.value.message == "`my job.sh` has DOS line breaks (CR LF), so the scheduler refuses it"
    assert refusal.value.hint == r"convert the line breaks: sed -i 's/\r$//' 'my job.sh'"


def test_text_that_is_not_utf_8_runs_as_it_is():
    imported = importing.read(f"{HEAD}# f".encode() + b"\xfcr\npython t.py\n", "job.sh")
    assert [reason.why for reason in imported.reasons] == ["the script is not UTF-8 text"]


def test_the_first_reason_of_each_line_is_listed_in_the_order_of_lines():
    found = reasons_of(f"{HEAD}a && b || c\nmkdir x\npython t.py\n")
    assert list(found) == [3, 4]
