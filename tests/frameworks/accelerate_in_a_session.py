"""An accelerate script that stops when Serried asks it to: at one step on all ranks, with everything saved."""

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import serried.train as st

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10**6)
parser.add_argument("--pause", type=float, default=0.02, help="seconds that each step takes at least")
args = parser.parse_args()


class Progress:
    """What else has to go on."""

    epoch = 0
    step = 0

    def state_dict(self):
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state):
        self.epoch, self.step = state["epoch"], state["step"]


with st.session() as run:
    accelerator = Accelerator(cpu=True)
    inputs = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    last = run.directory / "last"
    if last.exists():
        accelerator.load_state(last)
    run.print(f"from step {progress.step}")

    while progress.epoch < args.epochs:
        for batch, target in loader:
            loss = nn.functional.mse_loss(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.step += 1
            time.sleep(args.pause)
            if run.stop_reason():
                accelerator.save_state(last)
                run.saved_for_stop(progress.step)
                raise SystemExit(0)
        progress.epoch += 1
