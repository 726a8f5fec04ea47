"""A training with slurm-pytorch-ddp-boilerplate, started by srun."""

import argparse

import torch
from src.ddp.ddp_iterable_dataset import DDPIterableDataset
from src.ddp.ddp_utils import conditional_join, ddp_setup, dist_identity, dprint, safe_barrier
from src.ddp.device_singleton import device
from src.utilities import current_config
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(current_config["seed"])
    x = torch.randn(1023, 8)
    source = TensorDataset(x, (x[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(device.get())
    if dist_identity.ddp_available:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adadelta(model.parameters(), current_config["lr"])
    loader = DataLoader(DDPIterableDataset(source), batch_size=current_config["batch_size"])
    for epoch in range(current_config["max_epochs"]):
        with conditional_join(model, optimizer):
            for points, sides in loader:
                points, sides = points.to(device.get()), sides.to(device.get())
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(points), sides)
                loss.backward()
                optimizer.step()
        if dist_identity.rank == 0:
            dprint(f"epoch {epoch + 1}: loss {loss.item():.4f}")
    if dist_identity.rank == 0:
        torch.save(model.state_dict(), "saved_model.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--backend", default=None)
    args = parser.parse_args()
    current_config["batch_size"], current_config["max_epochs"] = args.batch_size, args.epochs
    current_config["lr"], current_config["seed"] = args.lr, args.seed
    backend = args.backend or ("gloo" if args.cpu else "nccl")
    if args.cpu:
        device.set("cpu")
    if dist_identity.ddp_available:
        ddp_setup(backend)
    try:
        main()
    finally:
        safe_barrier()
