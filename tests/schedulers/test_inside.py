"""Which job we are in, and what it has: read from what the schedulers really say."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from serried import schedulers
from serried.base.errors import UsageError
from serried.schedulers.pbs import cluster as pbs
from serried.schedulers.slurm import cluster as slurm
from serried.schedulers.survey import Inside
from tables import for_each

NOW = time.mktime(time.strptime("2026-11-21T19:09:31", "%Y-%m-%dT%H:%M:%S"))

SALLOC = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_CPUS_PER_TASK": "3",
}

SCONTROL = (
    "JobId=7 JobName=interactive TimeLimit=00:10:00 StartTime=2026-11-21T19:09:21 EndTime=2026-11-21T19:19:21 "
    "NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=4 TRES=cpu=4,mem=4G,node=2,billing=4 JOB_GRES=gpu:4"
    "   Nodes=n1 CPU_IDs=0-1,14-15 Mem=2048 GRES=gpu:v100:2(IDX:0-1),gpu:1(IDX:3)"
    "   Nodes=n2 CPU_IDs=4-5 Mem=2048 GRES=gpu:v100:2(IDX:0-1) MinCPUsNode=2 TresPerNode=gres:gpu:2\n"
)

QSTAT = """Job Id: 53.pbshead
    Job_Name = x
    job_state = R
    exec_host = pbsn1/0*2+pbsn2/0*4
    exec_vnode = (pbsn1:ncpus=2:ngpus=1)+(pbsn2:ncpus=4:ngpus=1)
    Resource_List.select = 1:ncpus=2:mpiprocs=2:ngpus=1+1:ncpus=4:mpiprocs=2:ngpus=2
    Resource_List.walltime = 01:30:00
    resources_used.walltime = 00:10:30
    stime = Sat Nov 21 18:57:31 2026
"""


def test_outside_of_any_job_there_is_none():
    assert schedulers.job_around({"PATH": "/usr/bin", "SLURM_CONF": "/etc/slurm.conf"}) is None


@for_each("job", ["SLURM_JOB_ID=77", "PBS_JOBID=77.here"])
def test_the_variables_of_a_job_script_without_its_scheduler_are_no_job(job):
    variables = {**dict([job.split("=")]), "SERRIED_SCRIPT_JOB": job, "SERRIED_STAND_INS": "srun"}
    assert schedulers.job_around(variables) is None


def test_of_a_slurm_job_the_least_that_each_node_has_counts():
    found = slurm.described_job(SCONTROL, SALLOC, NOW, "login1.site.edu")

    kept = {name: SALLOC[name] for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CONF")}
    assert replace(found, to_first_node=()) == Inside(
        "slurm", "7", ("n1", "n2"), cpus=2, gpus=2, tasks=2, seconds=590, is_here=False, variables=kept
    )
    assert (found.to_first_node[0], found.to_first_node[-1]) == ("srun", "--nodelist=n1")


def test_on_the_first_node_nothing_needs_to_be_started_elsewhere():
    by_name = slurm.described_job(SCONTROL, SALLOC, NOW, "n1.site.edu")
    in_a_step = slurm.described_job(SCONTROL, {**SALLOC, "SLURMD_NODENAME": "n2"}, NOW, "n1")

    assert (by_name.to_first_node, in_a_step.is_here) == ((), False)


def test_one_task_of_several_does_not_start_what_each_of_them_would():
    with pytest.raises(UsageError, match="this is task 1 of a step"):
        schedulers.job_around({**SALLOC, "SLURM_PROCID": "1"})


@for_each("more", [{}, {"PBS_NODEFILE": "/aux/53"}])
def test_one_task_that_pbsdsh_started_does_not_start_what_each_of_them_would(more):
    with pytest.raises(UsageError, match="task 20000001 of job 53"):
        schedulers.job_around({"PBS_JOBID": "53.pbshead", "PBS_TASKNUM": "20000001", **more})


def test_a_job_without_a_limit_or_gpus_has_none():
    text = "JobId=7 EndTime=Unknown   Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1"
    found = slurm.described_job(text, {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}, NOW, "n1")

    assert (found.cpus, found.gpus, found.tasks, found.seconds) == (1, 0, 1, None)


def test_of_a_pbs_job_the_node_file_and_qstat_tell():
    lines = ["pbsn1", "pbsn1", "pbsn2", "pbsn2"]

    assert pbs.described_job(QSTAT, "53.pbshead", lines, NOW) == Inside(
        "pbs",
        "53.pbshead",
        ("pbsn1", "pbsn2"),
        cpus=2,
        gpus=1,
        tasks=2,
        seconds=4680,
        is_here=True,
        has_private_file=True,
    )


def test_the_time_that_pbs_says_was_used_is_not_counted_where_it_is_old():
    assert pbs.described_job(QSTAT, "53.pbshead", ["pbsn1"], NOW - 600).seconds == 5400 - 630
    assert pbs.described_job(QSTAT.replace("stime", "qtime"), "53.pbshead", ["pbsn1"], NOW).seconds == 5400 - 630


def test_a_pbs_job_with_gpus_on_some_nodes_alone_has_none_on_each():
    text = QSTAT.replace("mpiprocs=2:ngpus=2", "mpiprocs=2")

    assert pbs.described_job(text, "53.pbshead", ["pbsn1", "pbsn2"], NOW).gpus == 0
