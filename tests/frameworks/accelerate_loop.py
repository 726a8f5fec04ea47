"""accelerate's own first example, smaller; it knows nothing of Serried."""

import argparse
import math

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--fail", type=int, default=None, help="the rank that raises in step 3")
args = parser.parse_args()

torch.manual_seed(1)
accelerator = Accelerator(cpu=True)
place = f"rank {accelerator.process_index} of {accelerator.num_processes}"
print(f"{place}, local rank {accelerator.local_process_index}, {accelerator.distributed_type.value}", flush=True)

inputs = torch.randn(256, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for step, (batch, target) in zip(range(args.steps), loader, strict=False):
    if (accelerator.process_index, step) == (args.fail, 3):
        raise ValueError("no more of this")
    loss = nn.functional.mse_loss(model(batch), target)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()

mean = accelerator.reduce(loss.detach(), reduction="mean").item()
assert math.isfinite(mean)
weights = accelerator.gather(next(model.parameters()).detach().sum().reshape(1))
assert weights.eq(weights[0]).all(), weights
print(f"done at step {step + 1} of {len(loader)}, loss {mean:.3f}", flush=True)
accelerator.end_training()
