"""What schedulers say about their clusters, as profiles."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from serried import schedulers
from serried.base.errors import UsageError
from serried.config import definitions, profile
from serried.schedulers import slurm as slurm_traits
from serried.schedulers.local import cluster as local
from serried.schedulers.pbs import cluster as pbs
from serried.schedulers.slurm import cluster as slurm
from serried.schedulers.survey import ArrayLimits, Inside, Learnt
from tables import for_each

OPENPBS = Path(__file__).parent / "pbs"
"""What OpenPBS 23.06.06 printed: two hosts, a queue with limits, a routing queue that is switched off."""


def said(name: str) -> str:
    return (OPENPBS / name).read_text(encoding="utf-8")


def test_partitions_have_the_most_that_any_of_their_nodes_has():
    listed = """\
gpu*|1-00:00:00|gpu:v100:4|40|192000|1-8
gpu*|1-00:00:00|gpu:v100:8|48+|384000+|1-8
cpu|infinite|(null)|64|250000|1-infinite
empty|10:00|(null)|0|0|0
"""
    assert slurm.partitions(listed) == {
        "partitions": {
            "gpu": {"gpus": 8, "time": "1-00:00:00", "nodes": 8, "cpus": 48, "mem": "384000M"},
            "cpu": {"gpus": 0, "cpus": 64, "mem": "250000M"},
            "empty": {"gpus": 0, "time": "10:00"},
        },
        "gpus_per_node": 8,
        "gpu_types": ["v100"],
        "cpus_per_node": 64,
        "default_partition": "gpu",
    }


@for_each(
    ("shown", "nodes"),
    [
        ("PartitionName=gpu MaxNodes=8 TotalCPUs=160 TotalNodes=4 SelectTypeParameters=NONE", (4, None)),
        ("PartitionName=gpu TotalNodes=40\nPartitionName=cpu TotalNodes=3\nPartitionName=other TotalNodes=1", (8, 3)),
        ("PartitionName=gpu TotalNodes=0", (8, None)),
        ("slurm_load_partitions error: Unable to contact slurm controller", (8, None)),
    ],
)
def test_a_job_cannot_have_more_nodes_than_its_partition_has(shown: str, nodes: tuple[int, int | None]):
    table = {"partitions": {"gpu": {"nodes": 8}, "cpu": {}}}
    found = slurm.with_sizes(table, shown)["partitions"]
    assert (found["gpu"]["nodes"], found["cpu"].get("nodes")) == nodes


SHOWN = """\
PartitionName=gpu AllowQos=ALL Default=YES QoS=part_gpu MaxTime=1-00:00:00 State=UP
PartitionName=cpu AllowQos=ALL Default=NO QoS=N/A MaxTime=UNLIMITED State=UP
"""


@for_each(
    ("qos", "gpu"),
    [
        ("normal||\npart_gpu|12:00:00|2\n", {"time": "12:00:00", "jobs": 2}),
        ("part_gpu|2-00:00:00|\n", {"time": "1-00:00:00"}),
        ("", {"time": "1-00:00:00"}),
        ("sacctmgr: error: You are not running a supported accounting_storage plugin\n", {"time": "1-00:00:00"}),
    ],
)
def test_the_qos_of_a_partition_narrows_it(qos: str, gpu: Mapping[str, object]):
    table = {"partitions": {"gpu": {"time": "1-00:00:00"}, "cpu": {}}}
    assert slurm.with_qos(table, SHOWN, qos) == {"partitions": {"gpu": gpu, "cpu": {}}}


def test_queues_and_nodes_of_a_real_openpbs_are_read():
    assert pbs.described(said("qstat-Q-f.txt"), said("qstat-B-f.txt"), said("pbsnodes-a.txt")) == {
        "partitions": {
            "workq": {"gpus": 2, "cpus": 4, "mem": "24152M", "nodes": 2},
            "short": {
                "gpus": 2,
                "cpus": 4,
                "mem": "24152M",
                "time": "12:00:00",
                "nodes": 2,
                "total_gpus": 4,
                "jobs": 1,
            },
        },
        "gpus_per_node": 2,
        "cpus_per_node": 4,
        "default_partition": "workq",
    }


def test_nodes_that_belong_to_a_queue_are_its_own():
    tied = said("pbsnodes-a.txt").replace("     pcpus = 2", "     pcpus = 2\n     queue = short", 1)
    tied = tied.replace("resources_available.ngpus = 2", "resources_available.ngpus = 8", 1)
    found = pbs.described(said("qstat-Q-f.txt"), "", tied)["partitions"]
    assert {name: queue["gpus"] for name, queue in found.items()} == {"short": 8, "workq": 2}
    listed = tied.replace("     queue = short", "     resources_available.Qlist = short,long")
    assert pbs.described(said("qstat-Q-f.txt"), "", listed)["partitions"] == found


@for_each("nodes", ["", "pbsnodes: Server has no node list\n"])
def test_queues_of_which_something_stays_unknown_are_none_to_refuse_others_by(nodes: str):
    assert pbs.described(said("qstat-Q-f.txt"), said("qstat-B-f.txt"), nodes) == {"default_partition": "workq"}


def test_a_pbs_is_learnt_as_a_profile_that_can_be_read():
    answers = {pbs.QUEUES: "qstat-Q-f.txt", pbs.SERVER: "qstat-B-f.txt", pbs.NODES: "pbsnodes-a.txt"}
    learnt = pbs.learn({}, "ada", lambda argv, *_: said(answers[tuple(argv)]))
    assert learnt is not None
    text = profile.text("pbs", learnt, "login3.oak.example", "2026-11-21")
    assert learnt.name == "pbshead"
    assert (
        text
        == """\
# Learnt on login3.oak.example by `serried clusters learn`, 2026-11-21.
# Check these values, and fill in the facts that the scheduler does not know.
scheduler = "pbs"
# title = ""
# docs = "https://"
# contact = ""
# root = "$SCRATCH/serried"
# local_disk = "$TMPDIR"
gpus_per_node = 2
cpus_per_node = 4
default_partition = "workq"

# The cluster's signs: check that no other cluster has hosts of such names.
[match]
hostname = ["login*.oak.example"]

[partitions.workq]
gpus = 2
cpus = 4
mem = "24152M"
nodes = 2

[partitions.short]
gpus = 2
cpus = 4
mem = "24152M"
nodes = 2
time = "12:00:00"
total_gpus = 4
jobs = 1

[sources]
partitions = "`qstat -Q -f` and `pbsnodes -a`"
gpus_per_node = "`pbsnodes -a`"
cpus_per_node = "`pbsnodes -a`"
default_partition = "`qstat -B -f`"
match = "the name of this host, login3.oak.example"
"""
    )
    assert list(definitions.check({"clusters": {"oak": tomllib.loads(text)}}))


@for_each("scheduler", ["slurm", "pbs"])
def test_a_scheduler_that_does_not_answer_teaches_nothing(scheduler: str):
    assert schedulers.cluster(scheduler).learn({}, "ada", lambda *_: None) is None


def test_odd_names_survive_the_way_into_a_profile():
    learnt = Learnt("x", {"partitions": {"a.b": {"gpus": 1}, 'q"é$(id)': {"gpus": 2}}}, {"partitions": "me"})
    read = tomllib.loads(profile.text("slurm", learnt, "h", "today"))
    assert read["partitions"] == {"a.b": {"gpus": 1}, 'q"é$(id)': {"gpus": 2}}


def test_partitions_are_read_with_their_limits_and_gpus():
    listed = """\
debug*|30:00|(null)
long|7-00:00:00|gpu:v100:4(S:0-1),gpu:a100_1g.5gb:7(S:0)
long|7-00:00:00|gpu:h100:8,shard:80
forever|infinite|gpu:2
"""
    assert slurm.partitions(listed) == {
        "partitions": {
            "debug": {"gpus": 0, "time": "30:00"},
            "long": {"gpus": 11, "time": "7-00:00:00"},
            "forever": {"gpus": 2},
        },
        "gpus_per_node": 11,
        "gpu_types": ["a100_1g.5gb", "h100", "v100"],
        "default_partition": "debug",
    }


@for_each("listed", ["", "\n", "slurm_load_partitions: Unable to contact slurm controller"])
def test_what_is_no_list_of_partitions_says_nothing(listed: str):
    assert slurm.partitions(listed) == {}


@pytest.mark.usefixtures("in_lab")
def test_a_real_slurm_answers():
    assert slurm.describe(os.environ) == {
        "partitions": {"lab": {"gpus": 4, "cpus": 16, "mem": "65536M", "nodes": 4}},
        "gpus_per_node": 4,
        "cpus_per_node": 16,
        "gpu_types": [],
        "default_partition": "lab",
    }


@pytest.mark.usefixtures("in_lab")
def test_a_real_slurm_has_a_name():
    assert (slurm.own_name(os.environ), pbs.own_name(os.environ)) == ("lab", "")
    assert local.own_name(os.environ) == os.uname().nodename


def test_slurm_is_asked_once_within_minutes_and_again_where_its_configuration_is_another(tmp_path: Path):
    (tmp_path / "slurm.conf").touch()
    environ = {"PATH": str(tmp_path), "SLURM_CONF": str(tmp_path / "slurm.conf"), "XDG_STATE_HOME": str(tmp_path)}
    answers = iter(["old*|infinite|", "new*|infinite|"])

    def names() -> list[str]:
        return list(
            slurm.describe(environ, lambda argv, *_: next(answers) if argv[0] == "sinfo" else None)["partitions"]
        )

    assert (names(), names()) == (["old"], ["old"])
    os.utime(tmp_path / "slurm.conf", (1, 1))
    assert names() == ["new"]


def test_a_distributions_packages_alone_are_no_cluster(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slurm_traits.shutil, "which", lambda *_args, **_options: "/usr/bin/sbatch")
    monkeypatch.setattr(slurm_traits, "CONFIGURATIONS", ())
    assert not slurm_traits.is_here({"PATH": "/usr/bin"})
    assert slurm_traits.is_here({"PATH": "/usr/bin", "SLURM_CONF": "/lab/slurm.conf"})


def test_a_sites_own_slurm_is_a_cluster(tmp_path: Path):
    (tmp_path / "sbatch").touch(0o755)
    assert slurm_traits.is_here({"PATH": str(tmp_path)})


def test_schedulers_say_how_large_an_array_may_be(fake_slurm, monkeypatch, tmp_path):
    fake_slurm()
    monkeypatch.setenv("FAKE_SLURM_ARRAY", "500")
    assert slurm.array_limits(os.environ) == ArrayLimits(below=500)
    config = "MailProg                = /bin/true\nMaxArraySize            = 1001\nMaxJobCount             = 10000\n"
    another = {**os.environ, "SLURM_CLUSTERS": "another"}
    assert slurm.array_limits(another, lambda *_: config) == ArrayLimits(below=1001, jobs=10_000)
    assert local.array_limits(os.environ) == ArrayLimits()
    (tmp_path / "qstat").write_text("#!/bin/sh\n")
    (tmp_path / "qstat").chmod(0o755)
    said = (Path(__file__).parent / "pbs" / "qstat-B-f.txt").read_text()
    found = pbs.array_limits({**os.environ, "PATH": str(tmp_path)}, lambda *_: said)
    assert found == ArrayLimits(tasks=10_000, in_ranges=True)


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
    assert found._replace(to_first_node=()) == Inside(
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
