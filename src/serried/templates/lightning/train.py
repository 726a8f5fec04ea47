"""Train a LightningModule on as many ranks as there are. A stopped training resumes.

    python train.py                            one process
    torchrun --nproc-per-node 2 train.py       two, by PyTorch's own launcher
    serried run                                as serried.toml says

Lightning trains. Serried's session identifies the ranks, and reports when it is time to save and leave.
"""

from __future__ import annotations

from dataclasses import dataclass

import lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import serried.train as st
from serried.train.lightning import LeaveInTime


@dataclass
class Config:
    epochs: int = 10
    batch_size: int = 32  # of each rank
    lr: float = 3e-3
    seed: int = 1


def make_data(count: int, seed: int) -> TensorDataset:
    """Points, and which side of a curved surface they are on. Put your own data here."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long())


class Classifier(pl.LightningModule):
    """Put your own module here."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.network = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        points, sides = batch
        return nn.functional.cross_entropy(self.network(points), sides)

    def validation_step(self, batch: list[Tensor]) -> None:
        points, sides = batch
        right = (self.network(points).argmax(1) == sides).float().mean()
        self.log("accuracy", right, sync_dist=True, batch_size=len(points))

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            accuracy, ranks = float(self.trainer.callback_metrics["accuracy"]), self.trainer.world_size
            self.print(f"epoch {self.current_epoch + 1}: accuracy {accuracy:.3f} ({ranks} ranks)", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), self.lr)


def main(config: Config) -> None:
    with st.session(seed=config.seed) as run:
        leave = LeaveInTime(run)  # saves and ends the training at a stop notice
        trainer = pl.Trainer(
            max_epochs=config.epochs,
            accelerator="gpu" if run.device.type == "cuda" else "cpu",
            devices=run.local_world_size,
            num_nodes=run.world_size // run.local_world_size,
            callbacks=[leave],
            use_distributed_sampler=False,  # run.loader shares out, and knows where it was
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
        )
        trainer.fit(
            Classifier(config.lr),
            run.loader(make_data(4096, config.seed), batch_size=config.batch_size),
            run.loader(make_data(1024, config.seed + 1), batch_size=256, shuffle=False, tail="keep", resume=False),
            ckpt_path=leave.ckpt_path,
        )


if __name__ == "__main__":
    main(st.config(Config))
