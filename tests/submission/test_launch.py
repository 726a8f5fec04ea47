"""Which launcher a plan has, and which pairs of launcher, command and cluster are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serried import config
from serried.base.errors import UsageError
from serried.schema.plan import Plan
from serried.submission.plan import command_warnings, make_plan
from serried.submission.request import Request, decide
from tables import for_each


@pytest.fixture
def planned(tmp_path: Path):
    def make(command: str, cluster: str = "slurm", **settings) -> Plan:
        told = {name.replace("__", "."): value for name, value in settings.items()}
        words = tuple(command.split())
        environ = {"HOME": str(tmp_path), "PATH": "", "CUDA_VISIBLE_DEVICES": "", "SCRATCH": "/scratch/ada"}
        return make_plan(config.resolve(None, words, told, cluster, tmp_path, environ), run_id="k3f9q2", created="")

    return make


@pytest.fixture(params=["bash -lc", "shell = true"])
def planned_by_shell(request: pytest.FixtureRequest, tmp_path: Path):
    """A plan for two ranks whose command a shell reads, in both ways in which one is asked for."""

    def make(text: str) -> Plan:
        is_key = request.param == "shell = true"
        words = None if is_key else ("bash", "-lc", text)
        told = {"resources.ranks": 2, **({"command": text, "shell": True} if is_key else {})}
        environ = {"HOME": str(tmp_path), "PATH": "", "CUDA_VISIBLE_DEVICES": "", "SCRATCH": "/scratch/ada"}
        (tmp_path / "serried.toml").write_text("[experiments.train]\ncommand = 'true'\n")
        resolved = config.resolve("train", words, told, "slurm", tmp_path, environ)
        return make_plan(resolved, run_id="k3f9q2", created="")

    return make


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({}, "single"),
        ({"resources__ranks": 2}, "agent"),
        ({"resources__nodes": 2}, "agent"),
        ({"resources__gpus": 1}, "agent"),
        ({"launch__kind": "agent"}, "agent"),
        ({"resources__gpus": 1, "launch__kind": "single"}, "single"),
    ],
)
def test_agents_start_the_ranks_by_default_and_one_process_on_cpus_is_told_of_none(planned, asked, kind):
    assert planned("python train.py", **asked).launch.kind == kind


def test_a_single_process_has_all_gpus_of_its_node(planned):
    made = planned("python train.py", launch__kind="single", resources__gpus=4)
    assert (made.launch.kind, made.allocation.ranks, made.allocation.gpus, made.allocation.cpus) == ("single", 1, 4, 8)


REFUSED = [
    (
        {"launch__kind": "single", "resources__nodes": 2},
        "python train.py",
        '`launch.kind = "single"` is one process, and 2 nodes were requested',
    ),
    (
        {"launch__kind": "single", "resources__ranks": 4},
        "python train.py",
        '`launch.kind = "single"` is one process, and 4 ranks were requested',
    ),
    (
        {"resources__ranks": 4},
        "torchrun --nproc-per-node=4 train.py",
        "`torchrun` starts ranks of its own, and 4 ranks would each start `torchrun`",
    ),
    (
        {"resources__ranks": 2},
        "/opt/conda/bin/python3.11 -m torch.distributed.launch train.py",
        "`torchrun` starts ranks of its own, and 2 ranks would each start `torchrun`",
    ),
    (
        {"resources__ranks": 2},
        "python -m accelerate.commands.launch train.py",
        "`accelerate` starts ranks of its own, and 2 ranks would each start `accelerate`",
    ),
    (
        {"resources__ranks": 2, "launch__kind": "srun"},
        "torchrun train.py",
        "`torchrun` starts ranks of its own, and 2 ranks would each start `torchrun`",
    ),
    (
        {"resources__nodes": 2},
        "torchrun train.py",
        "`torchrun` starts ranks of its own, and 2 ranks would each start `torchrun`",
    ),
    (
        {"resources__nodes": 2},
        "env -i B=1 mpiexec.hydra python train.py",
        "the command starts `mpiexec.hydra`, and each of 2 ranks would start `mpiexec.hydra` again",
    ),
    (
        {"resources__gpus": 2, "resources__ranks": 4},
        "python train.py",
        "4 ranks and 2 GPUs on each node: some ranks would have no GPU",
    ),
    (
        {"resources__nodes": 2},
        "srun python train.py",
        "the command starts `srun`, and each of 2 ranks would start `srun` again",
    ),
    (
        {"resources__gpus": 2, "resources__extra": ["--gpus-per-task=1"]},
        "python train.py",
        "`--gpus-per-task=1` hides the GPUs of a node from its other ranks",
    ),
    ({"launch__max_restarts": 3}, "python train.py", "`launch.max_restarts` is an option of torchrun"),
    (
        {"launch__options": ["-v"]},
        "python train.py",
        "`launch.options` are for a launcher, and `single` starts ranks without one",
    ),
    (
        {"launch__kind": "horovodrun"},
        "horovodrun -np 4 python train.py",
        "`horovodrun` is both launcher and command: each rank would start `horovodrun` again",
    ),
    (
        {"launch__kind": "torchrun"},
        "env A=1 torchrun train.py",
        "`torchrun` is both launcher and command: each rank would start `torchrun` again",
    ),
    (
        {"launch__kind": "horovodrun", "launch__options": ["--min-np=2"]},
        "python train.py",
        "`--min-np=2` lets Horovod change the number of ranks, which the plan fixes",
    ),
]


@pytest.mark.parametrize(("settings", "command", "message"), REFUSED)
def test_a_wrong_pair_is_refused_with_the_reason(planned, settings, command, message):
    with pytest.raises(UsageError) as refusal:
        planned(command, **settings)
    assert refusal.value.message == message


@pytest.mark.parametrize(
    "text",
    [
        "torchrun train.py",
        "cd src && OMP_NUM_THREADS=4 exec torchrun train.py",
        "module load cuda; 'torchrun' train.py | tee log",
        "set -e\n# a comment\npython -m torch.distributed.run \\\n  train.py",
        "env A=1 bash -l -c 'torchrun train.py'",
    ],
)
def test_a_launcher_that_a_shell_starts_is_refused_too(planned_by_shell, text):
    with pytest.raises(UsageError) as refusal:
        planned_by_shell(text)
    assert refusal.value.message == "`torchrun` starts ranks of its own, and 2 ranks would each start `torchrun`"


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --launcher torchrun",
        'if [ -n "$MANY" ]; then torchrun train.py; else python train.py; fi',
        '[ -n "$MANY" ] && torchrun train.py',
        '[ "$LOCAL_RANK" = 0 ] || exit 0; torchrun --standalone train.py',
        "echo 'a quote that is never closed; torchrun train.py",
        "run() { torchrun train.py; }; python train.py",
    ],
)
def test_a_shell_that_may_start_none_is_let(planned_by_shell, text):
    assert planned_by_shell(text).allocation.ranks == 2


TYPED = [
    ("torchrun train.py --lr 1", "python train.py --lr 1"),
    ("/opt/venv/bin/torchrun -m package.train", "/opt/venv/bin/python -m package.train"),
    ("torchrun --no_python ./train.sh 1", "./train.sh 1"),
    ("python3 -m torch.distributed.run --module package", "python3 -m package"),
    ("python3 -m torch.distributed.launch --use_env train.py", "python3 train.py"),
    ("python3 -m torch.distributed.launch train.py -x", "python3 train.py --local-rank={local_rank} -x"),
    ("python3 -m torch.distributed.launch -m train -x", "python3 -m train --local-rank={local_rank} -x"),
    ("python train.py torchrun", "python train.py torchrun"),
]


@pytest.mark.parametrize(("command", "rank"), TYPED)
def test_a_torchrun_that_was_typed_is_the_launcher_and_not_what_a_rank_runs(planned, command, rank):
    assert planned(command, launch__kind="torchrun").command == tuple(rank.split())


def test_the_old_name_of_torchrun_is_taken_with_a_warning():
    old = ("python3", "-m", "torch.distributed.launch", "train.py")
    assert [warning.partition(":")[0] for warning in command_warnings(old)] == [
        "PyTorch deprecates `torch.distributed.launch`"
    ]
    assert list(command_warnings(("torchrun", "train.py"))) == []


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--nproc_per_node=2", "`resources.ranks` is the number of ranks on each node"),
        ("--nnodes", "`resources.nodes` is the number of nodes"),
        ("--rdzv-backend=c10d", "remove the option: Serried knows the nodes and reserves a port"),
        ("--max-restarts=3", "`launch.max_restarts` is the number of restarts"),
        ("--log-dir=logs", "`launch.options` takes further options of torchrun"),
    ],
)
def test_options_of_a_typed_torchrun_are_refused_with_the_key_to_set(planned, option, hint):
    with pytest.raises(UsageError) as refusal:
        planned(f"torchrun {option} train.py", launch__kind="torchrun")
    told = (refusal.value.message, refusal.value.hint)
    assert told == (f"`{option}` in the command is an option of torchrun, which Serried starts", hint)


def test_programs_that_speak_mpi_may_share_gpus(planned):
    assert planned("./solver", launch__kind="mpirun", resources__gpus=2, resources__ranks=16).allocation.gpus == 2


def test_srun_needs_slurm(planned):
    with pytest.raises(UsageError) as refusal:
        planned("python train.py", "local", launch__kind="srun")
    assert refusal.value.message == '`launch.kind = "srun"` needs Slurm, and this machine does not have Slurm'


def test_one_that_is_told_of_several_nodes_may_be_started_on_each(planned):
    command = "torchrun --nnodes=2 --nproc-per-node=4 --rdzv-endpoint={master_addr}:29500 train.py"
    assert planned(command, resources__nodes=2, resources__gpus=4, resources__ranks=1).allocation.ranks == 1


def test_commands_of_tasks_are_looked_at_as_the_one_of_a_run_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    commands = tmp_path / "commands.txt"
    commands.write_text("torchrun train.py --lr 1\npython train.py --lr 2\n")
    asked = {"resources.ranks": 2, "launch.kind": "torchrun"}
    each = Request(each=commands, overrides=asked, cluster="slurm")
    assert decide(each, tmp_path, os.environ).each == (
        ("python", "train.py", "--lr", "1"),
        ("python", "train.py", "--lr", "2"),
    )
    commands.write_text("python train.py\nbash -c 'srun python train.py'\n")
    with pytest.raises(UsageError) as refusal:
        decide(each, tmp_path, os.environ)
    assert refusal.value.message == "task 1: the command starts `srun`, and each of 2 ranks would start `srun` again"


@pytest.mark.parametrize("command", ["torchrun --standalone --nproc-per-node=4 train.py", "accelerate launch train.py"])
def test_what_starts_its_own_ranks_may_be_started_once(planned, command):
    assert planned(command, resources__gpus=4, launch__kind="single").command == tuple(command.split())


ALONE = "`--launch single` to start `{}` once with its own options"


@pytest.mark.parametrize(
    ("command", "nodes", "hint", "followed"),
    [
        ("/opt/bin/accelerate launch --cpu --num_processes 2 t.py --lr 1", 1, "`-- python t.py …`, or " + ALONE, {}),
        ("deepspeed --num_gpus 2 t.py", 1, "`-- python t.py …`, or " + ALONE, {}),
        ("deepspeed --num_gpus 2 t.py", 2, "`-- python t.py …`, or submit a job script that calls `{}`", {}),
        (
            "horovodrun -np 2 python t.py",
            1,
            "`--launch horovodrun -- python t.py …`, or " + ALONE,
            {"launch__kind": "horovodrun"},
        ),
    ],
)
def test_the_hint_about_a_typed_launcher_is_accepted_when_it_is_followed(planned, command, nodes, hint, followed):
    size = {"resources__nodes": nodes, "resources__ranks": 2}
    with pytest.raises(UsageError) as refusal:
        planned(command, **size)
    program = command.partition(" ")[0].rpartition("/")[2]
    assert refusal.value.hint == f"leave `{program}` and its options out: {hint.format(program)}"
    assert planned("python t.py", **size, **followed).command == ("python", "t.py")


@pytest.mark.parametrize(
    ("nodes", "ranks", "shares"), [(512, 8, False), (513, 8, True), (5000, 1, False), (4096, 8, True)]
)
def test_with_thousands_of_ranks_those_of_a_node_share_a_log(tmp_path, nodes, ranks, shares):
    told = {"resources.nodes": nodes, "resources.ranks": ranks}
    resolved = config.resolve(None, ("true",), told, "slurm", tmp_path, {**os.environ, "SCRATCH": str(tmp_path)})
    assert make_plan(resolved, run_id="k3f9q2", created="").shares_logs is shares


def test_the_launches_of_a_job_script_never_do(tmp_path):
    script = "#!/bin/bash\n#SBATCH --nodes=4096\n#SBATCH --ntasks-per-node=8\nsrun true\n"
    (tmp_path / "train.sbatch").write_text(script)
    environ = {**os.environ, "SCRATCH": str(tmp_path)}
    resolved = config.resolve(None, ("train.sbatch",), {}, "slurm", tmp_path, environ, is_script=True)
    planned = make_plan(resolved, run_id="k3f9q2", created="")
    assert (planned.allocation.nodes, planned.allocation.ranks) == (4096, 8)
    assert not planned.shares_logs


@for_each(
    ("word", "meant"),
    [
        ("--out={resutls}", "results"),
        ("{checkpoint}/a", "checkpoints"),
        ("{world-size}", None),
        ("{data}/{results}", None),
        ("{{resutls}}", None),
        ("{config.lr}", None),
        ("{}", None),
        ("awk '{print $1}'", None),
        ('{"lr": 0.1}', None),
        ("{epoch}", None),
    ],
)
def test_a_word_in_braces_that_is_nearly_a_placeholder_is_told(word, meant):
    assert [said.rpartition(": ")[2] for said in command_warnings(("python", "train.py", word, word))] == (
        [f"did you mean `{{{meant}}}`?"] if meant else []
    )
