"""A script written for torchrun, in the manner of Hugging Face's examples; it knows nothing of Serried."""

import argparse
import math
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=Path, default=Path("output"))
parser.add_argument("--max_steps", type=int, default=8)
parser.add_argument("--save_steps", type=int, default=2)
parser.add_argument("--local_rank", "--local-rank", type=int, default=-1)
parser.add_argument("--hold", type=int, default=0, help="1: stay in step 5 until a signal comes")
parser.add_argument("--fail", type=int, default=None, help="the rank that raises in step 3")
args = parser.parse_args()
if "LOCAL_RANK" in os.environ:
    args.local_rank = int(os.environ["LOCAL_RANK"])


def newest() -> Path | None:
    found = sorted(args.output_dir.glob("checkpoint-*.pt"), key=lambda path: int(path.stem.partition("-")[2]))
    return found[-1] if found else None


def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    args.output_dir.mkdir(parents=True, exist_ok=True)
    half = args.output_dir / "checkpoint.tmp"
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, half)
    half.rename(args.output_dir / f"checkpoint-{step}.pt")


dist.init_process_group("gloo", init_method="env://")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
inputs = torch.randn(256, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
step = 0
if checkpoint := newest():
    state = torch.load(checkpoint)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
print(f"rank {rank} of {world}, local rank {args.local_rank}, from step {step}", flush=True)

for batch, target in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
    if step == args.max_steps:
        break
    if (rank, step) == (args.fail, 3):
        raise ValueError("no more of this")
    loss = nn.functional.mse_loss(model(batch), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if rank == 0 and step % args.save_steps == 0:
        save(step, model.module, optimizer)
    if args.hold == 1 and step == 5:
        print("holding", flush=True)
        signal.pause()

assert math.isfinite(loss.item())
print(f"done at step {step}, loss {loss.item():.3f}", flush=True)
dist.barrier()
dist.destroy_process_group()
