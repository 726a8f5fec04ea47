"""For Hugging Face's Trainer: a callback that saves and ends the training at a stop notice. Imports transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from serried.train.run import Session


class LeaveInTime(TrainerCallback):  # type: ignore[misc]  # transformers may be missing
    """Saves and ends the training when Serried asks, before the time limit; the next attempt resumes there."""

    def __init__(self, run: Session) -> None:
        self._run = run

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - the Trainer's
        if self._run.stop_reason() is not None:  # at the same step on every rank
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - the Trainer's
        if self._run.should_stop:
            self._run.saved_for_stop(state.global_step)
