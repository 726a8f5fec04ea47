"""Learn digits on as many processes as Slurm, torchrun or Serried has started, or on one."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def first_of(*names: str, default: int) -> int:
    """The first of these variables that is set: torch's own name, else Slurm's."""
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


RANK = first_of("RANK", "SLURM_PROCID", default=0)
WORLD_SIZE = first_of("WORLD_SIZE", "SLURM_NTASKS", default=1)
LOCAL_RANK = first_of("LOCAL_RANK", "SLURM_LOCALID", default=0)


def main(args: argparse.Namespace) -> None:
    on_gpu = torch.cuda.is_available() and not args.cpu
    device = torch.device("cuda", LOCAL_RANK) if on_gpu else torch.device("cpu")
    if WORLD_SIZE > 1:
        backend = args.backend or ("nccl" if on_gpu else "gloo")
        dist.init_process_group(backend, rank=RANK, world_size=WORLD_SIZE)
    torch.manual_seed(args.seed)
    model: nn.Module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10)).to(device)
    if WORLD_SIZE > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    images = images.float() / 16
    learned, tested = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])
    sampler = DistributedSampler(learned, WORLD_SIZE, RANK, seed=args.seed)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for number, (x, y) in enumerate(DataLoader(learned, args.batch_size, sampler=sampler)):
            if args.dry_run and number:
                break
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            batches = DataLoader(tested, args.test_batch_size)
            right = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in batches)
        if RANK == 0:
            print(f"epoch {epoch + 1}: accuracy {right / len(tested):.3f} ({WORLD_SIZE} ranks)", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=["gloo", "nccl"])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    main(parser.parse_args())
    sys.stdout.flush()
    os._exit(0)  # with the group taken down first, the model's end may wait for gloo's thread for ever (torch 2.13)
