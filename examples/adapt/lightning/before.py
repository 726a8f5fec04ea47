"""A training with Lightning."""

import argparse
import os

import lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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


def main(args):
    pl.seed_everything(args.seed)
    x = torch.randn(1024, 8)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("WORLD_SIZE", "1")) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(Module(args.lr), DataLoader(data, batch_size=args.batch_size, shuffle=True))
    trainer.save_checkpoint("model.ckpt", weights_only=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1)
    main(parser.parse_args())
