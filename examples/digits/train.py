"""Teach a small residual network to read 1,797 handwritten digits, on as many ranks as there are.

    python train.py                          one process
    torchrun --nproc-per-node 2 train.py     two, started by PyTorch's own launcher
    serried run digits                       two, as serried.toml says; `serried submit digits` for a cluster
    python train.py --help                   the settings; each is an option

The digits come with scikit-learn: real scans, 8 x 8 pixels, nothing to download.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what PyTorch calls it
from torch.utils.data import TensorDataset

import serried.train as st


@dataclass
class Config:
    epochs: int = 20
    batch_size: int = 32  # of each rank
    test_batch_size: int = 180  # of each rank
    lr: float = 4e-3  # for a step of 64 images on all ranks together
    weight_decay: float = 0.1
    width: int = 24
    seed: int = 1
    dry_run: bool = False  # one step and one test, to see that all is there
    cpu: bool = False  # leave the GPUs alone
    backend: str = ""  # how ranks talk: nccl, gloo; chosen where it is empty


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, outside)  # unlike batch norm: no statistics that differ between ranks
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, outside)
        self.around = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.around(x))


def make_network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        Block(width, width, stride=1),
        Block(width, 2 * width, stride=2),
        Block(2 * width, 4 * width, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def digits() -> tuple[TensorDataset, TensorDataset]:
    """To learn from, and to be tested on: the same split on every rank and every day."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16 - 0.3, labels, test_size=360, random_state=0, stratify=labels)
    learn_x, test_x, learn_y, test_y = map(torch.from_numpy, parts)
    learn, test = (learn_x.float().view(-1, 1, 8, 8), learn_y), (test_x.float().view(-1, 1, 8, 8), test_y)
    return TensorDataset(*learn), TensorDataset(*test)


def shake(images: Tensor) -> Tensor:
    """A pixel up, down, left or right: the digits that a shaky hand would have written."""
    down, right = torch.randint(3, (2,)).tolist()
    return F.pad(images, (1, 1, 1, 1), value=-0.3)[..., down : down + 8, right : right + 8]


@torch.no_grad()
def test(network: nn.Module, batches: Iterable[list[Tensor]], run: st.Session) -> float:
    """The share of the test images that all ranks together read correctly."""
    network.eval()
    right = count = 0
    for images, labels in batches:
        right += int((network(images.to(run.device)).argmax(1).cpu() == labels).sum())
        count += len(labels)
    return run.all_reduce_mean({"accuracy": right / max(count, 1)}, weight=count)["accuracy"]


def train(config: Config, run: st.Session) -> None:
    epochs = 1 if config.dry_run else config.epochs
    learn, unseen = digits()
    network = make_network(config.width)
    model = run.wrap(network)
    loader = run.loader(learn, batch_size=config.batch_size, tail="drop")
    tests = run.loader(unseen, batch_size=config.test_batch_size, shuffle=False, tail="keep", resume=False)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.lr, total_steps=epochs * len(loader))
    checkpoints = run.checkpoints(model=model, optimizer=optimizer, schedule=schedule, every="1m")

    ranks = "1 rank" if run.world_size == 1 else f"{run.world_size} ranks"
    weights = sum(weight.numel() for weight in network.parameters())
    run.print(f"{ranks} on {run.device.type}, {config.batch_size} images each per step, {weights:,} weights")
    for epoch in run.epochs(epochs):
        network.train()
        began, first = time.monotonic(), checkpoints.steps
        for images, labels in loader:
            loss = F.cross_entropy(model(shake(images.to(run.device))), labels.to(run.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            run.log(loss=loss, lr=schedule.get_last_lr()[0])
            if checkpoints.step():  # a stop was requested, and all is saved: the next attempt resumes here
                return
            if config.dry_run:
                break
        rate = (checkpoints.steps - first) * loader.global_batch / (time.monotonic() - began)
        accuracy = test(network, tests, run)
        run.log(step=checkpoints.steps, epoch=epoch + 1, accuracy=accuracy)
        bar = f"{'#' * (20 * (epoch + 1) // epochs):.<20}"
        run.print(f"[{bar}] epoch {epoch + 1:>2}/{epochs}  accuracy {accuracy:.3f}  {rate:>6,.0f} images/s")
        if epoch + 1 == epochs:
            run.print(f"accuracy={accuracy:.4f}")


if __name__ == "__main__":
    settings = st.config(Config)
    device = "cpu" if settings.cpu else None
    with st.session(device=device, backend=settings.backend or None, seed=settings.seed) as session:
        train(settings, session)
