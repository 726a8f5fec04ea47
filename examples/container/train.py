"""Learns the sine on all ranks, in a container that has torch and nothing of Serried."""

from __future__ import annotations

import argparse
import platform

import torch

import serried.train as st

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
STEPS = parser.parse_args().steps

with st.session() as run:
    torch.manual_seed(0)
    model = run.wrap(torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    checkpoints = run.checkpoints(model=model, optimizer=optimizer, every="1m")
    run.print(f"{run.world_size} ranks on {run.device}, {platform.python_version()} on {platform.node()}")
    while checkpoints.steps < STEPS:
        points = torch.Generator().manual_seed(checkpoints.steps * run.world_size + run.rank)
        x = 6 * torch.rand(256, 1, generator=points) - 3
        loss = torch.nn.functional.mse_loss(model(x.to(run.device)), x.sin().to(run.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if checkpoints.step():
            break
    else:
        run.print(f"loss={loss.item():.4f}")
