"""Learn digits with DistributedDataParallel: a program for torchrun, which knows nothing of Serried."""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def data(folder: Path) -> TensorDataset:
    """From `folder` where it has been staged; else scikit-learn's own copy."""
    staged = folder / "digits.pt"
    if staged.exists():
        images, labels = torch.load(staged, weights_only=True)
    else:
        images, labels = map(torch.tensor, load_digits(return_X_y=True))
    return TensorDataset(images.float() / 16, labels)


def main(args: argparse.Namespace) -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), args.lr, momentum=0.9)
    dataset = data(args.data_dir)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 32, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(ddp(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {total.item() / len(loader) / dist.get_world_size():.4f}", flush=True)
    if rank == 0:
        folder = Path(os.environ.get("SERRIED_CHECKPOINT_DIR", "."))
        torch.save(model.state_dict(), folder / "digits.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", type=Path, default=Path("data"))
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=5)
    main(parser.parse_args())
    sys.stdout.flush()
    os._exit(0)  # with the group taken down first, the model's end may wait for gloo's thread for ever (torch 2.13)
