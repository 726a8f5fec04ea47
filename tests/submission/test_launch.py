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
    """`planned(COMMAND, CLUSTER, **RESOURCES)`; other settings as `launch__kind`."""
    (tmp_path / "serried.toml").write_text("[experiments.train]\ncommand = 'true'\n")
    environ = {"HOME": str(tmp_path), "PATH": "", "CUDA_VISIBLE_DEVICES": "", "SCRATCH": "/scratch/ada"}

    def make(command: str | tuple[str, ...], cluster: str = "slurm", *, is_script: bool = False, **settings) -> Plan:
        overrides = {f"resources.{name}" if "__" not in name else name.replace("__", ".").strip("."): value
                     for name, value in settings.items()}  # fmt: skip
        words = tuple(command.split()) if isinstance(command, str) else command
        name = None if words else "train"
        resolved = config.resolve(name, words or None, overrides, cluster, tmp_path, environ, is_script=is_script)
        return make_plan(resolved, run_id="k3f9q2", created="")

    return make


def test_agents_start_the_ranks_by_default_and_one_process_on_cpus_knows_no_launcher(planned):
    for settings, kind in (
        ({}, "single"),
        ({"ranks": 2}, "agent"),
        ({"nodes": 2}, "agent"),
        ({"gpus": 1}, "agent"),
        ({"launch__kind": "agent"}, "agent"),
        ({"gpus": 1, "launch__kind": "single"}, "single"),
    ):
        assert (settings, planned("python train.py", **settings).launch.kind) == (settings, kind)


def test_a_single_process_has_all_gpus_of_its_node(planned):
    made = planned("python train.py", launch__kind="single", gpus=4)
    assert (made.launch.kind, made.allocation.ranks, made.allocation.gpus, made.allocation.cpus) == ("single", 1, 4, 8)


TRAIN = "python train.py"
SINGLE = '`launch.kind = "single"` is one process, and {} were requested'
OWN = "`{0}` starts ranks of its own, and {1} ranks would each start `{0}`"
AGAIN = "the command starts `{0}`, and each of 2 ranks would start `{0}` again"
BOTH = "`{0}` is both launcher and command: each rank would start `{0}` again"


NO_SPARES = "`--spare-nodes 0` requests none"


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        (
            {},
            "spare nodes need rounds: ranks start again within the attempt",
            "--set limit.rounds=3, or `rounds = 3` in `[experiments.train.limit]`",
        ),
        (
            {"nodes": 1, "limit__rounds": 3},
            "one node needs no spare node: the loss of the first node ends the job",
            f"--nodes 2, or more; {NO_SPARES}",
        ),
        (
            {"launch__kind": "torchrun"},
            "spare nodes need ranks that Serried starts, not `torchrun`",
            f"omit `launch`; {NO_SPARES}",
        ),
    ],
)
def test_spare_nodes_that_cannot_help_are_refused(planned, settings, message, hint):
    with pytest.raises(UsageError) as refusal:
        planned("", **{"nodes": 2, "spare_nodes": 1, **settings})
    assert (refusal.value.message, refusal.value.hint) == (message, hint)


def test_a_job_script_has_no_spare_nodes(planned, tmp_path):
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2 --no-kill\ntrue\n")
    made = planned("train.sbatch", is_script=True)
    assert (made.script.options, made.allocation.job_nodes) == (("--nodes=2", "--no-kill"), 2)
    with pytest.raises(UsageError) as refusal:
        planned("train.sbatch", is_script=True, spare_nodes=1)
    assert (refusal.value.message, refusal.value.hint) == (
        "spare nodes need ranks that Serried starts, not a job script",
        NO_SPARES,
    )


def test_one_file_with_spare_nodes_serves_a_cluster_and_this_machine(planned):
    spares = {"spare_nodes": 1, "limit__rounds": 3, "ranks": 2}
    there, here = planned("", nodes=6, **spares), planned("", cluster="local", **spares)
    assert [(made.allocation.job_nodes, made.world_size) for made in (there, here)] == [(7, 12), (1, 2)]


@pytest.mark.parametrize(
    ("settings", "command", "message"),
    [
        ({"launch__kind": "single", "nodes": 2}, TRAIN, SINGLE.format("2 nodes")),
        ({"launch__kind": "single", "ranks": 4}, TRAIN, SINGLE.format("4 ranks")),
        ({"ranks": 4}, "torchrun --nproc-per-node=4 train.py", OWN.format("torchrun", 4)),
        ({"ranks": 2}, "/opt/bin/python3.11 -m torch.distributed.launch train.py", OWN.format("torchrun", 2)),
        ({"ranks": 2}, "python -m accelerate.commands.launch train.py", OWN.format("accelerate", 2)),
        ({"ranks": 2, "launch__kind": "srun"}, "torchrun train.py", OWN.format("torchrun", 2)),
        ({"nodes": 2}, "torchrun train.py", OWN.format("torchrun", 2)),
        ({"nodes": 2}, "env -i B=1 mpiexec.hydra python train.py", AGAIN.format("mpiexec.hydra")),
        ({"nodes": 2}, "srun python train.py", AGAIN.format("srun")),
        ({"gpus": 2, "ranks": 4}, TRAIN, "4 ranks and 2 GPUs on each node: some ranks would have no GPU"),
        (
            {"gpus": 2, "extra": ["--gpus-per-task=1"]},
            TRAIN,
            "`--gpus-per-task=1` hides the GPUs of a node from its other ranks",
        ),
        ({"launch__max_restarts": 3}, TRAIN, "`launch.max_restarts` is an option of torchrun"),
        (
            {"launch__options": ["-v"]},
            TRAIN,
            "`launch.options` are for a launcher, and `single` starts ranks without one",
        ),
        ({"launch__kind": "horovodrun"}, "horovodrun -np 4 python train.py", BOTH.format("horovodrun")),
        ({"launch__kind": "torchrun"}, "env A=1 torchrun train.py", BOTH.format("torchrun")),
        (
            {"launch__kind": "horovodrun", "launch__options": ["--min-np=2"]},
            TRAIN,
            "`--min-np=2` lets Horovod change the number of ranks, which the plan fixes",
        ),
        (
            {"cluster": "local", "launch__kind": "srun"},
            TRAIN,
            '`launch.kind = "srun"` needs Slurm, and this machine does not have Slurm',
        ),
    ],
)
def test_a_wrong_pair_is_refused_with_the_reason(planned, settings, command, message):
    with pytest.raises(UsageError) as refusal:
        planned(command, **settings)
    assert refusal.value.message == message


def by_shell(planned, text: str) -> list[Plan | str]:
    """The plans for two ranks whose command a shell reads, by `bash -lc` and by `shell = true`, or the refusals."""
    plans: list[Plan | str] = []
    for command, settings in ((("bash", "-lc", text), {}), ((), {"command__": text, "shell__": True})):
        try:
            plans.append(planned(command, ranks=2, **settings))
        except UsageError as error:
            plans.append(error.message)
    return plans


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
def test_a_launcher_that_a_shell_starts_is_refused_too(planned, text):
    assert by_shell(planned, text) == [OWN.format("torchrun", 2)] * 2


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
def test_a_shell_that_may_start_no_launcher_is_accepted(planned, text):
    assert [plan.allocation.ranks for plan in by_shell(planned, text)] == [2, 2]


@pytest.mark.parametrize(
    ("command", "rank"),
    [
        ("torchrun train.py --lr 1", "python train.py --lr 1"),
        ("/opt/venv/bin/torchrun -m package.train", "/opt/venv/bin/python -m package.train"),
        ("torchrun --no_python ./train.sh 1", "./train.sh 1"),
        ("python3 -m torch.distributed.run --module package", "python3 -m package"),
        ("python3 -m torch.distributed.launch --use_env train.py", "python3 train.py"),
        ("python3 -m torch.distributed.launch train.py -x", "python3 train.py --local-rank={local_rank} -x"),
        ("python3 -m torch.distributed.launch -m train -x", "python3 -m train --local-rank={local_rank} -x"),
        ("python train.py torchrun", "python train.py torchrun"),
        ("python -m", "python -m"),
    ],
)
def test_a_torchrun_that_was_typed_is_the_launcher_and_not_what_a_rank_runs(planned, command, rank):
    assert planned(command, launch__kind="torchrun").command == tuple(rank.split())


def test_the_old_name_of_torchrun_is_taken_with_a_warning():
    old = ("python3", "-m", "torch.distributed.launch", "train.py")
    (warning,) = command_warnings(old)
    assert warning.startswith("PyTorch deprecates `torch.distributed.launch`")
    assert list(command_warnings(("torchrun", "train.py"))) == []


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--nproc_per_node=2", "`resources.ranks` is the number of ranks on each node"),
        ("--nproc-per=2", "`resources.ranks` is the number of ranks on each node"),
        ("--nnodes", "`resources.nodes` is the number of nodes"),
        ("--rdzv-backend=c10d", "remove the option: Serried knows the nodes and reserves a port"),
        ("--max-restarts=3", "`launch.max_restarts` is the number of restarts"),
        ("--log-dir=logs", "`launch.options` takes further options of torchrun"),
        ("--unknown", "`launch.options` takes further options of torchrun"),
    ],
)
def test_options_of_a_typed_torchrun_are_refused_with_the_key_to_set(planned, option, hint):
    with pytest.raises(UsageError) as refusal:
        planned(f"torchrun --use_env {option} train.py", launch__kind="torchrun")
    message = f"`{option}` in the command is an option of torchrun, which Serried starts"
    assert (refusal.value.message, refusal.value.hint) == (message, hint)


def test_programs_with_mpi_share_gpus_and_launchers_of_several_nodes_start_on_each(planned):
    assert planned("./solver", launch__kind="mpirun", gpus=2, ranks=16).allocation.gpus == 2
    of_nodes = "torchrun --nnodes=2 --nproc-per-node=4 --rdzv-endpoint={master_addr}:29500 train.py"
    assert planned(of_nodes, nodes=2, gpus=4, ranks=1).allocation.ranks == 1
    for command in ("torchrun --standalone --nproc-per-node=4 train.py", "accelerate launch train.py"):
        assert planned(command, gpus=4, launch__kind="single").command == tuple(command.split())


def test_commands_of_tasks_are_checked_as_the_command_of_a_run_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    commands = tmp_path / "commands.txt"
    commands.write_text("torchrun train.py --lr 1\npython train.py --lr 2\n")
    each = Request(each=commands, overrides={"resources.ranks": 2, "launch.kind": "torchrun"}, cluster="slurm")
    expected = tuple(("python", "train.py", "--lr", number) for number in "12")
    assert decide(each, tmp_path, os.environ).each == expected
    commands.write_text("python train.py\nbash -c 'srun python train.py'\n")
    with pytest.raises(UsageError) as refusal:
        decide(each, tmp_path, os.environ)
    assert refusal.value.message == f"task 1: {AGAIN.format('srun')}"


ALONE = "`--launch single` to start `{}` once with its own options"
HOROVODRUN = {"launch__kind": "horovodrun"}


@pytest.mark.parametrize(
    ("command", "nodes", "hint", "followed"),
    [
        ("/opt/bin/accelerate launch --cpu --num_processes 2 t.py --lr 1", 1, "`-- python t.py …`, or " + ALONE, {}),
        ("deepspeed --num_gpus 2 t.py", 1, "`-- python t.py …`, or " + ALONE, {}),
        ("deepspeed --num_gpus 2 t.py", 2, "`-- python t.py …`, or submit a job script that calls `{}`", {}),
        ("horovodrun -np 2 python t.py", 1, "`--launch horovodrun -- python t.py …`, or " + ALONE, HOROVODRUN),
    ],
)
def test_the_hint_about_a_typed_launcher_is_accepted_when_it_is_followed(planned, command, nodes, hint, followed):
    size = {"nodes": nodes, "ranks": 2}
    with pytest.raises(UsageError) as refusal:
        planned(command, **size)
    program = command.partition(" ")[0].rpartition("/")[2]
    assert refusal.value.hint == f"leave `{program}` and its options out: {hint.format(program)}"
    assert planned("python t.py", **size, **followed).command == ("python", "t.py")


def test_with_thousands_of_ranks_those_of_a_node_share_a_log_but_not_the_launches_of_a_job_script(planned, tmp_path):
    sizes = ((512, 8), (513, 8), (5000, 1), (4096, 8))
    shared = [planned("true", nodes=nodes, ranks=ranks).shares_logs for nodes, ranks in sizes]
    assert shared == [False, True, False, True]
    script = "#!/bin/bash\n#SBATCH --nodes=4096\n#SBATCH --ntasks-per-node=8\nsrun true\n"
    (tmp_path / "train.sbatch").write_text(script)
    plan = planned("train.sbatch", is_script=True)
    assert (plan.allocation.nodes, plan.allocation.ranks, plan.shares_logs) == (4096, 8, False)


@for_each(
    ("word", "meant"),
    [
        ("--out={resutls}", "results"),
        ("{checkpoint}/a", "checkpoints"),
        *((word, None) for word in ("{world-size}", "{data}/{results}", "{{resutls}}", "{config.lr}", "{}", "{epoch}")),
        ("awk '{print $1}'", None),
        ('{"lr": 0.1}', None),
    ],
)
def test_a_word_in_braces_that_is_nearly_a_placeholder_is_reported(word, meant):
    assert [said.rpartition(": ")[2] for said in command_warnings(("python", "train.py", word, word))] == (
        [f"did you mean `{{{meant}}}`?"] if meant else []
    )
