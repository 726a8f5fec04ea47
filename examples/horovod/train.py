"""Teach a small network to read 1,797 handwritten digits with Horovod, and go on where it was stopped.

    python train.py                          one process
    horovodrun -np 2 python train.py         two, started by Horovod's own launcher
    serried run                              two, as serried.toml says; `serried submit` for a cluster

The digits come with scikit-learn: real scans, 8 x 8 pixels, nothing to download. Of Serried the script knows three
environment variables, each optional: where checkpoints go, one to begin from, and the file that appears when it is time
to leave.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what PyTorch calls it
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class Config:
    """Each of these is also an option: `--epochs 3`."""

    epochs: int = 20
    batch: int = 32  # images of one rank in a step
    lr: float = 0.05  # for one rank; more ranks take larger steps, as each step averages more images
    warmup: int = 2  # epochs until the learning rate has its full size
    momentum: float = 0.9
    weight_decay: float = 5e-5
    seed: int = 1


CHECKPOINTS = Path(os.environ.get("SERRIED_CHECKPOINT_DIR", "checkpoints"))
BEGIN_FROM = os.environ.get("SERRIED_RESUME_FROM", "")  # where there is no checkpoint of this run's own yet
STOP_FILE = Path(os.environ.get("SERRIED_STOP_FILE", "/nowhere"))
SAVED = 85  # exit status: the stop was requested, and a checkpoint is saved


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


def digits() -> tuple[TensorDataset, TensorDataset]:
    """To learn from, and to be tested on: the same split on every rank and every day."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16 - 0.3, labels, test_size=360, random_state=0, stratify=labels)
    learn_x, test_x, learn_y, test_y = map(torch.from_numpy, parts)
    learn, test = (learn_x.float().view(-1, 1, 8, 8), learn_y), (test_x.float().view(-1, 1, 8, 8), test_y)
    return TensorDataset(*learn), TensorDataset(*test)


class Trainer:
    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.device = config, device
        learn, test = digits()
        self.sampler = DistributedSampler(learn, hvd.size(), hvd.rank(), seed=config.seed)
        self.batches = DataLoader(learn, config.batch, sampler=self.sampler, drop_last=True)
        shares = DistributedSampler(test, hvd.size(), hvd.rank(), shuffle=False)
        self.tests = DataLoader(test, config.batch, sampler=shares)

        torch.manual_seed(config.seed)
        self.model = network().to(device)
        optimizer = torch.optim.SGD(
            self.model.parameters(), config.lr * hvd.size(), config.momentum, weight_decay=config.weight_decay
        )
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=self.model.named_parameters())
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share_of_lr)

        self.epoch = self.resume()  # how many are done
        # All ranks begin with the state that rank 0 has read or created.
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        self.schedule.load_state_dict(hvd.broadcast_object(self.schedule.state_dict(), root_rank=0))

    def share_of_lr(self, step: int) -> float:
        """Up over the first epochs, then down to nothing."""
        epochs = step / len(self.batches)
        left = (self.config.epochs - epochs) / max(1, self.config.epochs - self.config.warmup)
        return min((epochs + 0.1) / max(1, self.config.warmup), max(0.0, left), 1.0)

    def resume(self) -> int:
        """Rank 0 alone looks: on another node a file may show later. Returns how many epochs were done."""
        epoch = 0
        if hvd.rank() == 0:
            newest = max(CHECKPOINTS.glob("epoch-*.pt"), default=BEGIN_FROM)
            if newest:
                state = torch.load(newest, map_location=self.device, weights_only=True)
                self.model.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])
                self.schedule.load_state_dict(state["schedule"])
                epoch = state["epoch"]
        return hvd.broadcast_object(epoch, root_rank=0)

    def save(self) -> None:
        """By rename: a job can be killed at any moment, also during a save."""
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "epoch": self.epoch,
        }
        path = CHECKPOINTS / f"epoch-{self.epoch:03}.pt"
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def learn(self) -> float:
        """One pass over the data; returns this rank's mean loss."""
        self.sampler.set_epoch(self.epoch)
        total = torch.zeros((), device=self.device)
        for images, labels in self.batches:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(images.to(self.device)), labels.to(self.device))
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            total += loss.detach()
        return total.item() / len(self.batches)

    @torch.no_grad()
    def accuracy(self) -> float:
        """Of this rank's share of the test images."""
        right = sum(int((self.model(x.to(self.device)).argmax(1).cpu() == y).sum()) for x, y in self.tests)
        return right / len(self.tests.sampler)

    def train(self) -> bool:
        """Train the remaining epochs. Returns False after a stop request before the last."""
        while self.epoch < self.config.epochs:
            values = Tensor([self.learn(), self.accuracy(), STOP_FILE.is_file()])
            self.epoch += 1
            # The wish to stop is averaged too, because the file may appear to one rank before another.
            loss, accuracy, is_stopping = hvd.allreduce(values, name="epoch").tolist()
            if hvd.rank() == 0:
                print(
                    f"epoch {self.epoch:>2}/{self.config.epochs}  loss {loss:.4f}  accuracy {accuracy:.3f}", flush=True
                )
                self.save()
            if is_stopping and self.epoch < self.config.epochs:
                hvd.barrier()  # no rank leaves before rank 0 has saved
                return False
        return True


def main(config: Config) -> int:
    hvd.init()
    on_gpu = torch.cuda.device_count() >= hvd.local_size()  # one for each rank, or none for any
    device = torch.device("cuda", hvd.local_rank()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    elif "OMP_NUM_THREADS" not in os.environ:
        # Ranks that each take every core spend their time waiting for one another.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
    trainer = Trainer(config, device)
    if hvd.rank() == 0:
        start = f"from epoch {trainer.epoch}" if trainer.epoch else "from the beginning"
        lr = config.lr * hvd.size()
        print(f"{hvd.size()} ranks on {device.type}, learning rate {lr:g}, {start}", flush=True)
    finished = trainer.train()
    hvd.shutdown()
    return 0 if finished else SAVED


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    sys.exit(main(Config(**vars(parser.parse_args()))))
