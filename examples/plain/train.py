"""Teach a small residual network to read 1,797 handwritten digits, on as many ranks as there are.

    python train.py                          one process
    torchrun --nproc-per-node 2 train.py     two, started by PyTorch's own launcher
    serried run                              two, as serried.toml says; `serried submit` for a cluster

The digits come with scikit-learn: real scans, 8 x 8 pixels, nothing to download. The script is plain PyTorch; what it
does by hand, `examples/digits` leaves to Serried's library. The script reads three environment variables of Serried,
all optional: the folders for results and checkpoints, and the file that appears when it is time to leave.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what PyTorch calls it
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Config:
    """Each of these is also an option: `--epochs 3`."""

    epochs: int = 30
    batch: int = 64  # images per step over all ranks together: more ranks learn the same thing sooner
    lr: float = 4e-3
    weight_decay: float = 0.1
    width: int = 24
    seed: int = 1


RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
LOCAL_WORLD_SIZE = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
ON_GPU = torch.cuda.device_count() >= LOCAL_WORLD_SIZE  # one for each rank, or none for any
DEVICE = torch.device("cuda", LOCAL_RANK) if ON_GPU else torch.device("cpu")

RESULTS = os.environ.get("SERRIED_RESULTS_DIR")
CHECKPOINTS = os.environ.get("SERRIED_CHECKPOINT_DIR")
STOP_FILE = os.environ.get("SERRIED_STOP_FILE", "")
SAVED = 85  # exit status: the stop was requested, and a checkpoint is saved


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


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        Block(width, width, stride=1),
        Block(width, 2 * width, stride=2),
        Block(2 * width, 4 * width, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to learn from, then to be tested on: the same split on every rank and every day."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16 - 0.3, labels, test_size=360, random_state=0, stratify=labels)
    learn_x, test_x, learn_y, test_y = (torch.from_numpy(part).to(DEVICE) for part in parts)
    return learn_x.float().view(-1, 1, 8, 8), learn_y, test_x.float().view(-1, 1, 8, 8), test_y


def sum_over_ranks(*values: float) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64, device=DEVICE)
    if WORLD_SIZE > 1:
        dist.all_reduce(total)
    return total.tolist()


class Trainer:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.learn_x, self.learn_y, self.test_x, self.test_y = digits()
        self.share = max(1, config.batch // WORLD_SIZE)
        self.steps = len(self.learn_x) // (self.share * WORLD_SIZE)
        self.history: list[dict[str, float]] = []

        torch.manual_seed(config.seed)  # the same first weights everywhere
        self.bare = network(config.width).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.bare.parameters(), weight_decay=config.weight_decay)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, config.lr, total_steps=config.epochs * self.steps
        )
        self.checkpoint = Path(CHECKPOINTS, "digits.pt") if CHECKPOINTS else None
        if self.checkpoint and self.checkpoint.exists():  # an earlier attempt of this run was cut short
            self.load(self.checkpoint)
        self.model = DistributedDataParallel(self.bare) if WORLD_SIZE > 1 else self.bare

    def learn(self, epoch: int) -> float:
        """One pass over the data; returns the mean loss of this rank."""
        everybody = torch.Generator().manual_seed(self.config.seed + epoch)
        order = torch.randperm(len(self.learn_x), generator=everybody)[: self.steps * self.share * WORLD_SIZE]
        mine = order.view(self.steps, WORLD_SIZE, self.share)[:, RANK]
        total = 0.0
        for batch in mine.to(DEVICE):
            # A pixel up, down, left or right: the digits that a shaky hand would have written.
            down, right = torch.randint(3, (2,), generator=everybody).tolist()
            images = F.pad(self.learn_x[batch], (1, 1, 1, 1), value=-0.3)[..., down : down + 8, right : right + 8]
            loss = F.cross_entropy(self.model(images), self.learn_y[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            total += loss.item()
        return total / self.steps

    @torch.no_grad()
    def count_right(self) -> int:
        """How many of this rank's share of the test images it reads correctly."""
        answers = self.bare(self.test_x[RANK::WORLD_SIZE]).argmax(1)
        return int((answers == self.test_y[RANK::WORLD_SIZE]).sum())

    def train(self) -> bool:
        """Train the remaining epochs. Returns False after a stop request before the last."""
        for epoch in range(len(self.history), self.config.epochs):
            began = time.monotonic()
            loss = self.learn(epoch)
            rate = self.steps * self.share * WORLD_SIZE / (time.monotonic() - began)
            # The wish to stop is summed too, because the file may appear to one rank before another.
            loss, right, is_stopping = sum_over_ranks(loss / WORLD_SIZE, self.count_right(), Path(STOP_FILE).is_file())
            self.history.append({"epoch": epoch + 1, "loss": loss, "accuracy": right / len(self.test_x)})
            if RANK == 0:
                self.report(rate)
                self.save()
            if is_stopping and epoch + 1 < self.config.epochs:
                return False
        return True

    def report(self, rate: float) -> None:
        """A line for each epoch reads as well in a log file as on a terminal."""
        now, last = self.history[-1], self.config.epochs
        done = 15 * len(self.history) // last
        bar = "#" * done + "." * (15 - done)
        print(
            f"[{bar}] epoch {now['epoch']:>2}/{last}  loss {now['loss']:.4f}  "
            f"accuracy {now['accuracy']:.3f}  {rate:>6,.0f} images/s",
            flush=True,
        )

    def save(self) -> None:
        """By rename: a job can be killed at any moment, also during a save."""
        if not self.checkpoint:
            return
        state = {
            "model": self.bare.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "history": self.history,
        }
        unfinished = self.checkpoint.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)

    def load(self, checkpoint: Path) -> None:
        state = torch.load(checkpoint, map_location=DEVICE, weights_only=True)
        self.bare.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.history = state["history"]


def join() -> None:
    """Meet the other ranks, where the environment says that there are others."""
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    elif "OMP_NUM_THREADS" not in os.environ:
        # Ranks that each take every core spend their time waiting for one another.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // LOCAL_WORLD_SIZE))
    if WORLD_SIZE > 1:
        dist.init_process_group("nccl" if ON_GPU else "gloo")


def main(config: Config) -> int:
    began = time.monotonic()
    join()
    trainer = Trainer(config)
    if RANK == 0:
        ranks = "1 rank" if WORLD_SIZE == 1 else f"{WORLD_SIZE} ranks"
        weights = sum(weight.numel() for weight in trainer.bare.parameters())
        print(f"{ranks} on {DEVICE.type}, {trainer.share} images each per step, {weights:,} weights", flush=True)
    finished = trainer.train()
    if RANK == 0 and finished:
        accuracy, seconds = trainer.history[-1]["accuracy"], time.monotonic() - began
        if RESULTS:
            metrics = {"accuracy": accuracy, "seconds": round(seconds, 2), "world_size": WORLD_SIZE}
            metrics |= {"config": asdict(config), "history": trainer.history}
            Path(RESULTS, "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        print(f"accuracy={accuracy:.4f}", flush=True)
    return 0 if finished else SAVED


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    status = main(Config(**vars(parser.parse_args())))
    sys.stdout.flush()
    # All is written: leave without taking anything down. A thread of gloo's may want the interpreter once more; when it
    # has gone, one exit in thirty or so aborts, and with the group destroyed first the model's end may wait for that
    # thread for ever (torch 2.13). Either would count as failed.
    os._exit(status)
