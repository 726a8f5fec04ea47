"""HPC_helper's micro-benchmark of layer norm: ten linear layers, each with a norm, on 512 x 512 points."""

import argparse
import time

import torch
from torch import nn

import serried.train.profile  # noqa: F401 - counts the optimizer's steps for `serried profile`

parser = argparse.ArgumentParser()
parser.add_argument("--norm", choices=("layer", "batch", "none"), default="layer")
parser.add_argument("--rows", type=int, default=512 * 512)
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()

norm = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d, "none": lambda _: nn.Identity()}[args.norm]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
blocks = [layer for _ in range(10) for layer in (nn.Linear(128, 128), norm(128))]
net = nn.Sequential(nn.Linear(3, 128), *blocks, nn.Linear(128, 3)).to(device).train()
points = torch.zeros(args.rows, 3, device=device)
optimizer = torch.optim.SGD(net.parameters(), 0.01)

for step in range(args.steps):
    began = time.perf_counter()
    loss = nn.functional.mse_loss(net(points), points)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(f"step {step + 1}: {time.perf_counter() - began:.3f} s", flush=True)
