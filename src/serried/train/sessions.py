"""`with session() as run:` identifies this rank, chooses a device, joins the other ranks, and ends them cleanly."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any, Iterator, Optional, Union

import torch

from serried.protocol import names
from serried.train import failure, fast_exit, metrics, network, wrapping
from serried.train.errors import TrainError
from serried.train.group import Group
from serried.train.identities import Identity, identity
from serried.train.run import Run, SessionExit
from serried.train.stopping import StopListener

START_SECONDS = 180.0
FAILED_SECONDS = 10.0
"""How long a failing rank waits for its checkpoint to complete: ranks that have exited cannot write their part."""

_UNSAVED = """\
serried: stop requested; exiting without a checkpoint (exit status 143)
serried: hint: if your script saves by itself, call `run.saved_for_stop(step)`"""

_is_open = False
_current: Optional[Run] = None


def current() -> Optional[Run]:
    """The open session, if any."""
    return _current


@contextlib.contextmanager
def session(
    *,
    device: Union[str, torch.device, None] = None,
    backend: Optional[str] = None,
    seed: Optional[int] = 0,
    directory: Union[str, Path, None] = None,
    metrics_file: Union[str, Path, None] = None,
    start_seconds: float = START_SECONDS,
    timeout_seconds: Optional[float] = None,
) -> Iterator[Run]:
    """Set up this rank for training; works in a plain `python train.py` too.

    device: the device to train on; by default this rank's GPU, else the CPU.
    backend: the backend of torch.distributed; by default nccl for GPUs and gloo for the CPU.
    seed: rank r seeds its generators with `seed + r`; None leaves them alone.
    directory: the folder for checkpoints; by default the run's.
    metrics_file: the file of `run.log`; by default beside the rank's log in a run of Serried, else none.
    start_seconds: how long the ranks wait for one another at the start.
    timeout_seconds: the time-out of collectives; by default torch's.

    Exits with status 85 if a stop was requested and the ranks have saved, and with 143 if they leave on request
    without a checkpoint while epochs are left.

    Raises:
        StartError: not all ranks joined within `start_seconds`.
        DeviceError: the device does not exist, or cannot serve this rank.
        TrainError: a session is open already.
    """
    global _is_open, _current  # noqa: PLW0603 - there is one process group, so there is one session
    if _is_open:
        raise TrainError("a session is open already", "one `with session()` around the whole training is enough")
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # or the rank would exist twice
        raise TrainError(
            "session() was called in a spawned worker, which imports the script before it starts",
            'move the training below `if __name__ == "__main__":`, or start workers by fork',
        )
    who = identity()
    chosen = wrapping.choose_device(who, device)
    _limit_threads(who)
    group = Group(who)
    _is_open = True
    failure.retract(who)
    try:
        group.open(chosen, backend, start_seconds, timeout_seconds)
        os.environ.update(who.variables())
        if seed is not None:
            seed_everything(seed + who.rank)
        listener = StopListener(os.environ.get(names.STOP_FILE))
        run = Run(
            who,
            chosen,
            group,
            listener,
            seed=seed or 0,
            directory=_directory(directory),
            metrics_path=metrics.choose_path(metrics_file, os.environ, who.rank),
        )
        _current = run
        listener.listen()
        try:
            yield from _run_script(run, group, listener)
        finally:
            listener.close()
    finally:
        _is_open, _current = False, None
    if run.is_saved or run.has_left:
        fast_exit.skip_garbage_collection()
    if run.is_saved:
        raise SystemExit(names.EXIT_SAVED)
    if run.has_left:
        raise SystemExit(names.EXIT_LEFT)


def _run_script(run: Run, group: Group, listener: StopListener) -> Iterator[Run]:
    """Run the body of the `with` block. However it ends, the other ranks must not be left waiting."""
    try:
        yield run
    except SessionExit:
        pass
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            _fail(run, group, listener, leaving)
            raise
        if not run.is_saved and not run.has_left:
            _finish(run, group, listener)
            raise
    except BaseException as error:
        _tell(run, error)
        _fail(run, group, listener, error)
        raise
    if run.has_left and run.is_main:
        print(_UNSAVED, file=sys.stderr, flush=True)
    _finish(run, group, listener)


def _fail(run: Run, group: Group, listener: StopListener, error: BaseException) -> None:
    """Leave because of `error`. Report first: the others fail as soon as this rank closes its connections."""
    at = time.monotonic()
    listener.ignore()
    failure.report(error, run.identity, at, group.count_failure())
    with contextlib.suppress(Exception):  # the first error is the one to report
        run.close(FAILED_SECONDS)
    group.close(failed=True)


def _finish(run: Run, group: Group, listener: StopListener) -> None:
    try:
        run.close()
        group.close(failed=False)
    except BaseException as error:
        _fail(run, group, listener, error)
        raise


def _tell(run: Run, error: BaseException) -> None:
    who = f"rank {run.rank} of {run.world_size} on {socket.gethostname()}"
    print(f"serried: {who} leaves with {type(error).__name__}", file=sys.stderr, flush=True)


def _directory(asked: Union[str, Path, None]) -> Optional[Path]:
    # One folder for all nodes: the watched folder on a node's disk is for programs that save without this library.
    given = os.environ.get(names.KEPT_DIR) or os.environ.get(names.CHECKPOINT_DIR)
    # The two runs of a resume check must not share a folder that the script names.
    told = given or asked if os.environ.get(names.REHEARSAL) else asked or given
    return Path(told).absolute() if told else None  # a script may change its working directory


def _limit_threads(who: Identity) -> None:
    count = network.threads(who, os.environ)
    if count:
        os.environ["OMP_NUM_THREADS"] = str(count)
        torch.set_num_threads(count)


def seed_everything(seed: int) -> None:
    """Seed Python's and torch's generators, and numpy's if it is loaded."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
