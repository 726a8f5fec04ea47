"""What the parts of this package see of a session: `serried.train.run.Run` is one, and so is a test's own.

Import it for types alone; nothing here needs torch at run time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Protocol

if TYPE_CHECKING:
    import torch

    from serried.train.smoke import Smoke


class Stateful(Protocol):
    """Whatever belongs in a checkpoint: models, optimizers, loaders, a user's own counter."""

    def state_dict(self) -> Dict[str, Any]: ...

    def load_state_dict(self, state: Dict[str, Any]) -> Any: ...


class Context(Protocol):
    """Who this process is, where its checkpoints go, and how it agrees with the others.

    The methods are collective where the world is larger than one: every rank calls them, in the same order,
    from its main thread. With one rank they cost nothing.
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
        """1 for the first, one more for each that continues it; 1 where Serried did not start this process."""
        ...

    @property
    def directory(self) -> Optional[Path]:
        """Where checkpoints are written: `SERRIED_CHECKPOINT_DIR`, what the script asked for, or None."""
        ...

    @property
    def resume_from(self) -> Optional[Path]:
        """A checkpoint, or a directory of them, to begin from where `directory` holds none yet."""
        ...

    @property
    def deadline(self) -> Optional[float]:
        """When the attempt's time ends, in seconds since the epoch, where that is known."""
        ...

    @property
    def loaders(self) -> List[Stateful]:
        """The loaders made so far, in the order of their making, which is the same on every rank: the data
        positions that belong in a checkpoint. A loader that holds the same position on all ranks says so with
        an attribute `replicated = True`; others are kept for each rank.
        """
        ...

    @property
    def parts(self) -> Dict[str, Stateful]:
        """What else the session keeps in a checkpoint, the same on all ranks: its epoch and its step of metrics."""
        ...

    def barrier(self) -> None: ...

    def flush(self) -> None:
        """Write down what this rank holds back: a checkpoint begins, and nobody makes these steps again."""
        ...

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Rank `src`'s object, on every rank."""
        ...

    def all_reduce_max(self, value: int) -> int: ...

    def catch_up(self, objects: List[Stateful]) -> None:
        """Rank 0 is about to save `objects`: let it have their state, if it has run out of data before others."""
        ...

    def stop_reason(self) -> Optional[str]:
        """Why all ranks should save and leave now: `limit`, `preempt`, `user`, `cancel`; `smoke`; None to go on.

        Call it once a step, on every rank. The answer is the same on all ranks at the same call: what one rank
        alone knows is agreed on by an all-reduce every few calls, and is free between them.
        """
        ...

    @property
    def smoke(self) -> Smoke:
        """Counts the steps of a smoke test, and is told what was tried."""
        ...

    def saved_for_stop(self, step: int) -> None:
        """The checkpoint of a requested stop is whole and durable: the session ends with exit code 85."""
        ...
