"""Finds the weights of a linear function from noisy samples, each rank from its own. PyTorch alone."""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

TRUE = torch.tensor([[2.0, -3.0, 0.5, 1.0]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        samples = torch.randn(64, 4)
        loss = torch.nn.functional.mse_loss(model(samples), samples @ TRUE.T + 0.01 * torch.randn(64, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        found = [round(weight, 1) for weight in model.module.weight.flatten().tolist()]
        print(f"{dist.get_world_size()} ranks, Python of {sys.prefix}: weights {found}", flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may outlive the interpreter, and abort then


if __name__ == "__main__":
    main()
