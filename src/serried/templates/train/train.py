"""Train on as many ranks as there are, with Serried's library. A stopped training resumes.

    python train.py                            one process
    torchrun --nproc-per-node 2 train.py       two, by PyTorch's own launcher
    serried run                                as serried.toml says

`python train.py --help` lists the settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

import serried.train as st


@dataclass
class Config:
    epochs: int = 10
    batch_size: int = 32  # of each rank
    lr: float = 3e-3
    seed: int = 1


def make_data(count: int, seed: int) -> TensorDataset:
    """Points, and which side of a curved surface they are on. Put your own data here."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long())


def make_model() -> nn.Module:
    """Put your own model here."""
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


@torch.no_grad()
def accuracy(network: nn.Module, batches: Iterable[list[torch.Tensor]], run: st.Session) -> float:
    """Over all ranks, each item once: some ranks may have one more than others."""
    network.eval()
    right = count = 0
    for points, sides in batches:
        right += int((network(points.to(run.device)).argmax(1).cpu() == sides).sum())
        count += len(sides)
    return run.all_reduce_mean({"accuracy": right / max(count, 1)}, weight=count)["accuracy"]


def main(config: Config) -> None:
    with st.session(seed=config.seed) as run:
        network = make_model()
        model = run.wrap(network)
        optimizer = torch.optim.AdamW(model.parameters(), config.lr)
        loader = run.loader(make_data(4096, config.seed), batch_size=config.batch_size)
        held_out = run.loader(
            make_data(1024, config.seed + 1), batch_size=256, shuffle=False, tail="keep", resume=False
        )
        checkpoints = run.checkpoints(model=model, optimizer=optimizer, every="5m")
        for epoch in run.epochs(config.epochs):
            model.train()
            for points, sides in loader:
                loss = nn.functional.cross_entropy(model(points.to(run.device)), sides.to(run.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss, points=len(sides))
                if checkpoints.step():  # a stop was requested, and all is saved
                    return
            reached = accuracy(network, held_out, run)
            run.print(f"epoch {epoch + 1}: accuracy {reached:.3f} ({run.world_size} ranks)")


if __name__ == "__main__":
    main(st.config(Config))
