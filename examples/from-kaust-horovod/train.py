"""Learn digits with Horovod, epoch by epoch; checkpoints are written in one place and read in another."""

import argparse
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def save(folder: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, folder / f"checkpoint-epoch-{epoch:02}.pt")


def main(args: argparse.Namespace) -> None:
    hvd.init()
    torch.manual_seed(0)
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr * hvd.size(), momentum=0.9, weight_decay=5e-5)
    begun = 0
    if hvd.rank() == 0 and args.read_checkpoints_from:
        state = torch.load(args.read_checkpoints_from, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begun = state["epoch"]
    begun = hvd.broadcast_object(begun, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    dataset = TensorDataset(images.float() / 16, labels)
    sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
    for epoch in range(begun, args.epochs):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(dataset, args.batch_size, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        mean = hvd.allreduce(loss.detach(), name="loss").item()
        if hvd.rank() == 0:
            save(args.write_checkpoints_to, epoch + 1, model, optimizer)
            print(f"epoch {epoch + 1}: loss {mean:.4f} ({hvd.size()} ranks)", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--write-checkpoints-to", type=Path, required=True)
    parser.add_argument("--read-checkpoints-from", default="", help="a file; empty for a new training")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.0125)
    main(parser.parse_args())
