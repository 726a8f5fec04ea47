"""`with session() as run:` finds out who this process is, takes a device, meets the other ranks, and leaves cleanly."""

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
from serried.train.run import Left, Run
from serried.train.stopping import Ear

START_SECONDS = 180.0
FAILED_SECONDS = 10.0
"""For a checkpoint to become whole while a failure is on its way out: ranks that are gone will not do their part."""

_UNSAVED = """\
serried: asked to stop, and leaving with nothing saved for it (exit status 143)
serried: hint: if your script has saved all, say so: `run.saved_for_stop(step)`"""

_is_open = False
_current: Optional[Run] = None


def current() -> Optional[Run]:
    """The session that is open, if any."""
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
    """Everything a rank needs around its training; in plain `python train.py` too.

    device: where to train; by default this rank's GPU, else the CPU.
    backend: how ranks talk; by default nccl for GPUs and gloo for the CPU.
    seed: rank r's random numbers start from `seed + r`; None leaves them alone.
    directory: where checkpoints go; by default where Serried says.
    metrics_file: where `run.log` writes; by default beside the rank's log where Serried started it, else nowhere.
    start_seconds: how long the ranks wait for one another at the start.
    timeout_seconds: how long one may wait for another later; by default as long as torch thinks right.

    Ends with exit code 85 when the ranks were asked to stop and have saved, and with 143 when they leave because they
    were asked, with nothing saved and epochs left.
    """
    global _is_open, _current  # noqa: PLW0603 - there is one process group, so there is one session
    if _is_open:
        raise TrainError("a session is open already", "one `with session()` around the whole training is enough")
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # or the rank would be there twice
        raise TrainError(
            "this is no rank but a worker, which imports the script before it begins, and so came to its session",
            'put what the script does below `if __name__ == "__main__":`, or start workers by fork',
        )
    who = identity()
    chosen = wrapping.choose_device(who, device)
    _share_cpus(who)
    group = Group(who)
    _is_open = True
    failure.take_back(who)
    try:
        group.open(chosen, backend, start_seconds, timeout_seconds)
        os.environ.update(who.variables())
        if seed is not None:
            seed_everything(seed + who.rank)
        ear = Ear(os.environ.get(names.STOP_FILE))
        run = Run(
            who,
            chosen,
            group,
            ear,
            seed=seed or 0,
            directory=_directory(directory),
            metrics_path=metrics.choose_path(metrics_file, os.environ, who.rank),
        )
        _current = run
        ear.listen()
        try:
            yield from _lead(run, group, ear)
        finally:
            ear.close()
    finally:
        _is_open, _current = False, None
    if run.is_saved or run.has_left:
        fast_exit.hurry()
    if run.is_saved:
        raise SystemExit(names.EXIT_SAVED)
    if run.has_left:
        raise SystemExit(names.EXIT_LEFT)


def _lead(run: Run, group: Group, ear: Ear) -> Iterator[Run]:
    """The script's part; whatever way it leaves, the others must not be left waiting."""
    try:
        yield run
    except Left:
        pass
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            _fail(run, group, ear, leaving)
            raise
        if not run.is_saved and not run.has_left:
            _finish(run, group, ear)
            raise
    except BaseException as error:
        _tell(run, error)
        _fail(run, group, ear, error)
        raise
    if run.has_left and run.is_main:
        print(_UNSAVED, file=sys.stderr, flush=True)
    _finish(run, group, ear)


def _fail(run: Run, group: Group, ear: Ear, error: BaseException) -> None:
    """Leave because of `error`. It is said first: the others fail as soon as this rank closes its connections."""
    at = time.monotonic()
    ear.ignore()
    failure.say(error, run.identity, at, group.count_failure())
    with contextlib.suppress(Exception):  # the first error is the one to be told
        run.close(FAILED_SECONDS)
    group.close(failed=True)


def _finish(run: Run, group: Group, ear: Ear) -> None:
    try:
        run.close()
        group.close(failed=False)
    except BaseException as error:
        _fail(run, group, ear, error)
        raise


def _tell(run: Run, error: BaseException) -> None:
    who = f"rank {run.rank} of {run.world_size} on {socket.gethostname()}"
    print(f"serried: {who} leaves with {type(error).__name__}", file=sys.stderr, flush=True)


def _directory(asked: Union[str, Path, None]) -> Optional[Path]:
    # One folder for all nodes: what is watched on a node's own disk is for programs that do not save by this library.
    given = os.environ.get(names.KEPT_DIR) or os.environ.get(names.CHECKPOINT_DIR)
    # Two runs of one rehearsal must not meet in a folder that the script has named.
    told = given or asked if os.environ.get(names.REHEARSAL) else asked or given
    return Path(told).absolute() if told else None  # a script may go elsewhere meanwhile


def _share_cpus(who: Identity) -> None:
    count = network.threads(who, os.environ)
    if count:
        os.environ["OMP_NUM_THREADS"] = str(count)
        torch.set_num_threads(count)


def seed_everything(seed: int) -> None:
    """Python's, torch's and, where it is loaded, numpy's random numbers."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
