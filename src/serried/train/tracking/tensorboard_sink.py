"""Event files for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Optional

from serried.train.tracking.feed import Point, SessionEnd, Sink

FLUSH_SECONDS = 10


class TensorBoard(Sink):
    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Optional[Any] = None

    def start(self) -> None:
        import torch.utils.tensorboard  # noqa: F401 - takes a second, and fails now if TensorBoard is not installed

    def write(self, points: List[Point]) -> None:
        for at, step, values in points:
            writer = self._open(step)
            for name, value in values.items():
                if isinstance(value, str):
                    writer.add_text(name, value, step, walltime=at)
                elif isinstance(value, (int, float)):
                    writer.add_scalar(name, value, step, walltime=at)

    def _open(self, step: int) -> Any:
        """The writer. Its file hides what earlier attempts wrote from this attempt's first `step` on.

        The first attempt purges, too, though there is nothing to hide: TensorBoard ignores the first purge of a folder.
        """
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=step, flush_secs=FLUSH_SECONDS)
        return self._writer

    def finish(self, ending: SessionEnd) -> None:  # noqa: ARG002
        if self._writer is not None:
            self._writer.close()
