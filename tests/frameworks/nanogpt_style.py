"""A training with nanoGPT's structure: its settings, its reading of RANK, its ckpt.pt. It knows nothing of Serried."""

import os
import signal
import sys

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
init_from = "scratch"  # or `resume`
backend = "nccl"
device = "cpu"
compile = True  # noqa: A001 - its name there
max_iters = 8
eval_interval = 2
hold = 0
for arg in sys.argv[1:]:  # as configurator.py does
    key, _, value = arg.removeprefix("--").partition("=")
    assert arg.startswith("--") and key in globals(), arg
    globals()[key] = type(globals()[key])(value)

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    ddp_rank = int(os.environ["RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
else:
    ddp_rank, ddp_world_size, master_process, seed_offset = 0, 1, True, 0
if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + seed_offset)

model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
iter_num = 0
checkpoint = None
if init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
    model.load_state_dict(checkpoint["model"])
    iter_num = checkpoint["iter_num"]
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
if checkpoint:
    optimizer.load_state_dict(checkpoint["optimizer"])
checkpoint = None
if ddp:
    model = DDP(model)
raw_model = model.module if ddp else model
print(f"rank {ddp_rank} of {ddp_world_size}, from step {iter_num}", flush=True)

while iter_num <= max_iters:
    if iter_num % eval_interval == 0 and iter_num > 0 and master_process:
        state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
        torch.save(state, os.path.join(out_dir, "ckpt.pt"))
    if hold == 1 and iter_num == 5:
        print("holding", flush=True)
        signal.pause()
    x = torch.randint(16, (4, 8))
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    iter_num += 1

print(f"done at step {max_iters}", flush=True)
if ddp:
    destroy_process_group()
