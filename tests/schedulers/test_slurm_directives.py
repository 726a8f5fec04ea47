"""`#SBATCH` lines are read as sbatch reads them."""

from __future__ import annotations

import pytest

from serried import schedulers
from serried.base.errors import UsageError
from serried.schedulers.directives import Directive, Directives, Export, JobSize, Objection, WarningSignal, form
from serried.schedulers.slurm import directives

SIMPLE = {"resources.nodes": 1, "resources.gpus": 0, "resources.ranks": 1}


def with_simple(settings):
    """Keys without a table are those of `resources`; None takes one away."""
    named = {key if "." in key else f"resources.{key}": value for key, value in settings.items()}
    return {key: value for key, value in (SIMPLE | named).items() if value is not None}


def read(*lines, environment=None) -> Directives:
    text = "\n".join(["#!/bin/bash", *lines, "srun true", ""])
    return directives.read(text, environment, "train.sh")


def words(*lines, environment=None):
    return [word for option in read(*lines, environment=environment).options for word in option.words]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["#SBATCH -N 2", "#SBATCH --mem 4G"], ["--nodes=2", "--mem=4G"]),
        (["#SBATCH -N2 -t1:00 # comment", "#SBATCH\t--hold"], ["--nodes=2", "--time=1:00", "--hold"]),
        (["# SBATCH -N2", "##SBATCH -N3", " #SBATCH -N4", "", "  # text", "#SBATCH-n5"], ["--ntasks=5"]),
        (["#SBATCH -HN4"], ["--hold", "--nodes=4"]),
        (["#SBATCH -N", "#SBATCH 2"], ["--nodes=2"]),
        (["#SLURM -N2"], ["--nodes=2"]),
        (["#SBATCH --part=gpu --ntasks-per-n=2"], ["--partition=gpu", "--ntasks-per-node=2"]),
        (["#SBATCH --tasks-per-node=2"], ["--ntasks-per-node=2"]),
        (["#SBATCH --comment='a \"b' -p x"], ['--comment=a "b', "--partition=x"]),
        (["#SBATCH --comment=x\\#y\\ z"], ["--comment=x#y z"]),
        (['#SBATCH --comment="it\\"s"tail'], ['--comment=it"stail']),
        (['#SBATCH -p "" -N2', "#SBATCH gpu"], ["--partition=gpu"]),
        (["#SBATCH -N2", "#SBATCH --nodes=4"], ["--nodes=4"]),
        (["#SBATCH --requeue -N2", "#SBATCH --no-requeue"], ["--requeue", "--nodes=2", "--no-requeue"]),
        (["#SBATCH -N2 --exclusive", "#SBATCH --exclusive=user"], ["--nodes=2", "--exclusive=user"]),
        (["#SBATCH --mail-type=begin", "#SBATCH --mail-type=end"], ["--mail-type=BEGIN,END"]),
        (["#SBATCH --container-image=img --site-flag"], ["--container-image=img", "--site-flag"]),
        (["#SBATCH --container-image docker://img -N1"], ["--container-image=docker://img", "--nodes=1"]),
        (["#SBATCH -N1 --"], ["--nodes=1"]),
        (["#SBATCH -N1\r"], ["--nodes=1"]),
        (["#SBATCH -N1", "echo", "#SBATCH -N2"], ["--nodes=1"]),
        (["#SBATCH -J a -o x -e y -D /z -a 1 -d singleton --signal=10 --export=NONE -i in -W -Q"], []),
    ],
)
def test_words(lines, expected):
    assert words(*lines) == expected


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("#SBATCH -N2 two", "sbatch has no use for the word `two`", "options begin with a dash"),
        ("#SBATCH -N2 -- -n4", "sbatch has no use for the word `-n4`", "options begin with a dash"),
        ("#SBATCH --comment='a", "sbatch finds an unmatched quote", "close the quote on the same line"),
        ("#SBATCH -N2 :", "sbatch does not accept a word that begins with `:`", None),
        ("#SBATCH --nodes", "`--nodes` needs a value", None),
        ("#SBATCH -y", "sbatch has no option `-y`", None),
        ("#SBATCH --hold=yes", "`--hold` takes no value", None),
        ("#SBATCH --mem-per=1", "`--mem-per` is ambiguous", "sbatch has `--mem-per-cpu`, `--mem-per-gpu`"),
        ("#SBATCH hetjob", "Serried does not support heterogeneous jobs", "submit this script with `sbatch`"),
        ("#SBATCH packjob -N2", "Serried does not support heterogeneous jobs", "submit this script with `sbatch`"),
        ("#SBATCH --time=:30", "`:30` is not a time limit", "`90` (minutes), `2:30:00` or `1-12:00:00`"),
        ("#SBATCH --mem=1.5G", "`--mem=1.5G`: sbatch expects a whole number and a unit", "`--mem=64G`"),
        (
            "#SBATCH --mem=1G --mem-per-cpu=1G",
            "sbatch accepts only one of `--mem`, `--mem-per-cpu` and `--mem-per-gpu`",
            None,
        ),
        ("#SBATCH -n 0", "`--ntasks=0`: sbatch expects a number from 1", None),
        ("#SBATCH -N4-2", "`--nodes=4-2`: the maximum is less than the minimum", None),
        ("#SBATCH -N few", "`few` is not a number of nodes", "`--nodes=4` or `--nodes=2-4`"),
        ("#SBATCH --gpus=a:b:2", "`a:b:2` is not a number of GPUs", "`4`, or a type and a number: `a100:4`"),
        ("#SBATCH --signal=NO@3", "`NO@3` is not a warning signal", "`--signal=B:USR1@120`"),
        ("#SBATCH --open-mode=x", "`x` is not an open mode", "use `append` or `truncate`"),
    ],
)
def test_what_sbatch_refuses_is_refused_with_the_line(line, message, hint):
    with pytest.raises(UsageError) as refused:
        read("# a comment", line)
    assert (refused.value.message, refused.value.hint) == (f"line 3 of `train.sh`: {message}", hint)


@pytest.mark.parametrize(
    ("line", "settings", "size"),
    [
        ("-N2", {"nodes": 2}, JobSize(2, 2)),
        ("-N2-4 -n9", {"nodes": 2, "ranks": 5, "cpus": 1}, JobSize(2, 9, 0, 5)),
        ("-n6", {"nodes": None, "ranks": 6, "cpus": 1}, JobSize(1, 6, 0, 6)),
        ("-n6 -N4", {"nodes": 4, "ranks": 2, "cpus": 1}, JobSize(4, 6, 0, 2)),
        ("-n6 --ntasks-per-node=2 -c3", {"nodes": 3, "ranks": 2, "cpus": 3}, JobSize(3, 6, 0, 6)),
        ("-w n[1-3]", {"nodes": 3}, JobSize(3, 3)),
        ("-G6", {"nodes": None, "gpus": 6}, JobSize(1, 1, 6, 1)),
        ("-G a100:8 -N2", {"nodes": 2, "gpus": 4, "gpu_type": "a100"}, JobSize(2, 2, 4)),
        ("-G8 --gpus-per-node=4", {"nodes": 2, "gpus": 4}, JobSize(2, 2, 4)),
        (
            "-N2 --gpus-per-node=v100:4 --ntasks-per-node=4 --cpus-per-gpu=6 --mem-per-gpu=20G",
            {"nodes": 2, "gpus": 4, "gpu_type": "v100", "ranks": 4, "cpus": 6, "mem": "20G"},
            JobSize(2, 8, 4, 24),
        ),
        ("-N1 --ntasks-per-node=4 --gpus-per-task=1 -c 8", {"gpus": 4, "ranks": 4, "cpus": 8}, JobSize(1, 4, 4, 32)),
        ("--gpus-per-task=2 -G8 -N1", {"gpus": 8, "ranks": 4}, JobSize(1, 4, 8, 4)),
        ("--ntasks-per-gpu=2 --gres=gpu:2", {"gpus": 2, "ranks": 4, "cpus": 2}, None),
        ("--gres=gpu:a100:4", {"gpus": 4, "gpu_type": "a100"}, None),
        ("--gres=gpu:a100:1,gpu:v100:2", {"gpus": 3}, None),
        ("--gres=shard:2,gpu", {"gpus": 1}, None),
        ("--gres=none", {}, JobSize()),
        ("--mem=0", {"mem_per_node": "all"}, None),
        ("--mem=2000", {"mem_per_node": "2000M"}, None),
        ("--mem-per-cpu=2gb", {"mem_per_cpu": "2G"}, None),
        ("-t 90", {"time": "1h30m"}, None),
        ("-t 0:30", {"time": "1m"}, None),
        ("-t 25:61:61", {"time": "1d2h3m"}, None),
        ("-t 2-", {"time": "2d"}, None),
        ("-t 1-2", {"time": "1d2h"}, None),
        ("-t 1-2:3", {"time": "1d2h3m"}, None),
        ("-t UNLIMITED", {}, None),
        ("-t 0", {}, None),
        (
            "-A lab -p a,b -q high --reservation=r -C 'a&b' -L x:1,y --mail-user=me --comment=hi --exclusive",
            {
                "account": "lab",
                "partition": "a,b",
                "qos": "high",
                "reservation": "r",
                "constraint": ["a", "b"],
                "licenses": ["x:1", "y"],
                "mail_user": "me",
                "comment": "hi",
                "exclusive": True,
            },
            None,
        ),
        ("-C [a|b]&c", {"constraint": ["[a|b]&c"]}, None),
        ("-A= --licenses=", {"account": "=", "licenses": []}, None),
        ("--mail-type=begin --mail-type=NONE", {"mail_type": ["BEGIN"]}, None),
        ("--mail-type=begin,NONE", {"mail_type": ["NONE"]}, None),
        ("--exclusive=user", {}, None),
        ("--signal=USR1@120", {"limit.warn_before": "120s", "limit.notify": "USR1"}, None),
        ("--signal=KILL@30", {"limit.warn_before": "30s"}, None),
        ("--signal=B:SIGTERM", {"limit.warn_before": "60s"}, None),
    ],
)
def test_settings(line, settings, size):
    result = read(f"#SBATCH {line}")
    assert result.settings == with_simple(settings)
    assert size is None or result.size == size


def test_fields_that_serried_owns():
    result = read(
        "#SBATCH -J 'my job' --output=logs/%x-%j.out -e err -D /work -a 0-99%8 -d afterok:1 -i in.txt",
        "#SBATCH --open-mode=append --signal=B:USR1@120 --export=A,B=2",
    )
    assert result == Directives(
        settings=SIMPLE | {"limit.warn_before": "120s"},
        name="my job",
        output="logs/%x-%j.out",
        error="err",
        chdir="/work",
        array="0-99%8",
        dependency="afterok:1",
        input="in.txt",
        appends=True,
        signal=WarningSignal("USR1", 120, to_script=True),
        export=Export(("A",), {"B": "2"}, has_login=True),
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ALL", Export("all")),
        ("ALL,X=1", Export("all", {"X": "1"})),
        ("NONE", Export("none", {}, has_login=True)),
        ("X=1", Export("none", {"X": "1"}, has_login=True)),
        ("\\'X=1,2\\',Y=\\'3\\'", Export("none", {"X": "1,2", "Y": "'3'"}, has_login=True)),
    ],
)
def test_export(value, expected):
    assert read(f"#SBATCH --export={value}").export == expected


def test_an_option_has_its_keys_and_its_line():
    assert read("#SBATCH --gres=gpu:2", "#SBATCH -t 1", "#SBATCH --gres=lustre:1 -c2").options == (
        Directive(("--gres=lustre:1",), (), 4),
        Directive(("--time=1",), ("time",), 3),
        Directive(("--cpus-per-task=2",), ("cpus",), 4),
    )
    assert read("#SBATCH --gres=gpu:2").options[0].keys == ("gpus", "gpu_type")


def test_variables_win_over_the_script_as_in_sbatch():
    result = read(
        "#SBATCH -A mine -t 10 --mem-per-cpu=1G",
        environment={"SBATCH_ACCOUNT": "theirs", "SBATCH_TIMELIMIT": "20", "SBATCH_OVERCOMMIT": "1"}
        | {
            "SBATCH_EXCLUSIVE": "",
            "SBATCH_MEM_PER_NODE": "9G",
            "SBATCH_NODES": "9",
            "SBATCH_DEBUG": "1",
            "SLURM_JOB_ID": "3",
        },
    )
    assert result.options == (
        Directive(("--account=theirs",), ("account",), 0, "SBATCH_ACCOUNT"),
        Directive(("--time=20",), ("time",), 0, "SBATCH_TIMELIMIT"),
        Directive(("--mem-per-cpu=1G",), ("mem", "mem_per_node", "mem_per_cpu"), 2),
        Directive(("--exclusive",), ("exclusive",), 0, "SBATCH_EXCLUSIVE"),
        Directive(("--overcommit",), (), 0, "SBATCH_OVERCOMMIT"),
    )


def test_notes_name_what_is_not_honoured():
    result = read("#SBATCH --wait -M other", "#PBS -N x", "echo", "#SBATCH -N2", "#SBATCH -N3")
    assert result.notes == (
        "line 2: Serried does not pass `--wait` on; `serried wait` waits for the run",
        "line 2: Serried does not pass `--clusters` on; submit on the cluster itself, or name it with `--cluster`",
        "sbatch also reads the script's `#PBS` lines; Serried reads its `#SBATCH` lines only",
        "line 5 and 1 more: `sbatch` ignores directives after the first command of the script",
    )


def test_notes_name_what_a_script_finds_otherwise_than_with_sbatch():
    steps = "steps of the script count from 1, because Serried's agents are step 0"
    command = "the `Command` of the job is Serried's `job.sh`"
    expected = {
        "scancel ${SLURM_JOB_ID}.0": (f"line 2: {steps}",),
        'sstat -j "$SLURM_JOBID".1': (f"line 2: {steps}",),
        "me=$(scontrol show job $SLURM_JOB_ID | awk -F= '/Command=/{print $2}')": (f"line 2: {command}",),
        "scontrol show job $SLURM_JOB_ID | grep Command | cut -d= -f2": (f"line 2: {command}",),
        "# scancel ${SLURM_JOB_ID}.0": (),
        "cp a.pt $SLURM_JOB_ID.pt; scancel $SLURM_JOB_ID": (),
    }
    assert {line: read(line).notes for line in expected} == expected


def test_which_scheduler_a_script_is_for():
    assert schedulers.WITH_DIRECTIVES == ("pbs", "slurm")
    assert schedulers.of_script("#!/bin/sh\n#SBATCH -N1\n") == "slurm"
    assert schedulers.of_script("#!/bin/sh\n  #PBS -N x\n") == "pbs"
    assert schedulers.of_script("#!/bin/sh\n#SBATCH -N1\n#PBS -N x\n") == "slurm"
    assert schedulers.of_script("#!/bin/sh\n#SBATCH -N1\n#PBS -N x\n", "pbs") == "pbs"
    assert schedulers.of_script("#!/bin/sh\n#SBATCH -N1\n#PBS -N x\n", "local") == "slurm"
    assert schedulers.of_script("#!/bin/sh\ntrue\n#SBATCH -N1\n") is None
    with pytest.raises(UsageError):
        schedulers.reader("local")


@pytest.mark.parametrize(
    ("text", "interpreter", "objections"),
    [
        ("#!/bin/bash\ntrue\n", ("/bin/bash",), set()),
        ("#! /usr/bin/env  python3 -u \n", ("/usr/bin/env", "python3 -u"), set()),
        ("#!\n", (), set()),
        ("true\n", (), {Objection.NO_INTERPRETER}),
        (" \n", (), {Objection.EMPTY, Objection.NO_INTERPRETER}),
        ("#!/bin/sh\r\n\0", ("/bin/sh",), {Objection.DOS_LINES, Objection.NUL}),
    ],
)
def test_the_form_of_a_script(text, interpreter, objections):
    assert form(text) == (interpreter, objections)
    assert set(Objection) == schedulers.reader("slurm").OBJECTIONS
    assert Objection.NO_INTERPRETER not in schedulers.reader("pbs").OBJECTIONS
