"""Lightning's own model of its demos with the Trainer's defaults: a script without options."""

import os

import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringModel

model = BoringModel()
trainer = pl.Trainer(max_epochs=3, default_root_dir=os.environ.get("SERRIED_CHECKPOINT_DIR"))
trainer.fit(model, ckpt_path=os.environ.get("SERRIED_RESUME_FROM"))
