"""A Lightning script as its users write it; it knows nothing of Serried."""

import argparse
import math
import time

import lightning as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--num_nodes", type=int, default=1)
parser.add_argument("--devices", type=int, default=2)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--default_root_dir", default="lightning")
parser.add_argument("--ckpt_path", default=None)
parser.add_argument("--save_every", type=int, default=0, help="steps between checkpoints")
parser.add_argument("--save_last", action="store_true", help="save on a signal too, and resume from the last one")
parser.add_argument("--hold", type=int, default=None, help="stay in this step, if training has begun with the first")
parser.add_argument("--fail", type=int, default=None, help="the rank that raises in step 3")
args = parser.parse_args()


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(8, 1)
        self.began = 0

    def on_train_start(self):
        t = self.trainer
        self.began = t.global_step
        environment = type(t.strategy.cluster_environment).__name__
        place = f"rank {t.global_rank} of {t.world_size}, local rank {t.local_rank} on node {t.node_rank}"
        print(f"{place}, {environment}, from step {self.began}", flush=True)

    def training_step(self, batch, _):
        step = self.trainer.global_step
        if (self.trainer.global_rank, step) == (args.fail, 3):
            raise ValueError("no more of this")
        if step == args.hold and not self.began:
            self.hold()
        inputs, target = batch
        loss = nn.functional.mse_loss(self.model(inputs), target)
        self.log("loss", loss)
        return loss

    def hold(self):
        """Lightning's handlers talk to the other ranks: a signal has to find them all at the same place."""
        print("holding", flush=True)
        while not self.trainer.received_sigterm:
            time.sleep(0.02)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main():
    pl.seed_everything(1, verbose=False)
    inputs = torch.randn(64, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    last = {"dirpath": args.default_root_dir, "save_last": True, "save_on_exception": True} if args.save_last else {}
    saving = ModelCheckpoint(every_n_train_steps=args.save_every, **last)
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy="ddp",
        num_nodes=args.num_nodes,
        devices=args.devices,
        max_steps=args.steps,
        max_epochs=-1,
        default_root_dir=args.default_root_dir,
        callbacks=[saving] if args.save_every else [],
        enable_checkpointing=bool(args.save_every),
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=bool(args.save_every),
    )
    loader = DataLoader(data, batch_size=4, shuffle=True)
    trainer.fit(Regression(), loader, ckpt_path="last" if args.save_last else args.ckpt_path)
    loss = trainer.callback_metrics["loss"].item()
    assert math.isfinite(loss)
    print(f"done at step {trainer.global_step}, loss {loss:.3f}", flush=True)


main()
