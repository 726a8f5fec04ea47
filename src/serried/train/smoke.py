"""A smoke test: with `--smoke` a training makes a few steps, saves and loads a checkpoint, and exits with 0."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Mapping, Optional

from serried.fs import files
from serried.protocol import names


class Smoke:
    """Counts steps, on all ranks alike, so that all end at the same step. With a limit of 0 there is none to end."""

    def __init__(self, limit: int = 0, results: Optional[str] = None, *, is_main: bool = True) -> None:
        self.limit = limit
        self.steps = 0
        self._loaded_step: Optional[int] = None
        self._own_step: Optional[int] = None
        self._results = results
        self._is_main = is_main
        if limit:
            self._say(f"this is a smoke test, which ends after {_count(limit)}")

    @property
    def is_over(self) -> bool:
        return 0 < self.limit <= self.steps

    def step(self) -> bool:
        """Count a step. Returns whether it was the last."""
        self.steps += 1
        return self.is_over

    @property
    def has_passed(self) -> bool:
        return self._loaded_step is not None

    def passed(self, step: int) -> None:
        """The checkpoint of `step` was saved and loaded."""
        self._loaded_step = step

    def saved(self, step: int) -> None:
        """The script reports that it has saved `step` itself."""
        self._own_step = step

    def report(self) -> None:
        """Report the result, here and for `serried show`."""
        if not self.limit:
            return
        proof = "nothing was saved"
        if self._loaded_step is not None:
            proof = f"a checkpoint of step {self._loaded_step} was saved and loaded"
        elif self._own_step is not None:
            proof = f"the program saved step {self._own_step} itself; loading it was not tried"
        self._say(f"smoke test: {_count(self.steps)}; {proof}")
        if self._is_main and self._results:
            with contextlib.suppress(OSError):
                files.make_directory(Path(self._results))
                told = {"steps": self.steps, "loaded_step": self._loaded_step}
                if self._own_step is not None:
                    told["own_step"] = self._own_step
                files.write_json(Path(self._results, names.SMOKE_FILE), told)

    def _say(self, text: str) -> None:
        if self._is_main:
            print(f"serried: {text}", file=sys.stderr, flush=True)


def of(environ: Mapping[str, str], *, is_main: bool) -> Smoke:
    """The smoke test of this process."""
    limit = environ.get(names.SMOKE, "")
    return Smoke(int(limit) if limit.isdecimal() else 0, environ.get(names.RESULTS_DIR), is_main=is_main)


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"
