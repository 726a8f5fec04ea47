"""The use of jobs from the accounts of schedulers alone: `sacct` with and without jobstats, `qstat -x -f`."""

from __future__ import annotations

import base64
import gzip
import json

import pytest

from serried.report.jobs import usage_of_account
from serried.report.rules import judge
from serried.schedulers.accounts import GpuAccount, NodeAccount
from serried.schedulers.pbs import accounts as pbs
from serried.schedulers.slurm import accounts as slurm

GIB = 1 << 30
JOBSTATS = {
    "gpus": 2,
    "total_time": 14400,
    "nodes": {
        "della-l01g12": {
            "cpus": 16,
            "gpu_total_memory": {"0": 80 * GIB, "1": 80 * GIB},
            "gpu_used_memory": {"0": 60 * GIB, "1": 0},
            "gpu_utilization": {"0": 92.5, "1": 0.0},
            "total_memory": 256 * GIB,
            "total_time": 57600.0,
            "used_memory": 20 * GIB,
        }
    },
}
"""As jobstats' README describes the JSON of `jobstats -j`; the numbers are chosen."""


def summary(value):
    return "JS1:" + base64.b64encode(gzip.compress(json.dumps(value).encode(), mtime=0)).decode()


def row(**fields):
    usual = {
        "JobID": "4711",
        "State": "COMPLETED",
        "Start": "1795000000",
        "End": "1795014400",
        "ElapsedRaw": "14400",
        "TimelimitRaw": "1440",
        "NNodes": "1",
        "AllocCPUS": "16",
        "AllocTRES": "billing=16,cpu=16,gres/gpu:a100=2,gres/gpu=2,mem=256G,node=1",
        "TotalCPU": "16:00:00",
        "NodeList": "della-l01g12",
        "Cluster": "della",
        "JobName": "train",
    }
    return "\x1f".join({**usual, **fields}.get(name, "") for name in slurm.FIELDS)


def step(**fields):
    return row(**{"AllocTRES": "", "TimelimitRaw": "", "JobName": "python", "NTasks": "1", **fields})


def test_a_job_with_the_summary_of_jobstats():
    (job,) = slurm.jobs(row(AdminComment=summary(JOBSTATS)) + "\n" + step(JobID="4711.batch", MaxRSS="99G"))
    assert job.source == "jobstats"
    assert (job.gpus, job.gpu_type, job.cpus, job.memory) == (2, "a100", 16, 256 * GIB)
    assert (job.seconds, job.limit_seconds, job.node_names) == (14400, 86400, ("della-l01g12",))
    assert job.used == (
        NodeAccount(
            "della-l01g12",
            cpus=16.0,
            cpu_seconds=57600.0,
            memory=20 * GIB,
            memory_total=256 * GIB,
            gpus=(GpuAccount("0", 92.5, 60 * GIB, 80 * GIB), GpuAccount("1", 0.0, 0.0, 80 * GIB)),
        ),
    )


def test_its_notes_name_options_of_the_scheduler():
    (job,) = slurm.jobs(row(AdminComment=summary(JOBSTATS)))
    usage = usage_of_account(job)
    assert (usage.cpu and usage.cpu.mean, usage.busy and usage.busy.mean) == (4.0, 46.25)
    assert {note.rule: note.change for note in judge(usage)} == {
        "gpu-idle": "--gpus-per-node=1",
        "cpu-mem-over": "--mem=24G",
        "time-over": "--time=5:00:00",
    }


def test_a_job_with_the_accounts_of_slurm_alone():
    steps = [
        step(JobID="4711.batch", MaxRSS="1G", TRESUsageInTot="cpu=00:00:01,mem=1G"),
        step(
            JobID="4711.0",
            NNodes="2",
            NTasks="8",
            MaxRSS="9G",
            TRESUsageInTot="cpu=16:00:00,fs/disk=0,mem=64G,gres/gpumem=300G",
            TRESUsageInAve="cpu=02:00:00,gres/gpuutil=37,gres/gpumem=40G",
            TRESUsageInMax="cpu=02:00:00,gres/gpuutil=60,gres/gpumem=41G",
        ),
    ]
    tres = "cpu=64,gres/gpu=8,mem=512G,node=2"
    whole = row(NNodes="2", AllocCPUS="64", AllocTRES=tres, TotalCPU="1-08:00:00", NodeList="n[1-2]")
    (job,) = slurm.jobs("\n".join([whole, *steps]))
    assert job.source == "the accounts of the steps"
    (mean,) = job.used
    assert mean == NodeAccount(
        "", cpus=32.0, cpu_seconds=57600.0, memory=33 * GIB, gpus=(GpuAccount("mean", 37.0, 41 * GIB, None),)
    )
    usage = usage_of_account(job)
    assert (usage.cpu and usage.cpu.mean, usage.node_memory and usage.node_memory.maximum) == (4.0, 33 * GIB)


def side_by_side(at, **fields):
    return step(JobID=f"4711.{at}", MaxRSS="30G", **fields)


def test_steps_that_run_side_by_side_need_their_memory_together():
    steps = [side_by_side(at) for at in range(4)]
    after = [side_by_side(at, Start="1795014400", End="1795014500") for at in (4, 5)]
    (job,) = slurm.jobs("\n".join([row(), *steps, *after]))
    assert [node.memory for node in job.used] == [120 * GIB]


@pytest.mark.parametrize(
    ("steps", "busy"),
    [([(1, 160)], 80.0), ([(1, 80)], 40.0), ([(2, 90)], 90.0), ([(1, 90), (1, 70)], 80.0), ([(1, 300)], 100.0)],
    ids=["two GPUs of a task", "one of two GPUs", "a GPU for each task", "a GPU for each step", "odd"],
)
def test_the_use_of_gpus_is_that_of_all_gpus_of_the_job(steps, busy):
    rows = [
        step(JobID=f"4711.{at}", NTasks=str(tasks), TRESUsageInAve=f"gres/gpuutil={mean}")
        for at, (tasks, mean) in enumerate(steps)
    ]
    (job,) = slurm.jobs("\n".join([row(), *rows]))
    assert [gpu.busy for node in job.used for gpu in node.gpus] == [busy]


def test_the_memory_of_a_task_is_shared_by_its_gpus():
    used = step(JobID="4711.0", AllocTRES="cpu=8,gres/gpu=2,node=1", TRESUsageInMax="gres/gpumem=80G")
    (job,) = slurm.jobs(f"{row()}\n{used}")
    assert [gpu.memory for node in job.used for gpu in node.gpus] == [40 * GIB]


@pytest.mark.parametrize(
    ("kind", "use"),
    [("a100", "gres/gpuutil=18446744073709551614,gres/gpumem=16777215.99T"), ("a100_1g.5gb", "gres/gpuutil=0")],
    ids=["a GPU that Slurm cannot measure", "a slice of a GPU"],
)
def test_a_gpu_without_known_use_gets_no_note(kind, use):
    whole = row(AllocTRES=f"cpu=16,gres/gpu:{kind}=1,gres/gpu=1,mem=16G,node=1", TimelimitRaw="300")
    (job,) = slurm.jobs("\n".join([whole, step(JobID="4711.0", TRESUsageInAve=use, TRESUsageInMax=use)]))
    assert (job.gpu_type, judge(usage_of_account(job))) == (kind, [])


def test_the_mean_of_several_nodes_is_no_reason_for_less_memory_or_fewer_cpus():
    whole = row(NNodes="2", AllocCPUS="64", AllocTRES="cpu=64,mem=512G,node=2", TotalCPU="16:00:00", TimelimitRaw="300")
    (job,) = slurm.jobs("\n".join([whole, step(JobID="4711.0", NNodes="2", TRESUsageInTot="mem=64G")]))
    assert judge(usage_of_account(job)) == []


def test_fewer_cpus_are_advised_in_words_because_tasks_share_them():
    whole = row(AllocTRES="cpu=16,mem=16G,node=1", TotalCPU="12:00:00", TimelimitRaw="300")
    (job,) = slurm.jobs("\n".join([whole, step(JobID="4711.0", MaxRSS="12G")]))
    notes = [(note.fact, note.change, note.advice) for note in judge(usage_of_account(job))]
    assert notes == [("3.0 of 16 CPUs per node were in use", "", "request 4 CPUs per node")]


@pytest.mark.parametrize(("name", "hours", "rules"), [("interactive", 8, []), ("interactive", 24, ["time-over"])])
def test_a_session_is_not_judged(name, hours, rules):
    whole = row(JobName=name, AllocTRES="cpu=16,mem=16G,node=1", TotalCPU="3-00:00:00", TimelimitRaw=str(60 * hours))
    assert [note.rule for note in judge(usage_of_account(*slurm.jobs(whole)))] == rules


@pytest.mark.parametrize(
    ("comment", "missing"),
    [
        ("JS1:Short", "jobstats recorded nothing, as for short jobs"),
        ("JS1:None", "jobstats recorded nothing, as for short jobs"),
        ("JS1:!!!", "jobstats recorded nothing, as for short jobs"),
        (summary([1]), "jobstats recorded nothing, as for short jobs"),
        (summary({"nodes": {"n1": 3}}), "jobstats recorded nothing, as for short jobs"),
        ("", "the accounts of this cluster have no use of CPUs, memory or GPUs"),
    ],
)
def test_a_job_without_any_use_says_why(comment, missing):
    (job,) = slurm.jobs(row(AdminComment=comment, TotalCPU="00:00:00"))
    assert (job.used, job.missing) == ((), missing)


def test_each_task_of_an_array_is_a_job():
    rows = [row(JobID="4711_1"), step(JobID="4711_1.batch", MaxRSS="1G"), row(JobID="4711_12", State="TIMEOUT")]
    jobs = slurm.jobs("\n".join(rows))
    assert [(job.id, job.state) for job in jobs] == [("4711_1", "COMPLETED"), ("4711_12", "TIMEOUT")]
    assert [job.used[0].memory for job in jobs] == [GIB, None]


def test_cut_and_odd_rows_are_dropped():
    assert slurm.jobs("4711\x1fCOMPLETED\n\nslurm_load error\n") == []
    (job,) = slurm.jobs(
        row(ElapsedRaw="soon", TimelimitRaw="UNLIMITED", NNodes="", AllocCPUS="x", AllocTRES=",=,mem=lots")
    )
    assert (job.seconds, job.limit_seconds, job.nodes, job.cpus, job.memory) == (None, None, 1, 0, None)


QSTAT = """\
Job Id: 812.head
    Job_Name = train
    resources_used.cpupercent = 380
    resources_used.cput = 04:00:00
    resources_used.mem = 8388608kb
    resources_used.ncpus = 16
    resources_used.walltime = 01:00:00
    job_state = F
    exec_host = n1/0*8+n2/0*8
    Resource_List.mem = 64gb
    Resource_List.ncpus = 16
    Resource_List.nodect = 2
    Resource_List.walltime = 10:00:00
    stime = Wed Nov 18 11:07:40 2026
    Exit_status = 0
    substate = 92

"""


def test_a_job_of_pbs():
    (job,) = pbs.jobs(QSTAT)
    assert (job.id, job.state, job.seconds, job.limit_seconds) == ("812.head", "COMPLETED", 3600, 36000)
    assert (job.nodes, job.cpus, job.memory, job.gpus) == (2, 16, 64 * GIB, 0)
    assert job.used == (NodeAccount("", cpus=8.0, cpu_seconds=7200.0, memory=4 * GIB),)
    assert {note.rule: note.change for note in judge(usage_of_account(job))} == {"time-over": "-l walltime=1:30:00"}


@pytest.mark.parametrize(
    ("select", "change"),
    [("1:ncpus=16:mem=64gb:mpiprocs=4", "-l select=1:ncpus=16:mem=10Gb:mpiprocs=4"), ("1:ncpus=16", "-l mem=10Gb")],
)
def test_the_memory_of_a_chunk_of_pbs(select, change):
    one_node = QSTAT.replace("nodect = 2", f"nodect = 1\n    Resource_List.select = {select}")
    (job,) = pbs.jobs(one_node)
    assert {note.rule: note.change or note.advice for note in judge(usage_of_account(job))} == {
        "cpu-low": "request 5 CPUs per node",
        "cpu-mem-over": change,
        "time-over": "-l walltime=1:30:00",
    }
