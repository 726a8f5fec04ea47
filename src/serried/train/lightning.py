"""For Lightning: a callback that saves and ends the training at a stop notice. Importing this imports Lightning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from serried.train.run import Session

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules:
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback  # the other name of the package; a script imports one of them


class LeaveInTime(Callback):  # type: ignore[misc]  # Lightning may be missing
    """Saves and ends the training when Serried asks, before the time limit; the next attempt resumes there.

    Create it on every rank. It saves `last.ckpt` in `run.directory`, if there is one.
    """

    def __init__(self, run: Session) -> None:
        super().__init__()
        self._run = run
        saved = sorted(run.directory.glob("*.ckpt"), key=lambda path: path.stat().st_mtime) if run.directory else []
        self.ckpt_path: Optional[Path] = run.broadcast_object(saved[-1] if saved else run.resume_from)
        """Where to resume: the newest checkpoint in `run.directory`, for `trainer.fit`; None at the first start."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self._run.stop_reason() is not None and self._run.directory is not None:  # at the same step on every rank
            path = self._run.directory / "last.ckpt"
            trainer.save_checkpoint(path, weights_only=False)
            self._run.saved_for_stop(trainer.global_step)
            trainer.should_stop = True  # Lightning ends the epoch: a later checkpoint of this step would skip its rest
            for other in trainer.checkpoint_callbacks:
                other._last_global_step_saved, other._last_checkpoint_saved = trainer.global_step, str(path)
