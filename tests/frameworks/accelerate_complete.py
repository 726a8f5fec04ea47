"""The calls of accelerate's complete_nlp_example.py, on a small model; it knows nothing of Serried."""

import argparse
import os
import signal

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--checkpointing_steps", default=None, help="a number, or `epoch`")
parser.add_argument("--output_dir", default=".")
parser.add_argument("--resume_from_checkpoint", default=None)
parser.add_argument("--num_epochs", type=int, default=2)
parser.add_argument("--hold", type=int, default=0, help="1: stay in step 5 until a signal comes")
args = parser.parse_args()

accelerator = Accelerator(cpu=True)
checkpointing_steps = int(args.checkpointing_steps) if args.checkpointing_steps.isdigit() else None
set_seed(42)
inputs = torch.randn(64, 8)
train_dataloader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(model, optimizer, train_dataloader, lr_scheduler)
overall_step = 0
starting_epoch = 0
resume_step = None
if args.resume_from_checkpoint:
    accelerator.load_state(args.resume_from_checkpoint)
    path = os.path.basename(args.resume_from_checkpoint)
    training_difference = os.path.splitext(path)[0]
    if "epoch" in training_difference:
        starting_epoch = int(training_difference.replace("epoch_", "")) + 1
    else:
        overall_step = resume_step = int(training_difference.replace("step_", ""))
        starting_epoch = resume_step // len(train_dataloader)
        resume_step -= starting_epoch * len(train_dataloader)
print(f"rank {accelerator.process_index} of {accelerator.num_processes}, from step {overall_step}", flush=True)

for epoch in range(starting_epoch, args.num_epochs):
    model.train()
    if args.resume_from_checkpoint and epoch == starting_epoch and resume_step is not None:
        active_dataloader = accelerator.skip_first_batches(train_dataloader, resume_step)
    else:
        active_dataloader = train_dataloader
    for batch, target in active_dataloader:
        loss = nn.functional.mse_loss(model(batch), target)
        accelerator.backward(loss)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        overall_step += 1
        if isinstance(checkpointing_steps, int) and overall_step % checkpointing_steps == 0:
            accelerator.save_state(os.path.join(args.output_dir, f"step_{overall_step}"))
        if args.hold == 1 and overall_step == 5:
            print("holding", flush=True)
            signal.pause()
    if args.checkpointing_steps == "epoch":
        accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))
print(f"done at step {overall_step}", flush=True)
accelerator.end_training()
