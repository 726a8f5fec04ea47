"""The interface of a session within this package: `serried.train.run.Run` has it, and so do test doubles.

Import it for types only; nothing here needs torch at run time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Protocol

if TYPE_CHECKING:
    import torch

    from serried.train.smoke import Smoke


class Stateful(Protocol):
    """An object that checkpoints can save: a model, an optimizer, a loader, a counter."""

    def state_dict(self) -> Dict[str, Any]: ...

    def load_state_dict(self, state: Dict[str, Any]) -> Any: ...


class Context(Protocol):
    """This rank's identity, its folder for checkpoints, and the collectives.

    With several ranks the methods are collective: every rank calls them, in the same order, from its main thread.
    With one rank they cost nothing.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def local_world_size(self) -> int: ...

    @property
    def node_rank(self) -> int: ...

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def seed(self) -> int:
        """The session's seed, the same on every rank."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first attempt, one more for each that continues it; 1 if Serried did not start this process."""
        ...

    @property
    def directory(self) -> Optional[Path]:
        """The folder for checkpoints: `SERRIED_CHECKPOINT_DIR`, the script's choice, or None."""
        ...

    @property
    def resume_from(self) -> Optional[Path]:
        """A checkpoint, or a directory of checkpoints, to start from while `directory` has none."""
        ...

    @property
    def deadline(self) -> Optional[float]:
        """The end of the attempt's time limit, in seconds since the epoch, if known."""
        ...

    @property
    def loaders(self) -> List[Stateful]:
        """The loaders in order of creation, which is the same on every rank. Checkpoints save their positions.

        A loader with the attribute `replicated = True` has the same position on all ranks; others are saved per rank.
        """
        ...

    @property
    def parts(self) -> Dict[str, Stateful]:
        """Further replicated state of the session: its epoch and its step of metrics."""
        ...

    def barrier(self) -> None: ...

    def flush(self) -> None:
        """Write this rank's buffered metrics: a checkpoint begins, and its steps will not be repeated."""
        ...

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Rank `src`'s object, on every rank."""
        ...

    def all_reduce_max(self, value: int) -> int: ...

    def catch_up(self, objects: List[Stateful]) -> None:
        """Before rank 0 saves `objects`: if it ran out of uneven data, it receives their state from another rank."""
        ...

    def stop_reason(self) -> Optional[str]:
        """The reason to save and leave now: `limit`, `preempt`, `user`, `cancel` or `smoke`; None to continue.

        Call it once per step, on every rank. All ranks get the same answer at the same call: an all-reduce every few
        calls shares the requests, and the calls between cost nothing.
        """
        ...

    @property
    def smoke(self) -> Smoke:
        """Counts the steps of a smoke test, and records its result."""
        ...

    def saved_for_stop(self, step: int) -> None:
        """Report the durable checkpoint of a requested stop: the session exits with status 85."""
        ...
