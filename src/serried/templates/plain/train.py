"""Train on as many ranks as there are: plain PyTorch, without Serried's library.

    python train.py                            one process
    torchrun --nproc-per-node 2 train.py       two, by PyTorch's own launcher
    serried run                                as serried.toml says

The script reads two variables of Serried, both optional: the folder for checkpoints, and the file that appears when it
is time to leave.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", LOCAL_RANK) if ON_GPU else torch.device("cpu")

CHECKPOINT = Path(os.environ.get("SERRIED_CHECKPOINT_DIR", "/nowhere"), "last.pt")
STOP_FILE = Path(os.environ.get("SERRIED_STOP_FILE", "/nowhere"))
SAVED = 85  # exit status: the stop was requested, and a checkpoint is saved


def make_data(count: int, seed: int) -> TensorDataset:
    """Points, and which side of a curved surface they are on. Put your own data here."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long())


def make_model() -> nn.Module:
    """Put your own model here."""
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def train_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    """One pass over this rank's share of the data; its mean loss."""
    model.train()
    total = 0.0
    for points, sides in loader:
        loss = nn.functional.cross_entropy(model(points.to(DEVICE)), sides.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def count_right(model: nn.Module, data: TensorDataset) -> float:
    """The number of correct answers in this rank's share of `data`."""
    model.eval()
    points, sides = data[RANK::WORLD_SIZE]
    return float((model(points.to(DEVICE)).argmax(1).cpu() == sides).sum())


def sum_over_ranks(*values: float) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64, device=DEVICE)
    if WORLD_SIZE > 1:
        dist.all_reduce(total)
    return total.tolist()


def save(state: dict) -> None:
    """By rename: a job can be killed at any moment, also during a save."""
    if not CHECKPOINT.parent.is_dir():
        return
    unfinished = CHECKPOINT.with_suffix(".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(CHECKPOINT)


def main(args: argparse.Namespace) -> int:
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    if WORLD_SIZE > 1:
        dist.init_process_group("nccl" if ON_GPU else "gloo")
    torch.manual_seed(args.seed)
    data, held_out = make_data(4096, args.seed), make_data(1024, args.seed + 1)
    sampler: DistributedSampler = DistributedSampler(data, WORLD_SIZE, RANK, seed=args.seed)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    bare = make_model().to(DEVICE)
    optimizer = torch.optim.AdamW(bare.parameters(), args.lr)
    done = 0
    if CHECKPOINT.exists():  # an earlier attempt was cut short
        state = torch.load(CHECKPOINT, map_location=DEVICE, weights_only=True)
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epochs"]
    model = DistributedDataParallel(bare) if WORLD_SIZE > 1 else bare
    for epoch in range(done, args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer)
        # The stop is summed too: one rank may see the file before another.
        loss, right, is_stopping = sum_over_ranks(loss, count_right(bare, held_out), STOP_FILE.is_file())
        if RANK == 0:
            accuracy = right / len(held_out)
            print(f"epoch {epoch + 1}: loss {loss / WORLD_SIZE:.4f}, accuracy {accuracy:.3f} ({WORLD_SIZE} ranks)")
            save({"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1})
        if is_stopping and epoch + 1 < args.epochs:
            return SAVED
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small network on synthetic points.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    status = main(parser.parse_args())
    sys.stdout.flush()
    # Exit without destroying the group. A thread of gloo may still need the interpreter: about one normal exit in 30
    # aborts, and after `destroy_process_group` the model may hang on that thread (torch 2.13). Both would
    # count as failed. Serried's library handles this itself.
    os._exit(status)
