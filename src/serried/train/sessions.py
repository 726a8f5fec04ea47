"""`with session() as run:` identifies this rank, chooses a device, joins the other ranks, and ends them cleanly."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Generator, Iterator, List, Optional, Union

import torch

from serried.base import startup
from serried.schema import failure_report, names
from serried.train import metrics
from serried.train.errors import TrainError
from serried.train.group import Group
from serried.train.identities import Identity, identity, threads
from serried.train.parallel import choose_device
from serried.train.run import Session, SessionExit
from serried.train.stopping import StopListener

START_SECONDS = 180.0
FAILED_SECONDS = 10.0
"""How long a failing rank waits for its checkpoint to complete: ranks that have exited cannot write their part."""

LONGEST_ERROR = 300

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)

_UNSAVED = """\
serried: stop requested; exiting without a checkpoint (exit status 143)
serried: hint: if your script saves by itself, call `run.saved_for_stop(step)`"""

_UNCLOSED = """\
serried: %s did not close its session
serried: hint: use `with st.session() as run:`"""

_is_open = False
_current: Optional[Session] = None


def current() -> Optional[Session]:
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
) -> Iterator[Session]:
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
    startup.install()  # another `sitecustomize` may come first on the path
    who = identity()
    chosen = choose_device(who, device)
    thread_count = threads(who, os.environ)
    if thread_count:
        os.environ["OMP_NUM_THREADS"] = str(thread_count)
        torch.set_num_threads(thread_count)
    group = Group(who)
    _is_open = True
    _in_failure_report(failure_report.begin_retry, who)
    try:
        group.open(chosen, backend, start_seconds, timeout_seconds)
        os.environ.update(who.variables())
        if seed is not None:
            seed_everything(seed + who.rank)
        listener = StopListener(os.environ.get(names.STOP_FILE))
        # One folder for all nodes: the watched folder on a node's disk is for programs that save without this library.
        given = os.environ.get(names.KEPT_DIR) or os.environ.get(names.CHECKPOINT_DIR)
        # The two runs of a resume check must not share a folder that the script names.
        folder = given or directory if os.environ.get(names.REHEARSAL) else directory or given
        run = Session(
            who,
            chosen,
            group,
            listener,
            seed=seed or 0,
            directory=Path(folder).absolute() if folder else None,  # a script may change its working directory
            metrics_path=metrics.choose_path(metrics_file, os.environ, who.rank),
        )
        _current = run
        if os.environ.get(names.PROFILE):
            importlib.import_module("serried.train.profile")  # begins to count steps
        listener.listen()
        group.watch(functools.partial(_end_waiting, run, group, listener))
        script = _run_script(run, group, listener)
        atexit.register(script.close)  # does nothing if it is closed: later, Python has no modules any more
        yield from script
    finally:
        _is_open, _current = False, None
    if run._is_saved or run._has_left:
        atexit.register(_flush_and_freeze)
        raise SystemExit(names.EXIT_SAVED if run._is_saved else names.EXIT_LEFT)


def _run_script(run: Session, group: Group, listener: StopListener) -> Generator[Session, None, None]:
    """Run the body of the `with` block. However it ends, the other ranks must not be left waiting.

    A forked child that leaves the block neither reports nor closes anything, because its parent is the rank.
    """
    rank_pid = os.getpid()
    try:
        try:
            yield run
        except GeneratorExit:  # never closed, and Python ends: leave all as it is
            if os.getpid() == rank_pid:
                group.end_watch()
                print(_UNCLOSED % _place(run), file=sys.stderr, flush=True)
            raise
        except BaseException as error:
            if os.getpid() != rank_pid or not _leaves_early(run, group, listener, error):
                raise
        if os.getpid() == rank_pid:
            if run._has_left and run.is_main:
                print(_UNSAVED, file=sys.stderr, flush=True)
            _finish(run, group, listener)
    finally:
        listener.close()


def _leaves_early(run: Session, group: Group, listener: StopListener, error: BaseException) -> bool:
    """Whether `error` leaves the block only because of a stop request. Any other has ended the session on return."""
    if isinstance(error, SessionExit):
        return True
    if isinstance(error, SystemExit) and error.code in (None, 0):
        if run._is_saved or run._has_left:
            return True
        _finish(run, group, listener)
        return False
    if not isinstance(error, SystemExit):
        _announce(run, error)
    _fail(run, group, listener, error)
    return False


def _place(run: Session) -> str:
    return f"rank {run.rank} of {run.world_size} on {socket.gethostname()}"


def _announce(run: Session, error: BaseException) -> None:
    print(f"serried: {_place(run)} leaves with {type(error).__name__}", file=sys.stderr, flush=True)


def _end_waiting(run: Session, group: Group, listener: StopListener, error: TrainError, frame: FrameType) -> None:
    """End this rank from another thread: its main thread waits, in `frame`, for a rank that has left the session."""
    _announce(run, error)
    stack = ["Traceback (most recent call last):\n", *traceback.format_stack(frame)]
    print("".join([*stack, *traceback.format_exception_only(type(error), error)]), end="", file=sys.stderr, flush=True)
    _report_and_close(run, group, listener, error)
    with contextlib.suppress(OSError, ValueError):  # the reader is gone
        sys.stdout.flush()
    os._exit(1)


def _fail(run: Session, group: Group, listener: StopListener, error: BaseException) -> None:
    """Leave because of `error`. Report first: the others fail as soon as this rank closes its connections."""
    _report_and_close(run, group, listener, error)
    group.close(failed=True)


def _report_and_close(run: Session, group: Group, listener: StopListener, error: BaseException) -> None:
    at = time.monotonic()
    listener.ignore()
    _report(error, run.identity, at, group.count_failure())
    with contextlib.suppress(Exception):  # the first error is the one to report
        run._close(FAILED_SECONDS, has_failed=True)


def _finish(run: Session, group: Group, listener: StopListener) -> None:
    try:
        run._close()
        group.close(failed=False)
    except BaseException as error:
        _fail(run, group, listener, error)
        raise
    # Delete the report of an earlier failure: this session, which came after it, has ended well.
    _in_failure_report(failure_report.retract, run.identity)


def _report(error: BaseException, who: Identity, at: float, order: Optional[int]) -> None:
    """Report to the agent that `error` ends this rank. Does nothing if no agent started the rank."""
    if any(each.__name__ == "TrialPruned" for each in type(error).__mro__):  # Optuna's study catches it
        return
    code: Optional[int] = 1
    number = None
    if isinstance(error, KeyboardInterrupt):
        code, number = None, int(signal.SIGINT)
    elif isinstance(error, SystemExit) and isinstance(error.code, int):
        code = error.code & 0xFF
    chain: List[BaseException] = []
    cause: Optional[BaseException] = error
    while cause is not None and all(cause is not each for each in chain):  # by identity: `==` may be the user's
        chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    # Lines of source come before the line with the message, notes after it.
    printed = [traceback.format_exception_only(type(each), each) for each in chain]
    lines = [next(line for line in each if line[0] != " ").partition("\n")[0] for each in printed]
    lost_peer = failure_report.comes_from_a_lost_peer(lines)
    report = failure_report.FailureReport(who.world_size, at, code, number, lines[0][:LONGEST_ERROR], lost_peer, order)
    _in_failure_report(failure_report.write, who, report)


def _in_failure_report(change: Callable[..., object], who: Identity, *report: failure_report.FailureReport) -> None:
    path = os.environ.get(names.FAILURE_REPORT)
    if path:
        with contextlib.suppress(OSError):
            change(path, who.rank, *report)


def _flush_and_freeze() -> None:
    """Skip the final garbage collections: between a scheduler's TERM and its KILL each second counts.

    Python ends with several collections over all objects of torch. They take half a second, and several seconds on a
    node where all ranks exit at once. An exiting process needs none of them, except that open files must be flushed.
    """
    for obj in gc.get_objects():
        if type(obj) in _BUFFERED:  # not `isinstance`: proxies answer it with code of their own
            with contextlib.suppress(OSError, ValueError):  # full, or closed
                obj.flush()
    gc.freeze()


def seed_everything(seed: int) -> None:
    """Seed Python's and torch's generators, and numpy's if it is loaded."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
