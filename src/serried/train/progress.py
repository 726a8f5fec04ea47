"""How far a script has come."""

from __future__ import annotations

from typing import Any, Callable, Dict


class Progress:
    """Its epoch, and its step of metrics; the same on every rank, so one copy goes into a checkpoint."""

    replicated = True

    def __init__(self, on_resume: Callable[[int], None]) -> None:
        self._on_resume = on_resume
        """Told the step that is gone on from."""
        self.epoch = 0
        self.step = 0

    def state_dict(self) -> Dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self._on_resume(self.step)
