"""Checkpoints that cost a training one copy of its state. `Checkpoints` is the public class.

Importing this package loads no torch: the process that writes checkpoints imports it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serried.train.checkpoints.checkpoints import Checkpoints

__all__ = ["Checkpoints"]


def __getattr__(name: str) -> Any:
    if name == "Checkpoints":
        from serried.train.checkpoints.checkpoints import Checkpoints

        return Checkpoints
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
