"""A training in an environment where Serried is not installed: the run brings the library along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import train_ranks

from serried.train.checkpoints import store

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

TRAIN = """
import json, sys, torch
import serried.train as st
from torch import nn

class Squares(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, index):
        import serried.train.data  # in the worker too
        return torch.tensor([float(index)]), torch.tensor([float(index) ** 2])

def main():
    with st.session() as run:
        torch.manual_seed(0)
        model = run.wrap(nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        start = ["spawn", "forkserver"][run.rank]
        loader = run.loader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=start)
        ckpt = run.checkpoints(model=model, optimizer=optimizer, every="1 step")
        for epoch in run.epochs(1):
            for x, y in loader:
                loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ckpt.step()
        ckpt.wait()
        print(json.dumps([run.rank, run.world_size, ckpt.steps, ckpt.failures, st.__file__, sys.prefix]), flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The Python of an environment that has torch, and no Serried. `make compat` names an older one."""
    if os.environ.get("COMPAT_RANKS"):
        return Path(os.environ["COMPAT_RANKS"]).absolute()
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python3*/site-packages")
    # The folder as a plain entry of the path: what its own .pth files add, an editable Serried say, is not read.
    (site / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    return place / "bin" / "python"


def test_an_environment_without_serried_trains_on_two_ranks(bare, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    project = tmp_path / "my project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    assert (
        b"No module named 'serried'"
        in subprocess.run([bare, "-c", "import serried"], capture_output=True, check=False, cwd=project).stderr
    )
    serried = f"import sys; sys.path.insert(0, {train_ranks.SOURCE!r}); from serried.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", serried, "run", "--ranks", "2", "--json", "--", bare, "train.py"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = Path(json.loads(done.stdout)["runs"][0]["directory"])
    said = sorted(json.loads(line.partition("] ")[2]) for line in done.stderr.splitlines() if "library.zip" in line)
    library = f"{run}/library.zip/serried/train/__init__.py"
    assert [[*each[:4], each[4].rstrip("c"), each[5]] for each in said] == [
        [rank, 2, 2, 0, library, str(bare.parents[1])] for rank in (0, 1)
    ]
    assert [each.step for each in store.whole(run / "checkpoints")] == [2, 1]
