"""The qsub command, word for word."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from building import A_SCRIPT, a_plan
from serried.base.errors import UsageError
from serried.schedulers.pbs import commands
from serried.schedulers.pbs.commands import Pbs
from serried.schema.plan import Allocation, Limit
from tables import for_each

D = "/scratch/digits/train/k3f9q2"


def plan_with(**allocation):
    plan = a_plan(
        root="/scratch",
        scheduler="pbs",
        **{"nodes": 1, "cpus": 2, "memory_mb": None, "time_seconds": 3600, **allocation},
    )
    return plan._replace(site=plan.site._replace(private="/home/ada/private"))


def argv(plan):
    return list(Pbs().submission(plan, f"{plan.run}-1", {}).argv)


def after(plan, flag):
    words = argv(plan)
    return [words[place + 1] for place, word in enumerate(words) if word == flag]


def test_everything_that_can_be_asked_for_is_on_argv():
    plan = plan_with(
        nodes=2,
        gpus=4,
        gpu_type="v100",
        cpus=32,
        exclusive=True,
        memory_mb=65536,
        time_seconds=2 * 86400 + 90,
        account="st-rjliao-1",
        partition="gpu",
        constraint=("gpu_mem=32gb",),
        mail_user="ada@example.org",
        mail_type=("END", "FAIL"),
        extra=("-P", "vision"),
        indices=range(1000),
    )
    plan = plan._replace(limit=Limit(warn_before_seconds=120), array=plan.array._replace(parallel=8))
    assert argv(plan) == [
        *("qsub", "-f"),
        *("-N", "train-k3f9q2-1"),
        *("-o", f"{D}/scheduler-^array_index^.log"),
        *("-j", "oe"),
        *("-k", "oed"),
        *("-r", "y"),
        *("-W", "umask=077"),
        *("-l", "select=2:ncpus=32:mpiprocs=1:ngpus=4:gpu_type=v100:mem=65536mb:gpu_mem=32gb"),
        *("-l", "place=scatter:excl"),
        *("-l", "walltime=48:01:30"),
        *("-A", "st-rjliao-1"),
        *("-q", "gpu"),
        *("-M", "ada@example.org"),
        *("-m", "ea"),
        *("-J", "0-999%8"),
        *("-P", "vision"),
        *("--", "/bin/bash", f"{D}/job.sh", "k3f9q2-1", "/home/ada/private/k3f9q2"),
    ]


def test_a_job_with_spare_nodes_has_them_too_and_outlives_the_loss_of_a_node():
    plan = plan_with(nodes=2, spare_nodes=1)

    assert (after(plan, "-W"), after(plan, "-l")[0]) == (
        ["umask=077", "tolerate_node_failures=all"],
        "select=3:ncpus=2:mpiprocs=1",
    )
    assert after(plan_with(nodes=3), "-W") == ["umask=077"]


def test_agents_are_on_spare_nodes_too():
    plan = plan_with(nodes=2, spare_nodes=1)
    by_hosts = plan._replace(site=plan.site._replace(launcher="pbs_tmrsh"))

    assert commands.launcher(plan) == "pbsdsh --"
    assert shlex.split(commands.launcher(by_hosts)) == ["/bin/bash", "-c", commands.EACH_HOST, "3"]


def test_further_resources_stand_beside_select():
    plan = plan_with(nodes=2, extra=("-l", "filesystems=home:eagle", "-lstorage=gdata/x+scratch/y", "-W", "x=y"))

    expected = ["select=2:ncpus=2:mpiprocs=1", "place=scatter", "walltime=1:00:00", "filesystems=home:eagle"]
    assert after(plan, "-l") == expected
    assert argv(plan)[argv(plan).index("-lstorage=gdata/x+scratch/y") :][:4] == [
        *("-lstorage=gdata/x+scratch/y", "-W", "x=y"),
        "--",
    ]


def test_small_jobs_for_a_run_have_what_a_site_demands_of_every_job():
    extra = (
        "-l",
        "filesystems=home:eagle",
        "-lstorage=gdata/x",
        "-l",
        "place=pack",
        "-P",
        "vision",
        "-h",
        "-a",
        "2000",
    )
    required = ("-l", "filesystems=home:eagle", "-l", "storage=gdata/x", "-P", "vision")

    assert commands.required_options(extra) == required
    words = Pbs().errand(plan_with(extra=extra), "n1", ("bash", "x"))
    assert words[words.index("--") - len(required) :] == (*required, "--", "bash", "x")


def test_the_environment_is_in_a_private_file_and_not_on_argv():
    submission = Pbs().submission(
        plan_with(), "k3f9q2-1", {"KEY": "secret", "PBS_JOBID": "1.head", "SLURM_JOB_ID": "2"}
    )
    assert submission.handover == Path("/home/ada/private/k3f9q2")
    assert submission.environment == {"KEY": "secret"}
    assert "secret" not in " ".join(submission.argv)


@for_each(
    ("allocation", "place"),
    [({"gpus": 2}, "scatter"), ({"gpus": 2, "exclusive": True}, "scatter:excl"), ({"memory_mb": 0}, "scatter:excl")],
)
def test_nodes_are_shared_unless_the_plan_takes_them_or_their_memory_whole(allocation, place):
    assert f"place={place}" in after(plan_with(**allocation), "-l")


@for_each(("indices", "option"), [([0, 1, 2], "0-2"), ([3, 5, 7], "3-7:2"), ([10, 20], "10-20:10")])
def test_an_array_is_a_range_with_a_step(indices, option):
    assert after(plan_with(indices=indices), "-J") == [option]


def test_an_array_of_one_is_an_ordinary_job_that_knows_its_index():
    """PBS refuses `-J 5`."""
    plan = plan_with(indices=[5])
    assert (after(plan, "-J"), after(plan, "-v")) == ([], ["SERRIED_TASK=5"])


def test_an_array_that_is_no_range_is_refused_with_the_reason():
    with pytest.raises(UsageError, match="a range with a step"):
        argv(plan_with(indices=[0, 1, 5]))


def test_a_job_without_a_limit_asks_for_none():
    assert not any(word.startswith("walltime") for word in after(plan_with(time_seconds=None), "-l"))


def test_the_environment_is_handed_over_in_the_run_directory_which_every_node_sees():
    plan = plan_with()
    beside_the_run = plan._replace(site=plan.site._replace(private=""))
    assert argv(beside_the_run)[-1] == f"{plan.directory}/private/{plan.run}"
    assert argv(plan)[-1] == f"/home/ada/private/{plan.run}"  # as the profile says


@for_each("root", ["/scratch/é", "/scratch/a\nb"])
def test_a_path_that_pbs_cannot_take_is_not_given_to_it(root):
    plan = plan_with()
    plan = plan._replace(site=plan.site._replace(root=root))
    assert after(plan, "-o") == ["/dev/null"]


def test_who_waits_for_a_task_waits_for_its_array():
    """PBS says `cannot have dependancy on subjob or range`."""
    words = Pbs().submission(plan_with(), "k3f9q2-1", {}, after="13[5].head:13[7].head:14.head").argv
    assert "depend=afterany:13[].head:14.head" in words


def test_a_job_of_an_array_in_parts_has_pbs_own_indices_and_is_held():
    plan = plan_with(indices=range(9))
    plan = plan._replace(array=plan.array._replace(offsets=(0, 4, 8)))
    several, one = (Pbs().submission(plan.part(part), plan.tokens[part], {}, held=True).argv for part in (1, 2))
    assert (after(plan.part(1), "-J"), after(plan.part(1), "-o")) == (["0-3"], [f"{D}/scheduler.log"])
    assert (several[several.index("-h") :][:2], several[-2]) == (("-h", "--"), "k3f9q2_4-1")
    assert ("-J" in one, one[one.index("-v") + 1], one[-2]) == (False, "SERRIED_TASK=0", "k3f9q2_8-1")


def test_the_type_of_a_gpu_is_called_as_the_site_calls_it():
    asked = Allocation(nodes=1, ranks=1, gpus=1, cpus=2, memory_mb=None, time_seconds=None, gpu_type="32gb")
    assert commands.chunk(asked, gpu_resource="gpu_mem") == "ncpus=2:mpiprocs=1:ngpus=1:gpu_mem=32gb"


def test_a_job_waits_for_what_its_script_and_the_user_name_in_one_option():
    plan = plan_with()._replace(script=A_SCRIPT._replace(dependency="afterok:7"))
    for jobs, expected in (("", "afterok:7"), ("13[5].head", "afterok:7,afterany:13[].head")):
        words = Pbs().submission(plan, "k3f9q2-1", {}, after=jobs).argv
        assert [word for word in words if word.startswith("depend=")] == [f"depend={expected}"]


def test_a_job_must_have_the_nodes_that_the_plan_names():
    select = "select=1:host=n2:ncpus=2:mpiprocs=1+1:host=n3:ncpus=2:mpiprocs=1"
    assert select in after(plan_with(nodes=2, hosts=("n2", "n3")), "-l")
