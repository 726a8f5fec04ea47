"""The same, which saves and leaves in time, and goes on in the middle of an epoch."""

import argparse

import lightning as pl
import torch
from torch import nn
from torch.utils.data import TensorDataset

import serried.train as st
from serried.train.lightning import LeaveInTime


class Module(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch):
        points, sides = batch
        loss = nn.functional.cross_entropy(self.network(points), sides)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        self.print(f"epoch {self.current_epoch + 1}: loss {float(self.trainer.callback_metrics['loss']):.4f}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), self.lr)


def main(args, run):
    x = torch.randn(1024, 8, generator=torch.Generator().manual_seed(args.seed))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    leave = LeaveInTime(run)
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="auto",
        devices=run.local_world_size,
        num_nodes=run.world_size // run.local_world_size,
        use_distributed_sampler=False,
        callbacks=[leave],
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    loader = run.loader(data, batch_size=args.batch_size)
    trainer.fit(Module(args.lr), loader, ckpt_path=leave.ckpt_path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with st.session(seed=args.seed) as run:
        main(args, run)
