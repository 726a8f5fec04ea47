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
    """A `worker_init_fn`: ignores `QUIET`, then calls the user's. A class, because spawned workers unpickle it."""

    def __init__(self, then: Optional[Callable[[int], Any]] = None) -> None:
        self.then = then
        _end_all_at_exit()

    def __call__(self, worker: int) -> None:
        if threading.current_thread() is threading.main_thread():  # else a worker is a thread of the rank
            for number in QUIET:
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, QUIET)
            _worker_number.append(worker)
        if self.then is not None:
            # Let `get_worker_info().dataset` be the user's data, as in any loader, and not their wrapper.
            info = worker_of_this_process()
            inner: Any = getattr(info, "dataset", None)
            if hasattr(inner, "users_data"):
                object.__setattr__(info, "dataset", inner.users_data)  # its own __setattr__ refuses
            self.then(worker)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Start workers within: they start with `QUIET` blocked, and unblock these signals once they ignore them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, QUIET)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_of_this_process() -> Any:
    """Torch's description of this worker; None in the main process."""
    torch_data = sys.modules.get("torch.utils.data")
    return None if torch_data is None else torch_data.get_worker_info()


def reseed(seed: int) -> None:
    """Seed the random generators of a loader's worker. Do nothing in the main process: the model draws from them there.

    A batch's augmentations then depend on its position, and not on what its worker read before: they are the same
    after a stop. Torch's generator is seeded directly: `torch.manual_seed` would touch CUDA, which a worker must not.
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
    """Remember the workers of a torch loader's iterator, so that none outlives this process."""
    _started[:] = [worker for worker in _started if worker.is_alive()]
    _started.extend(getattr(iterator, "_workers", ()))


@lru_cache(maxsize=None)
def _end_all_at_exit() -> None:
    """Kill the workers at exit. Python ends daemons by TERM, which these ignore, and then never stops waiting for them.

    The function registered last is called first: this one after `multiprocessing`, and before a loader.
    """
    import torch.utils.data  # noqa: F401 - registers

    atexit.register(_end_all)


def _end_all() -> None:
    if any(worker.is_alive() for worker in _started):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise for each killed worker
    for worker in _started:
        if worker.is_alive():
            worker.kill()
