"""The sbatch command, word for word."""

from __future__ import annotations

import pytest

from building import A_SCRIPT, a_plan
from serried.base.errors import UsageError
from serried.schedulers.slurm import commands
from serried.schedulers.slurm.commands import Slurm
from serried.schema import successor_commands
from serried.schema.plan import Limit
from tables import for_each

D = "/scratch/digits/train/k3f9q2"


def argv(plan):
    return list(commands.SCHEDULER().submission(plan, f"{plan.run}-1", {}).argv)


def plan_with(**allocation):
    return a_plan(root="/scratch", **{"nodes": 1, "cpus": 2, "memory_mb": None, "time_seconds": 3600, **allocation})


def at(plan, **site):
    return plan._replace(site=plan.site._replace(**site))


def test_everything_that_can_be_asked_for_is_on_argv():
    plan = plan_with(
        nodes=2,
        gpus=4,
        gpu_type="v100l",
        cpus=32,
        memory_mb=65536,
        time_seconds=2 * 86400 + 90,
        account="def-rjliao",
        partition="gpu,gpu-long",
        qos="high",
        reservation="course one",
        constraint=("nvlink", "a100|h100"),
        licenses=("matlab:2", "ansys"),
        exclusive=True,
        comment="it's $(id) #5",
        mail_user="ada@example.org",
        mail_type=("END", "FAIL"),
        extra=("--nice=100", "--switches=1"),
        indices=range(1000),
    )
    plan = plan._replace(limit=Limit(warn_before_seconds=120, restarts=2), array=plan.array._replace(parallel=8))
    assert argv(plan) == [
        "sbatch",
        "--parsable",
        "--job-name=train-k3f9q2-1",
        f"--chdir={D}",
        f"--output={D}/scheduler-%a.log",
        "--open-mode=append",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=32",
        "--mem=65536M",
        "--gres=gpu:v100l:4",
        "--time=2-00:02:00",
        "--signal=B:USR1@120",
        "--account=def-rjliao",
        "--partition=gpu,gpu-long",
        "--qos=high",
        "--reservation=course one",
        "--constraint=nvlink&a100|h100",
        "--licenses=matlab:2,ansys",
        "--comment=it's $(id) #5",
        "--mail-user=ada@example.org",
        "--mail-type=END,FAIL",
        "--exclusive",
        "--requeue",
        "--export=ALL",
        "--array=0-999%8",
        "--nice=100",
        "--switches=1",
        f"{D}/job.sh",
        "k3f9q2-1",
    ]


def test_what_was_not_asked_for_is_left_to_the_cluster():
    plan = plan_with(memory_mb=None, time_seconds=None)
    assert argv(plan) == [
        "sbatch",
        "--parsable",
        "--job-name=train-k3f9q2-1",
        f"--chdir={D}",
        f"--output={D}/scheduler.log",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        "--no-requeue",
        "--export=ALL",
        f"{D}/job.sh",
        "k3f9q2-1",
    ]


def test_exclusive_nodes_give_all_their_cpus_unless_a_number_was_requested():
    """Neither the job nor its step names a number: nodes of one job may differ."""
    plan = plan_with(nodes=2, cpus=2, exclusive=True)
    whole = plan._replace(defaults=("resources.cpus",))

    assert [word for word in argv(whole) if "cpus" in word] == []
    assert [word for word in argv(plan) if "cpus" in word] == ["--cpus-per-task=2"]
    words = commands.launcher(whole).split()
    assert words[4:6] == ["--whole", "--cpu-bind=none"]
    assert [word for word in words if "cpus" in word] == []


def test_spare_nodes_are_nodes_of_the_job_and_the_job_outlives_a_lost_node():
    plan = plan_with(nodes=6, spare_nodes=1, gpus=4, ranks=4)
    whole = argv(plan)

    assert whole[6:9] == ["--nodes=7", "--no-kill", "--ntasks-per-node=1"]
    assert [word for word in argv(plan_with(nodes=7)) if "kill" in word] == []
    assert commands.launcher(plan) == (
        "srun --nodes=7 --ntasks=7 --ntasks-per-node=1 --cpus-per-task=2 --gpu-bind=none --overlap --export=ALL "
        "--no-kill --kill-on-bad-exit=0 --wait=0 --input=none --unbuffered --job-name=serried"
    )
    assert plan.world_size == 24


@for_each(
    ("option", "kind", "expected"),
    [
        ("gres", None, "--gres=gpu:4"),
        ("gres", "a100", "--gres=gpu:a100:4"),
        ("gpus-per-node", None, "--gpus-per-node=4"),
        ("gpus-per-node", "a100", "--gpus-per-node=a100:4"),
    ],
)
def test_gpus_are_asked_for_per_node_as_the_profile_says(option, kind, expected):
    words = argv(at(plan_with(gpus=4, gpu_type=kind), gpu_option=option))
    assert [word for word in words if "gpu" in word] == [expected]


@for_each(
    ("nodes", "gpus", "cpus", "memory"),
    [
        # the lab's launcher: G GPUs and c CPUs for each of them, on N nodes
        (1, 1, 2, 10240),
        (2, 4, 12, 40960),
        # the university's five templates
        (1, 2, 4, 262144),
        (1, 4, 8, 0),
        (4, 4, 8, 0),
        # the course's cluster: 2 nodes of 4 V100s, 8 CPUs each
        (2, 4, 32, 65536),
    ],
)
def test_one_task_per_node_owns_all_that_is_asked_for_there(nodes, gpus, cpus, memory):
    words = argv(plan_with(nodes=nodes, gpus=gpus, cpus=cpus, memory_mb=memory))
    assert words[6:11] == [
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus}",
        f"--mem={memory}M" if memory else "--mem=0",
        f"--gres=gpu:{gpus}",
    ]


@for_each(
    ("seconds", "expected"),
    [
        (1, "0:01:00"),
        (60, "0:01:00"),
        (61, "0:02:00"),
        (3600, "1:00:00"),
        (5400, "1:30:00"),
        (86399, "1-00:00:00"),
        (86400, "1-00:00:00"),
        (90061, "1-01:02:00"),
    ],
)
def test_a_limit_is_rounded_up_to_minutes(seconds, expected):
    assert commands.walltime(seconds) == expected


@for_each(
    ("limit", "lead", "options"),
    [
        (3600, 60, ["--signal=B:USR1@60"]),
        (3600, 0, []),
        (None, 60, []),
        (10**6, 10**5, ["--signal=B:USR1@65535"]),  # no more fits
    ],
)
def test_the_warning_comes_with_the_lead(limit, lead, options):
    plan = plan_with(time_seconds=limit)._replace(limit=Limit(warn_before_seconds=lead))
    assert [word for word in argv(plan) if word.startswith("--signal")] == options


@for_each(
    ("restarts", "form", "word"),
    [(1, "requeue", "--requeue"), (0, "requeue", "--no-requeue"), (1, "successor", "--no-requeue")],
)
def test_requeueing_is_always_stated(restarts, form, word):
    plan = plan_with()._replace(limit=Limit(restarts=restarts, continue_by=form))
    assert [each for each in argv(plan) if "requeue" in each] == [word]


def test_a_further_job_is_the_same_with_another_token_and_waits_for_any_end_of_the_one_before():
    plan = plan_with(extra=("--nice=9",))._replace(limit=Limit(restarts=1, continue_by="successor"))
    made = Slurm().commands(plan, {"TMPDIR": "/tmp", "HOME": "/home/ada"})
    first = argv(plan)
    further = [*first[:-3], "--dependency=afterany:123", *first[-3:]]
    assert successor_commands.fill(made.submit, token="k3f9q2-2", job="123") == [
        word.replace("k3f9q2-1", "k3f9q2-2") for word in further
    ]
    assert successor_commands.fill(made.cancel, job="123") == ["scancel", "123"]
    assert made.environment == {**dict.fromkeys(Slurm.job_changes), "TMPDIR": "/tmp"}


def test_a_job_must_have_the_nodes_that_the_plan_names():
    assert "--nodelist=n2,n3" in argv(plan_with(nodes=2, hosts=("n2", "n3")))


@for_each(
    ("extra", "directives", "expected"),
    [
        ((), (), "n2"),
        (("--exclude=n7,n8",), ("-x", "n1"), "n7,n8,n2"),
        ((), ("-xn1", "--exclusive"), "n1,n2"),
        (("--exclude", "n[7-8]", "--nice"), (), "n[7-8],n2"),
    ],
)
def test_a_job_that_waits_excludes_further_nodes(extra, directives, expected):
    plan = plan_with(extra=extra)._replace(script=A_SCRIPT._replace(options=directives))
    words = successor_commands.fill(Slurm().excluding(plan), job="124", hosts="n2")
    assert words == ["scontrol", "update", "JobId=124", f"ExcNodeList={expected}"]


def test_the_further_job_of_a_task_is_that_task_alone():
    plan = plan_with(indices=range(10))._replace(limit=Limit(restarts=1, continue_by="successor"))
    words = successor_commands.fill(Slurm().commands(plan, {}).submit, token="k3f9q2.4-2", job="123_4", task=4)
    assert [word for word in words if word.startswith(("--array", "--dep", "--job-name", "--output"))] == [
        "--job-name=train-k3f9q2.4-2",
        f"--output={D}/scheduler-%a.log",
        "--array=4",
        "--dependency=afterany:123_4",
    ]


@for_each(
    ("root", "indices", "pattern"),
    [
        ("/s/50% off", None, "/s/50%% off/digits/train/k3f9q2/scheduler.log"),
        ("/s/%j", [1], "/s/%%j/digits/train/k3f9q2/scheduler-%a.log"),
        ("/s/a\\b%", None, "/s/a\\\\b%/digits/train/k3f9q2/scheduler.log"),
        ("/s/a\\b%", [1], "/s/a\\\\b%/digits/train/k3f9q2/scheduler.log"),
    ],
)
def test_the_log_is_where_it_is_in_sbatch_s_own_escapes(root, indices, pattern):
    plan = at(a_plan(indices=indices), root=root)
    assert f"--output={pattern}" in argv(plan)


def test_the_environment_keeps_the_cluster_and_loses_the_job_around_us():
    environment = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/lab/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_EXPORT_ENV": "NONE",
        "SBATCH_PARTITION": "debug",
        "SRUN_DEBUG": "1",
        "SQUEUE_FORMAT": "%i",
        "SERRIED_MARK": "k3f9q2/-/1",
        "SERRIED_RUN_ID": "k3f9q2",
        "SERRIED_CLUSTER": "fir",
        "SLURMISH": "kept",
    }
    made = commands.SCHEDULER().submission(plan_with(), "k3f9q2-1", environment)
    expected = {"PATH": "/bin", "SLURM_CONF": "/etc/lab/slurm.conf", "SERRIED_CLUSTER": "fir", "SLURMISH": "kept"}
    assert made.environment == expected


@for_each(("share", "umask"), [("user", 0o077), ("group", 0o027)])
def test_the_job_starts_with_the_umask_of_who_may_read_the_run(share, umask):
    assert commands.SCHEDULER().submission(plan_with()._replace(share=share), "k3f9q2-1", {}).umask == umask


def test_a_job_of_an_array_in_parts_has_slurms_own_indices_and_is_held():
    plan = plan_with(indices=range(10))
    plan = plan._replace(array=plan.array._replace(offsets=(0, 4, 8), parallel=2))
    words = commands.SCHEDULER().submission(plan.part(2), plan.tokens[2], {}, after="12", held=True).argv
    assert [word for word in words if word.startswith(("--array", "--dep", "--hold", "--job-name", "--output"))] == [
        "--job-name=train-k3f9q2_8-1",
        f"--output={D}/scheduler.log",
        "--array=0-1%2",
        "--dependency=afterany:12",
        "--hold",
    ]
    assert words[-2:] == (f"{D}/job.sh", "k3f9q2_8-1")


def test_a_job_waits_for_what_its_script_and_the_user_name_in_one_option():
    plan = plan_with()._replace(script=A_SCRIPT._replace(dependency="afterok:7"))
    for jobs, expected in (("", "afterok:7"), ("12", "afterok:7,afterany:12")):
        words = commands.SCHEDULER().submission(plan, "k3f9q2-1", {}, after=jobs).argv
        assert [word for word in words if word.startswith("--dependency")] == [f"--dependency={expected}"]
    either = plan_with()._replace(script=A_SCRIPT._replace(dependency="afterok:7?afterok:8"))
    with pytest.raises(UsageError, match="cannot combine"):
        commands.SCHEDULER().submission(either, "k3f9q2-1", {}, after="12")


def test_a_singleton_has_the_name_that_its_script_asks_for_and_its_token_in_the_comment():
    script = A_SCRIPT._replace(dependency="afterok:7,singleton", title="resnet 50")
    for more, comment in (((), "train-k3f9q2-1"), (("--comment=of ada",), "of ada train-k3f9q2-1")):
        plan = plan_with()._replace(script=script._replace(options=(*script.options, *more)))
        words = commands.SCHEDULER().submission(plan, "k3f9q2-1", {}).argv
        assert [word for word in words if word.startswith("--job-name")] == ["--job-name=resnet 50"]
        assert [word for word in words if word.startswith("--comment")][-1] == f"--comment={comment}"
