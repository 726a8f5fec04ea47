"""The progress of a script: its epoch, its step of metrics, and the steps of a smoke test."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, Optional

from serried.base import files
from serried.schema import names
from serried.train.errors import TrainError


class Progress:
    """Epoch and step of metrics. They are the same on every rank, so a checkpoint holds one copy."""

    replicated = True

    def __init__(self, on_resume: Callable[[int], None]) -> None:
        self._on_resume = on_resume
        """Called with the step that the training resumes from."""
        self.epoch = 0
        self.step = 0
        self.is_done = False
        """The last loop over epochs has ended."""
        self._is_within = False
        """The script is within an epoch."""
        self._counts = [0]
        """The epoch counts of this process's loops."""

    @property
    def epoch_count(self) -> int:
        """The epochs of the present loop; 0 before the first."""
        return self._counts[-1]

    def advance(self, step: Optional[int]) -> int:
        """Go to `step`, by default to the next one, and return it."""
        self.step = self.step + 1 if step is None else step
        return self.step

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs left of `count`. The caller raises `epoch`, unless the script leaves within the epoch.

        Raises TrainError if an earlier loop used up these epochs: this loop would train nothing, and exit with 0.
        """
        if self.epoch >= count and count <= max(self._counts):
            more = f"`run.epochs({max(self._counts) + count})` for {count} more"
            raise TrainError(
                f"no epoch left in `run.epochs({count})`: an earlier loop ran {self.epoch}",
                f"epochs are counted over the whole training: {more}",
            )
        self._counts.append(count)
        self.is_done = False
        while self.epoch < count:
            yield self.epoch
        self.is_done = True

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """While the script is in this epoch."""
        self._is_within = True
        try:
            yield
        finally:
            self._is_within = False

    def register(self, loader: Any, *, resume: bool) -> bool:
        """Whether checkpoints keep the position of a new loader."""
        if not self._is_within:
            return True
        if resume:
            raise TrainError(
                "`run.loader` is called within an epoch: a resumed run could not match loaders to their positions",
                "call it once, before `run.epochs`; within an epoch, an evaluation needs `resume=False`",
            )
        self.set_epoch(loader)
        return False

    def set_epoch(self, loader: Any) -> None:
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self.epoch)

    def state_dict(self) -> Dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self._on_resume(self.step)


class Smoke:
    """With `--smoke` a training makes a few steps, saves and loads a checkpoint, and exits with 0.

    Counts the steps, on all ranks alike, so that all ranks end at the same step. `limit` is 0 in all other runs.
    """

    def __init__(self, environ: Mapping[str, str], *, is_main: bool = True) -> None:
        limit = environ.get(names.SMOKE, "")
        self.limit = int(limit) if limit.isdecimal() else 0
        self.steps = 0
        self.loaded_step: Optional[int] = None
        """The step of the checkpoint that was saved and loaded: the test has passed."""
        self.own_step: Optional[int] = None
        """The step that the script has saved itself."""
        self._results = environ.get(names.RESULTS_DIR)
        self._is_main = is_main
        if self.limit:
            self._report(f"this is a smoke test, which ends after {_count(self.limit)}")

    @property
    def is_over(self) -> bool:
        return 0 < self.limit <= self.steps

    def close(self) -> None:
        """Report the result, here and for `serried show`."""
        if not self.limit:
            return
        proof = "nothing was saved"
        if self.loaded_step is not None:
            proof = f"a checkpoint of step {self.loaded_step} was saved and loaded"
        elif self.own_step is not None:
            proof = f"the program saved step {self.own_step} itself; loading it was not tried"
        self._report(f"smoke test: {_count(self.steps)}; {proof}")
        if self._is_main and self._results:
            with contextlib.suppress(OSError):
                files.make_directory(Path(self._results))
                result = {"steps": self.steps, "loaded_step": self.loaded_step}
                if self.own_step is not None:
                    result["own_step"] = self.own_step
                files.write_json(Path(self._results, names.SMOKE_FILE), result)

    def _report(self, text: str) -> None:
        if self._is_main:
            print(f"serried: {text}", file=sys.stderr, flush=True)


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"
