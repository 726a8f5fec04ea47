"""Lightning, accelerate and scripts for torchrun, the real ones, unmodified: tests/frameworks/ has the scripts."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import documented
from documented import PATIENCE, lines, prepare, submit
from place import Place, environment
from serried import templates

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
LIGHTNING, ACCELERATE, TORCHRUN = "lightning_trainer.py", "accelerate_loop.py", "torchrun_style.py"
RUN_BY = {
    ("lightning", 0): "test_it_is_cut_by_its_time_limit_and_continues_by_the_command_of_its_page",
    ("lightning", 1): "test_lightning_with_the_callback_of_its_template_goes_on_where_it_was_stopped",
    ("lightning", 2): "test_where_lightning_requeues_its_job_by_itself_serried_does_not_too",
    ("transformers", 0): "test_it_is_cut_by_its_time_limit_and_continues_by_the_command_of_its_page",
    ("accelerate", 0): "test_it_is_cut_by_its_time_limit_and_continues_by_the_command_of_its_page",
    ("accelerate", 1): "test_accelerate_within_a_session_goes_on_where_it_was_stopped",
    ("nanogpt", 0): "test_it_is_cut_by_its_time_limit_and_continues_by_the_command_of_its_page",
    ("nanogpt", 1): "test_nanogpt_on_one_cpu_is_started_as_by_hand",
    ("torchrun", 0): "test_it_is_cut_by_its_time_limit_and_continues_by_the_command_of_its_page",
    ("torchrun", 1): "test_a_rank_may_be_a_torchrun_that_starts_the_others",
}
"""The test that takes each command from the page."""

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, scope="module")
def _installed() -> None:
    for name in ("lightning", "accelerate"):
        if importlib.util.find_spec(name) is None:
            reason = f"needs {name}: pip install --group frameworks"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)


def start(place: Place, script: str, *arguments: str, nodes: int = 1, ranks: int = 2, options=()) -> str:
    """A script, by a command that no page shows."""
    prepare(place, script)
    size = ("--nodes", str(nodes), "--ranks", str(ranks), "--cpus", "1")
    threads = ("--set", "environment.env.OMP_NUM_THREADS=1")
    return place.submit(*size, *threads, *options, "--", PYTHON, "train.py", *arguments)


def test_accelerates_own_first_example_trains_on_two_nodes(slurm):
    run = start(slurm, ACCELERATE, nodes=2)

    assert slurm.wait(run)[0] == 0, slurm.serried("logs", run).stdout
    assert lines(slurm, run, "rank . of .*") == [f"rank {r} of 4, local rank {r % 2}, MULTI_CPU" for r in range(4)]
    assert len(lines(slurm, run, r"done at step 8.*, loss \d\.\d{3}")) == 4


@pytest.mark.parametrize("script", [LIGHTNING, ACCELERATE, TORCHRUN])
def test_the_rank_that_raised_is_named_and_not_those_that_lost_it(local, script):
    run = start(local, script, "--fail", "1")

    status, end = local.wait(run)
    first = local.why(run)["first_failure"]
    assert (status, end["state"], end["exit_code"]) == (1, "FAILED", 1)
    assert (first["rank"], "ValueError: no more of this" in "\n".join(first["tail"])) == (1, True)


@pytest.mark.slurm
def test_lightning_with_the_callback_of_its_template_goes_on_where_it_was_stopped(slurm, wait_until):
    program = templates.files("lightning")["train.py"]
    run = submit(slurm, "lightning", 1, program=program, leaves=True, arguments="--epochs 100000")
    epochs = r"epoch \d+: accuracy .* \(4 ranks\)"

    wait_until(lambda: lines(slurm, run, epochs), seconds=PATIENCE, what="the first epoch")
    slurm.ask_to_save(run)
    wait_until(lambda: lines(slurm, run, epochs, attempt=2), seconds=PATIENCE, what="an epoch of the second attempt")
    slurm.serried("stop", "-y", run)
    slurm.wait(run)

    last = max(int(line.split()[1][:-1]) for line in lines(slurm, run, epochs))
    first = min(int(line.split()[1][:-1]) for line in lines(slurm, run, epochs, attempt=2))
    ends = [json.loads((slurm.directory(run) / "attempts" / n / "exit.json").read_text())["state"] for n in "12"]
    assert (first - last in (0, 1), ends) == (True, ["REQUEUED", "CANCELLED"])  # it validates once more when it stops


def test_lightning_that_hears_the_notice_saves_and_goes_on_though_it_leaves_with_status_0(local, wait_until):
    saving = ("--devices", "1", "--save_every", "100", "--save_last", "--default_root_dir", "{checkpoints}")
    options = ("--set", "limit.notify=TERM", "--set", "limit.restarts=1")
    run = start(local, LIGHTNING, "--hold", "5", *saving, ranks=1, options=options)

    wait_until(lambda: lines(local, run, "holding"), seconds=PATIENCE, what="a step to end in")
    local.ask_to_save(run)
    status, end = local.wait(run)

    assert (status, end["state"]) == (0, "COMPLETED"), local.serried("logs", run).stdout
    first = json.loads((local.directory(run) / "attempts" / "1" / "exit.json").read_text())
    assert (first["state"], first["cause"]) == ("REQUEUED", "limit")
    place = "rank 0 of 1, local rank 0 on node 0, LightningEnvironment, from step 6"
    assert lines(local, run, "rank . of .*", attempt=2) == [place]


@pytest.mark.slurm
def test_where_lightning_requeues_its_job_by_itself_serried_does_not_too(project, tmp_path, make_lab, wait_until):
    (tmp_path / "scratch").mkdir()
    patient = make_lab(nodes=1, gpus=0, settings={"KillWait": "120"})  # time to write down how it ended
    slurm = Place("slurm", project, environment(tmp_path, patient.variables))
    grace = ("--set", "limit.grace=10s")
    run = submit(slurm, "lightning", 2, program=LIGHTNING, options=grace, arguments="--hold 5")

    wait_until(lambda: len(lines(slurm, run, "holding")) == 2, seconds=PATIENCE, what="both ranks at the same place")
    slurm.ask_to_save(run)
    status, end = slurm.wait(run)

    assert (status, end["state"]) == (0, "COMPLETED"), slurm.serried("logs", run).stdout
    place = "rank {} of 2, local rank {} on node 0, SLURMEnvironment, from step {}"
    assert lines(slurm, run, "rank . of .*") == [place.format(rank, rank, 0) for rank in (0, 1)]
    assert lines(slurm, run, "rank . of .*", attempt=2) == [place.format(rank, rank, 5) for rank in (0, 1)]
    asked = (
        r"Requeued SLURM job: .*|Requeuing SLURM job \d+ failed with error code -15"  # scontrol may get the job's TERM
    )
    assert len(lines(slurm, run, asked)) == 1
    first = json.loads((slurm.directory(run) / "attempts" / "1" / "exit.json").read_text())
    assert (first["state"], first["cause"]) == ("REQUEUED", "requeue")
    assert sorted(path.name for path in (slurm.directory(run) / "attempts").iterdir()) == ["1", "2"]
    assert [path.name for path in (slurm.directory(run) / "checkpoints").iterdir()] == ["hpc_ckpt_1.ckpt"]


@pytest.mark.slurm
def test_under_srun_alone_a_session_leaves_lightning_to_what_it_finds_there(slurm):
    (slurm.project / "train.py").write_bytes(templates.files("lightning")["train.py"])
    command = f"srun --cpus-per-task=1 {PYTHON} train.py --epochs 1"
    sbatch = ("sbatch", "--wait", "--ntasks-per-node=2", "--cpus-per-task=1", "--output=log", f"--wrap={command}")

    done = subprocess.run(
        sbatch, cwd=slurm.project, env=dict(slurm.environ), capture_output=True, timeout=300, check=False
    )

    said = (slurm.project / "log").read_text()
    assert done.returncode == 0, said
    assert len(re.findall(r"(?m)^epoch 1: accuracy .* \(2 ranks\)$", said)) == 1
    assert said.count("SLURM auto-requeueing enabled") == 2


@pytest.mark.slurm
def test_accelerate_within_a_session_goes_on_where_it_was_stopped(slurm, wait_until):
    run = submit(slurm, "accelerate", 1, program="accelerate_in_a_session.py", leaves=True)

    wait_until(lambda: lines(slurm, run, "from step 0"), seconds=PATIENCE, what="the first attempt")
    slurm.ask_to_save(run)
    resumed = r"from step \d+"
    (line,) = wait_until(lambda: lines(slurm, run, resumed, attempt=2), seconds=PATIENCE, what="the second attempt")
    slurm.serried("stop", "-y", run)

    message = json.loads((slurm.directory(run) / "attempts" / "1" / "exit.json").read_text())["message"]
    assert int(line.split()[2]) > 0
    assert "the ranks saved" in message


def test_nanogpt_on_one_cpu_is_started_as_by_hand(local):
    """Its backend is nccl unless somebody says otherwise, and RANK alone makes it use that."""
    run = submit(local, "nanogpt", 1, program="nanogpt_style.py")
    assert local.wait(run)[1]["state"] == "COMPLETED", local.serried("logs", run).stdout
    assert lines(local, run, "rank . of .*") == ["rank 0 of 1, from step 0"]


@pytest.mark.nanogpt
def test_nanogpts_own_program_trains_on_one_cpu_by_the_command_of_its_page(local):
    checkout = Path(os.environ["NANOGPT"])
    for name in ("model.py", "configurator.py"):
        shutil.copy(checkout / name, local.project)
    (local.project / "data/tiny").mkdir(parents=True)
    for name in ("train.bin", "val.bin"):
        (local.project / "data/tiny" / name).write_bytes(bytes(8000))  # 4,000 tokens, all 0
    small = "--dataset=tiny --n_layer=1 --n_head=1 --n_embd=16 --block_size=16 --batch_size=2 --eval_iters=1"
    few = "--max_iters=4 --eval_interval=2 --lr_decay_iters=4 --gradient_accumulation_steps=1"
    program = (checkout / "train.py").read_bytes()
    run = submit(local, "nanogpt", 1, program=program, leaves=True, arguments=f"{small} {few}")
    assert local.wait(run)[1]["state"] == "COMPLETED", local.serried("logs", run).stdout
    assert [path.name for path in (local.directory(run) / "checkpoints").iterdir()] == ["ckpt.pt"]


@pytest.mark.slurm
def test_a_rank_may_be_a_torchrun_that_starts_the_others(slurm):
    run = submit(slurm, "torchrun", 1, program=TORCHRUN)
    assert slurm.wait(run)[1]["state"] == "COMPLETED", slurm.serried("logs", run).stdout
    assert lines(slurm, run, "rank . of .*") == [f"rank {r} of 4, local rank {r % 2}, from step 0" for r in range(4)]


def test_every_command_of_the_pages_is_run_by_a_test():
    shown = {(name, number) for name in documented.SECTIONS for number, _ in enumerate(documented.commands(name))}
    trees = [ast.parse(path.read_text()) for path in Path(__file__).parent.glob("test_frameworks*.py")]
    tests = {test.name: test for tree in trees for test in ast.walk(tree) if isinstance(test, ast.FunctionDef)}
    assert [command for command in shown if not _submits(tests.get(RUN_BY.get(command, "")), *command)] == []
    assert set(RUN_BY) == shown
    known = [command for name in documented.SECTIONS for command in documented.commands(name)]
    assert [command for command in documented.commands("") if command not in known] == []


def _submits(test: ast.FunctionDef | None, page: str, number: int) -> bool:
    """Whether a test has `submit(place, PAGE, number)`; a parameter `page` stands for all that it is called with."""
    for call in ast.walk(test) if test else ():
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "submit":
            shown = ast.unparse(call.args[2]) if len(call.args) > 2 else "0"
            if ast.unparse(call.args[1]).strip("'") in ("page", page) and shown == str(number):
                return True
    return False


def test_what_the_pages_show_is_in_the_scripts():
    page = "".join(text for title, text in documented.sections().items() if title != "Which one")
    scripts = ("accelerate_in_a_session.py", "transformers_in_a_session.py", "lightning_defaults.py")
    code = "".join((documented.SCRIPTS / name).read_text() for name in scripts)
    code += templates.files("lightning")["train.py"].decode() + (ROOT / "examples/plain/train.py").read_text()
    shown = [line for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    known = {line.strip() for line in (*code.replace("cpu=True", "").splitlines(), "...")}
    assert [line for line in shown if line.strip() not in known] == []


def test_lightning_without_options_saves_and_resumes_by_the_variables_of_its_page(local):
    first = start(local, "lightning_defaults.py", ranks=1)
    assert local.wait(first)[1]["state"] == "COMPLETED", local.serried("logs", first).stdout
    saved = [path.relative_to(local.directory(first)) for path in local.directory(first).rglob("*.ckpt")]
    assert [str(path.parent) for path in saved] == ["checkpoints/lightning_logs/version_0/checkpoints"]
    second = start(local, "lightning_defaults.py", ranks=1, options=("--resume", first))
    assert local.wait(second)[1]["state"] == "COMPLETED", local.serried("logs", second).stdout
    assert f"at {local.directory(first) / saved[0]}" in local.serried("logs", second).stdout


@pytest.mark.slurm
def test_lightning_finds_the_tasks_of_an_srun_that_starts_its_ranks(slurm):
    run = start(slurm, LIGHTNING, "--default_root_dir", "{checkpoints}", options=("--launch", "srun"))

    status, end = slurm.wait(run)
    assert (status, end["state"]) == (0, "COMPLETED"), slurm.serried("logs", run).stdout
    place = "rank {} of 2, local rank {} on node 0, SLURMEnvironment, from step 0"
    assert lines(slurm, run, "rank . of .*") == [place.format(rank, rank) for rank in (0, 1)]
