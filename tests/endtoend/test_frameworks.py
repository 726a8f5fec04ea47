"""Lightning, accelerate and scripts for torchrun, the real ones, unmodified: tests/frameworks/ has the scripts."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from place import Place, environment
from serried import templates
from serried.contract.layout import RunDirectory

SCRIPTS = Path(__file__).parents[1] / "frameworks"
PYTHON = sys.executable
LEAVING, LIGHTNING, ACCELERATE, TORCHRUN = (
    "leaving.py",
    "lightning_trainer.py",
    "accelerate_loop.py",
    "torchrun_style.py",
)

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, scope="module")
def _installed() -> None:
    for name in ("lightning", "accelerate"):
        if importlib.util.find_spec(name) is None:
            reason = f"needs {name}: pip install --group frameworks"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)


def submit(
    place: Place, script: str, *arguments: str, nodes: int = 1, ranks: int = 2, cpus: int = 1, options=()
) -> str:
    for name in (script, LEAVING):
        shutil.copy(SCRIPTS / name, place.project)
    leaving = [LEAVING] if script in (LIGHTNING, ACCELERATE, TORCHRUN) else []  # a session leaves by itself
    size = ("--nodes", str(nodes), "--ranks", str(ranks), "--cpus", str(cpus))
    threads = ("--set", "environment.env.OMP_NUM_THREADS=1")
    return place.submit(*size, *threads, *options, "--", PYTHON, *leaving, script, *arguments)


def lines(place: Place, run: str, pattern: str, attempt: int = 1) -> list[str]:
    """What ranks of an attempt have written and fits `pattern`, sorted."""
    logs = RunDirectory(place.directory(run)).path.glob(f"attempts/{attempt}/node-*/rank-*.log")
    found = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return sorted(line for line in found if re.fullmatch(pattern, line))


def ask_to_save(place: Place, run: str, reason: str = "limit") -> None:
    request = {"t": time.time(), "request": "stop", "reason": reason, "by": "a test", "save": True}
    with (place.directory(run) / "attempts" / "1" / "control.jsonl").open("a") as control:
        control.write(json.dumps(request) + "\n")


@pytest.mark.parametrize(
    ("script", "arguments", "ranks"),
    [
        (
            LIGHTNING,
            ("--nodes", "2"),
            [
                f"rank {r} of 4, local rank {r % 2} on node {r // 2}, TorchElasticEnvironment, from step 0"
                for r in range(4)
            ],
        ),
        (ACCELERATE, (), [f"rank {r} of 4, local rank {r % 2}, MULTI_CPU" for r in range(4)]),
        (
            TORCHRUN,
            ("--output_dir", "{checkpoints}"),
            [f"rank {r} of 4, local rank {r % 2}, from step 0" for r in range(4)],
        ),
    ],
)
def test_a_script_that_knows_nothing_of_serried_trains_on_two_nodes(slurm, script, arguments, ranks):
    run = submit(slurm, script, *arguments, nodes=2)

    assert slurm.wait(run)[0] == 0, slurm.serried("logs", run).stdout
    assert lines(slurm, run, "rank . of .*") == ranks
    assert len(lines(slurm, run, r"done at step 8.*, loss \d\.\d{3}")) == 4


@pytest.mark.parametrize("script", [LIGHTNING, ACCELERATE, TORCHRUN])
def test_the_rank_that_raised_is_named_and_not_those_that_lost_it(local, script):
    run = submit(local, script, "--fail", "1")

    status, end = local.wait(run)
    first = local.why(run)["first_failure"]
    assert (status, end["state"], end["exit_code"]) == (1, "FAILED", 1)
    assert (first["rank"], "ValueError: no more of this" in "\n".join(first["tail"])) == (1, True)


@pytest.mark.slurm
def test_lightning_with_the_callback_of_its_template_goes_on_where_it_was_stopped(slurm, wait_until):
    (slurm.project / "train.py").write_bytes(templates.files("lightning")["train.py"])
    options = ("--nodes", "2", "--ranks", "1", "--cpus", "1", "--set", "limit.restarts=1")
    run = slurm.submit(*options, "--", PYTHON, "train.py", "--epochs", "100000")
    epochs = r"epoch \d+: accuracy .* \(2 ranks\)"

    wait_until(lambda: lines(slurm, run, epochs), what="the first epoch")
    ask_to_save(slurm, run)
    wait_until(lambda: lines(slurm, run, epochs, attempt=2), what="an epoch of the second attempt")
    slurm.serried("stop", "-y", run)
    slurm.wait(run)

    last = max(int(line.split()[1][:-1]) for line in lines(slurm, run, epochs))
    first = min(int(line.split()[1][:-1]) for line in lines(slurm, run, epochs, attempt=2))
    ends = [json.loads((slurm.directory(run) / "attempts" / n / "exit.json").read_text())["state"] for n in "12"]
    assert (first - last in (0, 1), ends) == (True, ["REQUEUED", "CANCELLED"])  # it validates once more when it stops


def test_lightning_that_hears_the_notice_saves_and_goes_on_though_it_leaves_with_status_0(local, wait_until):
    saving = ("--devices", "1", "--save-every", "100", "--folder", "{checkpoints}")
    options = ("--set", "limit.notify=TERM", "--set", "limit.restarts=1")
    run = submit(local, LIGHTNING, "--hold", "5", *saving, ranks=1, options=options)

    wait_until(lambda: lines(local, run, "holding"), what="a step to end in")
    ask_to_save(local, run)
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
    keys = ("limit.notify=USR1", "limit.restarts=1", "limit.grace=10s")
    options = ("--launch", "srun", *(word for key in keys for word in ("--set", key)))
    run = submit(slurm, LIGHTNING, "--hold", "5", "--folder", "{checkpoints}", options=options)

    wait_until(lambda: len(lines(slurm, run, "holding")) == 2, what="both ranks at the same place")
    ask_to_save(slurm, run)
    status, end = slurm.wait(run)

    assert (status, end["state"]) == (0, "COMPLETED"), slurm.serried("logs", run).stdout
    place = "rank {} of 2, local rank {} on node 0, SLURMEnvironment, from step {}"
    assert lines(slurm, run, "rank . of .*") == [place.format(rank, rank, 0) for rank in (0, 1)]
    assert lines(slurm, run, "rank . of .*", attempt=2) == [place.format(rank, rank, 5) for rank in (0, 1)]
    assert len(lines(slurm, run, "Requeued SLURM job: .*")) == 1
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


def test_accelerate_within_a_session_goes_on_where_it_was_stopped(local, wait_until):
    run = submit(local, "accelerate_in_a_session.py", options=("--set", "limit.restarts=1"))

    wait_until(lambda: lines(local, run, "from step 0"), what="the first attempt")
    ask_to_save(local, run)
    (line,) = wait_until(lambda: lines(local, run, r"from step \d+", attempt=2), what="the second attempt")
    local.serried("stop", "-y", run)

    message = json.loads((local.directory(run) / "attempts" / "1" / "exit.json").read_text())["message"]
    assert int(line.split()[2]) > 0
    assert "the ranks have saved" in message


def test_what_the_page_on_frameworks_shows_is_in_the_scripts():
    page = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    code = templates.files("lightning")["train.py"].decode() + (SCRIPTS / "accelerate_in_a_session.py").read_text()
    shown = [line for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    known = {*code.replace("cpu=True", "").splitlines(), "    ..."}
    assert [line for line in shown if line not in known] == []


@pytest.mark.slurm
def test_lightning_finds_the_tasks_of_an_srun_that_starts_its_ranks(slurm):
    run = submit(slurm, LIGHTNING, "--folder", "{checkpoints}", options=("--launch", "srun"))

    status, end = slurm.wait(run)
    assert (status, end["state"]) == (0, "COMPLETED"), slurm.serried("logs", run).stdout
    place = "rank {} of 2, local rank {} on node 0, SLURMEnvironment, from step 0"
    assert lines(slurm, run, "rank . of .*") == [place.format(rank, rank) for rank in (0, 1)]
