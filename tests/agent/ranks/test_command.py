"""What a rank is given: its words, its variables."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from building import a_plan
from serried.agent.attempt import Attempt
from serried.agent.launchers import kinds
from serried.agent.ranks import command
from serried.agent.ranks.command import RankPlace
from serried.schema.layout import RunDirectory
from serried.schema.plan import Array, Environment, Launch, Site, Source, Track
from tables import for_each

PLACE = RankPlace(
    node=1, rank=3, local_rank=1, master="10.0.0.1", port=4242, threads=3, deadline=1_795_000_000.5, stop_file="/t/stop"
)


TOLD = {"lr": 1e-05, "name": "it's {rank}", "model.width": 64, "amp": True, "sizes": [1, 2], "é-x": "☃"}


def work_of(task=None, attempt=2, **changes):
    return Attempt(RunDirectory(Path("/r/digits/train/k3f9q2")), a_plan(root="/r")._replace(**changes), task, attempt)


@for_each(
    ("word", "filled"),
    [
        ("{rank}/{local_rank}/{world_size}", "3/1/4"),
        ("{nodes} x {ranks} = {world_size}, {local_world_size} on {gpus} GPUs", "2 x 2 = 4, 2 on 0 GPUs"),
        ("{run} {attempt} {seed}", "k3f9q2 2 7"),
        ("--out={results}/x", "--out=/r/digits/train/k3f9q2/results/x"),
        ("{checkpoints}", "/r/digits/train/k3f9q2/checkpoints"),
        ("{data}", "/r/digits/train/k3f9q2/source/data"),
        ("{{data}}", "{data}"),
        ("{{{rank}}}", "{{rank}}"),
        ('{"data": {"rank": 1}}', '{"data": {"rank": 1}}'),
        ("{unknown} {} {{x}} {rank", "{unknown} {} {{x}} {rank"),
        ("$RANK {Rank} %j $(id)", "$RANK {Rank} %j $(id)"),
        ("", ""),
        # Settings, as a command line has them.
        ("--lr={config.lr}", "--lr=1e-05"),
        ("{config.model.width}x{config.amp}", "64xtrue"),
        ("{config.sizes}", "[1, 2]"),
        ("{config.name} {config.é-x}", "it's {rank} ☃"),
        ("{{config.lr}} {config.other} {config}", "{config.lr} {config.other} {config}"),
        # Variables of the rank's environment.
        ("{env.NAME} --x={env.EMPTY}", "a $b --x="),
        ("{{env.NAME}} ${env.NAME} {env.a-b}", "{env.NAME} ${env.NAME} {env.a-b}"),
        ("{env.NAME:--x=}", "--x=a $b"),
    ],
)
def test_placeholders_are_filled_and_nothing_else_is_touched(word, filled):
    variables = {"NAME": "a $b", "EMPTY": ""}
    work = work_of(command=("python", word, "{env.EMPTY:--x=}"), seed=7, config=TOLD)
    assert command.argv(work, PLACE, variables) == ["python", filled]


def test_what_an_image_runs_by_itself_is_a_file_in_it():
    assert command.argv(work_of(command=("%runscript", "{rank}")), PLACE, {}) == ["/.singularity.d/runscript", "3"]
    assert command.argv(work_of(command=("echo", "%runscript")), PLACE, {}) == ["echo", "%runscript"]


def test_a_rank_is_told_the_settings_as_json():
    told = command.environment(work_of(config=TOLD), PLACE, {})
    assert json.loads(told["SERRIED_CONFIG"]) == TOLD
    assert "SERRIED_CONFIG" not in command.environment(work_of(), PLACE, {})


@for_each(
    ("task", "repeat", "filled"),
    [(None, None, ["", "", "100"]), (7, None, ["", "7", "107"]), (7, 5, ["2", "7", "102"]), (5, 5, ["0", "5", "100"])],
)
def test_repeats_of_different_commands_have_the_same_seeds(task, repeat, filled):
    array = None if task is None else Array(tuple(range(10)), repeat=repeat)
    work = work_of(task, array=array, command=("{repeat}", "{task}", "{seed}"), seed=100)

    assert command.argv(work, PLACE, {}) == filled


def test_a_task_has_its_own_seed_and_places():
    work = work_of(task=17, command=("{task}", "{seed}", "{results}"), seed=100)

    assert command.argv(work, PLACE, {}) == ["17", "117", "/r/digits/train/k3f9q2/tasks/17/results"]


def test_a_rank_prints_that_a_variable_is_unset_and_fails():
    argv = command.argv(work_of(command=("echo", "{env.NAME}", "{env.OTHER}")), PLACE, {"NAME": "x"})
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    message = "serried: the command has {env.OTHER}, and OTHER is not set here\n"
    assert (done.returncode, done.stdout, done.stderr) == (78, "", message)


def test_a_line_for_the_shell_gets_its_values_quoted():
    plan = a_plan(root="/r")._replace(command=("cp {results}/a b",), shell=True)
    work = Attempt(RunDirectory(Path("/a $(id)")), plan, None, 1)

    assert command.argv(work, PLACE, {}) == ["/bin/bash", "-c", "cp '/a $(id)/results'/a b"]


def test_each_task_of_a_command_list_runs_its_own_line(tmp_path):
    (tmp_path / "commands.json").write_text('[["a", "1"], ["b", "{task}"]]')
    plan = a_plan(root="/r")._replace(array=Array((3, 8), each=True))

    assert command.argv(Attempt(RunDirectory(tmp_path), plan, 8, 1), PLACE, {}) == ["b", "8"]


def test_a_rank_finds_torchs_names_ours_and_those_it_knew_before(monkeypatch):
    monkeypatch.setattr(command, "GPU_DRIVERS", ())
    environment = command.environment(work_of(), PLACE, {})

    assert environment == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4242",
        "TORCHELASTIC_RUN_ID": str(int.from_bytes(b"k3f9q2", "big")),
        "TORCHELASTIC_RESTART_COUNT": "1",
        "SERRIED_RUN_ID": "k3f9q2",
        "SERRIED_RUN_DIR": "/r/digits/train/k3f9q2",
        "SERRIED_ATTEMPT": "2",
        "SERRIED_DATA_DIR": "/r/digits/train/k3f9q2/source/data",
        "SERRIED_CHECKPOINT_DIR": "/r/digits/train/k3f9q2/checkpoints",
        "SERRIED_RESULTS_DIR": "/r/digits/train/k3f9q2/results",
        "SERRIED_STOP_FILE": "/t/stop",
        "SERRIED_FAILURE_REPORT": "/t/stop.failing-3",
        "SERRIED_MARK": "k3f9q2/-/2",
        "SERRIED_NODE": "1",
        "SERRIED_DEADLINE": "1795000000",
        "source_dir": "/r/digits/train/k3f9q2/source",
        "project_name": "digits",
        "scratch_dir": "/r/digits",
        "exp_name": "train",
        "ACCELERATE_USE_CPU": "1",
        "OMP_NUM_THREADS": "3",
        "PYTHONPATH": "/r/digits/train/k3f9q2/library.zip",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONBREAKPOINT": "serried.base.breakpoints.enter",
    }


@for_each(
    ("site", "inherited", "scratch_dir"),
    [
        (Site(scratch="/scratch/ada"), {"SCRATCH": "/other"}, "/scratch/ada/digits"),
        (Site(), {"SCRATCH": "/scratch/ada"}, "/scratch/ada/digits"),
        (Site(), {"SCRATCH": "relative"}, "/r/digits"),
    ],
)
def test_the_variables_of_ammunk_hpc_mean_what_they_mean_there(site, inherited, scratch_dir):
    environment = command.environment(work_of(site=site, name="first"), PLACE, inherited)
    assert (environment["scratch_dir"], environment["exp_name"]) == (scratch_dir, "first")


OF_THE_AGENT = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_NODEID": "1", "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0", "SLURM_GTIDS": "1", "SLURM_NTASKS": "2", "SLURM_NPROCS": "2", "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_DISTRIBUTION": "cyclic", "SLURM_CPUS_PER_TASK": "12", "SLURM_TASK_PID": "99", "PMI_RANK": "1",
    "PMIX_NAMESPACE": "7.0", "OMPI_COMM_WORLD_SIZE": "2",
}  # fmt: skip
OF_A_TASK = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_NODEID": "1", "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1", "SLURM_GTIDS": "2,3", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_DISTRIBUTION": "block", "SLURM_CPUS_PER_TASK": "6",
}  # fmt: skip
"""Of the last rank of two nodes with two ranks each, as `srun` sets them."""


def of_slurm_and_mpi(kind, place=PLACE, inherited=OF_THE_AGENT):
    work = work_of(launch=Launch(kind=kind), allocation=a_plan().allocation._replace(nodes=2, ranks=2, cpus=12))
    known = command.visible(work, inherited)
    found = {**known, **command.environment(work, place, known)}
    return {name: found[name] for name in found if name.startswith(("SLURM_", "PMI", "OMPI_"))}


@for_each("kind", ["agent", "torchrun"])
def test_a_rank_reads_the_variables_of_a_slurm_task_and_none_of_its_agents(kind):
    assert of_slurm_and_mpi(kind) == OF_A_TASK
    assert of_slurm_and_mpi(kind, inherited={"SLURM_CPUS_PER_TASK": "6"}) == {"SLURM_CPUS_PER_TASK": "6"}
    assert of_slurm_and_mpi(kind, inherited={}) == {}


def test_a_single_process_is_no_task_and_mpi_and_srun_identify_their_ranks_themselves():
    assert command.torch(work_of(launch=Launch("single")), PLACE) == {}
    of_rank = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "n1", "TORCHELASTIC_RUN_ID": "1"}
    assert command.visible(work_of(launch=Launch("single")), of_rank) == {}
    of_job = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "1", "SLURM_NTASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "1(x2)"}
    assert of_slurm_and_mpi("single") == {**of_job, "SLURM_DISTRIBUTION": "cyclic", "SLURM_CPUS_PER_TASK": "12"}
    of_mpi = {name: OF_THE_AGENT[name] for name in ("PMI_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_SIZE")}
    without_ids = {name: OF_A_TASK[name] for name in OF_A_TASK if name != "SLURM_GTIDS"}
    assert of_slurm_and_mpi("mpirun") == {**without_ids, **of_mpi}
    of_step = {name: OF_THE_AGENT[name] for name in OF_THE_AGENT if name != "SLURM_TASK_PID"}
    assert of_slurm_and_mpi("srun") == of_step


def test_checkpoints_on_the_nodes_disk_are_for_the_program_and_the_runs_own_for_the_library():
    told = command.environment(work_of(), PLACE._replace(checkpoints="/disk/checkpoints"), {})
    found = {name: told[name] for name in ("SERRIED_CHECKPOINT_DIR", "SERRIED_KEPT_CHECKPOINTS")}
    assert found == {
        "SERRIED_CHECKPOINT_DIR": "/disk/checkpoints",
        "SERRIED_KEPT_CHECKPOINTS": "/r/digits/train/k3f9q2/checkpoints",
    }


def test_what_the_user_has_set_stays():
    plan = {"environment": Environment(env={"PYTHONUNBUFFERED": "0", "A": "b c"})}
    environment = command.environment(work_of(**plan), PLACE, {"OMP_NUM_THREADS": "9"})

    assert environment.keys().isdisjoint({"OMP_NUM_THREADS"})
    assert (environment["PYTHONUNBUFFERED"], environment["A"]) == ("0", "b c")


RECORD = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_FR_DUMP_TEMP_FILE": "/t/nccl-trace-rank-",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/t/nccl-trace-rank-",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/t/nccl-trace-rank-",
}


def test_ranks_with_gpus_record_their_collectives_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setattr(command, "GPU_DRIVERS", ())
    on_gpus = work_of(allocation=a_plan().allocation._replace(gpus=2, nodes=2, ranks=2))
    told = command.environment(on_gpus, PLACE, {})
    assert {name: told[name] for name in RECORD} == RECORD
    assert "TORCH_FR_BUFFER_SIZE" not in command.environment(on_gpus, PLACE, {"TORCH_FR_BUFFER_SIZE": "0"})
    assert not RECORD.keys() & command.environment(work_of(), PLACE, {}).keys()


def test_debug_turns_on_what_nobody_has_set(monkeypatch):
    monkeypatch.setattr(command, "GPU_DRIVERS", ())
    own = Environment(env={"NCCL_DEBUG": "WARN"})
    told = command.environment(work_of(debug=True, environment=own), PLACE, {"TORCH_DISTRIBUTED_DEBUG": "INFO"})
    usual = command.environment(work_of(), PLACE, {})

    assert {name: told[name] for name in told.keys() - usual.keys()} == {
        "NCCL_DEBUG": "WARN",
        "TORCH_CPP_LOG_LEVEL": "INFO",
        "TORCH_SHOW_CPP_STACKTRACES": "1",
        "TORCH_NCCL_DESYNC_DEBUG": "1",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        **RECORD,
    }


def test_the_runs_own_library_and_redirected_packages_come_before_the_inherited_path():
    source = Source(directory="/home/ada/digits", python_path=("src", "lib"))
    environment = command.environment(work_of(source=source), PLACE, {"PYTHONPATH": "/mine"})

    run = "/r/digits/train/k3f9q2"
    assert environment["PYTHONPATH"] == f"{run}/library.zip:{run}/source/src:{run}/source/lib:/mine"


def test_ranks_write_on_the_disk_of_their_own_node_where_the_site_does_not_say_where(monkeypatch):
    here = PLACE._replace(local="/n1/scratch")
    assert command.environment(work_of(), here, {})["SLURM_TMPDIR"] == "/n1/scratch"
    assert "SLURM_TMPDIR" not in command.environment(work_of(), here, {"SLURM_TMPDIR": "/the/site's"})
    assert "SLURM_TMPDIR" not in command.environment(work_of(), PLACE, {})
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    assert "SLURM_TMPDIR" not in kinds.launcher_environment(work_of(), here, kinds.LaunchCommand(("srun",)))


TRACK = Track(("wandb",), project="digits", mode="offline")
WANDB = ("WANDB_DIR", "WANDB_MODE", "WANDB_NAME", "WANDB_PROJECT", "WANDB_RESUME", "WANDB_RUN_GROUP", "WANDB_RUN_ID")


def of_wandb(work, rank, **inherited):
    variables = {**inherited, **command.environment(work, PLACE._replace(rank=rank), inherited)}
    return {name: value for name, value in variables.items() if name.startswith("WANDB_")}


def test_a_program_that_calls_wandb_itself_is_one_run_for_all_attempts():
    results = "/r/digits/train/k3f9q2/results"
    assert of_wandb(work_of(track=TRACK), 0) == {
        "WANDB_DIR": f"{results}/tracking",
        "WANDB_MODE": "offline",
        "WANDB_NAME": "train-k3f9q2",
        "WANDB_PROJECT": "digits",
        "WANDB_RESUME": "allow",
        "WANDB_RUN_ID": "k3f9q2",
    }
    assert of_wandb(work_of(track=TRACK), 3) == {"WANDB_MODE": "disabled"}
    assert of_wandb(work_of(track=TRACK), 3, WANDB_MODE="online") == {"WANDB_MODE": "disabled"}
    assert of_wandb(work_of(track=TRACK._replace(sinks=("tensorboard",))), 0) == {}
    assert of_wandb(work_of(), 0) == {}


def test_tasks_and_processes_that_are_runs_have_ids_of_their_own_in_a_group():
    array = {"indices": [17], "parallel": None, "each": False}
    task = of_wandb(work_of(17, track=TRACK, array=array), 0)
    assert (task["WANDB_RUN_ID"], task["WANDB_RUN_GROUP"]) == ("k3f9q2-17", "k3f9q2")
    each = of_wandb(work_of(track=TRACK._replace(every_process=True)), 3)
    assert (each["WANDB_RUN_ID"], each["WANDB_RUN_GROUP"]) == ("k3f9q2-r3", "k3f9q2")


def test_a_variable_of_the_user_wins_and_an_empty_one_counts_as_unset():
    own = of_wandb(work_of(track=TRACK), 0, WANDB_MODE="", WANDB_PROJECT="mine", WANDB_RUN_ID="x")
    assert (own["WANDB_MODE"], own["WANDB_PROJECT"], own["WANDB_RUN_ID"]) == ("offline", "mine", "x")
    assert of_wandb(work_of(track=TRACK._replace(mode="online")), 0, WANDB_MODE="offline")["WANDB_MODE"] == "offline"
    environment = Environment(env={"WANDB_RUN_GROUP": "mine"})
    assert of_wandb(work_of(track=TRACK, environment=environment), 0)["WANDB_RUN_GROUP"] == "mine"


def test_off_and_tests_of_the_program_are_no_runs_of_a_tracker():
    tests = [{"environment": Environment(env={name: "[3]"})} for name in ("SERRIED_REHEARSAL", "SERRIED_PROFILE")]
    for changes in ({"track": TRACK._replace(mode="off")}, {"smoke": 3}, *tests):
        assert of_wandb(work_of(**{"track": TRACK, **changes}), 0, WANDB_MODE="online") == {"WANDB_MODE": "disabled"}


def test_the_library_gets_all_settings_in_one_variable():
    told = command.environment(work_of(track=TRACK), PLACE, {})["SERRIED_TRACKER"]
    assert json.loads(told) == {
        "sinks": ["wandb"],
        "project": "digits",
        "group": "",
        "mode": "offline",
        "every_process": False,
        "name": "train-k3f9q2",
        "id": "k3f9q2",
        "folder": "/r/digits/train/k3f9q2/results/tracking",
    }
