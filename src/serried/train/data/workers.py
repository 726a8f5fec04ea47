"""Worker processes of loaders: they ignore the job's signals, and their random numbers are reproducible.

Slurm signals every process of a step, workers too. A worker that ends by a signal ends the training during a save.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
import threading
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Callable, Iterator, List, Optional

QUIET = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
"""Signals that a launcher, a scheduler or a user sends to all processes of a job; only the ranks handle them."""


_worker_number: List[int] = []
"""This process's number as a worker, if it is one."""


class WorkerStart:
    """A `worker_init_fn`: ignore `QUIET`, then do what the user wants. A class, for spawned workers are sent it."""

    def __init__(self, then: Optional[Callable[[int], Any]] = None) -> None:
        self.then = then
        _end_all_at_exit()

    def __call__(self, worker: int) -> None:
        if (
            threading.current_thread() is threading.main_thread()
        ):  # else a worker is a thread of the rank, which answers
            for number in QUIET:
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, QUIET)
            _worker_number.append(worker)
        if self.then is not None:
            _expose_user_dataset()
            self.then(worker)


def _expose_user_dataset() -> None:
    """Let `get_worker_info().dataset` be the user's data, as in any loader, not what they are wrapped in."""
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    inner: Any = getattr(info, "dataset", None)
    if hasattr(inner, "users_data"):
        object.__setattr__(info, "dataset", inner.users_data)  # its own __setattr__ refuses


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Start workers within: they are born with `QUIET` blocked, and let go of it once they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, QUIET)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_of_this_process() -> Any:
    """What torch tells of this worker; None in the main process."""
    torch_data = sys.modules.get("torch.utils.data")
    return None if torch_data is None else torch_data.get_worker_info()


def reseed(seed: int) -> None:
    """In a loader's worker, seed what draws random numbers; elsewhere nothing: a model draws from the same ones there.

    A batch's augmentations then depend on where it stands, not on what its worker read before: they come out the same
    after a stop. Torch's generator is seeded directly: `torch.manual_seed` would ask CUDA too, which a worker must not.
    """
    if not _worker_number:
        return
    sys.modules["torch"].default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)


_started: List[Any] = []
os.register_at_fork(after_in_child=_started.clear)


def remember(iterator: Any) -> None:
    """Note the workers of a torch loader's iterator, so that none outlives this process."""
    _started[:] = [worker for worker in _started if worker.is_alive()]
    _started.extend(getattr(iterator, "_workers", ()))


@lru_cache(maxsize=None)
def _end_all_at_exit() -> None:
    """Python ends its daemons by TERM, which ours ignore, and then waits: one stuck in a read would hold the exit.

    What is registered last is done first. This comes after `multiprocessing` has registered, before a loader has.
    """
    import torch.utils.data  # noqa: F401 - registers

    atexit.register(_end_all)


def _end_all() -> None:
    if any(worker.is_alive() for worker in _started):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's would raise for each that is killed
    for worker in _started:
        if worker.is_alive():
            worker.kill()
