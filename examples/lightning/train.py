"""Learn to read digits with Lightning: a script that knows nothing of Serried.

python train.py                            one process
torchrun --nproc-per-node 2 train.py       two, by PyTorch's own launcher
serried run                                as serried.toml says
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import lightning as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: list[Tensor]) -> None:
        images, labels = batch
        right = (self.network(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True, batch_size=len(images))

    def on_validation_epoch_end(self) -> None:
        accuracy, ranks = float(self.trainer.callback_metrics["accuracy"]), self.trainer.world_size
        self.print(f"epoch {self.current_epoch + 1}: accuracy {accuracy:.3f} ({ranks} ranks)", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 3e-3)


def loaders() -> tuple[DataLoader, DataLoader]:
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train, test = TensorDataset(images[300:], labels[300:]), TensorDataset(images[:300], labels[:300])
    return DataLoader(train, 32, shuffle=True), DataLoader(test, 300)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()
    pl.seed_everything(1, verbose=False)
    ranks, on_this_node = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    saved = ModelCheckpoint(args.checkpoints, save_last=True, every_n_epochs=1)
    trainer = pl.Trainer(
        devices=on_this_node,
        num_nodes=ranks // on_this_node,
        max_epochs=args.epochs,
        callbacks=[saved],
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    last = args.checkpoints / "last.ckpt"
    trainer.fit(Digits(), *loaders(), ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main()
