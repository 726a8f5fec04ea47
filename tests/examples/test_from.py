"""Examples/from-*: what people submitted to the systems that they come from, and the same here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serried import config, importing, schedulers
from serried.schema.plan import Plan
from serried.submission.plan import make_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPERIMENTS = {
    "from-ammunk-hpc": ["first"],
    "from-slurm-pytorch-ddp-boilerplate": ["train"],
    "from-satori": ["train"],
    "from-hpc-helper": ["single", "dp", "ddp", "ddp-2"],
    "from-kaust-horovod": ["train"],
}
"""Those that the script of each README submits, in its order."""
SUGGESTED = {
    "from-ammunk-hpc": ["secrets", "rendezvous"],
    "from-slurm-pytorch-ddp-boilerplate": ["venv", "rendezvous"],
    "from-satori": [],
    "from-hpc-helper": ["rendezvous", "runs"],
    "from-kaust-horovod": ["checkpoint-watch"],
}
"""Features that `serried init --from` suggests for the script, in its order."""


def test_every_example_is_tried():
    assert sorted(EXPERIMENTS) == sorted(folder.name for folder in EXAMPLES.glob("from-*"))


def planned(folder: Path, name: str, cluster: str) -> Plan:
    resolved = config.resolve(name, None, {}, cluster, folder, os.environ)
    return make_plan(resolved, run_id="k3f9q2", created="2026-01-01T00:00:00Z")


@pytest.mark.parametrize("example", EXPERIMENTS)
def test_the_old_script_runs_as_it_is_and_requests_what_the_ported_one_does(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_API_KEY", "x")
    [script] = re.findall(r"```bash\n(.*?)```", (EXAMPLES / example / "README.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "job.sh").write_text(script)
    imported = importing.read("job.sh", tmp_path)
    assert [each.id for each in imported.suggestions] == SUGGESTED[example]

    size = schedulers.reader("slurm").read(script, {}, "job.sh").size
    largest = planned(EXAMPLES / example, EXPERIMENTS[example][-1], "slurm")
    assert (largest.allocation.nodes, largest.allocation.gpus) == (size.nodes, size.gpus)
    if example != "from-satori":  # an exclusive job, whose CPUs the script leaves to Slurm
        assert largest.allocation.cpus == size.cpus
    modules = re.findall(r"^module load (.*)", script, re.MULTILINE)
    assert list(largest.environment.modules) == " ".join(modules).split()


@pytest.mark.parametrize(
    ("example", "name"), [(example, name) for example in EXPERIMENTS for name in EXPERIMENTS[example]]
)
def test_the_same_file_serves_at_home_and_on_pbs(example: str, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "x")
    home = planned(EXAMPLES / example, name, "local")
    assert (home.allocation.nodes, home.allocation.gpus) == (1, 0)
    assert home.allocation.ranks == (1 if name in ("single", "dp") else 2)
    pbs, slurm = planned(EXAMPLES / example, name, "pbs"), planned(EXAMPLES / example, name, "slurm")
    assert (pbs.allocation.nodes, pbs.allocation.gpus) == (slurm.allocation.nodes, slurm.allocation.gpus)


@pytest.mark.torch
def test_the_program_of_ammunk_hpc_learns_on_two_ranks(tmp_path: Path, train):
    script = EXAMPLES / "from-ammunk-hpc" / "main.py"
    done = train(script, "--epochs", "2", SERRIED_CHECKPOINT_DIR=tmp_path)
    assert done.succeeded()
    first, second = map(float, re.findall(r"epoch \d: loss (\d\.\d+)", done.output))
    assert second < first
    assert (tmp_path / "digits.pt").exists()


@pytest.mark.torch
def test_the_program_of_the_boilerplate_finds_itself_by_torch_s_variables_or_slurm_s(train):
    script = EXAMPLES / "from-slurm-pytorch-ddp-boilerplate" / "main.py"
    two = train(script, "--epochs", "2", SLURM_PROCID="7", SLURM_NTASKS="9", SLURM_LOCALID="7")
    assert two.succeeded()
    assert re.fullmatch(r"epoch 1: accuracy 0\.\d+ \(2 ranks\)\nepoch 2: accuracy 0\.\d+ \(2 ranks\)\n", two.output)


@pytest.mark.torch
def test_the_program_of_hpc_helper_learns_in_each_of_its_ways(train):
    script = EXAMPLES / "from-hpc-helper" / "main.py"
    for way, ranks in (("--ddp", 2), ("--dp", 1), ("--seed=1234", 1)):
        done = train(script, way, "--epoch", "2", ranks=ranks)
        assert done.succeeded()
        how = {"--ddp": "ddp", "--dp": "dp"}.get(way, "single")
        assert re.fullmatch(rf"{how}: 2 epochs on {ranks} ranks in \d+\.\d s, loss \d\.\d+\n", done.output)


@pytest.mark.horovod
def test_the_program_of_the_satori_guide_learns_on_two_ranks(tmp_path: Path):
    done = run(tmp_path, "from-satori", "python train_mnist.py --epochs 2")
    assert (done.returncode, re.findall(r"epoch (\d): loss .* \(2 ranks\)", done.stdout)) == (0, ["1", "2"]), done


@pytest.mark.horovod
def test_the_program_of_kaust_goes_on_from_its_newest_checkpoint(tmp_path: Path):
    for begun, epochs, shown in (("", "2", ["1", "2"]), (f"{tmp_path}/checkpoint-epoch-02.pt", "3", ["3"])):
        command = f"python train.py --write-checkpoints-to {tmp_path} --read-checkpoints-from={begun} --epochs {epochs}"
        done = run(tmp_path, "from-kaust-horovod", command)
        assert (done.returncode, re.findall(r"epoch (\d+): loss", done.stdout)) == (0, shown), done
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [f"checkpoint-epoch-{n:02}.pt" for n in (1, 2, 3)]


def run(tmp_path: Path, example: str, command: str) -> subprocess.CompletedProcess[str]:
    """Its experiment with another command, here."""
    words = [sys.executable, "-m", "serried", "run", "train", "--set", f"command={command}"]
    environ = {**os.environ, "SERRIED_LOCAL_DIR": str(tmp_path / "local"), "VIRTUAL_ENV": sys.prefix}
    return subprocess.run(
        words, cwd=EXAMPLES / example, env=environ, capture_output=True, text=True, timeout=600, check=False
    )
