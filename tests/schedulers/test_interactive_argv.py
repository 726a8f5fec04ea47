"""The commands that `serried shell` runs, word for word."""

from __future__ import annotations

import pytest

from building import a_plan
from serried import schedulers
from serried.base.errors import UsageError


def spelled(plan, **how):
    how = {"now": False, "has_terminal": True, **how}
    return list(schedulers.get(plan.site.scheduler).interactive(plan, "k3f9q2-1", {}, **how).argv)


def on_pbs(**facts):
    plan = a_plan(root="/scratch/ada", scheduler="pbs", **facts)
    return plan._replace(site=plan.site._replace(private="/home/ada/private"))


def test_salloc_has_the_tasks_that_the_plan_has_ranks_and_the_shell_all_of_the_first_node():
    plan = a_plan(root="/scratch/ada", gpus=2, memory_mb=2048, partition="short", extra=("--nice=5",))

    assert spelled(plan) == [
        *["salloc", "--quiet", "--job-name=train-k3f9q2-1", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2"],
        *["--mem=2048M", "--gres=gpu:2", "--time=1:00:00", "--partition=short", "--nice=5"],
        *["srun", "--relative=0", "--preserve-env", "--nodes=1", "--ntasks=1", "--cpus-per-task=4", "--overlap"],
        *["--export=ALL", "--pty", "/bin/bash", "/scratch/ada/digits/train/k3f9q2/job.sh", "k3f9q2-1"],
    ]


def test_without_a_terminal_the_step_has_none_and_now_does_not_wait():
    words = spelled(a_plan(), now=True, has_terminal=False)

    assert ("--immediate" in words, "--pty" in words) == (True, False)


def test_qsub_has_as_many_lines_in_its_node_file_as_the_plan_has_ranks():
    assert spelled(on_pbs(account="ada")) == [
        *["qsub", "-I", "-N", "train-k3f9q2-1", "-l", "select=2:ncpus=4:mpiprocs=2", "-l", "place=scatter"],
        *["-l", "walltime=1:00:00", "-A", "ada", "--", "/bin/bash", "/scratch/ada/digits/train/k3f9q2/job.sh"],
        *["k3f9q2-1", "/home/ada/private/k3f9q2"],
    ]


def test_pbs_gives_none_without_a_terminal():
    with pytest.raises(UsageError, match="terminal"):
        spelled(on_pbs(), has_terminal=False)


def test_beside_a_run_each_has_its_own_way():
    words = ("/bin/bash", "-c", "echo 'a b'")
    joined = {
        name: schedulers.get(name).join("7_3", "n2", words, has_terminal=True) for name in ("local", "pbs", "slurm")
    }

    assert joined == {
        "slurm": (
            *("srun", "--jobid=7_3", "--nodelist=n2", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--overlap"),
            *("--export=ALL", "--pty", *words),
        ),
        "pbs": ("ssh", "-t", "n2", "/bin/bash -c 'echo '\"'\"'a b'\"'\"''"),
        "local": words,
    }
