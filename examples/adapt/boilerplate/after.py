"""The same, started by `serried run` or `serried submit`; srun still does."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

import serried.train as st


@dataclass
class Config:
    batch_size: int = 64
    epochs: int = 5
    lr: float = 1.0
    seed: int = 1
    cpu: bool = False
    backend: str = ""


def main(config, run):
    x = torch.randn(1023, 8, generator=torch.Generator().manual_seed(config.seed))
    source = TensorDataset(x, (x[:, 0] > 0).long())
    model = run.wrap(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.Adadelta(model.parameters(), config.lr)
    loader = run.loader(source, batch_size=config.batch_size, tail="keep")
    ckpt = run.checkpoints(model=model, optimizer=optimizer, every="5m")
    loss = torch.tensor(torch.nan)  # of an epoch that was stopped after its last step
    for epoch in run.epochs(config.epochs):
        with run.uneven(model, loader, optimizer) as batches:
            for points, sides in batches:
                points, sides = points.to(run.device), sides.to(run.device)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(points), sides)
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
                if ckpt.step():  # asked to stop, and all is saved
                    return
        run.print(f"epoch {epoch + 1}: loss {run.all_reduce_mean({'loss': loss})['loss']:.4f}")


if __name__ == "__main__":
    config = st.config(Config)
    device = "cpu" if config.cpu else None
    with st.session(device=device, backend=config.backend or None, seed=config.seed) as run:
        main(config, run)
