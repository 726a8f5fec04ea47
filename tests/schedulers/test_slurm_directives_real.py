"""A job submitted with the options that Serried reads is the job that sbatch makes of the script itself."""

from __future__ import annotations

import re

import pytest

from serried.base.errors import UsageError
from serried.schedulers.slurm import directives

DIFFER = ("JobId", "ArrayJobId", "Command", "SubmitTime", "AccrueTime", "LastSchedEval", "AllocNode:Sid", "Priority")


def fields(lab, submitted):
    """What Slurm knows of a job, by field, without those that differ between any two jobs."""
    assert submitted.status == 0, submitted.stderr
    job = submitted.stdout.strip()
    shown = lab.run("scontrol", "show", "job", job).stdout
    lab.run("scancel", job)
    pairs = re.findall(r"^ *([^\s=]+)=(.*?) *$", re.sub(r" (?=[A-Z][\w/:]*=)", "\n", shown), re.MULTILINE)
    assert len(pairs) > 40
    return {
        name: re.sub(rf"(?<=[- ]){job}(?!\d)", "JOB", value) if name.startswith("Std") else value
        for name, value in pairs
        if name not in DIFFER
    }


def as_options(read):
    """The command line that asks for the same, with what Serried itself would decide."""
    warning = read.signal
    owned = {
        "job-name": read.name,
        "output": read.output,
        "error": read.error,
        "array": read.array,
        "dependency": read.dependency,
        "chdir": read.chdir,
        "input": read.input,
        "signal": warning and f"{'B:' if warning.to_script else ''}{warning.name}@{warning.seconds}",
    }
    words = [word for option in read.options for word in option.words]
    return [*words, *(f"--{name}={value}" for name, value in owned.items() if value)]


READ_ALIKE = [
    "#SBATCH -N\n#SBATCH 2",
    "#SBATCH -J a#b -N2",
    '#SBATCH -J "" -N2\n#SBATCH zz -n3',
    "#SBATCH-N2\n\t# text\n   \n#SBATCH\t-t1",
    '#SBATCH -J \'a b\' --comment="it\\"s"tail\\#x # comment',
    "# SBATCH -N3\n##SBATCH -N3\n #SBATCH -N3\n#SBATCH -n2",
    "#SBATCH -N1\n:\n#SBATCH -N2",
    "#SLURM -N2",
    "#SBATCH --part=lab --ntasks-per-n=2 -N2 --tasks-per-node=3",
    "#SBATCH -N2\n#SBATCH --nodes=3\n#SBATCH --gres=gpu:2\n#SBATCH --gres=gpu:1",
    "#SBATCH --mail-type=begin --mail-user=me\n#SBATCH --mail-type=end,TIME_LIMIT_80",
    "#SBATCH --mail-type=begin\n#SBATCH --mail-type=NONE",
    "#SBATCH --mail-type=begin,NONE\n#SBATCH --mail-type=end",
    "#SBATCH --nodes=2-4 --ntasks=9 --time-min=10 -t 20",
    "#SBATCH -n6",
    "#SBATCH -n6 -N4",
    "#SBATCH -n6 --ntasks-per-node=2 -c3",
    "#SBATCH -w n[1-3]",
    "#SBATCH -N2-2 --gpus-per-node=2 --cpus-per-gpu=2 --mem-per-gpu=2G",
    "#SBATCH -G6 --exclusive",
    "#SBATCH --gpus-per-task=2 -n4",
    "#SBATCH --ntasks-per-gpu=2 --gpus=4",
    "#SBATCH -N1 --mem=0",
    "#SBATCH --mem=2gb",
    "#SBATCH --mem-per-cpu=512 --begin=2035-01-20T12:34:00 --nice=5",
    "#SBATCH -o logs/%x-%j.out -e err-%A.txt -D /tmp -i /etc/hostname",
    "#SBATCH -a 0-9:3%2 -d singleton --no-requeue",
    "#SBATCH --no-requeue --requeue --signal=B:USR1@120",
    *(f"#SBATCH -t {limit}" for limit in ("90", "0:30", "25:61:61", "2-", "1-2", "1-2:3", "1-02:03:04", "0")),
]
REFUSED = [
    "#SBATCH -N2 two",
    "#SBATCH -N2 -- -n4",
    "#SBATCH --comment='a",
    "#SBATCH -N2 :",
    "#SBATCH --nodes",
    "#SBATCH -y",
    "#SBATCH --hold=yes",
    "#SBATCH --mem-per=1",
    "#SBATCH -t x",
    "#SBATCH -t --\n#SBATCH -t 10",
    "#SBATCH --time=:30",
    "#SBATCH --mem=1.5G",
    "#SBATCH --mem=1G --mem-per-cpu=1G",
    "#SBATCH -n 0",
    "#SBATCH -N4-2",
    "#SBATCH -N few",
    "#SBATCH --signal=NO@3",
    "#SBATCH --open-mode=x",
]


@pytest.fixture
def script(tmp_path):
    def write(header):
        path = tmp_path / "train.sh"
        path.write_text(f"#!/bin/bash\n{header}\nsleep 1\n")
        return path

    return write


@pytest.mark.parametrize("header", READ_ALIKE)
def test_sbatch_makes_the_same_job_of_the_options_read(lab, script, header):
    path = script(header)
    read = directives.read(path.read_text())
    by_itself = fields(lab, lab.run("sbatch", "--parsable", "--hold", path))
    path.write_text("#!/bin/bash\nsleep 1\n")
    by_options = fields(lab, lab.run("sbatch", "--parsable", "--hold", *as_options(read), path))
    assert by_options == by_itself
    least = by_itself["NumNodes"].partition("-")[0]
    assert (int(least), int(by_itself["NumTasks"])) == (read.size.nodes, read.size.tasks)


@pytest.mark.parametrize("header", REFUSED)
def test_sbatch_refuses_what_is_refused(lab, script, header):
    path = script(header)
    with pytest.raises(UsageError):
        directives.read(path.read_text())
    assert lab.run("sbatch", "--parsable", "--hold", path).status != 0


def test_variables_of_the_submitting_shell_win_over_the_script(lab, script):
    path = script("#SBATCH -t 10 -N1 --comment=x")
    variables = {"SBATCH_TIMELIMIT": "20", "SBATCH_EXCLUSIVE": "", "SBATCH_OVERCOMMIT": "1", "SBATCH_JOB_NAME": "job"}
    read = directives.read(path.read_text(), variables)
    entries = [f"{name}={value}" for name, value in variables.items()]
    by_itself = fields(lab, lab.run("env", *entries, "sbatch", "--parsable", "--hold", path))
    path.write_text("#!/bin/bash\nsleep 1\n")
    assert fields(lab, lab.run("sbatch", "--parsable", "--hold", *as_options(read), path)) == by_itself
    assert (by_itself["TimeLimit"], by_itself["JobName"]) == ("00:20:00", "job")
